"""Local programs: what one client does in a round, as data that every engine can run.

All callables are frozen dataclasses or module-level functions: hashable (compiled code is cached by
them), picklable (they travel to workers), pure and vmap-safe.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from typing import Literal, Protocol

from torch import Tensor

from flbench.config.schema import OptimizerConfig
from flbench.core.types import Batch, Info, Samples, StepContext, Tree

Reduce = Literal["sum", "min", "max", "rows"]


class LossTerm(Protocol):
    """A pure function of what one step sees; terms are summed by `weight`.

    Implementations are frozen dataclasses. They are vmap-safe: masks and fixed k; no boolean
    indexing, no `.item()`, no `if` on a tensor, no `F.one_hot`. A missing class contributes zero,
    never NaN; so does a row whose `batch.mask` is False.
    """

    @property
    def weight(self) -> float | str:
        """Factor of the term: a number, or the name of a ctx entry."""

    def __call__(self, context: StepContext) -> Tensor:
        """Return the term for this step, 0-dim."""


GradFn = Callable[[Tree, Batch], Tree]
"""(parameters, batch) -> gradient of the phase's loss with respect to these parameters."""

GradientHook = Callable[[GradFn, Tree, Batch, Tree], Tree]
"""(grad, parameters, batch, ctx) -> the gradient that the optimiser sees."""


@dataclass(frozen=True)
class Statistic:
    """A pass over samples in eval mode without gradients; its results become ctx `NAME.KEY`.

    Attributes:
        name: prefix of the ctx entries.
        fn: context -> tensors. Rows with `batch.mask` False are padding and must not count.
        reduce: how batches are put together: `sum`, `min`, `max`; `rows` puts tensors [B, ...] one
            after the other. One for all keys, or one per key.
        finish: (reduced, leaves, ctx) -> result; None leaves what was reduced.
        samples: which samples.
    """

    name: str
    fn: Callable[[StepContext], Tree]
    reduce: Reduce | tuple[tuple[str, Reduce], ...] = "sum"
    finish: Callable[[Tree, Tree, Tree], Tree] | None = None
    samples: Samples = Samples()

    def reduction(self, key: str) -> Reduce:
        """Return how the entries of one key are put together."""
        return self.reduce if isinstance(self.reduce, str) else dict(self.reduce)[key]


@dataclass(frozen=True)
class Transform:
    """A step without data: `fn(leaves, start, ctx, info)` returns the leaves that change."""

    fn: Callable[[Tree, Tree, Tree, Info], Tree]


@dataclass(frozen=True)
class Phase:
    """A stretch of training with an optimiser of its own (C2).

    Attributes:
        train: the leaves that are trained: a pattern (`*`, `backbone.*`) or their names. Buffers
            never are.
        terms: the loss is their weighted sum.
        optimizer: its configuration.
        epochs: passes over the rows; None where `steps` is given.
        steps: optimiser steps; None where `epochs` is given.
        clip: largest norm of the gradient over the trained leaves.
        weights: (leaves, ctx) -> what the net is called with, under its own names (a mask, a
            hypernetwork, a second model); None calls it with the leaves themselves.
        gradient: (grad, parameters, batch, ctx) -> the gradient for the optimiser; None is the
            loss's. Each call of `grad` runs the net once, and train-mode BatchNorm counts it.
        project: (trained leaves, ctx) -> trained leaves, after each step.
        until: (epoch losses [epochs], epochs done, ctx) -> bool []; asked before each epoch, True
            ends the phase. Epochs still to come have loss NaN.
        record: Statistics on the batches of the training itself, on the leaves before each step. A
            client without a step shows them one padded row. Not with `gradient`.
        batchnorm: `eval` freezes BatchNorm statistics and uses them.
        samples: which samples.
    """

    train: str | frozenset[str]
    terms: tuple[LossTerm, ...]
    optimizer: OptimizerConfig
    epochs: int | None = None
    steps: int | None = None
    clip: float | None = None
    weights: Callable[[Tree, Tree], Tree] | None = None
    gradient: GradientHook | None = None
    project: Callable[[Tree, Tree], Tree] | None = None
    until: Callable[[Tensor, Tensor, Tree], Tensor] | None = None
    record: tuple[Statistic, ...] = ()
    batchnorm: Literal["train", "eval"] = "train"
    samples: Samples = Samples()

    def __post_init__(self) -> None:
        if (self.epochs is None) == (self.steps is None):
            raise ValueError(
                f"a Phase needs either epochs or steps, got {self.epochs} and {self.steps}"
            )
        if self.record and self.gradient is not None:
            raise ValueError("a Phase with a gradient hook has no batches of its own to record")

    def trains(self, name: str) -> bool:
        """Return whether a leaf of this name is trained (if it is no buffer)."""
        return fnmatchcase(name, self.train) if isinstance(self.train, str) else name in self.train


Step = Phase | Statistic | Transform


@dataclass(frozen=True)
class LocalProgram:
    """What one client does in a round. Programs of one stage are equal from round to round.

    Attributes:
        steps: in order.
        keeps: leaves that stay with the client until its next round.
        sends: leaves that go up. A leaf kept and sent is stored once and visible to the server.
        masks: (sent leaf, bool leaf) pairs: only the entries where the second is True cross the
            link.
    """

    steps: tuple[Step, ...]
    keeps: frozenset[str] = frozenset()
    sends: frozenset[str] = frozenset()
    masks: tuple[tuple[str, str], ...] = ()

    def __post_init__(self) -> None:
        unsent = [name for name, _ in self.masks if name not in self.sends]
        if unsent:
            raise ValueError(f"masks are given for leaves that are not sent: {unsent}")


def shortened(program: LocalProgram, steps: int) -> LocalProgram:
    """Return a program with so many optimiser steps in each phase, to measure what they cost."""
    short = (
        replace(step, epochs=None, steps=steps, until=None) if isinstance(step, Phase) else step
        for step in program.steps
    )
    return replace(program, steps=tuple(short))


def merge_context(ctx: Tree, name: str, result: Mapping[str, Tensor]) -> None:
    """Write a Statistic's result into ctx, in place."""
    ctx.update({f"{name}.{key}": value for key, value in result.items()})
