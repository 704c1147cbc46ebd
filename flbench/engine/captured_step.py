"""Training steps of a stack as CUDA graphs: one launch in the place of some hundred.

A graph reads and writes the same memory each time. A `StaticPhase` therefore has copies of all
tensors of a phase and lives as long as the engine: each round copies its tensors there, replays
graphs and copies the results back. The host only decides which graph takes the next step.
"""

from collections import Counter
from collections.abc import Callable, Hashable
from contextlib import suppress
from copy import copy, deepcopy
from time import perf_counter
from typing import Any, Final

import torch
from torch import Tensor
from torch.fx.experimental.proxy_tensor import make_fx

from flbench.config.schema import EngineConfig
from flbench.core.types import Tree
from flbench.core.user_code_errors import user_line
from flbench.engine.base import allow_tf32
from flbench.engine.stacked_training import StackedOptimizer, StackedPhase
from flbench.engine.stacked_tree import StackedTree

DEVICES = ("cuda",)
"""Types of devices on which steps are functions of static tensors. On a CPU, where only tests use
them, a graph is a call of its function."""
WARM: Final = 3
"""Steps of a kind before its capture, in which libraries choose their kernels."""
KEPT: Final = 8
"""Phases, times sizes of blocks, whose graphs are kept."""
GAIN: Final = 1.2
"""How many times as fast TF32 has to be for a note that names it."""

Kind = tuple[int, bool]
"""Number of clients of a graph, and whether each of them takes a step without padded rows."""


class CapturedSteps:
    """Takes the steps of phases by CUDA graphs, which are kept between rounds.

    Args:
        device: The device of the engine.
        config: Whether gradients are compiled, and the precision.
        tell: Function that gets notes for the user, once each: what cannot be captured, and how
            much faster TF32 would be.

    Attributes:
        has_failed: Whether a capture has failed; then all steps are ordinary ones.
    """

    def __init__(
        self, device: torch.device, config: EngineConfig, tell: Callable[[str], None] | None
    ) -> None:
        self.compiles, self._tries_tf32 = config.compile == "on", False
        self._device, self._tell = device, tell
        self._told, self.has_failed = set[str](), False
        self._kept: list[StaticPhase] = []  # the one that was used last comes last
        self._index = -1  # of the GPU
        if device.type == "cuda":
            self._index = torch.cuda.current_device() if device.index is None else device.index
            self._stream = torch.cuda.Stream(self._index)  # type: ignore[no-untyped-call]
            # What is compiled would have to be compiled again.
            is_usual = config.precision == "32-true" and not self.compiles
            has_tf32 = torch.cuda.get_device_capability(self._index) >= (8, 0)
            self._tries_tf32 = is_usual and has_tf32 and tell is not None
            # Graphs leave nothing in their own memory, so all of them share it.
            self._pool = torch.cuda.graph_pool_handle()

    def take_steps(self, phase: StackedPhase) -> bool:
        """Take all steps of a phase; return False if the phase has to take them itself."""
        if phase.phase.until is not None:
            self._note("it has `until`, which the host reads before each epoch")
        if phase.phase.until is not None or not phase.batches.steps.any():
            return False
        layout = _layout(phase)
        fits = (one for one in self._kept if _equal(one.layout, layout))
        static = next(fits, None) or StaticPhase(phase, _unchanging(layout), self)
        kept = [one for one in self._kept if one is not static]
        self._kept = [*kept, *[static] * (static.layout is not None)][-KEPT:]
        with torch.cuda.device(self._index):
            static.train(phase)
            if self._tries_tf32:
                self._try_tf32(static.first_step(phase))
        return True

    def _note(self, reason: str) -> None:
        """Tell the user once why a phase is not captured."""
        if self._tell is not None and reason not in self._told:
            self._told.add(reason)
            self._tell(f"a training phase is computed without CUDA graphs: {reason}")

    def _try_tf32(self, step: Callable[[], None]) -> None:
        """Tell the user, once, how much faster graphs of steps would be with TF32."""
        self._tries_tf32, seconds = False, list[float]()
        try:
            for is_on in (False, True):
                allow_tf32(is_on)
                seconds.append(self._seconds(step))
        finally:
            allow_tf32(False)
        gain = seconds[0] / seconds[1]
        if self._tell is not None and gain >= GAIN and not self.has_failed:
            self._tell(
                f"with engine.precision=tf32 training steps would be {gain:.1f} times as fast;"
                " docs/guides/clusters.md says what it changes"
            )

    def _seconds(self, step: Callable[[], None]) -> float:
        """Return the seconds of a few replays of a step's graph."""
        for _ in range(WARM):
            step()
        replay = self.captured(step)
        replay()
        torch.cuda.synchronize()
        begin = perf_counter()
        for _ in range(WARM):
            replay()
        torch.cuda.synchronize()
        return perf_counter() - begin

    def captured(self, step: Callable[[], None]) -> Callable[[], None]:
        """Return the graph of a step as a function, or `step` if it cannot be captured."""
        if self._device.type != "cuda" or self.has_failed:
            return step
        generator = torch.cuda.default_generators[self._index]
        state, graph = generator.get_state(), torch.cuda.CUDAGraph()
        try:
            with torch.cuda.graph(graph, self._pool, self._stream, "thread_local"):
                step()
        except RuntimeError as error:
            # The end of a capture that has failed raises another error.
            cause = error.__context__ if isinstance(error.__context__, Exception) else error
            self._note(f"{str(cause).partition(chr(10))[0]}{user_line(cause)}")
            # PyTorch's allocator and generator stay in a state for captures. The generator gets
            # another state with the same numbers. Nothing more is captured, and graphs, which have
            # the former state, are not replayed.
            self.has_failed = True
            fresh = torch.Generator(self._device)
            fresh.set_state(state)
            generator.graphsafe_set_state(fresh)
            return step
        return graph.replay


