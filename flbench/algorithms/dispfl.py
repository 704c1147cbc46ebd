"""DisPFL: sparse personal models, averaged where their masks overlap (Dai et al., ICML 2022)."""

from collections.abc import Callable
from dataclasses import replace

import torch
from pydantic import Field
from torch import Tensor

import flbench.algorithms as fl
from flbench.algorithms.shared import sparse
from flbench.algorithms.shared.gossip import LOCAL, Gossip
from flbench.algorithms.shared.mixing import mix_overlap
from flbench.algorithms.shared.second import Second
from flbench.algorithms.shared.sparse import MASK, TRAINED
from flbench.algorithms.shared.topology import GossipConfig


@fl.ALGORITHMS.register("dispfl")
class DisPFL(Gossip):
    """Clients train sparse models and average entries with the neighbours that have them too.

    Client i in each round (Algorithms 1 and 2):

        E epochs on the weights m_i w_i, with m_i fixed
        n_i <- m_i, pruned by |w_i| and regrown by the gradient with respect to all entries
        w_i <- n_i (sum_j w_ij w_j) / (sum_j w_ij m_j)      over the neighbours j and i itself
        m_i <- n_i

    `sparse.Search` makes the new mask n_i. The denominator has the masks under which the weights
    were trained: an entry that a neighbour has just pruned still counts with its trained value, and
    an entry that has just entered a mask does not count as a zero. Where no client of the sum has
    trained an entry, it is zero. The trained model is evaluated with m_i (`personal@local`, and
    with `after_training`, as its authors do), the mixed model with n_i. Layers have the densities
    of `sparse.erk`; norms, biases and statistics are dense and mixed by means. A client sends m_i
    and the entries inside it to each neighbour, and keeps the mixed weights and n_i, which masks
    them at the beginning of the client's next round and in evaluations.

    Deviations: neighbours may have different weights (`mixing`; equal weights are the paper's
    formula). The gradient for new entries is taken in eval mode, on `train.batch_size` samples
    drawn in each round, as in the authors' code. The denominator follows that code too, and so does
    the choice of new entries, which includes those that were just pruned; with density 1 the method
    is DFedAvg. Each client begins with a random mask of its own. The masks that travel are charged,
    one bit for each masked weight of a message; the authors' numbers leave them out.
    """

    class Config(GossipConfig):
        """Keys of DisPFL."""

        density: float = Field(
            0.5,
            gt=0,
            le=1,
            description="share of the entries of all masked weights that are inside the mask",
        )
        drop_rate: float = Field(
            0.5,
            ge=0,
            le=1,
            description="share of a layer's mask that is replaced in the first round; it falls to 0"
            " along a cosine",
        )

    config: Config
    paper = fl.Paper(
        "DisPFL: Towards Communication-Efficient Personalized Federated Learning via Decentralized"
        " Sparse Training",
        "Dai, Shen, He, Tian, Tao",
        "ICML 2022",
    )
    communication = fl.Communication(
        down="the entries inside each neighbour's mask, and the mask",
        up="the entries inside its mask, and the mask, to each neighbour",
        keeps="w and masks",
    )
    needs = (*Gossip.needs, sparse.MASKABLE)

    def masked(self) -> tuple[str, ...]:
        """Return the names of the leaves that have masks."""
        return sparse.maskable(self.setting.net)

    @property
    def masks(self) -> Second:
        """The mask of each leaf that has one."""
        return Second(MASK, self.masked())

    def init(self, start: fl.Tree) -> tuple[fl.Tree, fl.Tree]:
        _, clients = super().init(start)
        weights, c = fl.only(start, self.masked()), self.config
        masks = sparse.start_masks(weights, c.density, self.setting.seed, self.setting.clients)
        # Weights, and their copies from before mixing where there are any, are 0 outside the masks.
        for name, mask in masks.items():
            for copy in (name, LOCAL + name):
                if copy in clients:
                    clients[copy] = clients[copy] * mask
        return {}, clients | self.masks.start(masks)

    def split(self) -> tuple[frozenset[str], frozenset[str]]:
        keeps, mixed = super().split()
        return keeps | self.masks.leaves, mixed

    def steps(self) -> tuple[fl.Step, ...]:
        # The masks that travel are those of the training; `search` replaces them.
        names = self.masked()
        masks, weights = tuple(MASK + name for name in names), fl.bind(sparse.inside, names)
        return (
            fl.Transform(fl.bind(kept, names)),
            self.phase(*self.terms(), weights=weights),
            Second(TRAINED, masks).copy(),
            fl.Transform(fl.bind(pack, masks)),
            *sparse.search(names, weights, self.config.drop_rate, self.setting),
        )

    def program(self, state: fl.State) -> fl.LocalProgram:
        program = super().program(state)
        return replace(
            program,
            sends=program.sends | {"bits"},
            masks=tuple((name, TRAINED + MASK + name) for name in self.masked()),
        )

    def called(self) -> Callable[[fl.Context], fl.Tree] | None:
        return None if self.config.after_training else fl.bind(mixed_inside, self.masked())

    def mixed(self, sent: fl.Message, links: Tensor) -> fl.Tree:
        dense = {
            name: value
            for name, value in sent.values.items()
            if name not in sent.mask and name != "bits"
        }
        masked = fl.only(sent.values, sent.mask)
        return super().mixed(fl.Message(dense), links) | mix_overlap(masked, sent.mask, links)


def kept(context: fl.Context, names: tuple[str, ...]) -> fl.Tree:
    """Return weights, of which the entries outside their masks become zero."""
    leaves = {name: context.leaves[name] for name in names}
    # Zeros stay as they are, also those with a sign.
    stays = {name: context.leaves[MASK + name] | (leaf == 0) for name, leaf in leaves.items()}
    return {name: torch.where(stays[name], leaf, 0.0) for name, leaf in leaves.items()}


def mixed_inside(context: fl.Context, names: tuple[str, ...]) -> fl.Tree:
    """Return the weights of a mixed model inside n_i; right after training those inside m_i."""
    is_trained = TRAINED + MASK + names[0] in context.leaves
    return {} if is_trained else kept(context, names)


def pack(context: fl.Context, masks: tuple[str, ...]) -> fl.Tree:
    """Write all masks as packed bits into the leaf `bits` [ceil(n / 8)] uint8, for n entries."""
    return {"bits": sparse.packed([context.leaves[name] for name in masks])}
