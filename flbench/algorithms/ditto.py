"""Ditto: each client has a second model of its own, pulled to the global one (Li et al., 2021)."""

from dataclasses import replace
from typing import Literal

from pydantic import Field
from torch import Tensor

import flbench.algorithms as fl
from flbench.algorithms.shared.memory import Copy
from flbench.algorithms.shared.personal_model import V, personal_model
from flbench.algorithms.shared.prefixes import prefixed
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

    def notes(self) -> list[str]:
        lam, optimizer = self.config.lam, self.setting.train.optimizer
        is_sgd = optimizer.name == "sgd" and not self.setting.own_optimizer
        if not is_sgd or lam * optimizer.lr < 1:
            return []
        return [
            f"ditto: lam={lam:g} times train.optimizer.lr is {lam * optimizer.lr:g}: from 1 on"
            " the personal model overshoots the global one, from 2 on it diverges."
        ]

    def init(self, start: fl.Tree) -> tuple[fl.Tree, fl.Tree]:
        server, clients = super().init(start)
        v = prefixed(V, fl.only(start, personal_model(self.setting).own))
        return server, clients | fl.repeat(v, self.setting.clients)

    def program(self, state: fl.State) -> fl.LocalProgram:
        keeps, sends = self.split()
        v = personal_model(self.setting)
        train_w = self.phase(*self.terms())
        return fl.LocalProgram((train_w, self.personal_phase()), keeps | {*v.leaves()}, sends)

    def personal_phase(self) -> fl.Phase:
        """Return the training of v; w does not change."""
        names = self.setting.net.parameters
        anchor: Literal["start", "now"] = "start" if self.config.anchor == "received" else "now"
        phase = self.phase(
            CrossEntropy(),
            Proximal(names, self.config.lam, prefix=V, anchor=anchor),
            train=frozenset(V + name for name in names),
        )
        return replace(phase, weights=personal_model(self.setting))

    def join(self, state: fl.State, ids: Tensor) -> fl.Joining:
        """Return what a new client does first: v begins as a copy of w."""
        v = personal_model(self.setting)
        copy = fl.Transform(Copy(V, tuple(name for name in v.names if name in v.own)))
        return fl.Joining(
            self.dispatch(state, ids), fl.LocalProgram((copy,), frozenset(v.leaves()))
        )

    def deploy(self, state: fl.State, ids: Tensor) -> dict[str, fl.Deployment]:
        personal = fl.Deployment(fl.Dispatch(), weights=personal_model(self.setting))
        return super().deploy(state, ids) | {"personal": personal}
