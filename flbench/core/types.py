"""The data types that clients, server, methods and engines exchange.

Axis letters, here and in all other modules: N clients, K clients of one round (the cohort), B
batch, C classes, D features. Modules under `flbench.data` write [n, C, H, W] for n images of C
channels.
"""

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, Literal, NamedTuple, Protocol

from torch import Tensor

Tree = dict[str, Tensor]
"""A dict of named tensors, its *leaves*.

The leaves of a client are the parameters and buffers of its net, under the net's own names, and
the tensors that a method adds.
"""

Activations = Mapping[str, tuple[Tensor, Tensor]]
"""Input and output of layers, by the name of the layer."""


class Outputs(NamedTuple):
    """What a net returns.

    Attributes:
        features: Output [B, D] of the backbone.
        logits: Output [B, C] of the head.
        activations: Input and output of the layers that the caller asked for.
    """

    features: Tensor
    logits: Tensor
    activations: Activations = MappingProxyType({})


class Batch(NamedTuple):
    """The samples of one step.

    Attributes:
        x: Normalized inputs [B, ...].
        y: Labels [B] int64 in [0, C).
        mask: [B] bool, False for rows of padding. Loss terms and Statistics must not count them.
        key: Noise keys [B] int64, one per sample and epoch; see `flbench.core.rng.uniform`.
        step: 0-dim int64, number of steps that the client has already taken in this phase.
    """

    x: Tensor
    y: Tensor
    mask: Tensor
    key: Tensor
    step: Tensor


class Apply(Protocol):
    """A function that calls the client's net with given leaves, without changing any tensor."""

    def __call__(
        self, leaves: Tree, x: Tensor, *, train: bool = False, activations: tuple[str, ...] = ()
    ) -> Outputs:
        """Return the net's outputs.

        Args:
            leaves: Values of all parameters and buffers of the net.
            x: Inputs [B, ...].
            train: Whether the net runs in training mode (BatchNorm uses the batch's statistics)
                instead of eval mode.
            activations: Names of the layers whose input and output are returned as well.
        """


class Info(NamedTuple):
    """Numbers that a Transform can read, 0-dim tensors.

    Attributes:
        steps: Optimizer steps that the client has taken in this program.
        lr: Learning rate of the round.
        n: Number of the client's training samples.
        round: Number of the round, from 0.
    """

    steps: Tensor
    lr: Tensor
    n: Tensor
    round: Tensor


_NOT_HERE: Any = None  # what a context has in place of what its callable cannot read


class Context:
    """What a callable of a local program can read: its only argument, or its first.

    Attributes:
        leaves: The client's current leaves.
        start: The client's leaves at the beginning of the program, for proximal terms and
            differences.
        ctx: Named tensors beside the leaves: what the server sent and what Statistics computed.
        batch: The samples of this step; for loss terms, Statistics and gradient hooks.
        apply: Function that calls the net with other leaves; for loss terms and Statistics.
        out: The net's outputs for this batch, computed on first access; for loss terms and
            Statistics. In the training of a LightningModule of the user they are those of the head
            in its `training_step`.
        trained: The leaves that the phase trains; for gradient hooks and `project`.
        info: Numbers of the client and the round; for Transforms.
    """

    __slots__ = (
        *("_forward", "_out", "_task", "apply", "batch", "ctx", "info", "leaves"),
        *("start", "trained"),
    )

    def __init__(
        self,
        forward: Callable[[], Outputs] | None = None,
        *,
        leaves: Tree,
        start: Tree,
        ctx: Tree,
        batch: Batch = _NOT_HERE,
        apply: Apply = _NOT_HERE,
        task: Callable[[], Tensor] | None = None,
        trained: Tree = _NOT_HERE,
        info: Info = _NOT_HERE,
    ) -> None:
        self._forward = forward
        self._task = task
        self._out: Outputs | None = None
        self.leaves = leaves
        self.start = start
        self.ctx = ctx
        self.batch = batch
        self.apply = apply
        self.trained = trained
        self.info = info

    @property
    def out(self) -> Outputs:
        """The net's outputs for this batch, computed on first access."""
        if self._out is None:
            if self._forward is None:
                raise ValueError("this callable has no batch, and so no outputs of the net")
            self._out = self._forward()
        return self._out

    def task_loss(self) -> Tensor:
        """Return the loss, 0-dim, that the user's LightningModule computes for this batch.

        Raises:
            ValueError: The net has no training step of its own.
        """
        if self._task is None:
            raise ValueError("the net has no training step of its own: use its outputs")
        return self._task()

    def with_outputs(self, outputs: Outputs) -> "Context":
        """Return a context of the same step in which `out` is something else.

        Args:
            outputs: Features [B, D] and logits [B, C], such as those of a second model.
        """
        return Context(
            lambda: outputs,
            leaves=self.leaves,
            start=self.start,
            ctx=self.ctx,
            batch=self.batch,
            apply=self.apply,
        )

    def with_leaves(self, leaves: Tree, ctx: Tree | None = None) -> "Context":
        """Return a context with other leaves, and another `ctx` unless it is None."""
        ctx = self.ctx if ctx is None else ctx
        return Context(leaves=leaves, start=self.start, ctx=ctx, info=self.info)


