"""LG-FedAvg: the lower layers stay with the client (Liang et al., 2020)."""

from dataclasses import replace

import torch
from pydantic import Field
from torch import Tensor

import flbench.algorithms as fl

OWNS = "owns"  # [N] bool at the server: who has trained lower layers since the warm-up


@fl.ALGORITHMS.register("lgfedavg")
class LGFedAvg(fl.Algorithm):
    """Clients keep their lower layers; the last layers are averaged, and all are trained together.

    It is the mirror image of FedPer: each client learns a representation of its own, under a common
    classifier. A client is evaluated with its lower layers and the newest upper ones; a client that
    was never part of a cohort has the initial lower layers. There is no global model.

    Readings. The last layers are counted in the order of the forward pass, as the paper describes.
    The authors' code lists LeNet's layers in another order, so that its command for CIFAR-10 shares
    the convolutions instead. The mean is uniform, as in the code; `agg_weights=samples` weights by
    samples. Statistics of BatchNorm are kept or averaged with their layer.

    Deviations. The authors start from a net that FedAvg has trained. Here all clients start from
    the seeded net, as with all other methods, unless `warmup` makes the first rounds FedAvg with
    the weights of `agg_weights`; each client then receives the averaged lower layers once, with its
    first download after these rounds. The authors' code keeps for each client the model of its best
    round on the test samples; here the newest model is evaluated. The paper's figure for new
    devices, which averages the lower layers of all clients, is not computed.
    """

    class Config(fl.UniformConfig):
        """Keys of LG-FedAvg."""

        layers: int | None = Field(
            None,
            ge=0,
            description="number of layers at the net's end that are averaged; a normalization"
            " belongs to the layer before it, and layers without parameters do not count (default:"
            " the head)",
            json_schema_extra={"unit": "layers"},
        )
        warmup: float = Field(
            0.0,
            ge=0,
            le=1,
            description="share of the rounds, at the beginning, in which all layers are averaged"
            " (authors: 2/3 on MNIST, 6/7 on CIFAR-10)",
        )

    config: Config
    by_client = ((OWNS, (0,)),)
    paper = fl.Paper(
        "Think Locally, Act Globally: Federated Learning with Local and Global Representations",
        "Liang, Liu, Liu, Salakhutdinov, Morency",
        "2020 (arXiv 2001.01523)",
    )
    communication = fl.Communication(
        down="last layers (head)", up="last layers (head)", keeps="lower layers (body)"
    )

    def blocks(self) -> list[list[fl.LayerSpec]]:
        """Return the layers in order, each together with the normalizations that follow it."""
        blocks: list[list[fl.LayerSpec]] = []
        for layer in self.setting.net.layers:
            if blocks and layer.kind in ("norm", "batchnorm"):
                blocks[-1].append(layer)
            else:
                blocks.append([layer])
        return blocks

    def personal(self) -> frozenset[str]:
        net, count = self.setting.net, self.config.layers
        if count is None:
            return net.names("backbone")
        blocks = self.blocks()
        lower = blocks[: max(0, len(blocks) - count)]
        return frozenset(leaf for block in lower for layer in block for leaf in layer.leaves)

    def requires(self) -> list[str]:
        wanted, there = self.config.layers or 0, len(self.blocks())
        if wanted <= there:
            return []
        return [
            f"`algorithm.layers` must be in [0, {there}], got {wanted}: the net has {there} layers,"
            " normalizations not counted."
        ]

    # The warm-up

    def stages(self) -> tuple[fl.Stage, ...]:
        warm = int(self.config.warmup * self.setting.rounds + 1e-9)
        return self.two_stages("fedavg", warm, "lg")

    @property
    def fedavg(self) -> fl.Algorithm:
        """The method of the warm-up."""
        return fl.Algorithm(self.config, self.setting)

    def init(self, start: fl.Tree) -> tuple[fl.Tree, fl.Tree]:
        server, clients = super().init(start)
        if self.stages()[0].name == "fedavg":
            server, _ = self.fedavg.init(start)
            server[OWNS] = torch.zeros(self.setting.clients, dtype=torch.bool)
        return server, clients

    def program(self, state: fl.State) -> fl.LocalProgram:
        return (
            self.fedavg.program(state)
            if self.stage(state).name == "fedavg"
            else super().program(state)
        )

    def dispatch(self, state: fl.State, ids: Tensor) -> fl.Dispatch:
        if self.stage(state).name == "fedavg":
            return self.fedavg.dispatch(state, ids)
        dispatch = super().dispatch(state, ids)
        if OWNS not in state.server or state.is_initial:
            return dispatch
        lower = fl.only(state.server, self.split()[0])
        new = ~state.server[OWNS][ids]  # [K], clients without lower layers of their own
        rows = fl.Message(fl.repeat(lower, len(ids)), dict.fromkeys(lower, new))
        return replace(dispatch, rows=rows)

    def aggregate(self, state: fl.State, results: fl.Results) -> fl.Update:
        if self.stage(state).name == "fedavg":
            return self.fedavg.aggregate(state, results)
        update = super().aggregate(state, results)
        if OWNS in state.server:
            update.server[OWNS] = state.server[OWNS].index_fill(0, results.ids, True)
        return update
