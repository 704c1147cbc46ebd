"""Local programs: what one client does in a round, as data that every engine can run.

All callables of a program get a `Context`, and are module-level functions or frozen dataclasses.
They are picklable, because they are sent to worker processes; pure; and usable under `torch.vmap`.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from typing import Any, Literal, Protocol, runtime_checkable

from torch import Tensor

from flbench.config.schema import OptimizerConfig
from flbench.core.errors import UnknownNameError, did_you_mean
from flbench.core.types import Batch, Context, Outputs, Samples, Tree

Reduce = Literal["sum", "min", "max", "rows"]


class LossTerm(Protocol):
    """A term of the local loss: a pure function of a Context.

    The local loss is the sum of all terms, each multiplied by its `weight`. Implementations are
    frozen dataclasses that work under `torch.vmap`: they use masks and fixed shapes, and neither
    boolean indexing, `.item()`, `if` on a tensor, nor `F.one_hot`. A class that is missing from the
    batch contributes zero, never NaN, and so does a row where `batch.mask` is False.

    A term that reads parameters alone (`leaves`, `start`, `ctx`) and not what the net computes may
    have the attribute `of_parameters = True`. It can then be added to the loss of any
    LightningModule of the user, also of one whose head is not known.
    """

    @property
    def weight(self) -> float | str:
        """Factor of the term: a number, or the name of a 0-dim ctx entry."""

    def __call__(self, context: Context) -> Tensor:
        """Return the value of the term in this step, 0-dim."""


@runtime_checkable
class CrossEntropyTerm(LossTerm, Protocol):
    """The cross entropy of a method's local loss, which `train.terms` adds to or replaces."""

    def outputs(self, context: Context) -> Outputs:
        """Return what the cross entropy is computed from: features [B, D] and logits [B, C]."""


GradFn = Callable[[Tree, Batch], Tree]
"""(parameters, batch) -> gradient of the phase's loss at these parameters, under their names."""

GradientHook = Callable[[Context, GradFn], Tree]
"""(context, grad) -> the gradient that the optimizer gets, for each leaf of `context.trained`."""


@dataclass(frozen=True)
class Statistic:
    """A pass over samples in eval mode without gradients.

    Its results become ctx entries with the names `NAME.KEY`.

    Attributes:
        name: Prefix of the ctx entries.
        fn: Context -> tensors of one batch, by key. Rows where `batch.mask` is False are
            padding and must not count.
        reduce: How the tensors of two batches become one: `sum`, `min` or `max` element by
            element; `rows` concatenates tensors [B, ...] along their first axis. One value for all
            keys, or (key, value) pairs. Where clients are stacked, floating-point `rows` of a
            client with fewer samples than others end with padding: what `fn` returns where
            `batch.mask` is False, and NaN.
        finish: (context, reduced tensors) -> result; None takes the reduced tensors.
        samples: Which samples of the client are read.
        stacked: Whether an engine that runs one client after the other may stack clients for this
            Statistic. Its results are then the same up to rounding.
    """

    name: str
    fn: Callable[[Context], Tree]
    reduce: Reduce | tuple[tuple[str, Reduce], ...] = "sum"
    finish: Callable[[Context, Tree], Tree] | None = None
    samples: Samples = Samples()
    stacked: bool = False

    def reduction(self, key: str) -> Reduce:
        """Return how the tensors of one key are reduced.

        Raises:
            UnknownNameError: `reduce` has pairs, none of which is for the key.
        """
        if isinstance(self.reduce, str):
            return self.reduce
        pairs = dict(self.reduce)
        if key not in pairs:
            raise UnknownNameError(
                f"`reduce` of the Statistic `{self.name}` has no pair for its key `{key}`."
            )
        return pairs[key]


@dataclass(frozen=True)
class Transform:
    """A step without samples.

    Attributes:
        fn: context -> the leaves that change or are added.
    """

    fn: Callable[[Context], Tree]