@dataclass(frozen=True)
class Samples:
    """Selection of a client's samples that a step of a program reads.

    The default selects the whole training part. A range [low, high) selects a fraction of the part
    in a randomly drawn order. If a range begins or ends inside a part of two or more samples, at
    least one sample lies on each side of that place.

    Attributes:
        part: `train`, `validation`, `test`, or `common`: the data set's own test part, which is the
            same for all clients.
        low: Begin of the range as a fraction of the part, in [0, 1).
        high: End of the range as a fraction of the part, in (0, 1].
        limit: Largest number of samples; None for no limit.
        redraw: Whether the order is drawn once per `run` or again in each `round`. It has no effect
            if all samples are selected.
        piece: Number of samples n that each client reads of a part of all clients, one client after
            the other, or of the part `common`: client k reads the samples k n to (k + 1) n - 1, as
            far as there are any. It serves evaluations of a model that clients share. None reads
            the client's own samples.

    Raises:
        ValueError: The fractions are not 0 <= low < high <= 1, or a piece has no sample or is of a
            share of the samples.

    >>> first_fifth = Samples("train", 0, 0.2)
    >>> at_most_100 = Samples("validation", limit=100)
    """

    part: str = "train"
    low: float = 0.0
    high: float = 1.0
    limit: int | None = None
    redraw: Literal["run", "round"] = "run"
    piece: int | None = None

    def __post_init__(self) -> None:
        is_whole = self.part == "common" or (self.low, self.high, self.limit) == (0.0, 1.0, None)
        if self.piece is not None and (self.piece < 1 or not is_whole):
            raise ValueError("A piece of Samples has 1 sample or more, of whole parts.")
        if not 0.0 <= self.low < self.high <= 1.0:
            raise ValueError(
                f"Samples needs 0 <= low < high <= 1, got low={self.low}, high={self.high}."
            )


@dataclass(frozen=True)
class Message:
    """Named tensors that travel between server and clients.

    Entries outside a mask are not sent: the loop sets them to zero and does not count their bytes.

    Attributes:
        values: The tensors; they have a leading axis K if the message has one row per client.
        mask: Boolean tensors for some of the names. The axes of a mask are the first axes of its
            value: `[K]`, `[K, C]`, or the full shape.
    """

    values: Tree = field(default_factory=dict)
    mask: Tree = field(default_factory=dict)

    def uncopied(self, names: Collection[str]) -> Tree:
        """Return some values on the device where an engine left them; see `Results.sent`."""
        return {name: dict.__getitem__(self.values, name) for name in self.values if name in names}


