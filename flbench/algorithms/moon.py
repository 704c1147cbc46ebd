"""MOON: local features near the global model's and far from the client's last (Li et al., 2021)."""

from dataclasses import replace
from typing import ClassVar, Literal

from pydantic import Field
from torch import Tensor

from flbench.algorithms.base import Algorithm, Communication, Deployment, Paper
from flbench.algorithms.registry import ALGORITHMS
from flbench.algorithms.shared import projection
from flbench.algorithms.shared.memory import MET, Copy, Recall, Remember, Stored, unknown
from flbench.algorithms.shared.moments import estimated
from flbench.client.program import LocalProgram, Transform
from flbench.config.schema import AlgorithmConfig
from flbench.core.tree import repeat, weighted_mean
from flbench.core.types import Results, State, Tree, Update
from flbench.losses import CrossEntropy, ModelContrast


class MoonConfig(AlgorithmConfig):
    """Keys of MOON."""

    mu: float = Field(5.0, ge=0, description="of the contrast (5 for CIFAR-10; tune 0.001 to 10)")
    tau: float = Field(0.5, gt=0, description="temperature of the contrast")
    proj_dim: int | None = Field(
        None, ge=1, description="width of a two-layer projection before the head (authors: 256)"
    )
    evaluated: Literal["global", "last"] = Field(
        "global", description="the model that is evaluated: the global one, or a client's last own"
    )


@ALGORITHMS.register("moon")
class Moon(Algorithm):
    """Local loss: CE + mu l_con (Algorithm 1); server: FedAvg's mean.

    l_con = -log(e^(cos(z, z_g)/tau) / (e^(cos(z, z_g)/tau) + e^(cos(z, z_p)/tau))), with z_g of the
    received model and z_p of the client's last one, which it keeps while it is absent; at first
    both are the same: l_con = ln 2, without a gradient. mu = 0 is FedAvg, bit for bit.

    Deviations: no projection by default, so that all methods train the same net; the reference
    models run in eval mode on their own statistics, which `train.batchnorm=drop` estimates anew.
    """

    Config: ClassVar[type[AlgorithmConfig]] = MoonConfig
    config: MoonConfig
    paper = Paper(
        "Model-Contrastive Federated Learning",
        "Li, He, Song",
        "CVPR 2021",
        "10.1109/CVPR46437.2021.01057",
    )
    communication = Communication(down="w", up="w", keeps="w of its last participation")

    def leaves(self) -> tuple[str, ...]:
        """Return the names of a whole model, in order, buffers and projection included."""
        return self.setting.net.leaves + projection.names(self.config.proj_dim)

    def split(self) -> tuple[frozenset[str], frozenset[str]]:
        keeps, sends = super().split()
        if self.config.proj_dim:  # its classifier takes the place of the net's
            sends = (sends - self.setting.net.names("head")) | {*projection.NAMES}
        return keeps, sends

    def init(self, start: Tree) -> tuple[Tree, Tree]:
        extra = projection.seeded(self.setting, self.config.proj_dim, start)
        server, clients = super().init(start | extra)
        own = extra | unknown(start | extra, "prev.", self.leaves())
        return server, clients | repeat(own, self.setting.clients)

    def program(self, state: State) -> LocalProgram:
        (keeps, sends), names, net = self.split(), self.leaves(), self.setting.net
        contrast = ModelContrast(names, self.config.mu, self.config.tau)
        terms = projection.terms(self.config.proj_dim, CrossEntropy(), contrast)
        added = projection.names(self.config.proj_dim)
        train = self.phase(*terms, train=(sends & {*net.parameters}) | {*added})
        recall, remember = Transform(Recall("prev.", names)), Transform(Remember("prev.", names))
        # projection.* is kept too, so that its seeded start is there from the beginning.
        keeps = keeps | {f"prev.{name}" for name in names} | {MET} | (sends - net.names("all"))
        statistics = tuple(n for n in names if n in net.statistics)
        fresh = estimated(self.setting)
        received = [Transform(Copy("received.", statistics))] if fresh else []
        return LocalProgram((*fresh, recall, *received, train, *fresh, remember), keeps, sends)

    def aggregate(self, state: State, results: Results) -> Update:
        return Update(weighted_mean(results.sent.values, self.weights(results)))

    def deploy(self, state: State, ids: Tensor) -> dict[str, Deployment]:
        found, rule = super().deploy(state, ids), projection.scores(self.config.proj_dim)
        found = {name: replace(model, predict=rule) for name, model in found.items()}
        if self.config.evaluated == "last":
            net, own = (Stored("prev.", n) for n in (self.setting.net.leaves, projection.NAMES))
            rule = projection.scores(self.config.proj_dim, own)
            found["personal"] = replace(found["personal"], weights=net, predict=rule)
        return found

    def notes(self) -> list[str]:
        plain = self.config.proj_dim is None and self.config.evaluated == "global"
        return ["algorithm.mu=0: MOON is FedAvg."] if plain and self.config.mu == 0 else []
