"""The vocabulary that every room shares.

Axis letters, here and everywhere: N clients, K clients of one round (the cohort), B batch, C
classes, D features.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Literal, NamedTuple, Protocol

from torch import Tensor

Tree = dict[str, Tensor]
"""A flat dict of tensors.

A client's *leaves* are a Tree: parameters and buffers under the net's own names, and what a method
adds.
"""

Activations = Mapping[str, tuple[Tensor, Tensor]]
"""Input and output of named layers."""


class Outputs(NamedTuple):
    """What a net returns: features [B, D], logits [B, C], and the layers that were tapped."""

    features: Tensor
    logits: Tensor
    activations: Activations = MappingProxyType({})


class Batch(NamedTuple):
    """Samples of one step.

    x: [B, ...] normalised inputs. y: [B] int64 labels in [0, C). mask: [B] bool, False for padded
        rows: neither a loss term nor a Statistic may count them.
    key: [B] int64, one number per sample and epoch, the source of per-sample noise. step: 0-dim
        int64, steps taken in this phase.
    """

    x: Tensor
    y: Tensor
    mask: Tensor
    key: Tensor
    step: Tensor


class Apply(Protocol):
    """The client's net with any leaves, in eval mode unless asked; it writes to nothing."""

    def __call__(
        self, leaves: Tree, x: Tensor, *, train: bool = False, activations: tuple[str, ...] = ()
    ) -> Outputs:
        """Return the net's outputs for inputs x [B, ...] with the values of `leaves`."""


class StepContext:
    """What one step sees. `out` is computed when it is first asked for.

    Attributes:
        batch: the samples of this step.
        ctx: what the server sent and what Statistics found.
        leaves: the client's leaves now.
        start: the leaves at the beginning of the program (for proximal terms and differences).
        apply: the net with any other leaves.
    """

    __slots__ = ("_forward", "_out", "apply", "batch", "ctx", "leaves", "start")

    def __init__(
        self,
        forward: Callable[[], Outputs],
        *,
        batch: Batch,
        ctx: Tree,
        leaves: Tree,
        start: Tree,
        apply: Apply,
    ) -> None:
        self._forward = forward
        self._out: Outputs | None = None
        self.batch = batch
        self.ctx = ctx
        self.leaves = leaves
        self.start = start
        self.apply = apply

    @property
    def out(self) -> Outputs:
        """The net's outputs for this batch."""
        if self._out is None:
            self._out = self._forward()
        return self._out


@dataclass(frozen=True)
class Samples:
    """Which of a client's samples a step of a program reads.

    A range that ends inside the part leaves at least one sample on either side of its end, where
    there are two.

    Attributes:
        part: `train`, `validation`, `test`, or `common` (the data set's own test part, the same for
            all clients).
        low: where the range begins, as a fraction in [0, 1) of the part, in an order drawn by
            `redraw`.
        high: where it ends, in (0, 1].
        limit: at most so many samples; None for all.
        redraw: the order is drawn once per `run` or in each `round`. Of no effect when all samples
            are taken.
    """

    part: str = "train"
    low: float = 0.0
    high: float = 1.0
    limit: int | None = None
    redraw: Literal["run", "round"] = "run"

    def __post_init__(self) -> None:
        if not 0.0 <= self.low < self.high <= 1.0:
            raise ValueError(
                f"Rows need 0 <= low < high <= 1, got low={self.low}, high={self.high}."
            )


@dataclass(frozen=True)
class Message:
    """Tensors that cross a link. What lies outside a mask is zeroed by the loop and not charged.

    Attributes:
        values: by name; with a leading axis K where the message has one row per client.
        mask: bool, by the same names; its axes are the first axes of the value (`[K]`, `[K, C]`, or
            element-wise).
    """

    values: Tree = field(default_factory=dict)
    mask: Tree = field(default_factory=dict)


@dataclass(frozen=True)
class Dispatch:
    """What the server sends: a leaf's name overlays the leaf, any other name becomes ctx.

    Outside a mask a leaf stays as the client has it, and a ctx entry is zero.

    Attributes:
        shared: the same for all clients, without a client axis.
        rows: one row per client, in the order of the ids that were asked for.
        numbers: what both sides can compute from the round alone (schedules); becomes 0-dim ctx and
            is not charged.
    """

    shared: Message = field(default_factory=Message)
    rows: Message = field(default_factory=Message)
    numbers: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class State:
    """All that a run remembers between rounds. A checkpoint is this object.

    Attributes:
        stage: index of the current stage; after the last round still that of the last one. When
            the models after a stage's last round are evaluated it is the next one.
        stage_round: rounds done in this stage.
        round: rounds done, set-up stages not counted.
        server: what the server knows.
        clients: what each client keeps: leading axis N, written in place, by the loop alone.
        participation_count: [N] int64, finished trainings of each client, counted in place by the loop.
        is_initial: whether the server's leaves of the net are still the seeded ones, which cost nothing.
        stale: by leaf, [N] bool: which clients changed it in an earlier stage without sending it.
            Written in place by the loop; empty for methods of one stage.
    """

    stage: int
    stage_round: int
    round: int
    server: Tree
    clients: Tree
    participation_count: Tensor
    is_initial: bool = True
    stale: Tree = field(default_factory=dict)


@dataclass(frozen=True)
class Update:
    """What `aggregate` returns.

    Attributes:
        server: entries of the server's tree that change.
        reply: rows for the cohort.
        metrics: diagnostics to log.
        between: bytes up, and as many down, between the machines that make up the server (heads of
            groups and a centre); charged beside what clients send and get.
    """

    server: Tree = field(default_factory=dict)
    reply: Message | None = None
    metrics: Mapping[str, float] = field(default_factory=dict)
    between: int = 0


@dataclass(frozen=True)
class Stage:
    """A stretch of rounds with one program.

    A set-up stage does not count as rounds; its bytes are listed apart.
    """

    name: str
    rounds: int
    setup: bool = False

    def __post_init__(self) -> None:
        if self.rounds < 1:
            raise ValueError(f"the stage `{self.name}` has {self.rounds} rounds; leave it out")


class Info(NamedTuple):
    """What a Transform may know, 0-dim each: steps taken, learning rate, training samples, round."""

    steps: Tensor
    lr: Tensor
    n: Tensor
    round: Tensor


@dataclass(frozen=True)
class Failure:
    """A client that did not finish a round with finite values."""

    client: int
    reason: str


@dataclass(frozen=True)
class Results:
    """What the cohort brought, in cohort order, without the clients that failed.

    Attributes:
        ids: [K] int64 client ids.
        steps: [K] int64 optimiser steps taken.
        losses: [K] mean training loss over those steps; NaN for a client without a step.
        kept: the leaves that stay with the clients, [K, ...] each.
        sent: the leaves that go up, [K, ...] each.
        observed: results of the observing Statistics, [K, ...] each; no algorithm ever sees them.
        failures: the clients that were left out.
    """

    ids: Tensor
    steps: Tensor
    losses: Tensor
    kept: Tree
    sent: Message
    observed: Tree
    failures: tuple[Failure, ...] = ()
