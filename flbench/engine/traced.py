"""Traces of training steps: their tensor operations, recorded once and replayed without Python.

A step runs the Python code of a method, autograd, and `torch.vmap` where clients are stacked. On a
small net this costs more than the arithmetic, and it is the same in every step. A trace contains
only the tensor operations below autograd and vmap, in their order, including those of the backward
pass. A replay executes the same operations on other inputs and gives the same results, bit for bit.

Steps with code that flbench does not own, of a net, a loss term or a method, are never traced:
nothing is known of what that code remembers from call to call (see `flbench.core.ownership`).

Steps of one kind do the same operations: they have the same phase, and tensors of the same names,
shapes, strides and types. The first steps of a kind run as they are, to measure their time. Short
ones are then traced. A trace repeats operations, but not what Python did with the values of
tensors. Three checks keep a trace from giving other results than the step:

- A step is not traced if Python reads the value of a tensor (`float(t)`, `str(t)`, `t.numpy()`), or
  if it makes a tensor by other means than operations: see `Readers` and `Tape`.
- The trace is compared with the next step of the kind, and replayed only if all results are equal,
  bit for bit, and if both steps read the same constants.
- An input that was the same in all steps compared so far may have another value later, such as a
  number that the server schedules. Then the next step is compared again. Inputs are examined in the
  first step of a kind in a phase; only a batch that never changed is examined in every step, where
  the host need not wait for a device.

A trace that differs in a comparison is dropped, and the results of the step itself are used.
"""

from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import cache
from hashlib import sha256
from itertools import count
from operator import getitem
from time import perf_counter
from types import EllipsisType
from typing import Any, TypeVar

import torch
from torch import Tensor, fx
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from flbench.client.program import Phase, Statistic
from flbench.core.ownership import is_known
from flbench.core.rng import RandomState
from flbench.core.text import warn
from flbench.core.types import Tree

LOOKS = 3
"""Steps of a kind, at least, that run as they are, to measure their time."""
LONGEST = 0.02
"""Seconds of the longest step that is traced; the overhead of longer steps is a small part."""
FIRST = 0.04
"""Seconds that recording a trace is assumed to take before the first one was recorded."""
PATIENCE = 1.0
"""A kind is traced when its steps have taken this many times the seconds of recording a trace."""
NODES = 50_000
"""Largest number of operations in all stored traces together."""
NODE = 2_000
"""Approximate bytes of memory per stored operation."""
RECORDED = 500_000
"""Number of recorded operations, those of removed traces included, after which no step is recorded.

`torch.fx` keeps the source text of each compiled graph until the process ends: about 100 bytes for
each operation.
"""
KINDS = 1_000
"""Largest number of kinds that are remembered."""
LARGEST = 10_000
"""Largest number of entries of a constant result that is stored instead of recomputed."""

StepOutput = TypeVar("StepOutput")
"""The results of a step: tensors in nested lists, tuples and dicts."""

aten = torch.ops.aten
UNRECORDED = (
    torch.Tag.data_dependent_output,
    torch.Tag.dynamic_output_shape,
    torch.Tag.nondeterministic_seeded,
    torch.Tag.inplace_view,
)
"""Tags of operations that are not recorded.

They depend on values of tensors, draw PyTorch's random numbers, or change the shape of a tensor.
"""
READERS = (
    Tensor.tolist,
    Tensor.data_ptr,
    Tensor.storage_offset,
    Tensor.tensor_split,
    torch.tensor_split,
)
"""Functions that give Python integers of a tensor without a tensor operation."""
LITERALS = {
    torch.tensor: 0,
    torch.as_tensor: 0,
    torch.asarray: 0,
    Tensor.new_tensor: 1,
    Tensor.__getitem__: 1,
}
"""Functions that make tensors of Python numbers, and the number of arguments before these."""
METADATA = (
    Tensor,
    bool,
    int,
    type(None),
    torch.device,
    torch.dtype,
    torch.layout,
    torch.memory_format,
)
"""Types of what functions of PyTorch return if they give Python no value of a tensor."""
PLAIN = (*METADATA[1:], float, str)
"""Types of arguments of operations, beside tensors, that can be written as source text."""
NUMBERS = (*PLAIN, slice, EllipsisType)
"""Types of Python numbers that a literal tensor is made of, and of its other arguments."""
FILLED = (aten.new_zeros.default, aten.ones_like.default, aten.zeros_like.default)
"""Operations that read only the shape and the type of a tensor."""
STATISTICS = ((3, "running_mean"), (4, "running_var"))
"""Positions and names of the running statistics among the arguments of batch_norm."""
WRITES = {
    aten.native_batch_norm.default: STATISTICS,
    aten.cudnn_batch_norm.default: STATISTICS,
    aten.miopen_batch_norm.default: STATISTICS,
}
"""Arguments that operations write to, although their schemas do not say so."""


