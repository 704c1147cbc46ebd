"""The contract of a method: the class `Algorithm`, whose defaults are FedAvg, and its hooks.

A method is a subclass of `Algorithm` that overrides the hooks in which its paper differs from
FedAvg. A method object never changes: it holds the configuration and the `Setting`, and nothing
else. What a run remembers is a `State`, which each hook receives as an argument; hooks return new
values and modify no argument.

One round calls the hooks in this order:

1. `program(state)`: what a client of the round does, as a list of steps.
2. `cohort(state, draw)`: the ids of the clients that take part.
3. `dispatch(state, ids)`: what the server sends to them. The engine then runs the program at each
   client: a dispatched leaf overwrites the client's leaf of that name, and any other dispatched
   tensor becomes an entry of `ctx`, which loss terms and steps can read.
4. `links(state, ids)`: the mixing weights of a method without a server; None with a server.
5. `aggregate(state, results)`: what the server makes of what the clients sent. It is not called in
   a round in which every client diverged.

When models are evaluated, `deploy(state, ids)` returns them. Before the first round `requires` and
`notes` check the setting, and `init` makes the first state.

A method is written at one of four levels. Each is complete without the next one.

- Level 1, another loss: override `terms`. `fedprox.py` adds a proximal term to cross entropy.
- Level 2, other parameters and buffers are shared: override `personal`. `fedbn.py` keeps the
  BatchNorm layers at the clients.
- Level 3, a client or the server remembers or sends more: override `init`, `program`, `dispatch`
  and `aggregate` where needed. `scaffold.py` keeps and sends control variates.
- Level 4, several stages, peers, generated weights, or several models to evaluate: override
  `stages`, `cohort`, `links` and `deploy` where needed. `pfedsim.py` has two stages, `dfedavg.py`
  mixes with peers, `dfedhp.py` generates weights, and `ditto.py` evaluates a second model.

Axis letters: N clients, K clients of the cohort, B batch, C classes, D features.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, Self

import torch
from torch import Tensor

from flbench.algorithms.setting import LinearHead, Need, Setting
from flbench.client.program import LocalProgram, LossTerm, Phase
from flbench.config.schema import AlgorithmConfig
from flbench.core.errors import ConfigError
from flbench.core.known_code import is_known
from flbench.core.learned import LearnedTable
from flbench.core.rng import Draw
from flbench.core.tree import copied, only, repeat, weighted_mean
from flbench.core.types import Context, Dispatch, Message, Results, Stage, State, Tree, Update
from flbench.losses import CrossEntropy


@dataclass(frozen=True)
class Paper:
    """The publication that a method comes from.

    Attributes:
        title: Title of the publication.
        authors: Family names, separated by commas.
        venue: Journal or conference, with the year.
        doi: Digital object identifier; None where there is none.
    """

    title: str
    authors: str
    venue: str
    doi: str | None = None

    @property
    def citation(self) -> str:
        """The publication in one line."""
        if self.authors == "-":  # a reference line, which has no publication
            return f"{self.title} ({self.venue})."
        doi = f", doi {self.doi}" if self.doi else ""
        return f"{self.authors}: {self.title}. {self.venue}{doi}."


@dataclass(frozen=True)
class Communication:
    """What a method exchanges, as text for tables.

    The texts write w for all parameters and buffers of the net, C for the number of classes and D
    for the number of features.

    Attributes:
        down: What the server (or a neighbour) sends to a client in a round.
        up: What a client sends in a round.
        keeps: What a client keeps from one participation to the next.
    """

    down: str
    up: str
    keeps: str


Rewrite = Callable[[LocalProgram, Setting], LocalProgram]
"""(program of a method, setting) -> the program that the run executes in its place."""


@dataclass(frozen=True)
class Deployment:
    """A model to evaluate: one per client, or one for all.

    The model of a client is made of the seeded net, over it the leaves that the client keeps, and
    over them the leaves in `dispatch`.

    Attributes:
        dispatch: What the server would send to a client that is evaluated. Bytes are not counted.
        program: Training before the evaluation (fine-tuning) on a copy that is then discarded; None
            for none.
        weights: context -> parameters and buffers that the net is called with in place of the
            leaves of these names, as in a Phase.
        predict: Maps a `Context` to scores [B, C]; None takes the net's logits. A function
            whose scores are not logits has an attribute `scores` that says what they are.
    """

    dispatch: Dispatch
    program: LocalProgram | None = None
    weights: Callable[[Context], Tree] | None = None
    predict: Callable[[Context], Tensor] | None = None


@dataclass(frozen=True)
class Joining:
    """What a client does that joins after the training, before its model is first evaluated.

    Attributes:
        dispatch: What the server, or a client near it, sends. Its bytes are those of joining.
        program: What the client computes from it. The leaves in `keeps` become the client's rows.
            Nothing is sent unless there is `aggregate`, which gets the leaves in `sends`.
        aggregate: (state, what new clients sent) -> what the server makes of it, as in the hook
            `aggregate`: entries of its tree, such as the cluster of each new client, and a reply.
            What concerns a client must not depend on other new clients, and nothing that clients
            which trained receive may change. None for a client that joins without the server.
        adapts: Whether epochs of training may follow. False for a model that follows from the
            client's samples in closed form: it is then the same after any number of epochs.
    """

    dispatch: Dispatch = field(default_factory=Dispatch)
    program: LocalProgram = field(default_factory=lambda: LocalProgram(()))
    adapts: bool = True
    aggregate: Callable[[State, Results], Update] | None = None


class Algorithm:
    """Base class of all methods. Its defaults are FedAvg, with `personal` leaves kept by clients.

    A subclass sets three class attributes: `Config` if it has keys of its own, `paper` and
    `communication`. The decorator `ALGORITHMS.register` sets `name`. A method that cannot be used
    in every setting sets `needs` too.

    Attributes:
        needs: Conditions on the setting, such as `(fl.LINEAR_HEAD, fl.PLAIN_SGD)`.
        by_client: Entries of the server's tree with axes of N clients, and these axes, such as
            `(("xi", (0, 1)),)` for a matrix [N, N]. A name that ends with a dot stands for all that
            begin with it. Clients that join after the training have entries of `init` there.
        settles: Share of the rounds after which what the method adds has most of its effect, such
            as a term whose weight grows; `flbench tune` stops no trial earlier.
        config: The section `algorithm` of the configuration, an instance of `Config`.
        setting: What the method may know of the experiment.
        rewrites: Functions (program, setting) -> program that the run applies to each program of
            the method, to add the terms of `train.terms` or to train by the loss of the user's
            LightningModule. The hooks themselves return programs without them.
    """

    Config: ClassVar[type[AlgorithmConfig]] = AlgorithmConfig
    name: ClassVar[str]
    paper: ClassVar[Paper]
    communication: ClassVar[Communication]
    needs: ClassVar[tuple[Need, ...]] = ()
    by_client: ClassVar[tuple[tuple[str, tuple[int, ...]], ...]] = ()
    settles: ClassVar[float] = 0.0

    rewrites: tuple[Rewrite, ...] = ()

    def __init__(self, config: AlgorithmConfig, setting: Setting) -> None:
        self.config = config
        self.setting = setting

    # Level 1: another loss

    def terms(self) -> tuple[LossTerm, ...]:
        """Return the terms of the local loss, which is their sum, each times its `weight`.

        The default is the mean cross entropy of the net's logits. A term is a frozen dataclass
        with an attribute `weight` that maps a `Context` to a 0-dim tensor.
        """
        return (CrossEntropy(),)

    # Level 2: other parameters and buffers are shared

    def personal(self) -> frozenset[str]:
        """Return the names of the net's parameters and buffers that stay with a client.

        All others are sent to the server and averaged. The default is the empty set. Names are
        those of `self.setting.net`, which also groups them: `net.names("head")`, `net.layers`.

        A program may send a personal leaf too, so that the server can read it in `aggregate`. The
        default `dispatch` and `mean` leave it out: it is neither averaged nor sent back. A method
        that averages personal leaves, or sends them to clients, names them in hooks of its own:
        `weighted_mean(only(results.sent.values, names), self.weights(results))`, `Dispatch`.
        """
        return frozenset()

    # Messages for the user

    def requires(self) -> list[str]:
        """Return one sentence for each requirement that the setting does not meet.

        It is called once before the run starts. If the list is not empty, the run stops with a
        `ConfigError` that prints the sentences; each names the value, the key and the cure. The
        default has those of `needs`. A method overrides it for what no other method asks for.
        """
        return [need.sentence for need in self.needs if not need.is_met(self.setting)]

    @classmethod
    def example(cls) -> tuple[str, ...]:
        """Return overrides with which the default net meets `needs`, such as for a test."""
        return tuple(one for need in cls.needs for one in need.example)

    def notes(self) -> list[str]:
        """Return sentences for the user, printed as `note: ...` before the first round.

        A note says what a user may want to change. It is called once, after `requires`.
        """
        return []

    # Level 3: a client or the server remembers or sends more

    def init(self, start: Tree) -> tuple[Tree, Tree]:
        """Return what the server and the clients remember before the first round.

        It is called once per run. A program may keep only leaves that are in the clients' tree.

        Args:
            start: Parameters and buffers of the seeded net, without a client axis.

        Returns:
            The server's tree, in which leaves of the net have their own names, and the clients'
            tree, with a leading axis N in every leaf. Both may have further entries. Leaves of the
            net in the server's tree that have other values than in `start` are sent in the first
            round, as in the others.
        """
        keeps, sends = self.split()
        return only(start, sends), repeat(only(start, keeps), self.setting.clients)

    def program(self, state: State) -> LocalProgram:
        """Return what each client of the next round does: steps, leaves to keep, leaves to send.

        It must be the same in all rounds of a stage, because engines compile a program once. The
        default is one training phase on `terms()`.

        Args:
            state: State before the round. `state.clients` is empty here: the program decides which
                of the clients' leaves the server sees.
        """
        keeps, sends = self.split()
        return LocalProgram((self.phase(*self.terms()),), keeps, sends)

    def dispatch(self, state: State, ids: Tensor) -> Dispatch:
        """Return what the server sends to some clients at the beginning of a round.

        It may be called several times in a round, for parts of the cohort; what a client receives
        must not depend on the other clients in `ids`. The default sends the entries of the server's
        tree that the program sends and that clients do not keep by `split`, and those that are no
        leaves of the net become leaves of the client. Every client has the seeded net, so that its
        leaves are sent only when the server's parameters have changed.

        Args:
            state: State before the round. Of the clients' leaves it has those that the program
                sends; rows that the server has not received since they changed are zero.
            ids: [K] int64, the clients.
        """
        program = self.program(state)
        sends = (program.sends - self.split()[0]) & state.server.keys()
        if state.is_initial:
            sends -= self.setting.net.names("all")
        return Dispatch(Message(only(state.server, sends)), leaves=program.keeps | program.sends)

    def aggregate(self, state: State, results: Results) -> Update:
        """Return the entries of the server's tree that change, a reply to the cohort, and metrics.

        It is called once per round, after the leaves that clients keep have been stored. The
        default replaces the entries of the server's tree by the weighted means of those that were
        sent, but for leaves that clients keep by `split`.

        Args:
            state: State before the round, with the clients' leaves as in `dispatch`; those that
                the cohort both keeps and sends are already the new ones.
            results: What the cohort sent, [K, ...] per leaf, without clients that diverged. Losses
                are NaN and leaves that were not sent are missing: the server does not see them.
        """
        return Update(self.mean(results, state.server))

    # Level 4: stages, peers, several models

    def stages(self) -> tuple[Stage, ...]:
        """Return the stages of the run, in order: runs of rounds with one local program each.

        The rounds of all stages but set-up stages add up to `setting.rounds`. The default is one
        stage.
        """
        return (Stage("train", self.setting.rounds),)

    def cohort(self, state: State, draw: Draw) -> Tensor:
        """Return the ascending ids [K] int64 of the clients that take part in the next round.

        The default draws the share `train.participation` of all clients uniformly, and takes all
        clients in a set-up stage.

        Args:
            state: State before the round, with the clients' leaves as in `dispatch`.
            draw: Random streams of the round. All methods of one seed draw the same cohorts.
        """
        if self.stage(state).setup:
            return torch.arange(self.setting.clients)
        return draw.cohort(self.setting.train.participation)

    def links(self, state: State, ids: Tensor) -> Tensor | None:
        """Return the mixing weights of a method without a server; None for one with a server.

        A round of links charges no bytes to a server: the payload of client j is charged once for
        each other client i with a weight [i, j] that is not zero.

        Args:
            state: State after the local programs, with the clients' leaves as in `dispatch`.
            ids: [K] int64, the clients that finished the round.

        Returns:
            [K, K] float64: row i holds the weights with which client i mixes the cohort's models.
        """
        return None

    def deploy(self, state: State, ids: Tensor) -> dict[str, Deployment]:
        """Return the models to evaluate for some clients, by name.

        The first one must be called `personal`. It is the model that counts: it is evaluated on
        each client's own samples, and its accuracy is tuned and reported. `gm`, the global model,
        is evaluated once and on the common test set only. Further models are evaluated beside the
        first. The default is the model that the server would dispatch, as `personal` and, if
        everything is shared and all clients are sent the same, as `gm` too.

        Args:
            state: State after a round, with the clients' leaves as in `dispatch`.
            ids: [K] int64, the clients. Only the rows of a dispatch may depend on them.
        """
        model = Deployment(self.dispatch(state, ids))
        is_of_all = not self.split()[0] and not model.dispatch.rows.values
        return {"personal": model, "gm": model} if is_of_all else {"personal": model}

    def join(self, state: State, ids: Tensor) -> Joining | None:
        """Return what clients do first that join after the training; None for nothing.

        By default a new client is evaluated as one that no cohort has had: with the model of
        `deploy`, for which the rows of its leaves are those of `init`. A method overrides this hook
        if a new client has rows of its own to compute, such as a second model that begins as a copy
        of the global one, or if the server chooses something for it, such as a cluster.

        Args:
            state: State after the training, with the clients' leaves as in `dispatch`. New clients
                have the last ids; their rows, and their entries in the server's tree, are those of
                `init` for all clients.
            ids: [K] int64, new clients. Only the rows of the dispatch may depend on them.
        """
        return None

    def cohort_groups(self, state: State) -> Tensor | None:
        """Return the group [N] int64 of each client, to report the accuracy of cohorts by group.

        It serves papers that print the accuracy of the participants of the last rounds instead of
        that of all clients. If it is not None, the participants of every round are evaluated on
        their own samples before local training, right after it, and after aggregation. The mean
        over the groups of the accuracy of a group's participants is logged as
        `accuracy_group_mean`. The default is None.

        Args:
            state: State before the round. `state.clients` is empty here.
        """
        return None

    def client_axes(self, name: str) -> tuple[int, ...]:
        """Return the axes of N clients of an entry of the server's tree; see `by_client`."""
        known, (head, dot, _) = dict(self.by_client), name.partition(".")
        return known.get(name, known.get(head + dot, ()))

    def learned(self, state: State) -> tuple[LearnedTable, ...]:
        """Return what the method has learned besides the models, for the report of a comparison.

        It is called once, after the last round, and the run writes the result to learned.json. The
        default is nothing.

        Args:
            state: State after the last round, with all leaves of the clients.
        """
        return ()

    # What a run calls instead of `program`, `deploy` and `join`

    def local_program(self, state: State) -> LocalProgram:
        """Return `program(state)` with the rewrites."""
        return self._rewritten(self.program(state))

    def deployed(self, state: State, ids: Tensor) -> dict[str, Deployment]:
        """Return `deploy(state, ids)`, whose programs have the rewrites."""
        models = self.deploy(state, ids)
        if not self.rewrites:
            return models
        return {
            name: replace(one, program=one.program and self._rewritten(one.program))
            for name, one in models.items()
        }

    def joining(self, state: State, ids: Tensor) -> Joining | None:
        """Return `join(state, ids)`, whose program has the rewrites."""
        found = self.join(state, ids)
        return found and replace(found, program=self._rewritten(found.program))

    def with_setting(self, setting: Setting) -> Self:
        """Return a new object of the method in a setting, with the same rewrites."""
        other = type(self)(self.config, setting)
        other.rewrites = self.rewrites
        return other

    def _rewritten(self, program: LocalProgram) -> LocalProgram:
        """Return a program with the rewrites."""
        for rewrite in self.rewrites:
            program = rewrite(program, self.setting)
        return program

    # Parts that hooks are made of

    @property
    def linear_head(self) -> LinearHead:
        """The head of a net that meets `LINEAR_HEAD`, as a function of leaves and features."""
        return LinearHead.of(self.setting.net)

    def stage(self, state: State) -> Stage:
        """Return the stage of the next round."""
        return self.stages()[state.stage]

    def two_stages(self, first: str, rounds: int, then: str) -> tuple[Stage, ...]:
        """Return a stage of some rounds and one of the others, without a stage of no rounds."""
        lengths = {first: rounds, then: self.setting.rounds - rounds}
        return tuple(Stage(name, length) for name, length in lengths.items() if length)

    def phase(
        self,
        *terms: LossTerm,
        train: str | frozenset[str] | None = None,
        epochs: int | None = None,
        **others: Any,
    ) -> Phase:
        """Return a training phase with the epochs, the optimizer and the clipping of `train.*`.

        Args:
            terms: Terms of the loss.
            train: Names of the leaves to train, or a pattern; None for the net's parameters.
            epochs: Number of epochs; None for `train.local_epochs` or `train.local_steps`, or for
                `steps` if it is given.
            others: Attributes of `Phase` that differ, such as `weights` or `optimizer`.
        """
        config = self.setting.train
        if train is None:
            train = frozenset(self.setting.net.parameters)
        if epochs is None and "steps" not in others:
            epochs, others = config.local_epochs, {"steps": config.local_steps} | others
        settings = {"optimizer": config.optimizer, "clip": config.clip} | others
        return Phase(train, terms, epochs=epochs, **settings)

    def split(self) -> tuple[frozenset[str], frozenset[str]]:
        """Return the names of the net's leaves that clients keep, and of those that they send.

        The key `train.batchnorm` decides about BatchNorm statistics. `average`: they are kept or
        sent as their layer's parameters are. `local`: clients keep them. `drop`: they are neither
        kept nor sent, and are estimated from the training samples before an evaluation.
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
        """Return the weight of each client of the cohort in a mean, [K] float64, not normalized.

        With `algorithm.agg_weights=samples` it is the client's number of training samples, with
        `uniform` it is 1. A client that made no optimizer step has weight 0, because its upload is
        the model that it received.
        """
        sizes = self.setting.sizes[results.ids].double()
        if self.config.agg_weights == "uniform":
            sizes = torch.ones_like(sizes)
        return torch.where(results.steps > 0, sizes, 0.0)

    def mean(self, results: Results, names: Iterable[str] | None = None) -> Tree:
        """Return the mean of leaves that were sent, weighted by `weights(results)`.

        Leaves that clients keep by `split` are left out. The tree is empty if no client made an
        optimizer step; the server then keeps its model.

        Args:
            results: What the cohort sent.
            names: Names of the leaves, of which some may not have been sent; None for those of the
                net.
        """
        names = frozenset(self.setting.net.names("all") if names is None else names)
        names -= self.split()[0]
        return weighted_mean(results.sent.uncopied(names), self.weights(results))


def is_of_user(algorithm: Algorithm) -> bool:
    """Return whether a method has code that is not flbench's own: of its class or a base of it."""
    kinds = [kind for kind in type(algorithm).__mro__ if issubclass(kind, Algorithm)]
    return not all(map(is_known, kinds))


def state_of(algorithm: Algorithm, start: Tree, own: Callable[[Tree], Tree] = copied) -> State:
    """Return the state before the first round.

    Args:
        algorithm: The method.
        start: Parameters and buffers of the seeded net.
        own: Makes the clients' leaves writable in place; a copy by default. `init` may return views
            that share memory between clients.

    Raises:
        ConfigError: `init` returned a tensor of clients without a row for each client.
    """
    server, clients = algorithm.init(start)
    count = algorithm.setting.clients
    for name, value in clients.items():
        if value.shape[:1] != (count,):
            raise ConfigError(
                f"{type(algorithm).__name__}.init returned `{name}` {list(value.shape)} in the"
                f" clients' tree, whose tensors have a row for each of the {count} clients."
            )
    # The methods of flbench send what they change in `init` by rules of their own.
    is_initial = not is_of_user(algorithm) or all(
        server[name] is leaf or torch.equal(server[name].to(leaf), leaf)
        for name, leaf in start.items()
        if name in server
    )
    zeros, steps = torch.zeros(2, count, dtype=torch.int64)
    return State(0, 0, 0, server, own(clients), zeros, steps, is_initial)
