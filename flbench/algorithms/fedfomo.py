"""FedFomo: clients move towards the models of others that help them (Zhang et al., ICLR 2021)."""

from dataclasses import replace
from typing import ClassVar, Literal

import torch
from pydantic import Field
from torch import Tensor

from flbench.algorithms.base import Algorithm, Communication, Deployment, Paper
from flbench.algorithms.registry import ALGORITHMS
from flbench.algorithms.shared.candidates import Losses, Mix
from flbench.algorithms.shared.moments import estimated
from flbench.client.program import LocalProgram, Statistic, Step, Transform
from flbench.config.schema import AlgorithmConfig
from flbench.core.rng import Draw
from flbench.core.tree import only, repeat
from flbench.core.types import Dispatch, Message, Results, Samples, State, Tree, Update


class FedFomoConfig(AlgorithmConfig):
    """Keys of FedFomo."""

    models: int = Field(5, ge=1, description="models of others that a client downloads, at most")
    validation: float = Field(
        0.2, gt=0, lt=1, description="share of the training samples that weigh models, not train"
    )
    epsilon: float = Field(
        0.3, ge=0, le=1, description="probability that the models are drawn, not the preferred ones"
    )
    epsilon_decay: float = Field(
        0.05, ge=0, description="epsilon falls by so much whenever the client takes part"
    )
    evaluated: Literal["trained", "mixed"] = Field(
        "trained",
        description="the model that is evaluated: the client's last trained one, or what it would mix"
        " next; then the trained one is beside it",
    )


@ALGORITHMS.register("fedfomo")
class FedFomo(Algorithm):
    """theta_i <- theta_i + sum_n (w_n / sum w) (theta_n - theta_i), then training.

    w_n = max(0, (L_i - L_n) / (||theta_n - theta_i|| + 1e-5)): L_n is the mean loss of model n on
    the client's own validation samples, a fixed share of its training part that it never trains
    on, and theta_i its own last model. The server prefers for client i the models with the largest
    sum of unclamped w so far, or draws them (epsilon-greedy); ties are drawn. BatchNorm statistics
    are mixed with the same weights, and models are compared in eval mode.
    """

    Config: ClassVar[type[AlgorithmConfig]] = FedFomoConfig
    config: FedFomoConfig
    paper = Paper(
        "Personalized Federated Learning with First Order Model Optimization",
        "Zhang, Sapra, Fidler, Yeung, Alvarez",
        "ICLR 2021",
    )
    communication = Communication(down="M models w", up="w and M weights", keeps="w")

    def requires(self) -> list[str]:
        if self.setting.clients > 1:
            return []
        return [
            "a single client has nobody to download from (partition.clients=1). Deal the data to"
            " more clients."
        ]

    def asked(self) -> int:
        """Return how many models M a client is sent at most."""
        return min(self.config.models, self.setting.clients - 1)

    def exchanged(self) -> tuple[str, ...]:
        """Return the leaves of a model that travels, in the net's order."""
        sends = self.split()[1]
        return tuple(name for name in self.setting.net.leaves if name in sends)

    def init(self, start: Tree) -> tuple[Tree, Tree]:
        keeps, sends = self.split()
        clients = self.setting.clients
        own = only(start, keeps | sends)
        server = {
            "preference": torch.zeros(clients, clients, dtype=torch.float64),
            "uploaded": torch.zeros(clients, dtype=torch.bool),
        }
        return server, repeat(own, clients)

    def program(self, state: State) -> LocalProgram:
        keeps, sends = self.split()
        rest = Samples(low=self.config.validation)
        train = replace(self.phase(*self.terms()), samples=rest)
        steps = (*self.mixing(), train)
        return LocalProgram(steps, keeps | sends, sends | {"raw"}, (("raw", "asked"),))

    def mixing(self) -> tuple[Step, ...]:
        """Return the steps before training: evaluate the models that were sent, and mix."""
        names, rows = self.exchanged(), Samples(high=self.config.validation)
        parameters = tuple(name for name in self.setting.net.parameters if name in names)
        return (
            *estimated(self.setting),
            Statistic("validation", Losses(names, self.asked()), samples=rows),
            Transform(Mix(names, parameters)),
        )

    def dispatch(self, state: State, ids: Tensor) -> Dispatch:
        chosen = self.candidates(state, ids)
        asked = chosen >= 0
        values = {f"model.{n}": state.clients[n][chosen.clamp_min(0)] for n in self.exchanged()}
        mask = dict.fromkeys([*values, "asked"], asked)
        return Dispatch(rows=Message(values | {"asked": asked}, mask))

    def candidates(self, state: State, ids: Tensor) -> Tensor:
        """Return the clients [K, M] whose models clients `ids` [K] are sent; -1 for none."""
        draw = Draw(self.setting.seed, (state.round,), self.setting.clients)
        chosen = torch.full((len(ids), self.asked()), -1)
        for k, client in enumerate(ids.tolist()):
            others = state.server["uploaded"].clone()
            others[client] = False
            rng = draw.method_generator(client)
            order = torch.from_numpy(rng.permutation(others.nonzero()[:, 0].numpy()))
            epsilon = self.config.epsilon - self.config.epsilon_decay * int(
                state.participation_count[client]
            )
            if rng.random() >= epsilon:
                liked = state.server["preference"][client, order]
                order = order[liked.argsort(descending=True, stable=True)]
            chosen[k, : len(order)] = order[: self.asked()]
        return chosen

    def aggregate(self, state: State, results: Results) -> Update:
        ids, raw = results.ids, results.sent.values["raw"].double()
        chosen = self.candidates(state, ids)  # as they were sent: the state is that of the dispatch
        asked = chosen >= 0
        preference = state.server["preference"].clone()
        preference[ids] = preference[ids].scatter_add(
            1, chosen.clamp_min(0), torch.where(asked, raw, 0.0)
        )
        trained = ids[results.steps > 0]  # C5: a model that never trained is not passed on
        uploaded = state.server["uploaded"].index_fill(0, trained, True)
        found = {"helpful_share": float((raw[asked] > 0).double().mean())} if asked.any() else {}
        return Update({"preference": preference, "uploaded": uploaded}, metrics=found)

    def deploy(self, state: State, ids: Tensor) -> dict[str, Deployment]:
        trained = Deployment(Dispatch())
        if self.config.evaluated == "trained":
            return {"personal": trained}
        # M models for each client: dear for large nets.
        program = LocalProgram((*self.mixing(), *estimated(self.setting)))
        return {"personal": Deployment(self.dispatch(state, ids), program), "trained": trained}
