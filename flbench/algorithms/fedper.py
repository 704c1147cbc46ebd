"""FedPer: the last layers stay with the client (Arivazhagan et al., 2019)."""

from dataclasses import replace

from pydantic import Field
from torch import Tensor

import flbench.algorithms as fl


@fl.ALGORITHMS.register("fedper")
class FedPer(fl.Algorithm):
    """Clients keep their last layers; the layers below are averaged, and all are trained together.

    Source: Algorithms 1 and 2; deviations: none. The clients send the body and keep the head. A
    client that is never part of a cohort keeps the initial head.

    `gm` is the averaged body under the initial head. No client uses this model; its accuracy is
    above chance only because all clients start with the same head.
    """

    class Config(fl.AlgorithmConfig):
        """Keys of FedPer."""

        layers: int | None = Field(
            None,
            ge=0,
            description="number of layers at the net's end that clients keep; layers without"
            " parameters do not count (default: the head)",
            json_schema_extra={"unit": "layers"},
        )
        finetune_epochs: int = fl.epochs(
            0,
            "fine-tuning of each client's model before it is evaluated as `ft`, discarded"
            " afterwards",
            ge=0,
        )

    config: Config
    paper = fl.Paper(
        "Federated Learning with Personalization Layers",
        "Arivazhagan, Aggarwal, Singh, Choudhary",
        "2019 (arXiv 1912.00818)",
    )
    communication = fl.Communication(down="body", up="body", keeps="head")

    def personal(self) -> frozenset[str]:
        net, count = self.setting.net, self.config.layers
        if count is None:
            return net.names("head")
        last = net.layers[max(0, len(net.layers) - count) :]
        return frozenset(leaf for layer in last for leaf in layer.leaves)

    def requires(self) -> list[str]:
        """Return a sentence if `algorithm.layers` exceeds the number of layers of the net."""
        wanted, there = self.config.layers or 0, len(self.setting.net.layers)
        if wanted <= there:
            return []
        return [
            f"`algorithm.layers` must be in [0, {there}], got {wanted}: the net has {there} layers."
        ]

    def init(self, start: fl.Tree) -> tuple[fl.Tree, fl.Tree]:
        server, clients = super().init(start)
        # The server also has the initial head, for `gm`; it is never sent.
        return fl.only(start, server.keys() | clients.keys()), clients

    def deploy(self, state: fl.State, ids: Tensor) -> dict[str, fl.Deployment]:
        model = fl.Deployment(self.dispatch(state, ids))
        deployments = {"personal": model}
        keeps, sends = self.split()
        # With train.batchnorm=local the clients' statistics have no common value for `gm`.
        if sends and keeps <= self.personal():
            common = fl.Message(fl.only(state.server, self.setting.net.names("all")))
            deployments["gm"] = fl.Deployment(fl.Dispatch(common))
        if self.config.finetune_epochs:
            deployments["ft"] = replace(model, program=fl.LocalProgram((self.tuning(),)))
        return deployments

    def tuning(self) -> fl.Phase:
        """Return the fine-tuning of a model before it is evaluated: all layers."""
        return self.phase(*self.terms(), epochs=self.config.finetune_epochs)