class StepKey:
    """The key of a kind of step: any hashable parts; their hash is computed once."""

    __slots__ = ("_hash", "_parts", "is_known")

    def __init__(self, *parts: Hashable) -> None:
        self._parts = parts
        self._hash = hash(parts)
        self.is_known: bool | None = None

    def __hash__(self) -> int:
        return self._hash

    def __eq__(self, other: object) -> bool:
        return self is other or (isinstance(other, StepKey) and self._parts == other._parts)


def shapes(tensors: Iterable[Tensor]) -> Hashable:
    """Return the shape, strides and type of each tensor, as a hashable value."""
    return tuple((x.shape, x.stride(), x.dtype) for x in tensors)


@dataclass(frozen=True)
class Inputs:
    """What the steps of a phase read beside their batches.

    Attributes:
        step: The phase, or the Statistic; None where nothing is traced.
        tensors: The tensors, each once.
        kind: The kind of such steps; equal kinds are one object.
        number: A number that no other `Inputs` has.
    """

    step: Phase | Statistic | None
    tensors: Sequence[Tensor]
    kind: StepKey
    number: int


NO_INPUTS = Inputs(None, (), StepKey(), 0)
"""What `Traces.gather` returns where nothing is traced."""


@dataclass
class Trace:
    """The recorded operations of a step.

    Attributes:
        replay: Function of the inputs that executes the operations and returns the results.
        size: Number of operations. Constants count as the number of operations of the same memory.
        constants: The tensors that the step read and that are neither inputs nor results. They
            existed before the step if the next step reads the same ones.
        same: SHA-256 of those tensors of `Inputs` and `constants`, by position, that had the same
            values in the recorded step and in all steps compared with it.
        same_batch: The same for the tensors of the batch.
        number: The `Inputs.number` for which they were examined last.
    """

    replay: Callable[..., Any]
    size: int
    constants: list[Tensor]
    same: dict[int, bytes] = field(default_factory=dict)
    same_batch: dict[int, bytes] = field(default_factory=dict)
    number: int = -1


@dataclass
class Known:
    """Measurements and trace of one kind of step.

    Attributes:
        count: Number of steps that ran as they are.
        total: Seconds of these steps together.
        best: Seconds of the shortest of them.
        trace: The trace, when it has been recorded.
        trusted: True if the trace has reproduced a step, bit for bit; False if steps of this kind
            always run as they are; None as long as this is open.
    """

    count: int = 0
    total: float = 0.0
    best: float = float("inf")
    trace: Trace | None = None
    trusted: bool | None = None

    def count_step(self, seconds: float) -> None:
        """Count a step that ran as it is."""
        self.count, self.total = self.count + 1, self.total + seconds
        self.best = min(self.best, seconds)


class TraceWarning(UserWarning):
    """A trace was dropped, because a step gave other results after an input had changed."""


