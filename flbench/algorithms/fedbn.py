"""FedBN: BatchNorm layers stay with the client (Li et al., ICLR 2021)."""

from typing import ClassVar

from pydantic import Field

from flbench.algorithms.base import Algorithm, Communication, Paper
from flbench.algorithms.registry import ALGORITHMS
from flbench.config.schema import AlgorithmConfig


class FedBNConfig(AlgorithmConfig):
    """Keys of FedBN."""

    allow_no_bn: bool = Field(
        False, description="run on a net without BatchNorm too, where FedBN is FedAvg"
    )


@ALGORITHMS.register("fedbn")
class FedBN(Algorithm):
    """Every layer but BatchNorm is averaged; its weights, biases and statistics stay.

    Source: Algorithm 1, whose mean is uniform: `agg_weights=uniform`. A BatchNorm layer is known by
    its type: the authors' code looks for "bn" in names, and shares those of ResNet's shortcuts. A
    client that was never drawn has the statistics of the start, mean 0 and variance 1.
    """

    Config: ClassVar[type[AlgorithmConfig]] = FedBNConfig
    config: FedBNConfig
    paper = Paper(
        "FedBN: Federated Learning on Non-IID Features via Local Batch Normalization",
        "Li, Jiang, Zhang, Kamp, Dou",
        "ICLR 2021",
    )
    communication = Communication(down="w - BN", up="w - BN", keeps="BN with its statistics")

    def personal(self) -> frozenset[str]:
        return self.setting.net.names("batchnorm")

    def requires(self) -> list[str]:
        if self.personal() or self.config.allow_no_bn:
            return []
        return [
            "the net has no BatchNorm layer, and FedBN without one is FedAvg."
            " Choose another net (`model.name`, `model.norm=batch`), or set"
            " `algorithm.allow_no_bn=true`."
        ]

    def notes(self) -> list[str]:
        if not self.personal():
            return ["fedbn: the net has no BatchNorm layer: this is FedAvg."]
        if self.setting.train.batchnorm == "average":
            return [
                "fedbn: BatchNorm's statistics stay with the client, as its weights do, also with"
                " train.batchnorm=average."
            ]
        return []