@dataclass(frozen=True)
class Dispatch:
    """What the server sends to clients before they run their program.

    A tensor with the name of a leaf that the client has replaces it; outside its mask the client's
    own value remains. A tensor with a name in `leaves` becomes a leaf of the client. A tensor with
    any other name becomes an entry of ctx, which is zero outside its mask.

    Attributes:
        shared: Tensors that are the same for all clients, without a client axis.
        rows: Tensors with one row per client, in the order of the client ids that `dispatch` got.
        numbers: Numbers that clients could compute from the round themselves, such as schedules.
            They become 0-dim entries of ctx, and their bytes are not counted.
        leaves: Names of leaves that a program adds to those of the net, such as the parameters of a
            second head.
    """

    shared: Message = field(default_factory=Message)
    rows: Message = field(default_factory=Message)
    numbers: Mapping[str, float] = field(default_factory=dict)
    leaves: frozenset[str] = frozenset()


@dataclass(frozen=True)
class State:
    """The complete state of a run between two rounds; a checkpoint stores exactly this.

    Attributes:
        stage: Index of the current stage. It advances at the end of a stage's last round, before
            the models are evaluated, but never beyond the last stage.
        stage_round: Number of rounds completed in this stage.
        round: Number of rounds completed in all stages; rounds of set-up stages do not count.
        server: Tensors that the server stores.
        clients: Leaves [N, ...] that the clients keep between rounds. Only the loop writes them, in
            place.
        participation_count: [N] int64, number of trainings that each client has completed. The loop
            increments it in place.
        steps: [N] int64, number of optimizer steps that each client has taken, in all stages. The
            loop adds to it in place.
        is_initial: Whether the server's parameters and buffers of the net still have their seeded
            initial values, which clients can compute and which therefore cost no bytes.
        stale: For leaves in `clients`, [N] bool: True for clients that changed the leaf in an
            earlier stage and have not sent it since. Written in place by the loop; empty for
            methods with one stage.
    """

    stage: int
    stage_round: int
    round: int
    server: Tree
    clients: Tree
    participation_count: Tensor
    steps: Tensor
    is_initial: bool = True
    stale: Tree = field(default_factory=dict)


@dataclass(frozen=True)
class Update:
    """What a method's `aggregate` returns.

    Attributes:
        server: Entries of `State.server` that change, with their new values.
        reply: Rows [K, ...] that the server sends back to the cohort, in cohort order; None for no
            reply.
        metrics: Diagnostics of the server to log.
    """

    server: Tree = field(default_factory=dict)
    reply: Message | None = None
    metrics: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class Stage:
    """A run of rounds with one local program.

    Attributes:
        name: Name of the stage.
        rounds: Number of rounds, at least 1.
        setup: Whether this is a set-up stage. Its rounds do not count as rounds of the run, and its
            bytes are listed separately.

    Raises:
        ValueError: The number of rounds is below 1.
    """

    name: str
    rounds: int
    setup: bool = False

    def __post_init__(self) -> None:
        if self.rounds < 1:
            raise ValueError(f"the stage `{self.name}` has {self.rounds} rounds; leave it out")


@dataclass(frozen=True)
class Failure:
    """A client whose program did not end with finite values.

    Attributes:
        client: Id of the client.
        reason: What was not finite.
    """

    client: int
    reason: str


@dataclass(frozen=True)
class Results:
    """Results of the cohort's programs, in cohort order, without the clients that failed.

    Attributes:
        ids: Client ids [K] int64.
        steps: Number of optimizer steps [K] int64 that each client took.
        losses: Mean training loss [K] over those steps; NaN for a client without a step.
        kept: Leaves [K, ...] that stay with the clients.
        sent: Leaves [K, ...] that the clients send to the server. An engine may leave those that
            have no mask, and that clients do not keep, on its device; methods read copies on the
            CPU.
        observed: Results [K, ...] of Statistics that only observe, such as confusion matrices. A
            method never sees them.
        failures: The clients that are left out.
        observe_seconds: Wall-clock time of the steps that only observe, in seconds. Where several
            processes train, it is that of the process which observed longest.
    """

    ids: Tensor
    steps: Tensor
    losses: Tensor
    kept: Tree
    sent: Message
    observed: Tree
    failures: tuple[Failure, ...] = ()
    observe_seconds: float = 0.0
