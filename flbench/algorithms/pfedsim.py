"""pFedSim: bodies are mixed by how alike the clients' classifiers are (Tan et al., 2023)."""

from math import log
from typing import ClassVar, Literal

import torch
from pydantic import Field
from torch import Tensor

from flbench.algorithms.base import Algorithm, Communication, Deployment, Paper
from flbench.algorithms.registry import ALGORITHMS
from flbench.algorithms.shared.held import held_classes
from flbench.algorithms.shared.mixing import mix_latest
from flbench.client.program import LocalProgram, Step
from flbench.config.schema import AlgorithmConfig
from flbench.core.tree import only, repeat
from flbench.core.types import Dispatch, Message, Results, Stage, State, Tree, Update
from flbench.losses.similarity import unit

LEAST = 1e-4  # of 1 - similarity: the weight -ln(1 - similarity) has no bound


class PFedSimConfig(AlgorithmConfig):
    """Keys of pFedSim."""

    rho: float = Field(0.5, ge=0, le=1, description="share of the rounds that are FedAvg")
    classes: Literal["all", "union"] = Field(
        "all",
        description="rows of the classifier that are compared: all, or those of classes that one of"
        " the two clients holds",
    )
    evaluated: Literal["mixture", "stored"] = Field(
        "mixture",
        description="the model that is evaluated: the next mixture of bodies with the own classifier,"
        " or the client's last trained model; the other is beside it",
    )


@ALGORITHMS.register("pfedsim")
class PFedSim(Algorithm):
    """FedAvg for int(rho T) rounds; then body_i <- sum_j u_ij body_j / sum_j u_ij.

    u_ij = -ln(1 - sim_ij), with sim_ij the mean cosine of the rows of two classifiers' weights, at
    least 0, found whenever both clients take part; u_ii = -ln(1e-4), and sim_ij counts as
    1 - 1e-4 at most. Bodies are those of the last upload, be it without a step (deviation from C5:
    such a client holds its mixture). The formula is that of the first author's code in FL-bench;
    the paper's text was not at hand. A client's first dispatch after the warm-up is all of w.
    """

    Config: ClassVar[type[AlgorithmConfig]] = PFedSimConfig
    config: PFedSimConfig
    paper = Paper(
        "pFedSim: Similarity-Aware Model Aggregation Towards Personalized Federated Learning",
        "Tan, Zhou, Liu, Wang, Zhou",
        "arXiv 2305.15706, 2023",
    )
    communication = Communication(down="w, later the body", up="w", keeps="w, after the warm-up")

    def notes(self) -> list[str]:
        only_warm = self.stages()[-1].name == "warmup"
        return ["pfedsim: all rounds are warm-up, which is FedAvg."] if only_warm else []

    def stages(self) -> tuple[Stage, ...]:
        rounds = self.setting.rounds
        warm = int(self.config.rho * rounds + 1e-9)
        lengths = {"warmup": warm, "similar": rounds - warm}
        return tuple(Stage(name, length) for name, length in lengths.items() if length)

    def is_warmup(self, state: State) -> bool:
        """Return whether the next round is FedAvg's."""
        return self.stages()[state.stage].name == "warmup"

    def init(self, start: Tree) -> tuple[Tree, Tree]:
        keeps, sends = self.split()
        clients = self.setting.clients
        server = {
            "similarity": torch.zeros(clients, clients, dtype=torch.float64),
            "known": torch.zeros(clients, dtype=torch.bool),
        }
        own = only(start, keeps | sends)
        if self.config.classes == "union":
            own["held"] = torch.zeros(self.setting.classes, dtype=torch.bool)
        return only(start, sends) | server, repeat(own, clients)

    def program(self, state: State) -> LocalProgram:
        if self.is_warmup(state):
            return super().program(state)
        keeps, sends = self.split()
        steps: tuple[Step, ...] = (self.phase(*self.terms()),)
        if self.config.classes == "union":
            steps += held_classes(self.setting.classes)
            sends |= {"held"}
        return LocalProgram(steps, keeps | sends, sends)

    def classifier(self) -> tuple[str, ...]:
        """Return the leaves that stay with the client after the warm-up."""
        head = self.setting.net.names("head")
        return tuple(name for name in self.setting.net.parameters if name in head)

    def dispatch(self, state: State, ids: Tensor) -> Dispatch:
        known = state.server["known"]
        if self.is_warmup(state) or (state.is_initial and not bool(known.any())):
            return super().dispatch(state, ids)
        new = ~known[ids] & (not state.is_initial)
        rows = repeat(only(state.server, self.classifier()), len(ids))
        return Dispatch(rows=Message(self.mixture(state, ids) | rows, dict.fromkeys(rows, new)))

    def mixture(self, state: State, ids: Tensor) -> Tree:
        """Return the mixed bodies of clients `ids` [K]."""
        u = -torch.log1p(-state.server["similarity"][ids].clamp_max(1 - LEAST))
        u[torch.arange(len(ids)), ids] = -log(LEAST)
        body = self.split()[1] - set(self.classifier())
        return self.latest(state, u / u.sum(dim=1, keepdim=True), body)

    def latest(self, state: State, weights: Tensor, names: frozenset[str]) -> Tree:
        """Return the clients' last models, the warm-up's for those without, mixed [K, N]."""
        known = state.server["known"]
        return mix_latest(only(state.clients, names), weights, known=known, common=state.server)

    def aggregate(self, state: State, results: Results) -> Update:
        if self.is_warmup(state):
            return super().aggregate(state, results)
        ids, sent = results.ids, results.sent.values
        linear = [layer for layer in self.setting.net.layers if layer.kind == "linear"][-1]
        rows = unit(sent[linear.parameters[0]].double())
        cosine = torch.einsum("icd,jcd->ijc", rows, rows)
        counts = torch.ones_like(cosine, dtype=torch.bool)
        if self.config.classes == "union":
            counts = sent["held"][:, None] | sent["held"]
        mean = torch.where(counts, cosine, 0.0).sum(dim=2) / counts.sum(dim=2).clamp_min(1)
        fresh = (mean + mean.T).clamp_min(0.0) / 2
        # Only pairs of clients that both took a step (C5) get a new value.
        pairs = (results.steps > 0)[:, None] & (results.steps > 0)
        pairs.fill_diagonal_(False)
        similarity = state.server["similarity"].clone()
        block = (ids[:, None], ids)
        similarity[block] = torch.where(pairs, fresh, similarity[block])
        known = state.server["known"].index_fill(0, ids, True)
        found = {"similarity_mean": float(fresh[pairs].mean())} if bool(pairs.any()) else {}
        return Update({"similarity": similarity, "known": known}, metrics=found)

    def deploy(self, state: State, ids: Tensor) -> dict[str, Deployment]:
        if self.is_warmup(state):
            return super().deploy(state, ids)
        itself = torch.eye(self.setting.clients, dtype=torch.float64)[ids]
        stored = self.latest(state, itself, self.split()[1])
        models = {"mixture": stored | self.mixture(state, ids), "stored": stored}
        found = {name: Deployment(Dispatch(rows=Message(rows))) for name, rows in models.items()}
        return {"personal": found.pop(self.config.evaluated)} | found
