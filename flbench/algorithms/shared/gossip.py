"""Base class of decentralized methods: clients train, then mix models with their neighbours.

This module registers no method. `dfedavg.py` is the simplest method that is made of it.
"""

from collections.abc import Callable
from dataclasses import replace
from typing import Any, ClassVar

import torch
from torch import Tensor

from flbench.algorithms.base import Algorithm, Deployment
from flbench.algorithms.setting import MOST_SHOWN, PAIRS_OF_COHORT
from flbench.algorithms.shared.mixing import mix
from flbench.algorithms.shared.second import Second
from flbench.algorithms.shared.topology import (
    GossipConfig,
    components,
    graph_of,
    mixing_rows,
    network,
)
from flbench.client.program import LocalProgram, LossTerm, Phase, Step, bind
from flbench.config.schema import AlgorithmConfig
from flbench.core.learned import Learned, LearnedTable
from flbench.core.rng import Draw
from flbench.core.tree import only, repeat
from flbench.core.types import Context, Dispatch, Message, Results, State, Tree, Update

LOCAL = "local."  # prefix of copies of leaves from before mixing


class Gossip(Algorithm):
    """Local training, then x_i <- sum_l w_il z_l, where z_l is what client l sends.

    There is no server. `state.server` holds the mean of all clients' models if everything is
    shared; no client sends or receives it, and it is only evaluated, as `gm`. All clients of a
    round mix at once, from the models that they had before (synchronous). Absent clients
    (`train.participation`) neither send nor mix. A client that made no step sends the model that it
    has: leaving it out of the mean, as methods with a server do, would make rows of weights that do
    not sum to one.

    A subclass can replace what is trained and mixed in one place: `leaves` makes what a client has,
    `split` says which of it stays with the client and which is mixed, `trainable` which leaves
    phases train, and `called` turns the leaves into what the net is called with, in training and in
    an evaluation.
    """

    Config: ClassVar[type[AlgorithmConfig]] = GossipConfig
    config: GossipConfig
    needs = (PAIRS_OF_COHORT,)

    @property
    def unmixed(self) -> Second:
        """Copies of the leaves from before mixing."""
        return Second(LOCAL, tuple(sorted(self.split()[1])))

    def leaves(self, start: Tree) -> Tree:
        """Return the leaves that a client may keep or mix before the first round.

        Args:
            start: Parameters and buffers of the seeded net, without a client axis.
        """
        return start

    def trainable(self) -> frozenset[str]:
        """Return the names of the leaves that a phase trains unless it names others."""
        return frozenset(self.setting.net.parameters)

    def called(self) -> Callable[[Context], Tree] | None:
        """Return context -> what the net is called with; None for the leaves themselves."""
        return None

    def steps(self) -> tuple[Step, ...]:
        """Return the steps of a client before it sends."""
        return (self.phase(*self.terms()),)

    def phase(
        self,
        *terms: LossTerm,
        train: str | frozenset[str] | None = None,
        epochs: int | None = None,
        **others: Any,
    ) -> Phase:
        train = self.trainable() if train is None else train
        others = {"weights": self.called()} | others
        return super().phase(*terms, train=train, epochs=epochs, **others)

    def init(self, start: Tree) -> tuple[Tree, Tree]:
        keeps, mixed = self.split()
        leaves = self.leaves(start)
        mean = {} if keeps else only(leaves, mixed)
        clients = repeat(only(leaves, keeps | mixed), self.setting.clients)
        if not self.config.after_training:
            return mean, clients
        return mean, clients | self.unmixed.start(clients)

    def program(self, state: State) -> LocalProgram:
        keeps, mixed = self.split()
        steps, copies = self.steps(), frozenset[str]()
        if self.config.after_training:
            steps, copies = (*steps, self.unmixed.copy()), self.unmixed.leaves
        return LocalProgram(steps, keeps | mixed | copies, mixed)

    def dispatch(self, state: State, ids: Tensor) -> Dispatch:
        return Dispatch()

    def links(self, state: State, ids: Tensor) -> Tensor:
        draw = Draw(self.setting.seed, (state.round,), self.setting.clients)
        return mixing_rows(graph_of(self.config, draw, ids), self.config.mixing)

    def learned(self, state: State) -> tuple[Learned, ...]:
        """Return the mixing weights of the last round, the topology."""
        clients = self.setting.clients
        if state.round == 0 or clients > MOST_SHOWN:
            return ()
        before = replace(state, round=state.round - 1)
        ids = self.cohort(before, Draw(self.setting.seed, (before.round,), clients))
        weights = torch.full((clients, clients), torch.nan, dtype=torch.float64)
        links = self.links(before, ids)  # [K, K]
        weights[ids[:, None], ids] = torch.where(links == 0, torch.nan, links)
        table = LearnedTable(
            "topology",
            "Weight with which each client (rows) mixed the models of the others (columns) in the"
            " last round, as far as all clients finished it; empty where there is no link.",
            weights,
            rows="client",
            columns="client",
            limits=(0.0, float(links.max())),
        )
        return (table,)

    def aggregate(self, state: State, results: Results) -> Update:
        links = self.links(state, results.ids)
        return Update(
            self.mean_after(state, results.ids, links),
            Message(self.mixed(results.sent, links)),
            peers(links),
        )

    def mixed(self, sent: Message, links: Tensor) -> Tree:
        """Return the mixed leaves of each client of the cohort, [K, ...] each.

        Args:
            sent: What the clients sent, [K, ...] per leaf.
            links: [K, K] mixing rows.
        """
        return mix(sent.values, links)

    def mean_after(self, state: State, ids: Tensor, links: Tensor) -> Tree:
        """Return the mean of all clients' models after mixing; empty if clients keep a part."""
        keeps, mixed = self.split()
        if keeps:
            return {}
        shares = torch.ones(self.setting.clients, dtype=torch.float64)
        shares[ids] = links.sum(dim=0)  # total weight of each client's model in the mixed ones
        mean = mix(only(state.clients, mixed), shares[None] / self.setting.clients)
        return {name: value[0] for name, value in mean.items()}

    def deploy(self, state: State, ids: Tensor) -> dict[str, Deployment]:
        weights, mixed = self.evaluated(), self.split()[1]
        deployments = {"personal": Deployment(Dispatch(), weights=weights)}
        if self.config.after_training:
            before = bind(before_mixing, self.unmixed, weights) if weights else self.unmixed
            deployments = {"personal": Deployment(Dispatch(), weights=before)}
        if state.server:
            mean = Dispatch(Message(only(state.server, mixed)))
            deployments["gm"] = Deployment(mean, weights=weights)
        return deployments

    def evaluated(self) -> Callable[[Context], Tree] | None:
        """Return context -> what the net is called with in an evaluation."""
        return self.called()

    def notes(self) -> list[str]:
        if self.config.topology == "random":
            return []
        parts = components(network(self.config, self.setting.seed, self.setting.clients))
        if len(parts) == 1:
            return []
        alone = sum(len(part) == 1 for part in parts)
        isolated = f", {alone} of them a single client that trains alone" if alone else ""
        return [
            f"the network falls into {len(parts)} parts that exchange no models{isolated}"
            f" (algorithm.topology={self.config.topology})."
        ]


def before_mixing(context: Context, unmixed: Second, weights: Callable[[Context], Tree]) -> Tree:
    """Return what the net is called with if models are evaluated as they were before mixing."""
    return weights(context.with_leaves(context.leaves | unmixed(context)))


def peers(links: Tensor) -> dict[str, float]:
    """Return metrics of a round's mixing rows [K, K].

    `peers` is the mean number of other clients whose models a client mixes, `isolated` the number
    of clients that mix no other.
    """
    degree = ((links != 0) & ~torch.eye(len(links), dtype=torch.bool)).sum(dim=1)
    return {"peers": float(degree.double().mean()), "isolated": float((degree == 0).sum())}
