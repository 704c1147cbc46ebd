"""HFCD: prototypes, hard negatives and similarity distillation (Xu, 2025).

The paper exchanges prototypes, counts and similarities, and no weights. Its formulas are rebuilt
from the glyphs: where they are ambiguous the default is our reading, the others are options.
"""

from math import ceil, exp
from typing import ClassVar, Literal

import torch
from pydantic import Field
from torch import Tensor

from flbench.algorithms.base import Algorithm, Communication, Paper
from flbench.algorithms.registry import ALGORITHMS
from flbench.algorithms.shared import prototypes
from flbench.algorithms.shared.similarities import WriteSimilarity, mean_similarity
from flbench.algorithms.shared.simplex import simplex, softmax_among
from flbench.client.program import LocalProgram, LossTerm, Transform
from flbench.config.schema import AlgorithmConfig
from flbench.core.tree import only, repeat
from flbench.core.types import Dispatch, Message, Results, State, Tree, Update
from flbench.losses import CrossEntropy, PrototypeContrast, PrototypeDistillation, SemanticKL

# The weights of cross entropy, contrast and distillation; names are numbers of the dispatch.
FORMS: dict[str, tuple[float | str, float | str, str]] = {
    "nested": (1.0, "beta", "beta_lambda"),  # CE + beta (L_cont + lambda L_KD)
    "flat": ("beta", 1.0, "lambda"),  # L_cont + lambda L_KD + beta CE
    "separate": (1.0, "beta", "lambda"),  # CE + beta L_cont + lambda L_KD
}


class HfcdConfig(AlgorithmConfig):
    """Keys of HFCD; defaults are table 1's for CIFAR-100 (EMNIST: 0.15, 0.6, 1.2, 0.7)."""

    tau: float = Field(0.2, gt=0, description="temperature of the contrast")
    alpha: float = Field(0.7, ge=-1, le=1, description="similarity above which a negative is hard")
    gamma: float = Field(1.3, gt=0, description="weight of hard negatives")
    lambda0: float = Field(0.7, ge=0, description="strength of both schedules, beta and lambda")
    share: Literal["none", "body", "full"] = Field("none", description="weights averaged besides")
    loss_form: Literal["nested", "flat", "separate"] = Field(
        "nested", description="where beta and lambda stand in the loss"
    )
    no_pos: bool = Field(False, description="leave the positive pair out of the denominator")
    top_frac: float | None = Field(None, gt=0, le=1, description="share of negatives that are hard")
    kd_temperature: float = Field(1.0, gt=0, description="temperature of the similarity rows")
    kd_diagonal: bool = Field(True, description="similarity of a class with itself takes part")
    kd_reverse: bool = Field(False, description="KL(local || global), not KL(global || local)")
    kd_reduction: Literal["mean", "sum"] = Field("mean", description="over the matrix's rows")
    linear: bool = Field(False, description="prototype weights proportional to a, not softmax(a)")
    temperature: float = Field(1.0, gt=0, description="of the softmax over holders")
    ema: float = Field(0.0, ge=0, lt=1, description="share of the old prototype in the new one")
    full_similarity: bool = Field(False, description="charge all C x C similarities upwards")
    aggregation: Literal["dual", "mean"] = Field("dual", description="mean: B+C of table 2")
    hard_negatives: bool = Field(True, description="false: A+C of table 2")
    distillation: Literal["semantic", "ordinary"] = Field("semantic", description="ordinary: A+B")