class Traces:
    """The traces of all kinds of steps of an engine.

    Steps of a kind run as they are until they have taken as long as recording a trace. Then they
    are traced. A trace is replayed when it has reproduced another step, bit for bit. Otherwise, and
    if steps are long, steps of this kind always run as they are.

    Args:
        enabled: False runs all steps as they are and records nothing (`engine.trace=false`).

    Attributes:
        enabled: Whether steps are traced.
    """

    def __init__(self, *, enabled: bool = True) -> None:
        self.enabled = enabled
        self._known: OrderedDict[Hashable, Known] = OrderedDict()
        self._kinds: dict[StepKey, StepKey] = {}
        self._numbers = count()
        self._cost = FIRST
        self._size = 0
        self._recorded = 0  # operations of all traces so far, forgotten ones included

    def gather(self, step: Phase | Statistic, *trees: Tree, what: Hashable = None) -> Inputs:
        """Return the inputs of the steps of a phase, or of a Statistic.

        They are `NO_INPUTS` if the step has code that flbench does not own.

        Args:
            step: The phase or the Statistic.
            trees: The leaves, start and ctx of a client or of a stack.
            what: Everything else that the operations depend on.
        """
        if not self.enabled:
            return NO_INPUTS
        tensors: list[Tensor] = []
        found: dict[int, int] = {}
        places: list[Hashable] = []
        for tree in trees:
            for name, value in tree.items():
                if id(value) not in found:
                    found[id(value)] = len(tensors)
                    tensors.append(value)
                places.append((name, found[id(value)]))
            places.append(None)
        if len(self._kinds) > KINDS:
            self._kinds.clear()
        kind = StepKey(step, what, tuple(places), shapes(tensors))
        # Equal kinds are one object, because identical objects are compared faster.
        kind = self._kinds.setdefault(kind, kind)
        if kind.is_known is None:
            kind.is_known = is_known(step)
        return Inputs(step, tensors, kind, next(self._numbers)) if kind.is_known else NO_INPUTS

    def take(
        self,
        inputs: Inputs,
        step: Callable[[], StepOutput],
        batch: Sequence[Tensor] = (),
        *,
        what: Hashable = None,
        constants: Sequence[Tensor] = (),
    ) -> StepOutput:
        """Return the results of a step: replayed, or computed by calling `step`.

        Args:
            inputs: What `gather` returned for the phase.
            step: Computes the results. It reads `inputs`, `batch` and constants, nothing else that
                changes, and may write to the tensors of `inputs`.
            batch: Other tensors that the step reads; their shapes may differ from step to step.
            what: Everything else that the operations of this step depend on.
            constants: Tensors that have the same values in all steps of this kind.
        """
        if inputs is NO_INPUTS:
            return step()
        kind = inputs.kind, what, shapes(batch)
        known = self._known.setdefault(kind, Known())
        self._known.move_to_end(kind)
        trace = known.trace
        if trace is not None and known.trusted and not _has_news(trace, inputs, batch):
            replayed: StepOutput = trace.replay(*inputs.tensors, *batch)
            return replayed
        if known.trusted is False:
            return step()
        begin = perf_counter()
        found: StepOutput
        given = inputs.tensors, batch, constants
        if trace is not None:
            trace.number = inputs.number
            found, trusted = run_and_compare(trace, step, *given)
            if not trusted:
                self._size -= trace.size
                known.trace = None
            if known.trusted and not trusted:
                warn(_note(inputs.step), TraceWarning, stacklevel=2)
            known.trusted = trusted
            self._cost += perf_counter() - begin
        elif known.count < LOOKS or (known.best <= LONGEST and known.total < PATIENCE * self._cost):
            found = step()
            known.count_step(perf_counter() - begin)
        elif known.best > LONGEST or self._recorded >= RECORDED:
            known.trusted = False
            found = step()
        else:
            found, known.trace = run_and_record(step, *given)
            known.trusted = False if known.trace is None else None
            self._cost = perf_counter() - begin
            size = 0 if known.trace is None else known.trace.size
            self._size, self._recorded = self._size + size, self._recorded + size
        self._forget()
        return found

    def _forget(self) -> None:
        """Remove the least recently used kinds while there are too many operations or kinds."""
        while len(self._known) > 1 and (self._size > NODES or len(self._known) > KINDS):
            _, old = self._known.popitem(last=False)
            self._size -= 0 if old.trace is None else old.trace.size


