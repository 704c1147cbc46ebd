"""Ditto: beside the global model each client has one of its own, pulled to it (Li et al., 2021)."""

from dataclasses import replace
from typing import Annotated, ClassVar, Literal

from pydantic import Field
from torch import Tensor

from flbench.algorithms.base import Algorithm, Communication, Deployment, Paper
from flbench.algorithms.registry import ALGORITHMS
from flbench.algorithms.shared.moments import estimated
from flbench.algorithms.shared.prefixes import prefixed
from flbench.algorithms.shared.second_model import best_of, second_model
from flbench.client.program import LocalProgram, Phase, Step
from flbench.config.schema import AlgorithmConfig, epochs
from flbench.core.tree import only, repeat
from flbench.core.types import Dispatch, State, Tree
from flbench.losses import CrossEntropy, Proximal

V = "v."  # before the names of the personal model's leaves


class DittoConfig(AlgorithmConfig):
    """Keys of Ditto."""

    lam: float = Field(1.0, ge=0, description="strength of the pull; 0 is Local-Only")
    personal_epochs: int | None = epochs(
        None, "of the personal model in a round (default: train.local_epochs)"
    )
    lam_choices: tuple[Annotated[float, Field(ge=0)], ...] = Field(
        (),
        description="instead of lam: each client trains with each of these in every round and keeps"
        " the v with the lowest loss on its validation part; one that diverges makes it fail",
    )
    anchor: Literal["received", "trained"] = Field(
        "received",
        description="what pulls: the global model as it came (the paper), or after the client's"
        " own training of it (FedNH's code)",
    )


@ALGORITHMS.register("ditto")
class Ditto(Algorithm):
    """Client: w_i from w as in FedAvg, and v_i on CE + lam/2 ||v - w||^2; the server sees w_i.

    Source: Algorithm 1. The authors' code alternates both models batch by batch and averages
    differences; as the pull is to the received w, neither changes what is computed. Both see the
    same batches in the same order: two trainings. v has its own statistics. `lam_choices` is the
    paper's choice of lam by each client, here anew in every round: one training for each strength,
    and validation figures of models that were chosen by them.
    """

    Config: ClassVar[type[AlgorithmConfig]] = DittoConfig
    config: DittoConfig
    paper = Paper(
        "Ditto: Fair and Robust Federated Learning Through Personalization",
        "Li, Hu, Beirami, Smith",
        "ICML 2021",
    )
    communication = Communication(down="w", up="w", keeps="v, as large as w")

    def notes(self) -> list[str]:
        lam, optimizer = max(self.strengths()), self.setting.train.optimizer
        if optimizer.name != "sgd" or lam * optimizer.lr < 1:
            return []
        return [
            f"ditto: lam={lam:g} times train.optimizer.lr is {lam * optimizer.lr:g}: from 1 on"
            " the personal model overshoots the global one, from 2 on it diverges."
        ]

    def init(self, start: Tree) -> tuple[Tree, Tree]:
        server, clients = super().init(start)
        v = prefixed(V, only(start, second_model(V, self.setting).own))
        return server, clients | repeat(v, self.setting.clients)

    def strengths(self) -> tuple[float, ...]:
        """Return the lam that v is trained with, one after the other."""
        return self.config.lam_choices or (self.config.lam,)

    def program(self, state: State) -> LocalProgram:
        (keeps, sends), v = self.split(), second_model(V, self.setting)
        personal: tuple[Step, ...] = tuple(self.personal_phase(lam) for lam in self.strengths())
        if len(personal) > 1:
            personal = best_of(personal, v, estimated(self.setting, v))
        return LocalProgram((self.phase(*self.terms()), *personal), keeps | {*v.leaves()}, sends)

    def personal_phase(self, lam: float) -> Phase:
        """Return the training of v; w rests."""
        names = self.setting.net.parameters
        anchor: Literal["start", "now"] = "start" if self.config.anchor == "received" else "now"
        pull = Proximal(names, lam, prefix=V, anchor=anchor)
        train, length = frozenset(V + name for name in names), self.config.personal_epochs
        phase = self.phase(CrossEntropy(), pull, train=train, epochs=length)
        return replace(phase, weights=second_model(V, self.setting))

    def deploy(self, state: State, ids: Tensor) -> dict[str, Deployment]:
        personal = Deployment(Dispatch(), weights=second_model(V, self.setting))
        return super().deploy(state, ids) | {"personal": personal}
