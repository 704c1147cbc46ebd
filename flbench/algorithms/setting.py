"""What a method may know of the experiment, and what it needs of it.

A method names its needs in the class attribute `needs`, and they are checked before the first
round. What only one method asks for stands in its hook `requires`.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, Self

from torch import Tensor
from torch.nn.functional import linear

from flbench.config.schema import TrainConfig
from flbench.core.types import Tree
from flbench.models.base import NetSpec

MOST_PAIRED: Final = 20_000
"""Largest number of clients for whose pairs methods store numbers, which take 3.2 GB of memory for
each matrix of float64."""
MOST_SHOWN: Final = 1_000
"""Largest number of clients for whose pairs a method makes a table of a report."""


@dataclass(frozen=True)
class Setting:
    """What a method may know of the experiment.

    Attributes:
        seed: Seed of the run.
        rounds: Number of communication rounds T, set-up stages not counted.
        train: Configuration of local training, `train.*`, which all methods share.
        clients: Number of clients N.
        sizes: [N] int64, the number of training samples of each client.
        classes: Number of classes C.
        net: Names of the net's parameters and buffers by role, its layers, its feature width D.
        model: Registered name of the net, `model.name`, for notes.
        own_optimizer: Whether a LightningModule of the user makes the optimizer. Then the learning
            rate is not known, and `train.optimizer` has no effect.
    """

    seed: int
    rounds: int
    train: TrainConfig
    clients: int
    sizes: Tensor
    classes: int
    net: NetSpec
    model: str
    own_optimizer: bool = False


@dataclass(frozen=True)
class Need:
    """A condition on a setting.

    Attributes:
        title: What the method needs, as in "it needs TITLE".
        is_met: Setting -> whether it is met.
        cure: What to change if it is not, a sentence with the key.
        example: Overrides with which the default net meets it, if it does not do so without.
    """

    title: str
    is_met: Callable[[Setting], bool]
    cure: str
    example: tuple[str, ...] = ()

    @property
    def sentence(self) -> str:
        """What a user reads whose setting does not meet the need."""
        return f"it needs {self.title}. {self.cure}"


@dataclass(frozen=True)
class LinearHead:
    """The head of a net as a function of leaves and features.

    Attributes:
        names: Names of its parameters: the weight [C, D], and the bias [C] if there is one.
    """

    names: tuple[str, ...]

    @classmethod
    def of(cls, net: NetSpec) -> Self:
        """Return the head of a net that meets `LINEAR_HEAD`."""
        head = net.names("head")
        return cls(tuple(name for name in net.parameters if name in head))

    @property
    def weight(self) -> str:
        """Name of the weight."""
        return self.names[0]

    def __call__(self, leaves: Tree, features: Tensor, prefix: str = "") -> Tensor:
        """Return the logits [B, C] of features [B, D].

        Args:
            leaves: Tensors with the head's parameters.
            features: What the head is called on.
            prefix: Prefix of the names, for a second head.
        """
        return linear(features, *(leaves[prefix + name] for name in self.names))


def _has_linear_head(setting: Setting) -> bool:
    head = setting.net.names("head")
    return [one.kind for one in setting.net.layers if head & {*one.leaves}] == ["linear"]


LINEAR_HEAD: Final = Need(
    "a net whose head is one linear layer (`model.name`, `model.head`)",
    _has_linear_head,
    "Choose another net, or name the layer in `model.head`.",
)
BODY: Final = Need(
    "a net with trained layers below its head (`model.name`, `model.freeze`)",
    lambda setting: not setting.net.names("head").issuperset(setting.net.parameters),
    "Choose another net, such as model.name=lenet5.",
)
PLAIN_SGD: Final = Need(
    "SGD without momentum, whose steps are gradients times the learning rate",
    lambda setting: setting.train.optimizer.name == "sgd" and not setting.train.optimizer.momentum,
    "Set train.optimizer.name=sgd and train.optimizer.momentum=0.",
)
KNOWN_RATE: Final = Need(
    "the learning rate `train.optimizer.lr`, which a LightningModule with an optimizer of its own"
    " replaces",
    lambda setting: not setting.own_optimizer,
    "Leave out its `configure_optimizers`, or take another method, such as fedavg or ditto.",
)
ADAPTERS: Final = Need(
    "a net with low-rank adapters",
    lambda setting: bool(setting.net.adapters),
    "Set their rank, for example `model.lora.rank=8`.",
    ("model.lora.rank=8",),
)
PAIRS: Final = Need(
    f"numbers for all pairs of clients, of which there are at most {MOST_PAIRED:,}"
    " (`partition.clients`)",
    lambda setting: setting.clients <= MOST_PAIRED,
    "Choose fewer clients.",
)
PAIRS_OF_COHORT: Final = Need(
    f"numbers for all pairs of clients of a round, which has at most {MOST_PAIRED:,}"
    " (`partition.clients`, `train.participation`)",
    lambda setting: setting.clients * setting.train.participation < MOST_PAIRED + 0.5,
    "Choose fewer clients, or fewer in a round.",
)