def _note(step: Phase | Statistic | None) -> str:
    """Return a note to the user that a trace of a phase or of a Statistic was dropped."""
    what = ""
    if isinstance(step, Statistic):
        what = f" of the Statistic `{step.name}`"
    elif isinstance(step, Phase):
        what = f" with the loss terms {', '.join(type(term).__name__ for term in step.terms)}"
    return (
        f"A step{what} was recorded, but after an input had changed, the recorded operations gave"
        " other results than the step itself. The recording was dropped and was not used for this"
        " input. Python reads a tensor's value in this step, or a value that is neither an argument"
        " nor in ctx; `engine.trace=false` records no steps."
    )


def _has_news(trace: Trace, inputs: Inputs, batch: Sequence[Tensor]) -> bool:
    """Return whether an input that was the same in all compared steps has another value now.

    The inputs of a phase are examined in its first step of this kind only. The batch is examined in
    each step where this does not make the host wait for a device.
    """
    if trace.number == inputs.number:
        return bool(trace.same_batch) and any(
            batch[k].is_cpu and _bits(batch[k]) != x for k, x in trace.same_batch.items()
        )
    trace.number = inputs.number
    values = [*inputs.tensors, *trace.constants]
    return (
        _same(trace.same, values) != trace.same
        or _same(trace.same_batch, batch) != trace.same_batch
    )


def _same(bits: Mapping[int, bytes], values: Sequence[Tensor]) -> dict[int, bytes]:
    """Return the entries of `bits`, by position, that are still those of the tensors."""
    return {k: before for k, before in bits.items() if _bits(values[k]) == before}


def run_and_record(
    step: Callable[[], StepOutput],
    inputs: Sequence[Tensor],
    batch: Sequence[Tensor] = (),
    constants: Sequence[Tensor] = (),
) -> tuple[StepOutput, Trace | None]:
    """Run a step and record it.

    Args:
        step: Computes the results.
        inputs: The tensors of `Inputs`.
        batch: See `Traces.take`.
        constants: See `Traces.take`.

    Returns:
        The results of the step, and its trace. The trace is None if a replay could not repeat what
        the step does with the values of other inputs; see `Tape`.
    """
    bits, bits_of_batch = (dict(enumerate(map(_bits, tensors))) for tensors in (inputs, batch))
    tape = Tape([*inputs, *batch], constants)
    with _as_before([*inputs, *batch]) as failed:
        found = tape.record(step)
    if failed:
        return step(), None
    trace: Trace | None = None
    with suppress(RuntimeError):  # an operation of PyTorch that cannot be recorded
        trace = tape.trace(found)
    if trace is not None:
        after = enumerate(map(_bits, trace.constants), len(inputs))
        trace.same, trace.same_batch = bits | dict(after), bits_of_batch
    return found, trace


def run_and_compare(
    trace: Trace,
    step: Callable[[], StepOutput],
    inputs: Sequence[Tensor],
    batch: Sequence[Tensor] = (),
    constants: Sequence[Tensor] = (),
) -> tuple[StepOutput, bool]:
    """Run a step and replay its trace; return the step's results, and whether both are equal.

    Both may write to the inputs. So the trace gets copies of the contiguous inputs, which leaves
    are; what both have written is compared too. The step is recorded again: a tensor that it read
    the first time, and that is neither an input nor a result, must be the same tensor now.

    Args:
        trace: The trace.
        step: Computes the results.
        inputs: The tensors of `Inputs`.
        batch: See `Traces.take`.
        constants: See `Traces.take`.
    """
    trace.same = _same(trace.same, [*inputs, *trace.constants])
    trace.same_batch = _same(trace.same_batch, batch)
    theirs = [*inputs, *batch]
    mine = [x.detach().clone() if x.is_contiguous() else x for x in theirs]
    with _as_before(theirs) as failed:
        again = tree_leaves(trace.replay(*mine))
    if failed:  # such as the backward pass of nn.LSTM, which takes None for a tensor
        return step(), False
    tape = Tape(theirs, constants)
    found = tape.record(step)
    mine, theirs = [*mine, *again], [*theirs, *tree_leaves(found)]
    equal = len(mine) == len(theirs) and all(map(_same_bits, mine, theirs))
    same_constants = list(map(_place, tape.unknown)) == list(map(_place, trace.constants))
    return found, equal and tape.sound and same_constants


