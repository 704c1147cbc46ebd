"""FedProto: clients exchange class prototypes only (Tan et al., AAAI 2022)."""

from typing import ClassVar, Literal

import torch
from pydantic import Field
from torch import Tensor

from flbench.algorithms.base import Algorithm, Communication, Deployment, Paper
from flbench.algorithms.registry import ALGORITHMS
from flbench.algorithms.shared import prototypes
from flbench.algorithms.shared.prototypes import NearestPrototype
from flbench.client.program import LocalProgram
from flbench.config.schema import AlgorithmConfig, UniformConfig
from flbench.core.tree import only, repeat
from flbench.core.types import Dispatch, Results, State, Tree, Update
from flbench.losses import CrossEntropy, PrototypeL2


class FedProtoConfig(UniformConfig):
    """Keys of FedProto."""

    lam: float = Field(
        1.0, ge=0, description="strength of the pull to the prototypes (1 MNIST, 0.1 CIFAR-10)"
    )
    cache: bool = Field(False, description="older prototypes of absent clients enter the mean too")
    predict: Literal["proto", "head"] = Field(
        "proto",
        description="the rule that is evaluated: nearest prototype, or the classifier; the other is"
        " beside it",
    )
    predict_classes: Literal["global", "own"] = Field(
        "global", description="nearest prototype among all classes, or among those the client holds"
    )


@ALGORITHMS.register("fedproto")
class FedProto(Algorithm):
    """Local loss: CE + lam (1/D) ||z - P[y]||^2; server: P[k] = mean over the holders of class k.

    Source: eq. 6 and Algorithm 1. Deviations: prototypes are collected in eval mode after training
    (the authors: in train mode during the last epoch); the mean is uniform over the round's holders
    as in their code, the paper's weights by counts are `agg_weights=samples`.
    """

    Config: ClassVar[type[AlgorithmConfig]] = FedProtoConfig
    config: FedProtoConfig
    paper = Paper(
        "FedProto: Federated Prototype Learning across Heterogeneous Clients",
        "Tan, Long, Liu, Zhou, Lu, Jiang, Zhang",
        "AAAI 2022",
        "10.1609/aaai.v36i8.20819",
    )
    communication = Communication(
        down="C D prototypes, C flags", up="(D + 2) of each held class", keeps="w"
    )

    def personal(self) -> frozenset[str]:
        return self.setting.net.names("all")

    def init(self, start: Tree) -> tuple[Tree, Tree]:
        table, bank = prototypes.empty(self.setting, start)
        return table, repeat(only(start, self.split()[0]) | bank, self.setting.clients)

    def program(self, state: State) -> LocalProgram:
        train = self.phase(CrossEntropy(), PrototypeL2(weight=self.config.lam))
        keeps = self.split()[0] | {"prototypes", "counts"}
        collect = prototypes.collect(self.setting)
        return LocalProgram((train, *collect), keeps, prototypes.LEAVES, prototypes.MASKS)

    def dispatch(self, state: State, ids: Tensor) -> Dispatch:
        return Dispatch(prototypes.table(state.server))

    def aggregate(self, state: State, results: Results) -> Update:
        source, trained = results.sent.values, results.steps > 0
        if self.config.cache:
            source = state.clients
            trained = torch.ones(len(source["counts"]), dtype=torch.bool)
        brought, sizes = source["prototypes"].double(), source["counts"]
        weights = (sizes > 0) if self.config.agg_weights == "uniform" else sizes
        weights = weights.double() * trained[:, None]  # [K, C]; C5: no step, no weight
        total = weights.sum(dim=0)
        mean = torch.einsum("kc,kcd->cd", weights, brought) / total.clamp_min(1e-12)[:, None]
        old = state.server["global.prototypes"]
        # A class that nobody brought keeps its prototype.
        table = torch.where((total > 0)[:, None], mean.to(old.dtype), old)
        present = state.server["global.present"] | (total > 0)
        server = {"global.prototypes": table, "global.present": present}
        return Update(
            server, metrics={"prototype_distance_mean": prototypes.spread(table, present)}
        )

    def deploy(self, state: State, ids: Tensor) -> dict[str, Deployment]:
        head = Deployment(self.dispatch(state, ids))
        rule = NearestPrototype(own=self.config.predict_classes == "own")
        proto = Deployment(head.dispatch, predict=rule)
        if self.config.predict == "proto":
            return {"personal": proto, "head": head}
        return {"personal": head, "proto": proto}
