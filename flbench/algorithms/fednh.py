"""FedNH: a head of normalised class prototypes that no client trains (Dai et al., AAAI 2023)."""

from dataclasses import replace
from typing import ClassVar, Literal

import torch
from pydantic import Field
from torch import Tensor

from flbench.algorithms.base import Algorithm, Communication, Deployment, Paper
from flbench.algorithms.registry import ALGORITHMS
from flbench.algorithms.shared import prototypes
from flbench.algorithms.shared.directions import far_apart
from flbench.client.program import LocalProgram, LossTerm
from flbench.config.schema import AlgorithmConfig, UniformConfig
from flbench.core.tree import only, repeat, weighted_mean
from flbench.core.types import Dispatch, Info, Message, Results, State, StepContext, Tree, Update
from flbench.losses import CosineCrossEntropy
from flbench.losses.cosine_cross_entropy import cosine_logits
from flbench.losses.similarity import unit

W, SCALE = "head.weight", "scale"
LEAST = 0.01  # s may learn to be negative, which would turn the order of classes round


class FedNHConfig(UniformConfig):
    """Keys of FedNH."""

    rho: float = Field(0.9, ge=0, le=1, description="share of the old prototype in the new one")
    scale: float = Field(
        1.0, ge=LEAST, description="factor s of the cosines at the start (30 for ResNet-18)"
    )
    learn_scale: bool = Field(True, description="clients train s too; false: it is a constant")
    evaluated: Literal["global", "last"] = Field(
        "global",
        description="what a client is evaluated with: the server's model, or the one it trained last"
        " under the prototypes it had then",
    )


@ALGORITHMS.register("fednh")
class FedNH(Algorithm):
    """Client: cross entropy of s <z, W>, z and the rows of W of length one, over body and s.

    Server: W[k] <- unit(rho W[k] + (1 - rho) unit(sum_i n_i^k c_i^k / sum_i n_i^k)), c_i^k the unit
    mean of the unit features of class k at client i. Source: Algorithm 1. W begins with directions
    far apart and takes the place of the head's weight; the net's bias is not used. A client sends c
    and n apart, the paper their product. A class that nobody brought keeps its prototype, and so
    does one whose mixture is zero. s stays above 0.01. The paper's personal models are those right
    after local training, under the old W: `personal@local`.
    """

    Config: ClassVar[type[AlgorithmConfig]] = FedNHConfig
    config: FedNHConfig
    paper = Paper(
        "Tackling Data Heterogeneity in Federated Learning with Class Prototypes",
        "Dai, Chen, Li, Heinecke, Sun, Xu",
        "AAAI 2023",
        "10.1609/aaai.v37i6.25891",
    )
    communication = Communication(
        down="body, s, C D prototypes",
        up="body, s, (D + 2) of each held class",
        keeps="nothing (evaluated=last: w)",
    )

    def requires(self) -> list[str]:
        net = self.setting.net
        if W in net.parameters and net.names("backbone"):
            return []
        return ["the net must have a body under one linear head. Change `model.name`."]

    def learnt(self) -> frozenset[str]:
        """Return s if it is trained."""
        return frozenset({SCALE} if self.config.learn_scale else ())

    def split(self) -> tuple[frozenset[str], frozenset[str]]:
        keeps, sends = super().split()
        return keeps, sends - self.setting.net.names("head")

    def kept(self) -> frozenset[str]:
        """Return what clients keep: their whole last model, if they are evaluated with it."""
        keeps, sends = self.split()
        return keeps | sends | self.learnt() | {W} if self.config.evaluated == "last" else keeps

    def init(self, start: Tree) -> tuple[Tree, Tree]:
        table = far_apart(self.setting.classes, self.setting.net.features, self.setting.seed)
        scale = torch.tensor(self.config.scale, dtype=start[W].dtype)
        begin = start | {W: table.to(start[W].dtype), SCALE: scale}
        # Every client has the seeded W and s; where they are not kept, a dispatch overlays them.
        clients = repeat(only(begin, self.kept() | {W, SCALE}), self.setting.clients)
        return only(begin, self.split()[1] | {W, SCALE}), clients

    def program(self, state: State) -> LocalProgram:
        learnt = self.learnt()
        phase = self.phase(*self.terms(), train=self.setting.net.names("backbone") | learnt)
        phase = replace(phase, project=keep_positive if learnt else None)
        collect = prototypes.collect(self.setting, of=unit, write=write_directions)
        sends = self.split()[1] | learnt | prototypes.LEAVES
        return LocalProgram((phase, *collect), self.kept(), sends, prototypes.MASKS)

    def terms(self) -> tuple[LossTerm, ...]:
        return (CosineCrossEntropy(),)

    def dispatch(self, state: State, ids: Tensor) -> Dispatch:
        sends = self.split()[1] | self.learnt()
        return (
            Dispatch() if state.is_initial else Dispatch(Message(only(state.server, sends | {W})))
        )

    def aggregate(self, state: State, results: Results) -> Update:
        weights, trained = self.weights(results), results.steps > 0
        sent, old = results.sent.values, state.server[W]
        counts = sent["counts"].double() * trained[:, None]  # [K, C]; C5: no step, no weight
        brought = torch.einsum("kc,kcd->cd", counts, sent["prototypes"].double())
        mixed = self.config.rho * old.double() + (1 - self.config.rho) * unit(brought)
        # Opposite directions cancel; what rounding leaves of them points nowhere.
        moved = (counts.sum(dim=0) > 0) & (mixed.norm(dim=1) > 1e-6)
        body = self.mean(results)
        if not body:
            return Update()
        server = body | weighted_mean(only(sent, {SCALE}), weights)
        server[W] = torch.where(moved[:, None], unit(mixed).to(old.dtype), old)
        return Update(server, metrics={"scale": float(server.get(SCALE, state.server[SCALE]))})

    def deploy(self, state: State, ids: Tensor) -> dict[str, Deployment]:
        deployments = {
            name: replace(model, predict=by_cosine)
            for name, model in super().deploy(state, ids).items()
        }
        if self.config.evaluated == "last":
            deployments["personal"] = Deployment(Dispatch(), predict=by_cosine)
        return deployments


def keep_positive(trained: Tree, ctx: Tree) -> Tree:
    """Return s, at least 0.01."""
    return {SCALE: trained[SCALE].clamp_min(LEAST)}


def write_directions(leaves: Tree, start: Tree, ctx: Tree, info: Info) -> Tree:
    """Write the unit means of unit features by class into the leaves that are sent."""
    directions = unit(ctx["classes.sums"]).to(leaves[W].dtype)
    return prototypes.upload(directions, ctx["classes.counts"])


def by_cosine(context: StepContext) -> Tensor:
    """Return scores [B, C] as in training."""
    return cosine_logits(context, W, SCALE)