@contextmanager
def _as_before(inputs: Sequence[Tensor]) -> Iterator[list[Exception]]:
    """Return a context manager that undoes what a recording or a replay did before it failed.

    Some operations of PyTorch work in a step, but cannot be recorded or replayed. Then the inputs
    and PyTorch's random generators have their former values after the block.

    Args:
        inputs: The tensors that may be written to.

    Yields:
        A list that contains the exception of PyTorch, if one was raised in the block.
    """
    values, state = [x.detach().clone() for x in inputs], RandomState.now()
    failed: list[Exception] = []
    try:
        yield failed
    except (RuntimeError, TypeError, NotImplementedError) as error:
        failed.append(error)
        state.set()
        with torch.no_grad():
            for x, value in zip(inputs, values, strict=True):
                if not _same_bits(x, value):
                    x.copy_(value)


def _same_bits(one: Tensor | None, other: Tensor | None) -> bool:
    """Return whether two tensors are equal, bit for bit; NaN is equal to the same NaN."""
    if one is None or other is None:
        return one is other
    if one.dtype != other.dtype or one.shape != other.shape:
        return False
    return torch.equal(_bytes(one), _bytes(other))


def _bits(x: Tensor) -> bytes:
    """Return the SHA-256 of the values of a tensor."""
    return sha256(_bytes(x.detach()).cpu().numpy().data).digest()


def _bytes(x: Tensor) -> Tensor:
    """Return the bytes of a tensor, uint8 of one axis."""
    # A view as bytes needs a stride of 1, which only a copy of a single element is sure to have.
    return x.flatten().clone(memory_format=torch.contiguous_format).view(torch.uint8)


def _place(x: Tensor) -> Hashable:
    """Return where a tensor lies in memory; equal for tensors that are the same while both live."""
    return x.data_ptr(), x.shape, x.stride(), x.dtype, x.is_conj(), x.is_neg()


def _memory(x: Tensor) -> int:
    """Return the address of the memory that a tensor shares with its views; 0 if it has none."""
    return x.untyped_storage().data_ptr()


def _has_effect(node: fx.Node) -> bool:
    """Return whether a node must be kept although its result is not used."""
    checks = hasattr(node.target, "_schema") and not node.target._schema.returns
    return node.op in ("placeholder", "output") or checks or bool(_written(node))


def _written(node: fx.Node) -> list[fx.Node]:
    """Return the nodes of the tensors that an operation writes to."""
    found: list[fx.Node] = []
    for place, name in _writes(node.target):
        given: Any = node.args[place] if place < len(node.args) else node.kwargs.get(name)
        found += [given] if isinstance(given, fx.Node) else given or ()
    return found


@cache
def _writes(operation: Any) -> tuple[tuple[int, str], ...]:
    """Return positions and names of the arguments that an operation writes to."""
    arguments = operation._schema.arguments if hasattr(operation, "_schema") else ()
    says = ((k, argument.name) for k, argument in enumerate(arguments) if argument.is_write)
    return WRITES.get(operation, tuple(says))


def _is_plain(arguments: Any) -> bool:
    """Return whether all tensors in nested containers have memory, and all else is plain."""
    return all(
        x.layout is torch.strided if isinstance(x, Tensor) else isinstance(x, PLAIN)
        for x in tree_leaves(arguments)
    )


def _reads(func: Any, args: Iterable[Any]) -> bool:
    """Return whether an operation does what a replay cannot repeat; see `UNRECORDED`."""
    if func is aten.index.Tensor:  # with masks as indices the shape of the result depends on values
        _, places = args
        return any(place is not None and place.dtype == torch.bool for place in places)
    return any(tag in func.tags for tag in UNRECORDED)


