"""MOON: a contrast between a client's model, the global one and its last one (Li et al., 2021)."""

from pydantic import Field

import flbench.algorithms as fl
from flbench.algorithms.shared.batchnorm import reestimate_batchnorm
from flbench.algorithms.shared.second import LastModel, Second
from flbench.losses import CrossEntropy, ModelContrast

PREVIOUS = "prev."  # prefix of the client's model of its last participation
RECEIVED = "received."  # prefix of BatchNorm statistics of the received model


@fl.ALGORITHMS.register("moon")
class Moon(fl.Algorithm):
    """Clients pull their features to the global model's, and away from those of their last model.

    Local loss (Algorithm 1): cross entropy + mu l_con, where for the features z of the trained
    model, z_g of the received one and z_p of the client's last one

        l_con = -log(e^(cos(z, z_g)/tau) / (e^(cos(z, z_g)/tau) + e^(cos(z, z_p)/tau))).

    The server averages as FedAvg does. Clients keep their last model while they are absent. At the
    first participation it is the received model: l_con is then ln 2 and has no gradient. With mu =
    0 the method equals FedAvg to the bit.

    mu is 5 by default, the paper's best value on CIFAR-10; its best value on CIFAR-100 and
    Tiny-ImageNet is 1.

    Deviations: the authors' net has a projection before its classifier; here there is none, so that
    all methods train the same net. The two reference models run in eval mode with their own
    BatchNorm statistics, which `train.batchnorm=drop` re-estimates.
    """

    class Config(fl.AlgorithmConfig):
        """Keys of MOON."""

        mu: float = Field(
            5.0,
            ge=0,
            description="factor of the contrastive term (the paper: 5 on CIFAR-10, 1 on CIFAR-100"
            " and Tiny-ImageNet; tune 0.001 to 10)",
        )
        tau: float = Field(0.5, gt=0, description="temperature of the contrastive term")

    config: Config
    paper = fl.Paper(
        "Model-Contrastive Federated Learning",
        "Li, He, Song",
        "CVPR 2021",
        "10.1109/CVPR46437.2021.01057",
    )
    communication = fl.Communication(down="w", up="w", keeps="w of its last participation")

    @property
    def last(self) -> LastModel:
        """The client's model of its last participation, buffers included."""
        return LastModel(PREVIOUS, self.setting.net.leaves)

    def init(self, start: fl.Tree) -> tuple[fl.Tree, fl.Tree]:
        server, clients = super().init(start)
        return server, clients | fl.repeat(self.last.start(start), self.setting.clients)

    def terms(self) -> tuple[fl.LossTerm, ...]:
        contrast = ModelContrast(self.last.names, self.config.mu, self.config.tau)
        return (CrossEntropy(), contrast)

    def program(self, state: fl.State) -> fl.LocalProgram:
        net, last = self.setting.net, self.last
        keeps, sends = self.split()
        train = self.phase(*self.terms(), train=sends & {*net.parameters})

        # With train.batchnorm=drop the reference models need statistics of this client's samples.
        estimate = reestimate_batchnorm(self.setting)
        statistics = tuple(name for name in last.names if name in net.statistics)
        received = (Second(RECEIVED, statistics).copy(),) if estimate else ()

        steps = (*estimate, last.recall(), *received, train, *estimate, last.copy())
        return fl.LocalProgram(steps, keeps | last.leaves, sends)