@dataclass(frozen=True)
class Phase:
    """A part of the local training with a new optimizer of its own.

    The training loss that is logged is the mean over the optimizer steps of all phases of a round.

    Attributes:
        train: The leaves that are trained: a pattern (`*`, `backbone.*`) or a set of names.
            Buffers are never trained.
        terms: The terms of the loss, at least one.
        optimizer: The configuration of the optimizer.
        epochs: Passes over the samples, or None if `steps` is given.
        steps: Optimizer steps, or None if `epochs` is given.
        clip: Largest Euclidean norm of the gradient; None does not clip. It is one norm over all
            leaves that the phase trains, also those of a second model.
        weights: context -> parameters and buffers that the net is called with in place of the
            leaves of these names: masked ones, those of a second model, or those that a
            hypernetwork generates.
        gradient: Gradient hook: (context, grad) -> the gradient that the optimizer gets. None takes
            the gradient of the loss. Each call of `grad` runs the net once, and BatchNorm in
            training mode updates its statistics each time.
        project: context -> new values of `context.trained`, after each optimizer step.
        until: (context, mean loss of each epoch [epochs], number of epochs done []) -> bool []; it
            is called before each epoch, and True ends the phase. The loss of later epochs is NaN.
        record: Statistics over the training batches, on the leaves before each optimizer step. For
            a client without a step they are computed on one padded row. They do not concatenate
            rows, and are not together with `gradient`.
        batchnorm: `train` updates the running statistics of BatchNorm; `eval` uses them unchanged.
        samples: Which samples of the client are read.
        by_module: Whether `configure_optimizers` of the user's LightningModule makes the optimizer,
            instead of `optimizer`. Methods leave it as it is: it is set if a phase takes
            `train.optimizer`.

    Raises:
        ValueError: Both or neither of `epochs` and `steps` are given, or both `record` and
            `gradient`.
    """

    train: str | frozenset[str]
    terms: tuple[LossTerm, ...]
    optimizer: OptimizerConfig
    epochs: int | None = None
    steps: int | None = None
    clip: float | None = None
    weights: Callable[[Context], Tree] | None = None
    gradient: GradientHook | None = None
    project: Callable[[Context], Tree] | None = None
    until: Callable[[Context, Tensor, Tensor], Tensor] | None = None
    record: tuple[Statistic, ...] = ()
    batchnorm: Literal["train", "eval"] = "train"
    samples: Samples = Samples()
    by_module: bool = False

    def __post_init__(self) -> None:
        if (self.epochs is None) == (self.steps is None):
            raise ValueError(
                f"a Phase needs either epochs or steps, got {self.epochs} and {self.steps}"
            )
        if self.record and self.gradient is not None:
            raise ValueError(
                "a Phase with a `gradient` hook cannot `record` Statistics: the hook may evaluate"
                " several batches. Compute them in a Statistic before or after the phase."
            )

    def trains(self, name: str) -> bool:
        """Return whether a leaf of this name is trained, provided that it is not a buffer."""
        return fnmatchcase(name, self.train) if isinstance(self.train, str) else name in self.train


Step = Phase | Statistic | Transform


@dataclass(frozen=True)
class LocalProgram:
    """What one client does in a round. Programs of one stage are equal from round to round.

    Attributes:
        steps: Phases, Statistics and Transforms, in order.
        keeps: Names of the leaves that the client keeps until its next round.
        sends: Names of the leaves that are sent to the server. A leaf that is kept and sent is
            stored once, and the server can read it.
        masks: Pairs (name of a sent leaf, name of a bool leaf): only the entries where the second
            is True are sent and counted. A leaf that is kept too is stored as it was sent: zero
            outside its mask.

    Raises:
        UnknownNameError: A mask belongs to a leaf that is not sent.
    """

    steps: tuple[Step, ...]
    keeps: frozenset[str] = frozenset()
    sends: frozenset[str] = frozenset()
    masks: tuple[tuple[str, str], ...] = ()

    def __post_init__(self) -> None:
        for name, mask in self.masks:
            if name not in self.sends:
                raise UnknownNameError(
                    f"`masks` of the local program has the pair (`{name}`, `{mask}`), but `{name}`"
                    f" is not sent.{did_you_mean(name, self.sends)} Add it to `sends`."
                )


@dataclass(frozen=True)
class Bound:
    """A function and its last arguments; two are equal if their parts are.

    Attributes:
        function: A function of a module, which workers find by its name.
        arguments: The last arguments of each call.
    """

    function: Callable[..., Any]
    arguments: tuple[Any, ...]

    def __call__(self, *given: Any) -> Any:
        """Return what the function returns for the given arguments and the last ones."""
        return self.function(*given, *self.arguments)


def bind(function: Callable[..., Any], *arguments: Any) -> Bound:
    """Return a function whose last arguments are fixed, to be a callable of a local program.

    In contrast to a closure it can be sent to other processes. Two of them with equal functions and
    arguments are equal, which two `functools.partial` are not, so that engines can tell that the
    programs of two rounds are the same.

    >>> def scaled(context, factor):
    ...     return {name: factor * value for name, value in context.leaves.items()}
    >>> bind(scaled, 0.5) == bind(scaled, 0.5)
    True
    """
    return Bound(function, arguments)


@dataclass(frozen=True)
class Term:
    """A loss term that is a function of a context.

    Attributes:
        weight: Factor of the term: a number, or the name of a 0-dim ctx entry.
        function: context -> the value of the term, 0-dim; see `LossTerm`.
        of_parameters: Whether it reads parameters alone; see `LossTerm`.
    """

    weight: float | str
    function: Callable[[Context], Tensor]
    of_parameters: bool = False

    def __call__(self, context: Context) -> Tensor:
        """Return the value of the term in this step, 0-dim, without its weight."""
        return self.function(context)


def most_epochs(phase: Phase) -> int:
    """Return an upper bound of a phase's epochs: an epoch takes at least one step."""
    return phase.epochs if phase.epochs is not None else phase.steps or 0


def shortened(program: LocalProgram, steps: int) -> LocalProgram:
    """Return a program with this many optimizer steps in each phase, to measure their cost."""
    short = (
        replace(step, epochs=None, steps=steps, until=None) if isinstance(step, Phase) else step
        for step in program.steps
    )
    return replace(program, steps=tuple(short))