class Readers(TorchFunctionMode):
    """Detects functions that give Python the values of a tensor without a tensor operation.

    Functions that read values return something else than tensors and metadata: numbers, strings,
    arrays, capsules, storages. Functions that return integers are named in `READERS`.

    Attributes:
        seen: Whether such a function was called.
        literal: Whether a function is running that makes a tensor of Python numbers alone.
    """

    def __init__(self) -> None:
        super().__init__()
        self.seen = self.literal = False

    def __torch_function__(
        self,
        func: Any,
        types: Sequence[type],
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        """Call a function of PyTorch, and check whether it reads values."""
        kwargs = kwargs or {}
        before = self.literal
        self.literal = func in LITERALS and all(
            isinstance(x, NUMBERS) for x in tree_leaves((args[LITERALS[func] :], kwargs))
        )
        try:
            found = func(*args, **kwargs)
        finally:
            self.literal = before
        metadata = all(isinstance(x, METADATA) for x in tree_leaves(found))
        self.seen = self.seen or func in READERS or not metadata
        return found


class Tape(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Records the tensor operations of a step, below vmap and autograd.

    All tensors are inputs, constants, or results of recorded operations; others are made by means
    that a replay does not repeat. So an unknown tensor must have memory of its own, since it is a
    view of an input or of a result otherwise (`nn.Parameter(x)`, DLPack). It may be made of Python
    numbers (`torch.tensor(0.5)`), which no operation has read from a tensor. All others are listed
    in `unknown`: they are constants if they existed before the step.

    Args:
        inputs: The tensors that a replay gets other tensors for.
        constants: Tensors that have the same values in all such steps.

    Attributes:
        unknown: Tensors that the step read, and that were neither given nor made by operations nor
            of Python numbers.
        sound: False if the operations, or their arguments that are not tensors, may depend on
            values of the inputs.
    """

    def __init__(self, inputs: Sequence[Tensor], constants: Sequence[Tensor]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.unknown: list[Tensor] = []
        self.sound = True
        self._readers = Readers()
        self._graph = fx.Graph()
        self._alive: list[Tensor] = []  # keeps tensors alive, so ids and addresses are unique
        self._nodes: dict[int, fx.Node] = {}
        self._values: dict[fx.Node, Tensor] = {}
        self._memory: dict[fx.Node, int] = {}  # the address of the memory of a node's tensor
        self._ends: dict[int, int] = {}  # the end of the memory of inputs and results, by its begin
        self._origins: dict[fx.Node, fx.Node] = {}  # the node that a node is a view of, or itself
        self._first: dict[Hashable, fx.Node] = {}  # by origin and place
        self._constants: dict[str, Tensor] = {}
        for k, x in enumerate(inputs):
            self._remember(x, self._graph.placeholder(f"x{k}"))
        for x in constants:
            self._remember(x, self._constant(x))

    def record(self, step: Callable[[], StepOutput]) -> StepOutput:
        """Run a step, record it, and return its results."""
        with self._readers, self:
            found = step()
        self.sound = self.sound and not self._readers.seen
        return found

    def __torch_dispatch__(
        self,
        func: Any,
        types: Sequence[type],
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        """Execute an operation and record it."""
        with torch._C.DisableTorchFunction():  # the tape reads metadata itself
            return self._execute(func, args, kwargs or {})

    def _execute(self, func: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
        """Execute an operation, and record it unless a replay could not repeat it."""
        self.sound = self.sound and _is_plain((args, kwargs)) and not _reads(func, args)
        if not self.sound:
            return func(*args, **kwargs)
        if func is aten.lift_fresh.default:
            if self._readers.literal:
                self._remember(args[0], self._constant(args[0]))
            func = aten.lift_fresh_copy.default  # a copy, because the step may write to it
        node = self._graph.call_function(func, self._named(args), self._named(kwargs))
        found = func(*args, **kwargs)
        if isinstance(found, Tensor):
            if id(found) not in self._nodes:  # otherwise the operation has written to it in place
                self._remember(found, node)
        elif isinstance(found, list | tuple):
            for k, value in enumerate(found):
                if isinstance(value, Tensor):
                    self._remember(value, self._graph.call_function(getitem, (node, k)))
        return found

    def trace(self, found: Any) -> Trace | None:
        """Return the trace; None if a replay could not repeat the step on other inputs.

        Args:
            found: The results of the step, which a replay returns.
        """
        if not self.sound or not _is_plain(found):
            return None
        self._graph.output(fx.map_arg(self._named(found), self._apart))
        if not self.sound:  # it returns a view that no operation has made
            return None
        self._fold()
        self._graph.eliminate_dead_code(_has_effect)
        kept = {node.target for node in self._graph.nodes if node.op == "get_attr"}
        constants = {name: value for name, value in self._constants.items() if name in kept}
        module = fx.GraphModule(constants, self._graph)

        def replay(*inputs: Tensor) -> Any:
            with torch.no_grad():
                return module.forward(*inputs)

        constant_bytes = sum(value.nbytes for value in constants.values())
        return Trace(replay, len(self._graph.nodes) + constant_bytes // NODE, self.unknown)

    def _remember(self, value: Tensor, node: fx.Node) -> None:
        """Remember the node of a tensor; a view that leads back to a tensor is that tensor."""
        if value.layout is not torch.strided:  # it has no memory of its own
            self.sound = False
            return
        memory = _memory(value)
        [source] = node.all_input_nodes if node.target is getitem else [node]
        viewed = (x for x in source.all_input_nodes if self._memory.get(x) == memory)
        origin = next((self._origins[x] for x in viewed), node)
        node = self._first.setdefault((origin, _place(value)), node)
        self._nodes[id(value)] = node
        self._values[node], self._memory[node], self._origins[node] = value, memory, origin
        self._alive.append(value)
        if origin.op != "get_attr":
            self._ends[memory] = memory + value.untyped_storage().nbytes()

    def _named(self, arguments: Any) -> Any:
        """Return arguments with each tensor replaced by its node."""
        match arguments:
            case Tensor():
                return self._node(arguments)
            case list():
                return [self._named(value) for value in arguments]
            case tuple():
                return tuple(self._named(value) for value in arguments)
            case dict():
                return {key: self._named(value) for key, value in arguments.items()}
        return arguments

    def _node(self, value: Tensor) -> fx.Node:
        """Return the node of a tensor; an unknown tensor becomes a constant."""
        if id(value) not in self._nodes:
            begin = _memory(value)
            end = begin + value.untyped_storage().nbytes()
            self.sound = self.sound and all(
                end <= other or other_end <= begin for other, other_end in self._ends.items()
            )
            self.unknown.append(value)
            self._remember(value, self._constant(value))
        return self._nodes[id(value)]

    def _constant(self, value: Tensor) -> fx.Node:
        """Store a constant; return its node."""
        name = f"constant{len(self._constants)}"
        self._constants[name] = value.detach()
        return self._graph.get_attr(name)

    def _apart(self, node: fx.Node) -> fx.Node:
        """Return the node of a result; an input is detached, because it may be a client's leaf."""
        if node.op != "placeholder":
            return node
        return self._graph.call_function(aten.detach.default, (node,))

    def _fold(self) -> None:
        """Replace results that depend on no input, and are not written to, by constants."""
        nodes = list(self._graph.nodes)
        given_away = [x for node in nodes for x in _written(node)] + nodes[-1].all_input_nodes
        changing = {self._memory[node] for node in given_away if node in self._memory}
        fixed: set[fx.Node] = set()
        for node in nodes:
            known = node in self._values and self._is_fixed(node, fixed)
            if known and self._memory[node] not in changing:
                fixed.add(node)
        for node in nodes:
            users = [user for user in node.users if user not in fixed]
            if node not in fixed or not users or node.op != "call_function":
                continue
            if (value := self._values[node]).numel() <= LARGEST:
                with self._graph.inserting_before(node):
                    constant = self._constant(value)
                for user in users:
                    user.replace_input_with(node, constant)

    def _is_fixed(self, node: fx.Node, fixed: set[fx.Node]) -> bool:
        """Return whether a tensor is the same for all inputs.

        Args:
            node: The tensor's node.
            fixed: The nodes before it that are the same for all inputs.
        """
        if node.op != "call_function" or node.target in FILLED:
            return node.op != "placeholder"
        return all(before in fixed for before in node.all_input_nodes)