class StaticPhase:
    """The steps of a phase as functions of tensors that stay where they are.

    Axes: K clients of the block, T steps, S rows of a batch; T and S are rounded up.

    Args:
        phase: A phase of a round, which has taken no step.
        layout: See `_layout`; None if no other phase can be trained.
        captured: What captures the steps.

    Attributes:
        layout: Phases of other rounds with the same layout are trained, too.
    """

    def __init__(self, phase: StackedPhase, layout: Hashable, captured: CapturedSteps) -> None:
        self.layout, self._captured = layout, captured
        stack, (steps, self._size) = phase.stack, _extent(phase)
        mine = [{name: _copied(v) for name, v in tree.items()} for tree in _trees(phase)]
        self._phase, own = copy(phase), copy(stack)
        own.leaves, own.start, own.ctx = (
            StackedTree(mine[2 * k], mine[2 * k + 1], list(one.names))
            for k, one in enumerate((stack.leaves, stack.start, stack.ctx))
        )
        self._phase.stack = own
        self._phase.recordings = list(map(copy, phase.recordings))
        for recording, reduced in zip(self._phase.recordings, mine[6:], strict=True):
            recording.reduced = reduced
        self._phase.losses = phase.losses.new_zeros(len(stack), 1)
        self._number = torch.zeros(1, dtype=torch.int64, device=phase.losses.device)  # of the step
        self._rows = self._number.new_zeros(len(stack), steps, self._size)
        self._keys, self._ends = self._rows.clone(), self._rows[..., 0].clone()
        lr = self._number.new_tensor(stack.lr, dtype=torch.float32)
        self._phase.optimizer = StackedOptimizer(
            phase.phase.optimizer, lr if _has_tensor_lr(phase) else stack.lr, len(stack)
        )
        self._compiled: dict[Kind, Callable[..., Any]] = {}
        if captured.compiles:
            self._phase.gradients = self._gradients  # type: ignore[method-assign]
        self._calls: dict[Kind, Callable[[], None]] = {}
        self._taken = Counter[Kind]()

    def train(self, phase: StackedPhase) -> None:
        """Take all steps of a phase with this layout."""
        batches, mine = phase.batches, self._phase
        for own, given in zip(_trees(mine), _trees(phase), strict=True):
            for name, value in given.items():
                own[name].copy_(value)
        steps = batches.ends.shape[1]
        self._rows[:, :steps] = batches.rows[..., : self._size]
        self._keys[:, :steps] = batches.keys[..., : self._size]
        self._ends[:, :steps] = batches.ends
        for value in (self._number, mine.losses):
            value.zero_()
        mine.optimizer.reset(phase.stack.lr)
        for step in range(steps):
            self._take(self._kind(phase, step))
        for name in phase.written:
            phase.stack.leaves.stacked[name].copy_(mine.stack.leaves.stacked[name])
        phase.losses[:, :1] = mine.losses
        for one, other in zip(phase.recordings, mine.recordings, strict=True):
            for name, value in other.reduced.items():
                one.reduced[name].copy_(value)

    def first_step(self, phase: StackedPhase) -> Callable[[], None]:
        """Return a function that takes the first step of a phase that has been trained, again."""
        kind = self._kind(phase, 0)

        def step() -> None:
            self._number.zero_()
            self._step(*kind)

        return step

    def _kind(self, phase: StackedPhase, step: int) -> Kind:
        """Return the kind of the graph that takes a step; there are at most four."""
        clients, active = len(phase.stack), phase.batches.active(step)
        if active == clients and (phase.batches.fill[:, step] == self._size).all():
            return clients, True
        sizes = (-(-clients // 4), -(-clients // 2), clients)
        return next(size for size in sizes if size >= active), False

    def _take(self, kind: Kind) -> None:
        """Take a step: by its graph, or before there is one, by a call."""

        def step() -> None:
            self._step(*kind)

        self._taken[kind] += 1
        if self._taken[kind] > WARM and kind not in self._calls:
            self._calls[kind] = self._captured.captured(step)
        (step if self._captured.has_failed else self._calls.get(kind, step))()

    def _step(self, count: int, full: bool) -> None:
        """Take the next step of the first `count` clients; this is what graphs contain."""
        phase, stack = self._phase, self._phase.stack
        # [count, S], [count, S] and [count]
        rows, keys, ends = (
            part[:count].index_select(1, self._number)[:, 0]
            for part in (self._rows, self._keys, self._ends)
        )
        mask = torch.arange(self._size, device=rows.device) < ends[:, None]
        batch = (stack.inputs(rows, keys), stack.environment.federation.y[rows], mask, keys)
        leaves = {name: stack.leaves.stacked[name][:count] for name in phase.written}
        before = {} if full else {name: leaf.clone() for name, leaf in leaves.items()}
        loss = phase.update(self._number[0], full, batch, count)
        # What clients have computed that take no step is thrown away.
        active = ends > 0
        for name, old in before.items():
            is_active = active.reshape(-1, *(1,) * (old.dim() - 1))
            leaves[name].copy_(torch.where(is_active, leaves[name], old))
        phase.losses[:count, 0] += torch.where(active, loss, 0.0)
        self._number.add_(1)

    def _gradients(self, number: Tensor, full: bool, batch: Any, count: int) -> Any:
        """Return what `StackedPhase.gradients` does, by a compiled function."""
        tensors = [value for tree in _trees(self._phase) for value in tree.values()]

        def gradients(tensors: list[Tensor], number: Tensor, batch: Any) -> Any:
            return StackedPhase.gradients(self._phase, number, full, batch, count)

        if (count, full) not in self._compiled:
            # PyTorch's compiler gets operations, not the code of the net and the method.
            with torch.random.fork_rng([self._number.device.index] * self._number.is_cuda):
                graph = make_fx(gradients)(tensors, number, batch)
            options: Any = {"fallback_random": True}  # the numbers of an ordinary step
            self._compiled[count, full] = torch.compile(graph, dynamic=False, options=options)
        return self._compiled[count, full](tensors, number, batch)


def _trees(phase: StackedPhase) -> list[Tree]:
    """Return the named tensors of the clients that steps read or write."""
    stack = phase.stack
    pairs = [(one.shared, one.stacked) for one in (stack.leaves, stack.start, stack.ctx)]
    return [tree for pair in pairs for tree in pair] + [one.reduced for one in phase.recordings]


def _copied(value: Tensor) -> Tensor:
    """Return a copy whose entries have places of their own, in order."""
    return value.clone(memory_format=torch.contiguous_format)


def _layout(phase: StackedPhase) -> Hashable:
    """Return what phases have in common that one StaticPhase can train."""
    trees = (tuple((n, v.shape, v.dtype) for n, v in tree.items()) for tree in _trees(phase))
    lr = None if _has_tensor_lr(phase) else phase.stack.lr
    return phase.phase, tuple(trees), _extent(phase), lr


def _extent(phase: StackedPhase) -> tuple[int, int]:
    """Return T and S of a phase: powers of two, so that the rounds of a run have few of them."""
    steps, rows = phase.batches.ends.shape[1], phase.batches.rows.shape[2]
    most = int(phase.batches.fill.max())
    return 1 << (steps - 1).bit_length(), min(rows, 1 << (most - 1).bit_length())


def _has_tensor_lr(phase: StackedPhase) -> bool:
    """Return whether the learning rate is a tensor, which PyTorch's kernels read as float32."""
    return phase.stack.environment.dtype == torch.float32


def _equal(one: Hashable, other: Hashable) -> bool:
    """Return whether two layouts are equal; terms with tensors cannot be compared."""
    with suppress(RuntimeError, ValueError):
        return one == other
    return False


def _unchanging(layout: Hashable) -> Hashable:
    """Return a copy of a layout, or None if a copy differs.

    An object without `__eq__`, such as a loss term whose attribute a method sets in each round,
    equals itself although its value has changed. A graph has the value at its capture.
    """
    with suppress(Exception):
        copied = deepcopy(layout)
        return copied if _equal(copied, layout) else None
    return None  # it cannot be copied