@ALGORITHMS.register("hfcd")
class Hfcd(Algorithm):
    """Dual-granularity prototypes (A), prototype contrast (B), semantic distillation (C).

    Deviation from C5: a client without a step still uploads the prototypes of the net it has.
    """

    Config: ClassVar[type[AlgorithmConfig]] = HfcdConfig
    config: HfcdConfig
    paper = Paper(
        "Hierarchical Federated Contrastive Distillation, based on semantic similarity",
        "Xu Along",
        "Modeling and Simulation 14(5), 2025",
        "10.12677/mos.2025.145437",
    )
    communication = Communication(
        "C D + C + C C", "(D + 2) per held class, 1 per held pair", "w (share=none)"
    )

    def personal(self) -> frozenset[str]:
        net = self.setting.net
        kept = {"none": net.names("all"), "body": net.names("head"), "full": frozenset[str]()}
        return kept[self.config.share]

    def init(self, start: Tree) -> tuple[Tree, Tree]:
        keeps, sends = self.split()
        table, own = prototypes.empty(self.setting, start)
        eye = torch.eye(self.setting.classes, dtype=table["global.prototypes"].dtype)
        clients = only(start, keeps) | own | {"similarity": torch.zeros_like(eye)}
        server = only(start, sends) | table | {"global.similarity": eye}
        return server, repeat(clients, self.setting.clients)

    def program(self, state: State) -> LocalProgram:
        keeps, sends = self.split()
        similarity = Transform(WriteSimilarity(self.config.full_similarity))
        return LocalProgram(
            (self.phase(*self.terms()), *prototypes.collect(self.setting), similarity),
            keeps | {"prototypes", "counts", "similarity"},
            sends | prototypes.LEAVES | {"similarity"},
            (*prototypes.MASKS, ("similarity", "pairs")),
        )

    def terms(self) -> tuple[LossTerm, ...]:
        of_ce, _, of_kd = FORMS[self.config.loss_form]
        kd: LossTerm = PrototypeDistillation(of_kd, temperature=self.config.tau)
        if self.config.distillation == "semantic":  # the keys kd_* are the term's own options
            options = {key[3:]: value for key, value in self.config if key.startswith("kd_")}
            kd = SemanticKL(of_kd, **options)
        return (CrossEntropy(of_ce), self.contrast(), kd)

    def contrast(self) -> PrototypeContrast:
        """Return L_cont; without hard negatives (A+C) all negatives weigh the same."""
        c, weight, top = self.config, FORMS[self.config.loss_form][1], None
        if c.hard_negatives and c.top_frac is not None:
            top = ceil(c.top_frac * (self.setting.classes - 1))
        alpha, gamma = (c.alpha, c.gamma) if c.hard_negatives else (1.0, 1.0)
        return PrototypeContrast(weight, c.tau, alpha, gamma, top, positive=not c.no_pos)

    def dispatch(self, state: State, ids: Tensor) -> Dispatch:
        # beta = lam0 (1 - e^(-t/T)), lambda = lam0 e^(-t/T); t counts from 0: round 0 is CE alone.
        decay = exp(-state.round / self.setting.rounds)
        beta, lam = self.config.lambda0 * (1 - decay), self.config.lambda0 * decay
        table = prototypes.table(state.server)
        shared = super().dispatch(state, ids).shared.values  # the averaged part of w, with `share`
        numbers = {"beta": beta, "lambda": lam, "beta_lambda": beta * lam}
        return Dispatch(Message(shared | table.values, table.mask), numbers=numbers)

    def aggregate(self, state: State, results: Results) -> Update:
        # The last uploads of all clients take part; absent ones did not change since theirs.
        own, counts = state.clients["prototypes"].double(), state.clients["counts"]
        old, had = state.server["global.prototypes"], state.server["global.present"]
        table = torch.einsum("nc,ncd->cd", self.holder_weights(own, counts), own)
        kept = torch.where(had, self.config.ema, 0.0)[:, None]
        table = kept * old + (1 - kept) * table
        similarity = mean_similarity(state.clients["similarity"].double(), counts > 0, table)
        present = (counts > 0).any(dim=0)
        server = {"global.prototypes": table.to(old.dtype), "global.present": present}
        server["global.similarity"] = similarity.to(old.dtype)
        hard = self.contrast().hard(similarity, present)[present].sum(dim=1).double()
        metrics = {"hard_negatives_mean": float(hard.mean())}
        return Update(self.mean(results) | server, metrics=metrics)

    def holder_weights(self, own: Tensor, counts: Tensor) -> Tensor:
        """Return abar [N, C] of prototypes [N, C, D]; it sums to 1 over the holders of a class."""
        held = counts > 0
        uniform = held / held.sum(dim=0).clamp_min(1).double()
        if self.config.aggregation == "mean":
            return uniform
        # a = wsize wsim; wsize = n / max n; wsim = mean cosine with the other holders.
        size = counts / counts.amax(dim=0).clamp_min(1).double()
        a = size * prototypes.agreement(own, held)
        if self.config.linear:
            return simplex(torch.where(held, a, 0.0), uniform, dim=0)
        return softmax_among(a / self.config.temperature, held, dim=0)
