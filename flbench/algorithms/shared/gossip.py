"""Base class of decentralized methods: clients train, then mix models with their neighbours.

This module registers no method. `dfedavg.py` is the simplest method that is made of it.
"""

from collections.abc import Callable
from dataclasses import replace
from typing import ClassVar

import torch
from torch import Tensor

from flbench.algorithms.base import Algorithm, Deployment
from flbench.algorithms.setting import MOST_SHOWN, PAIRS_OF_COHORT, Need
from flbench.algorithms.shared.mixing import mix
from flbench.algorithms.shared.second import Second
from flbench.algorithms.shared.topology import (
    GossipConfig,
    components,
    graph_of,
    mixing_rows,
    network,
)
from flbench.client.program import LocalProgram, Step, bind
from flbench.config.schema import AlgorithmConfig
from flbench.core.learned import LearnedTable
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

    In a subclass, `split` says which leaves stay with a client and which are mixed, `steps` how it
    trains, and `called` what the net is called with in an evaluation.
    """

    Config: ClassVar[type[AlgorithmConfig]] = GossipConfig
    config: GossipConfig
    needs: ClassVar[tuple[Need, ...]] = (PAIRS_OF_COHORT,)

    @property
    def unmixed(self) -> Second:
        """Copies of the leaves from before mixing."""
        return Second(LOCAL, tuple(sorted(self.split()[1])))

    def steps(self) -> tuple[Step, ...]:
        """Return the steps of a client before it sends."""
        return (self.phase(*self.terms()),)

    def called(self) -> Callable[[Context], Tree] | None:
        """Return `Deployment.weights` of a client's model; None for the client's leaves."""
        return None

    def init(self, start: Tree) -> tuple[Tree, Tree]:
        keeps, mixed = self.split()
        mean = {} if keeps else only(start, mixed)
        clients = repeat(only(start, keeps | mixed), self.setting.clients)
        if self.config.after_training:
            clients |= self.unmixed.start(clients)
        return mean, clients

    def program(self, state: State) -> LocalProgram:
        keeps, mixed = self.split()
        if not self.config.after_training:
            return LocalProgram(self.steps(), keeps | mixed, mixed)
        steps = (*self.steps(), self.unmixed.copy())
        return LocalProgram(steps, keeps | mixed | self.unmixed.leaves, mixed)

    def dispatch(self, state: State, ids: Tensor) -> Dispatch:
        return Dispatch()

    def links(self, state: State, ids: Tensor) -> Tensor:
        draw = Draw(self.setting.seed, (state.round,), self.setting.clients)
        return mixing_rows(graph_of(self.config, draw, ids), self.config.mixing)

    def aggregate(self, state: State, results: Results) -> Update:
        keeps, mixed = self.split()
        links, mean = self.links(state, results.ids), {}
        if not keeps:  # the mean of all clients' models after mixing
            shares = torch.ones(self.setting.clients, dtype=torch.float64)
            shares[results.ids] = links.sum(dim=0)  # total weight of each client's model
            rows = mix(only(state.clients, mixed), shares[None] / self.setting.clients)
            mean = {name: value[0] for name, value in rows.items()}
        # `peers` is the mean number of other clients whose models a client mixes.
        degree = ((links != 0) & ~torch.eye(len(links), dtype=torch.bool)).sum(dim=1)
        metrics = {"peers": float(degree.double().mean()), "isolated": float((degree == 0).sum())}
        return Update(mean, Message(self.mixed(results.sent, links)), metrics)

    def mixed(self, sent: Message, links: Tensor) -> Tree:
        """Return the leaves [K, ...] that were sent, mixed by the rows of `links` [K, K]."""
        return mix(sent.values, links)

    def deploy(self, state: State, ids: Tensor) -> dict[str, Deployment]:
        called, personal = self.called(), self.called()
        if self.config.after_training:
            personal = bind(before_mixing, self.unmixed, called) if called else self.unmixed
        deployments = {"personal": Deployment(Dispatch(), weights=personal)}
        if state.server:
            mean = Dispatch(Message(only(state.server, self.split()[1])))
            deployments["gm"] = Deployment(mean, weights=called)
        return deployments

    def learned(self, state: State) -> tuple[LearnedTable, ...]:
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
        )
        return (table,)

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


def before_mixing(context: Context, unmixed: Second, called: Callable[[Context], Tree]) -> Tree:
    """Return what the net is called with if models are evaluated as they were before mixing."""
    return called(context.with_leaves(context.leaves | unmixed(context)))
