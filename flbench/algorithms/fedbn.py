"""FedBN: BatchNorm layers stay with the client (Li et al., ICLR 2021)."""

from pydantic import Field

import flbench.algorithms as fl


@fl.ALGORITHMS.register("fedbn")
class FedBN(fl.Algorithm):
    """Clients keep their BatchNorm layers; all other layers are averaged.

    Clients keep weights, biases and running statistics of BatchNorm (Algorithm 1). A client that is
    never part of a cohort keeps the initial statistics, mean 0 and variance 1.

    Deviations: a layer is recognized as BatchNorm by its type, where the authors' code searches
    names for "bn" and therefore averages the BatchNorm layers in ResNet's shortcuts. The mean is
    weighted by samples; the paper's is uniform (`agg_weights=uniform`).
    """

    class Config(fl.AlgorithmConfig):
        """Keys of FedBN."""

        allow_no_bn: bool = Field(
            False,
            description="allow a net without BatchNorm layers, on which FedBN equals FedAvg",
        )

    config: Config
    paper = fl.Paper(
        "FedBN: Federated Learning on Non-IID Features via Local Batch Normalization",
        "Li, Jiang, Zhang, Kamp, Dou",
        "ICLR 2021",
    )
    communication = fl.Communication(down="w - BN", up="w - BN", keeps="BN with its statistics")

    def personal(self) -> frozenset[str]:
        return self.setting.net.names("batchnorm")

    def requires(self) -> list[str]:
        if self.personal() or self.config.allow_no_bn:
            return []
        return [
            "the net has no BatchNorm layer, so FedBN would be FedAvg. Choose a net that has one"
            " (`model.name`, `model.norm=batch`), or set `algorithm.allow_no_bn=true`."
        ]
