"""DisPFL: personal sparse models, averaged where masks overlap (Dai et al., ICML 2022)."""

from dataclasses import dataclass, replace
from typing import ClassVar, Literal

from pydantic import Field
from torch import Tensor

from flbench.algorithms.base import Communication, Paper
from flbench.algorithms.registry import ALGORITHMS
from flbench.algorithms.shared import sparse
from flbench.algorithms.shared.gossip import LOCAL, Gossip, GossipConfig
from flbench.algorithms.shared.mixing import mix_overlap
from flbench.algorithms.shared.sparse import MASK, Called, Masked
from flbench.client.program import LocalProgram, Statistic, Step, Transform
from flbench.config.schema import AlgorithmConfig
from flbench.core.tree import only
from flbench.core.types import Info, Message, Samples, State, Tree


class DisPFLConfig(GossipConfig):
    """Keys of DisPFL."""

    density: float = Field(
        0.5, gt=0, le=1, description="share of weights that are not zero, over all masked layers"
    )
    drop_rate: float = Field(
        0.5,
        ge=0,
        le=1,
        description="share of a layer's weights that leave its mask in the first"
        " round; it falls to 0 as a cosine",
    )
    regrow: Literal["gradient", "random"] = Field(
        "gradient", description="what comes in: entries of largest gradient of a batch, or any"
    )
    start_masks: Literal["own", "common"] = Field(
        "own", description="each client begins with random masks of its own, or all with the same"
    )
    charge_masks: bool = Field(
        False, description="also count a bit per masked weight for each message"
    )


@ALGORITHMS.register("dispfl")
class DisPFL(Gossip):
    """w_i <- m_i (sum_j w_ij w_j) / (sum_j w_ij m_j) over the neighbours j and i itself.

    Source: Algorithms 1 and 2. Local: E epochs at m_i w, then mask search (`sparse.Search`). The
    new mask counts from the next mixing on: the trained model is evaluated under the old one
    (`personal@local`, and with `after_training`, as its authors do), the mixed one under the new.
    Layers get the densities of `sparse.erk`; norms, biases and statistics are dense.

    Deviations: neighbours may weigh differently (`mixing`; equal weights are the paper's formula);
    the gradient for regrowing is taken in eval mode, over `train.batch_size` samples drawn in the
    round; k is at most what is outside the mask, so density 1 is DFedAvg. Masks are not charged,
    as the authors count (see `charge_masks`). With `hypernetwork` it is DisPFL+HP.
    """

    Config: ClassVar[type[AlgorithmConfig]] = DisPFLConfig
    config: DisPFLConfig
    paper = Paper(
        "DisPFL: Towards Communication-Efficient Personalized Federated Learning via Decentralized"
        " Sparse Training",
        "Dai, Shen, He, Tian, Tao",
        "ICML 2022",
    )
    communication = Communication(
        "the non-zeros of each neighbour", "its non-zeros to each neighbour", "w and masks"
    )

    def masked(self) -> tuple[str, ...]:
        """Return the leaves that have masks."""
        names = sparse.maskable(self.setting.net)
        if self.generation is None:
            return names
        return tuple(name for name in names if name in self.generation.generated)

    def sends_sparse(self) -> bool:
        """Return whether what is mixed has masks."""
        return self.split()[1].issuperset(self.masked())

    def called(self) -> Masked:
        return Masked(self.masked(), super().called())

    def init(self, start: Tree) -> tuple[Tree, Tree]:
        _, clients = super().init(start)
        weights, c = only(self.leaves(start), self.masked()), self.config
        masks = sparse.start_masks(
            weights, c.density, self.setting.seed, self.setting.clients, own=c.start_masks == "own"
        )
        sparse_ = {
            copy + name: clients[copy + name] * mask
            for name, mask in masks.items()
            for copy in ("", LOCAL)
            if copy + name in clients
        }
        return {}, clients | sparse_ | {MASK + name: mask for name, mask in masks.items()}

    def split(self) -> tuple[frozenset[str], frozenset[str]]:
        keeps, mixed = super().split()
        return keeps | {MASK + name for name in self.masked()}, mixed

    def steps(self) -> tuple[Step, ...]:
        rows = Samples(limit=self.setting.train.batch_size, redraw="round")
        look = {
            "gradient": Statistic("dense", sparse.DenseGradient(self.called()), samples=rows),
            "random": Statistic("least", sparse.least_row, reduce="min"),
        }[self.config.regrow]
        c, setting = self.config, self.setting
        search = sparse.Search(self.called(), c.regrow, c.drop_rate, setting.rounds, setting.seed)
        pack = (Transform(Pack(self.masked())),) if c.charge_masks and self.sends_sparse() else ()
        return (*super().steps(), look, Transform(search), *pack)

    def program(self, state: State) -> LocalProgram:
        program = super().program(state)
        if not self.sends_sparse():
            return program
        bits = frozenset({"bits"} if self.config.charge_masks else ())
        masks = tuple((name, MASK + name) for name in self.masked())
        return replace(program, sends=program.sends | bits, masks=masks)

    def mixed(self, sent: Message, links: Tensor) -> Tree:
        dense = {n: v for n, v in sent.values.items() if n not in sent.mask and n != "bits"}
        sparse_ = only(sent.values, sent.mask)
        plain = super().mixed(Message(dense), links)
        return plain | mix_overlap(sparse_, sent.mask, links)

    def evaluated(self) -> Called:
        # Leaves that are mixed are zero where they must be; their mask is the next round's already.
        return super().called() if self.sends_sparse() else self.called()

    def notes(self) -> list[str]:
        said, same = super().notes(), "DFedAvg" if self.generation is None else "DFedHP"
        if self.config.density == 1:
            said.append(f"algorithm.density=1 leaves nothing to prune: this is {same}.")
        if self.config.charge_masks and not self.sends_sparse():
            said.append("algorithm.charge_masks has no effect: masks are not sent.")
        return said


@dataclass(frozen=True)
class Pack:
    """All masks as the bits that a message would hold."""

    names: tuple[str, ...]

    def __call__(self, leaves: Tree, start: Tree, ctx: Tree, info: Info) -> Tree:
        """Return the leaf `bits`."""
        return {"bits": sparse.packed([leaves[MASK + name] for name in self.names])}
