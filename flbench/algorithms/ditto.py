"""Ditto: each client has a second model of its own, pulled to the global one (Li et al., 2021)."""

from typing import Literal

from pydantic import Field
from torch import Tensor

import flbench.algorithms as fl
from flbench.algorithms.shared.second import Second
from flbench.losses import CrossEntropy, Proximal


@fl.ALGORITHMS.register("ditto")
class Ditto(fl.Algorithm):
    """A client trains the global model as in FedAvg, and a personal model that is pulled to it.

    Local (Algorithm 1): w_i is trained from w on cross entropy, then v_i on cross entropy +
    lam/2 ||v_i - w||^2. The client sends w_i and keeps v_i, which has BatchNorm statistics of its
    own and is evaluated. Both trainings see the same batches in the same order.

    Deviations: the authors' code alternates both models batch by batch and averages differences of
    weights, uniformly. The pull is to the received w, so the order does not change what is
    computed; the mean is weighted by samples (`agg_weights=uniform` for the authors'). v_i is
    trained for as many epochs as w_i, with one lam for all clients, which a search can choose; the
    paper also lets each client choose its own by validation.
    """

    class Config(fl.AlgorithmConfig):
        """Keys of Ditto."""

        lam: float = Field(
            1.0,
            ge=0,
            description="factor of the pull of the personal model to the global one; 0 is"
            " Local-Only",
        )
        anchor: Literal["received", "trained"] = Field(
            "received",
            description="what the personal model is pulled to: the global model as received (the"
            " paper), or after the client's own training of it (FedNH's code)",
        )

    config: Config
    paper = fl.Paper(
        "Ditto: Fair and Robust Federated Learning Through Personalization",
        "Li, Hu, Beirami, Smith",
        "ICML 2021",
    )
    communication = fl.Communication(down="w", up="w", keeps="v, as large as w")

    @property
    def v(self) -> Second:
        """The personal model; with `train.batchnorm=drop` it has no statistics of its own."""
        keeps, sends = self.split()
        return Second("v.", tuple(n for n in self.setting.net.leaves if n in keeps | sends))

    def init(self, start: fl.Tree) -> tuple[fl.Tree, fl.Tree]:
        server, clients = super().init(start)
        return server, clients | fl.repeat(self.v.start(start), self.setting.clients)

    def program(self, state: fl.State) -> fl.LocalProgram:
        keeps, sends = self.split()
        steps = (self.phase(*self.terms()), self.personal_phase())
        return fl.LocalProgram(steps, keeps | self.v.leaves, sends)

    def personal_phase(self) -> fl.Phase:
        """Return the training of v; w does not change."""
        v, names = self.v, self.setting.net.parameters
        anchor: Literal["start", "now"] = "start" if self.config.anchor == "received" else "now"
        pull = Proximal(names, self.config.lam, prefix=v.prefix, anchor=anchor)
        return self.phase(CrossEntropy(), pull, train=Second(v.prefix, names).leaves, weights=v)

    def deploy(self, state: fl.State, ids: Tensor) -> dict[str, fl.Deployment]:
        personal = fl.Deployment(fl.Dispatch(), weights=self.v)
        return super().deploy(state, ids) | {"personal": personal}
