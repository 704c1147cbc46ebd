"""LG-FedAvg: the lower layers stay with the client (Liang et al., 2020)."""

from typing import ClassVar

from pydantic import Field

from flbench.algorithms import (
    ALGORITHMS,
    Algorithm,
    AlgorithmConfig,
    Communication,
    LayerSpec,
    Paper,
    UniformConfig,
)


class LGFedAvgConfig(UniformConfig):
    """Keys of LG-FedAvg."""

    layers: int | None = Field(
        None,
        ge=0,
        description="number of layers at the net's end that are averaged; a normalization belongs"
        " to the layer before it, and layers without parameters do not count (default: the head)",
        json_schema_extra={"unit": "layers"},
    )


@ALGORITHMS.register("lgfedavg")
class LGFedAvg(Algorithm):
    """Clients keep their lower layers; the last layers are averaged, and all are trained together.

    It is the mirror image of FedPer: each client learns a representation of its own, under a common
    classifier. A client is evaluated with its lower layers and the newest upper ones; a client that
    was never part of a cohort has the initial lower layers. There is no global model.

    Readings. The last layers are counted in the order of the forward pass, as the paper describes.
    The authors' code lists LeNet's layers in another order, so that its command for CIFAR-10 shares
    the convolutions instead. The mean is uniform, as in the code; `agg_weights=samples` weights by
    samples. Statistics of BatchNorm are kept or averaged with their layer.

    Deviations. The authors start from a net that FedAvg has trained (for two thirds of all rounds
    on MNIST, six sevenths on CIFAR-10); here all clients start from the seeded net, as with all
    other methods. Their code keeps for each client the model of its best round on the test samples;
    here the newest model is evaluated. The paper's figure for new devices, which averages the
    lower layers of all clients, is not computed.
    """

    Config: ClassVar[type[AlgorithmConfig]] = LGFedAvgConfig
    config: LGFedAvgConfig
    paper = Paper(
        "Think Locally, Act Globally: Federated Learning with Local and Global Representations",
        "Liang, Liu, Liu, Salakhutdinov, Morency",
        "2020 (arXiv 2001.01523)",
    )
    communication = Communication(
        down="last layers (head)", up="last layers (head)", keeps="lower layers (body)"
    )

    def personal(self) -> frozenset[str]:
        net, count = self.setting.net, self.config.layers
        if count is None:
            return net.names("backbone")
        blocks = self.blocks()
        lower = blocks[: max(0, len(blocks) - count)]
        return frozenset(leaf for block in lower for layer in block for leaf in layer.leaves)

    def blocks(self) -> list[list[LayerSpec]]:
        """Return the layers in order, each together with the normalizations that follow it."""
        blocks: list[list[LayerSpec]] = []
        for layer in self.setting.net.layers:
            if blocks and layer.kind in ("norm", "batchnorm"):
                blocks[-1].append(layer)
            else:
                blocks.append([layer])
        return blocks

    def requires(self) -> list[str]:
        """Return a sentence if `algorithm.layers` exceeds the number of layers of the net."""
        wanted, there = self.config.layers or 0, len(self.blocks())
        if wanted <= there:
            return []
        return [
            f"`algorithm.layers` must be in [0, {there}], got {wanted}: the net has {there} layers,"
            " normalizations not counted."
        ]

    def notes(self) -> list[str]:
        personal, name = self.personal(), self.config.name
        if not personal:
            return [f"{name}: all layers are averaged, which is FedAvg."]
        if personal == self.setting.net.names("all"):
            return [f"{name}: no layer is averaged (algorithm.layers=0), which is Local-Only."]
        return []
