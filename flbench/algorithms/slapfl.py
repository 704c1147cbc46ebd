"""SLAPFL: each layer is averaged with weights by its own cosine similarity (Li et al., 2025)."""

from typing import ClassVar, Literal

import torch
from pydantic import Field
from torch import Tensor

from flbench.algorithms.base import Algorithm, Communication, Paper
from flbench.algorithms.registry import ALGORITHMS
from flbench.algorithms.shared.mixing import likeness, mix
from flbench.algorithms.shared.prefixes import prefixed
from flbench.algorithms.shared.simplex import simplex, softmax_among
from flbench.config.schema import AlgorithmConfig, UniformConfig
from flbench.core.tree import only, put_, repeat
from flbench.core.types import Dispatch, Message, Results, State, Tree, Update


class SlapflConfig(UniformConfig):
    """Keys of SLAPFL; the defaults are the paper read literally."""

    whole_model: bool = Field(False, description="one cosine over all shared layers together")
    last_only: bool = Field(False, description="local is the last linear layer, not all of them")
    bn_local: bool = Field(False, description="BatchNorm layers stay local too")
    delta: Literal["none", "start", "round"] = Field(
        "none",
        description="compare weights, or their change since the seeded net or in this round",
    )
    sharpen: float | None = Field(
        None, gt=0, description="weights are softmax(cosine / this), not proportional to the cosine"
    )
    count_full_upload: bool = Field(
        False, description="upload the local layers too (step 3 of the paper), though none is used"
    )


@ALGORITHMS.register("slapfl")
class Slapfl(Algorithm):
    """M'_ik <- sum_j a_ij^k M_jk for every shared layer k; linear layers stay with the client.

    Readings: eq. 3 prints no layer index, text and algorithm say per layer (`whole_model`); "the
    fully connected layer" is all of them (`last_only`); BatchNorm is a layer of its own, and its
    statistics are mixed with its weights. From a common start the cosines stay near 1 and the
    weights near 1/N: `cosine_mean` of the server's metrics tells, `delta` and `sharpen` change it.
    With participation below 1, j runs over the round's clients, and absent ones keep what they
    had. A client without a step enters no mixture but its own (C5).
    """

    Config: ClassVar[type[AlgorithmConfig]] = SlapflConfig
    config: SlapflConfig
    paper = Paper(
        "Hierarchical aggregation personalized federated learning based on cosine similarity",
        "Li Jingyu, Li Xinyu, Huang Ruijun, Jiang Xinwei, Lin Yujun, Ren Huihui",
        "Intelligent Computer and Applications 15(9), 2025",
        "10.20169/j.issn.2095-2163.250928",
    )
    communication = Communication(
        "base (all but linear layers)", "base (with count_full_upload: w)", "w"
    )

    def personal(self) -> frozenset[str]:
        net = self.setting.net
        local = net.names("head" if self.config.last_only else "linear")
        return local | net.names("batchnorm") if self.config.bn_local else local

    def requires(self) -> list[str]:
        if not self.base().isdisjoint(self.setting.net.parameters):
            return []
        return [
            "no layer is shared, so no client learns from another. Take a net with convolutions"
            " (model.name=lenet5), or one with hidden linear layers and algorithm.last_only=true."
        ]

    def notes(self) -> list[str]:
        if self.setting.train.participation == 1:
            return []
        return ["slapfl: the paper has no absent clients; here they keep their last mixture."]

    def base(self) -> frozenset[str]:
        """Return the leaves that are mixed."""
        return super().split()[1]

    def split(self) -> tuple[frozenset[str], frozenset[str]]:
        local, base = super().split()
        if not self.config.count_full_upload:
            return local | base, base
        averaged = self.setting.train.batchnorm == "average"
        unsent = frozenset[str]() if averaged else self.setting.net.statistics
        return local | base, (local | base) - unsent

    def init(self, start: Tree) -> tuple[Tree, Tree]:
        anchor = prefixed("anchor.", only(start, self.base()))
        if self.config.delta == "round":
            anchor = repeat(anchor, self.setting.clients)
        clients = repeat(only(start, self.split()[0]), self.setting.clients)
        return anchor if self.config.delta != "none" else {}, clients

    def dispatch(self, state: State, ids: Tensor) -> Dispatch:
        return Dispatch()  # a client's base comes as the reply to its upload

    def aggregate(self, state: State, results: Results) -> Update:
        base = only(results.sent.values, self.base())
        mixed: Tree = {}
        cosines = []
        for leaves in self.layers():
            compared = self.compared(only(base, leaves), state, results.ids)
            cosine = likeness(compared, compared).fill_diagonal_(1.0)  # eq. 2; s_ii = 1
            mixed |= mix(only(base, leaves), self.shares(cosine, results))  # eq. 3
            cosines.append(cosine)
        server: Tree = {}
        if self.config.delta == "round":
            server = {name: value.clone() for name, value in state.server.items()}
            put_(server, results.ids, prefixed("anchor.", mixed))
        others = ~torch.eye(len(results.ids), dtype=torch.bool)
        alike = torch.stack(cosines)[:, others]
        metrics = {"cosine_mean": float(alike.mean())} if alike.numel() else {}
        return Update(server, Message(mixed), metrics)

    def layers(self) -> list[list[str]]:
        """Return the leaves that share one row of weights: a layer's, or all."""
        base, layers = self.base(), [list(layer.leaves) for layer in self.setting.net.layers]
        if self.config.whole_model:
            layers = [[leaf for layer in layers for leaf in layer]]
        return [shared for layer in layers if (shared := [leaf for leaf in layer if leaf in base])]

    def compared(self, layer: Tree, state: State, ids: Tensor) -> Tree:
        """Return what a layer's cosines are of, [K, ...] each: its upload, or the change of it.

        Weight and bias are one vector; statistics count only where a layer has no weights.
        """
        vector = only(layer, self.setting.net.parameters)
        vector = vector or {n: value for n, value in layer.items() if value.is_floating_point()}
        if self.config.delta == "none":
            return vector
        rows = ids if self.config.delta == "round" else ...
        return {n: value - state.server[f"anchor.{n}"][rows] for n, value in vector.items()}

    def shares(self, cosine: Tensor, results: Results) -> Tensor:
        """Return a [K, K] for cosines [K, K] with a unit diagonal; every row sums to 1 (eq. 3)."""
        itself = torch.eye(len(cosine), dtype=torch.bool)
        among = itself | (results.steps > 0)
        scores = cosine
        if self.config.sharpen is not None:
            scores = softmax_among(cosine / self.config.sharpen, among, dim=1)
        if self.config.agg_weights == "samples":
            scores = scores * self.setting.sizes[results.ids]
        # A negative cosine counts as none; the row is never empty, since s_ii = 1.
        return simplex(torch.where(among, scores, 0.0), itself.double(), dim=1)
