"""The hooks of a method, with defaults that already make FedAvg.

A method is frozen: `(config, setting)`. State goes in as an argument and comes out as a value;
nothing hides in attributes. Override what the paper changes, and nothing else.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from flbench.client.program import LocalProgram, LossTerm, Phase, Statistic
from flbench.config.schema import AlgorithmConfig, TrainConfig
from flbench.core.rng import Draw
from flbench.core.tree import copied, only, repeat, weighted_mean
from flbench.core.types import Dispatch, Message, Results, Stage, State, StepContext, Tree, Update
from flbench.losses import CrossEntropy
from flbench.models.base import NetSpec


@dataclass(frozen=True)
class Paper:
    """Where a method comes from."""

    title: str
    authors: str
    venue: str
    doi: str | None = None


@dataclass(frozen=True)
class Communication:
    """What a method exchanges, in words, with the letters of the README: w all weights, D, C."""

    down: str
    up: str
    keeps: str


@dataclass(frozen=True)
class Setting:
    """What a method may know of the experiment.

    Attributes:
        seed: the run's.
        rounds: communication rounds T.
        train: how every method trains.
        clients: N.
        sizes: [N] int64 training samples of every client.
        classes: C.
        net: the net's leaves by role, its layers, its feature width D.
    """

    seed: int
    rounds: int
    train: TrainConfig
    clients: int
    sizes: Tensor
    classes: int
    net: NetSpec


@dataclass(frozen=True)
class Deployment:
    """A model that is evaluated: a client's own for every client, or the global one.

    Attributes:
        dispatch: what overlays the start net and the client's kept rows.
        program: training before evaluating (fine-tuning), on a copy; None for none.
        weights: (leaves, ctx) -> what the net is called with; None calls it with the leaves.
        predict: context -> scores [B, C]; None takes the logits.
        clients: ids of the clients that are evaluated with it; None for all. The first deployment is
            for all.
    """

    dispatch: Dispatch
    program: LocalProgram | None = None
    weights: Callable[[Tree, Tree], Tree] | None = None
    predict: Callable[[StepContext], Tensor] | None = None
    clients: Tensor | None = None


class Algorithm:
    """Base of all methods; the defaults are FedAvg's, with `personal` leaves kept at the clients.

    Class attributes `Config`, `paper` and `wire` describe the method; `name` is set by the
    registry.
    """

    Config: ClassVar[type[AlgorithmConfig]] = AlgorithmConfig
    name: ClassVar[str]
    paper: ClassVar[Paper]
    communication: ClassVar[Communication]

    def __init__(self, config: AlgorithmConfig, setting: Setting) -> None:
        self.config = config
        self.setting = setting

    def personal(self) -> frozenset[str]:
        """Return the leaves of the net that stay with the client; the others are shared."""
        return frozenset()

    def terms(self) -> tuple[LossTerm, ...]:
        """Return the terms of the local loss."""
        return (CrossEntropy(),)

    def requires(self) -> list[str]:
        """Return a sentence for each need that the setting does not meet; one refuses the run."""
        return []

    def notes(self) -> list[str]:
        """Return what the run says before it starts: where the method equals another, say."""
        return []

    def stages(self) -> tuple[Stage, ...]:
        """Return the stretches of rounds with one program each."""
        return (Stage("train", self.setting.rounds),)

    def init(self, start: Tree) -> tuple[Tree, Tree]:
        """Return the server's tree and the clients' (leading axis N) before the first round.

        Args:
            start: the leaves of the seeded net.
        """
        keeps, sends = self.split()
        return only(start, sends), repeat(only(start, keeps), self.setting.clients)

    def cohort(self, state: State, draw: Draw) -> Tensor:
        """Return the ascending ids [K] of the clients that take part in a round.

        In a set-up stage these are all. Like `dispatch` and `links` it sees of the kept rows only
        what is sent too.
        """
        if self.stages()[state.stage].setup:
            return torch.arange(self.setting.clients)
        return draw.uniform(self.setting.train.participation)

    def program(self, state: State) -> LocalProgram:
        """Return what each of them does; equal from round to round within a stage.

        It sees no kept rows at all: what is visible follows from the program.
        """
        keeps, sends = self.split()
        return LocalProgram((self.phase(*self.terms()),), keeps, sends)

    def dispatch(self, state: State, ids: Tensor) -> Dispatch:
        """Return what the server sends to clients `ids` [K]; row j depends on ids[j] alone.

        The seeded start is what every client has: as long as the server's net is that, nothing is
        sent.
        """
        if state.is_initial:
            return Dispatch()
        return Dispatch(Message(only(state.server, self.program(state).sends)))

    def aggregate(self, state: State, results: Results) -> Update:
        """Return what the server makes of what the cohort sent."""
        return Update(self.mean(results))

    def links(self, state: State, ids: Tensor) -> Tensor | None:
        """Return the mixing rows [K, K] of a method without a server; None for a server."""
        return None

    def deploy(self, state: State, ids: Tensor) -> dict[str, Deployment]:
        """Return the models to evaluate, for clients `ids` [K].

        The first, `personal`, counts: it is evaluated on the client's own parts, tuned and digested. A
        `gm` is evaluated on the common test set only, once. Others are evaluated beside the first. All
        but the rows of the dispatches is the same whichever clients are asked for.
        """
        model = Deployment(self.dispatch(state, ids))
        everything_is_shared = not self.split()[0]
        return {"personal": model, "gm": model} if everything_is_shared else {"personal": model}

    def diagnostics(self) -> tuple[Statistic, ...]:
        """Return Statistics after a evaluated round's programs, 0-dim results each, for the log.

        The cohort's mean of each is logged under its key. No server sees them, nothing is charged.
        """
        return ()

    def phase(
        self,
        *terms: LossTerm,
        train: str | frozenset[str] | None = None,
        epochs: int | None = None,
    ) -> Phase:
        """Return one stretch of training as `train.*` says.

        Args:
            terms: of the loss.
            train: the leaves to train; None for the net's parameters and nothing else.
            epochs: None for `train.local_epochs`.
        """
        config = self.setting.train
        if train is None:
            train = frozenset(self.setting.net.parameters)
        epochs = config.local_epochs if epochs is None else epochs
        return Phase(train, terms, config.optimizer, epochs=epochs, clip=config.clip)

    def split(self) -> tuple[frozenset[str], frozenset[str]]:
        """Return the leaves that clients keep and those that they send (C7: statistics by policy).

        `average`: statistics follow their layer's weights. `local`: they stay with the client.
        `drop`: neither kept nor sent; they are estimated anew when the model is evaluated.
        """
        keeps = self.personal()
        sends = self.setting.net.names("all") - keeps
        statistics = self.setting.net.statistics
        policy = self.setting.train.batchnorm
        if policy == "local":
            return keeps | statistics, sends - statistics
        if policy == "drop":
            return keeps - statistics, sends - statistics
        return keeps, sends

    def weights(self, results: Results) -> Tensor:
        """Return each client's weight [K] float64: its samples, or one; 0 without a step (C5)."""
        sizes = self.setting.sizes[results.ids].double()
        if self.config.agg_weights == "uniform":
            sizes = torch.ones_like(sizes)
        return torch.where(results.steps > 0, sizes, 0.0)

    def mean(self, results: Results) -> Tree:
        """Return the weighted mean of the net's sent leaves (C6); empty if nobody made a step."""
        return weighted_mean(
            only(results.sent.values, self.setting.net.names("all")), self.weights(results)
        )


def state_of(algorithm: Algorithm, start: Tree, own: Callable[[Tree], Tree] = copied) -> State:
    """Return the state before the first round.

    Args:
        algorithm: the method.
        start: the leaves of the seeded net.
        own: gives the clients rows that may be written in place.
    """
    server, clients = algorithm.init(start)
    clients = own(clients)
    participation_count = torch.zeros(algorithm.setting.clients, dtype=torch.int64)
    return State(
        stage=0,
        stage_round=0,
        round=0,
        server=server,
        clients=clients,
        participation_count=participation_count,
    )
