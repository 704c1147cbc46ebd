"""Traces of training steps: their tensor operations, recorded once and replayed without Python.

A step runs the Python code of a method, autograd, and `torch.vmap` where clients are stacked. On a
small net this costs more than the arithmetic, and it is the same in every step. A trace contains
only the tensor operations below autograd and vmap, in their order, including those of the backward
pass. A replay executes them on other inputs and gives the same results, bit for bit.

Steps of one kind do the same operations: they have the same phase, and tensors of the same names,
shapes, strides and types. The first steps of a kind run as they are, to measure their time. Short
ones are then traced. The trace is compared with the next step of the kind, and replayed only if all
results are equal, bit for bit. A step in which Python reads the value of a tensor is not traced,
because other values could lead to other operations.
"""

import operator
import re
from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from time import perf_counter
from types import SimpleNamespace
from typing import Any, TypeVar

import torch
from torch import Tensor, fx
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

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
NODE = 1_500
"""Approximate bytes of memory per stored operation."""
KINDS = 1_000
"""Largest number of kinds that are remembered."""
LARGEST = 10_000
"""Largest number of entries of a constant result that is stored instead of recomputed."""

StepOutput = TypeVar("StepOutput")
"""The results of a step: tensors in nested lists, tuples and dicts."""

aten = torch.ops.aten
ALIKE = (
    aten._unsafe_view.default,
    aten.unsafe_split.Tensor,
    aten.unsafe_split_with_sizes.default,
)
"""Operations that return views, although their schemas do not say so."""
READING = (
    torch.Tag.data_dependent_output,
    torch.Tag.dynamic_output_shape,
    torch.Tag.nondeterministic_seeded,
)
"""Tags of operations that depend on values of tensors, or on PyTorch's random numbers."""
READERS = (Tensor.tolist, Tensor.numpy, Tensor.__array__, Tensor.__dlpack__)
"""Functions that give Python the values of a tensor without a tensor operation."""
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


class Kind:
    """The key of a kind of step: any hashable parts; their hash is computed once."""

    __slots__ = ("_hash", "_parts")

    def __init__(self, *parts: Hashable) -> None:
        self._parts = parts
        self._hash = hash(parts)

    def __hash__(self) -> int:
        return self._hash

    def __eq__(self, other: object) -> bool:
        return self is other or (isinstance(other, Kind) and self._parts == other._parts)


NO_KIND = Kind()
"""The key that `Traces.gather` returns where nothing is traced."""


def shapes(tensors: Iterable[Tensor]) -> Hashable:
    """Return the shape, strides and type of each tensor, as a hashable value."""
    return tuple((x.shape, x.stride(), x.dtype) for x in tensors)


@dataclass(frozen=True)
class Trace:
    """The recorded operations of a step.

    Attributes:
        replay: Function of the inputs that executes the operations and returns the results.
        size: Number of operations. Constants count as the number of operations of the same memory.
    """

    replay: Callable[..., Any]
    size: int


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

    def looked(self, seconds: float) -> None:
        """Count a step that ran as it is."""
        self.count, self.total = self.count + 1, self.total + seconds
        self.best = min(self.best, seconds)


class Traces:
    """The traces of all kinds of steps of an engine.

    Steps of a kind run as they are until they have taken as long as recording a trace. Then they
    are traced. A trace is replayed when it has reproduced another step, bit for bit. Otherwise, and
    if steps are long, steps of this kind always run as they are.

    Args:
        enabled: False runs all steps as they are and records nothing (`engine.trace=false`).

    Attributes:
        enabled: The same.
    """

    def __init__(self, *, enabled: bool = True) -> None:
        self.enabled = enabled
        self._known: OrderedDict[Hashable, Known] = OrderedDict()
        self._kinds: dict[Kind, Kind] = {}
        self._cost = FIRST
        self._size = 0

    def gather(self, what: Hashable, *trees: Tree) -> tuple[list[Tensor], Kind]:
        """Return the inputs of steps on these trees, and the kind of such steps.

        Args:
            what: Everything else that the operations depend on, such as the phase.
            trees: The leaves, start and ctx of a client or of a stack.
        Returns: The tensors of the trees, each once, and the kind.
        """
        if not self.enabled:
            return [], NO_KIND
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
        kind = Kind(what, tuple(places), shapes(tensors))
        # Equal kinds are one object, because identical objects are compared faster.
        return tensors, self._kinds.setdefault(kind, kind)

    def take(
        self,
        kind: Hashable,
        step: Callable[[], StepOutput],
        inputs: Sequence[Tensor],
        batch: Sequence[Tensor] = (),
    ) -> StepOutput:
        """Return the results of a step: replayed, or computed by calling `step`.

        Args:
            kind: Everything that the operations depend on, except the shapes of the batch.
            step: Computes the results. It reads `inputs`, `batch` and constants, nothing else that
                changes, and may write to `inputs`.
            inputs: The tensors from `gather`.
            batch: Tensors whose shapes may differ from step to step.
        """
        if not self.enabled:
            return step()
        kind, inputs = (kind, shapes(batch)), [*inputs, *batch]
        known = self._known.setdefault(kind, Known())
        self._known.move_to_end(kind)
        if known.trace is not None and known.trusted:
            again: StepOutput = known.trace.replay(*inputs)
            return again
        if known.trusted is False:
            return step()
        begin = perf_counter()
        found: StepOutput
        if known.trace is not None:
            found, known.trusted = _tried(known.trace.replay, step, inputs)
            if not known.trusted:
                self._size -= known.trace.size
                known.trace = None
            self._cost += perf_counter() - begin
        elif known.count < LOOKS or (known.best <= LONGEST and known.total < PATIENCE * self._cost):
            found = step()
            known.looked(perf_counter() - begin)
        elif known.best > LONGEST:
            known.trusted = False
            found = step()
        else:
            found, known.trace = written_down(step, inputs)
            known.trusted = False if known.trace is None else None
            self._cost = perf_counter() - begin
            self._size += 0 if known.trace is None else known.trace.size
        self._forget()
        return found

    def _forget(self) -> None:
        """Remove the least recently used kinds while there are too many operations or kinds."""
        while len(self._known) > 1 and (self._size > NODES or len(self._known) > KINDS):
            _, old = self._known.popitem(last=False)
            self._size -= 0 if old.trace is None else old.trace.size


def _tried(
    trace: Callable[..., StepOutput], step: Callable[[], StepOutput], inputs: Sequence[Tensor]
) -> tuple[StepOutput, bool]:
    """Run a step and replay its trace; return the step's results, and whether both are equal.

    Both may write to the inputs. So the trace gets copies of the contiguous inputs, which leaves
    are; what both have written is compared too.
    """
    mine = [x.detach().clone() if x.is_contiguous() else x for x in inputs]
    again, found = tree_leaves(trace(*mine)), step()
    mine, theirs = [*mine, *again], [*inputs, *tree_leaves(found)]
    return found, len(mine) == len(theirs) and all(map(_same_bits, mine, theirs))


def _same_bits(one: Tensor | None, other: Tensor | None) -> bool:
    """Return whether two tensors are equal, bit for bit; NaN is equal to the same NaN."""
    if one is None or other is None:
        return one is other
    if one.dtype != other.dtype or one.shape != other.shape:
        return False
    return torch.equal(_bytes(one), _bytes(other))


def _bytes(x: Tensor) -> Tensor:
    """Return the bytes of a tensor, uint8 of one axis."""
    # A view as bytes needs a stride of 1, which only a copy of a single element is sure to have.
    return x.flatten().clone(memory_format=torch.contiguous_format).view(torch.uint8)


def written_down(
    step: Callable[[], StepOutput], inputs: Sequence[Tensor]
) -> tuple[StepOutput, Trace | None]:
    """Run a step and record it.

    Args:
        step: Computes the results from the inputs.
        inputs: The tensors that a replay gets other tensors for.
    Returns: The results of the step, and its trace. The trace is None if Python has read a value,
        since other inputs might then lead to other operations, or if the step has drawn random
        numbers of PyTorch, which a replay would draw again.
    """
    tape, readers = Tape(inputs), Readers()
    with readers, tape:
        found = step()
    trace = tape.trace(found)
    return found, None if readers.seen else trace


def _has_effect(node: fx.Node) -> bool:
    """Return whether a node must be kept although its result is not used."""
    return node.op in ("placeholder", "output") or bool(_written(node))


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


def _viewed(node: fx.Node) -> fx.Node | None:
    """Return the tensor that the result of an operation is a view of; None if it is no view."""
    if node.target is operator.getitem:
        [several, _] = node.args
        assert isinstance(several, fx.Node)
        return _viewed(several)
    if not _is_view(node.target):
        return None
    return _written(node)[0] if _written(node) else node.all_input_nodes[0]


@cache
def _is_view(operation: Any) -> bool:
    """Return whether the result of an operation shares memory with an argument."""
    returns = operation._schema.returns if hasattr(operation, "_schema") else ()
    return operation in ALIKE or any(found.alias_info is not None for found in returns)


def _memory(node: fx.Node) -> fx.Node:
    """Return the tensor that owns the memory of a tensor."""
    while (before := _viewed(node)) is not None:
        node = before
    return node


def _reads(func: Any, args: Iterable[Any]) -> bool:
    """Return whether an operation depends on values in a way that a replay cannot repeat.

    Its shape or its result on the host follows from values of tensors, or it draws random numbers.
    """
    if func is aten.index.Tensor:  # with masks as indices the shape of the result depends on values
        _, places = args
        return any(place is not None and place.dtype == torch.bool for place in places)
    return any(tag in func.tags for tag in READING)


class Readers(TorchFunctionMode):
    """Detects functions that give Python the values of a tensor without a tensor operation.

    Attributes:
        seen: Whether such a function was called.
    """

    def __init__(self) -> None:
        super().__init__()
        self.seen = False

    def __torch_function__(
        self,
        func: Any,
        types: Sequence[type],
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        """Call a function of PyTorch, and check whether it reads values."""
        self.seen = self.seen or func in READERS
        return func(*args, **(kwargs or {}))


class Tape(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Records the tensor operations within a `with` block, below vmap and autograd.

    Args:
        inputs: The tensors that a replay gets other tensors for. All other tensors that are not
            results of recorded operations are constants of the trace.
    """

    def __init__(self, inputs: Sequence[Tensor]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._graph = fx.Graph()
        self._nodes: dict[int, fx.Node] = {}
        self._values: dict[fx.Node, Tensor] = {}  # keeps tensors alive, so ids are unique
        self._constants: dict[str, Tensor] = {}
        self._places: dict[fx.Node, Hashable] = {}
        self._sound = True
        for k, x in enumerate(inputs):
            self._note(x, self._graph.placeholder(f"x{k}"))

    def __torch_dispatch__(
        self,
        func: Any,
        types: Sequence[type],
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        """Execute an operation and record it."""
        kwargs = kwargs or {}
        if func is aten.lift_fresh.default:  # a copy, because the step may write to it
            func = aten.lift_fresh_copy.default
        self._sound = self._sound and not _reads(func, args)
        node = self._graph.call_function(func, self._named(args), self._named(kwargs))
        found = func(*args, **kwargs)
        if isinstance(found, Tensor):
            if id(found) not in self._nodes:  # otherwise the operation has written to it in place
                self._note(found, node)
        elif isinstance(found, list | tuple):
            for k, value in enumerate(found):
                if isinstance(value, Tensor):
                    self._note(value, self._graph.call_function(operator.getitem, (node, k)))
        return found

    def trace(self, found: Any) -> Trace | None:
        """Return the trace; None if operations depend on values of tensors.

        Args:
            found: The results of the step, which a replay returns.
        """
        self._simplify()
        self._graph.output(fx.map_arg(self._named(found), self._apart))
        self._fold()
        self._graph.eliminate_dead_code(_has_effect)
        self._values.clear()
        kept = {node.target for node in self._graph.nodes if node.op == "get_attr"}
        self._constants = {k: v for k, v in self._constants.items() if k in kept}
        if not self._sound:
            return None
        code = self._graph.python_code("self")
        scope = dict(code.globals)
        try:
            exec(_bound(code.src, scope), scope)
        except SyntaxError:  # an argument has no source text, such as a random generator
            return None
        forward, constants = scope["forward"], SimpleNamespace(**self._constants)

        def replay(*inputs: Tensor) -> Any:
            with torch.no_grad():
                return forward(constants, *inputs)

        constant_bytes = sum(value.nbytes for value in self._constants.values())
        return Trace(replay, len(self._graph.nodes) + constant_bytes // NODE)

    def _note(self, value: Tensor, node: fx.Node) -> None:
        """Remember the node of a tensor."""
        self._nodes[id(value)] = node
        self._values[node] = value
        where = value.data_ptr(), value.shape, value.stride()
        self._places[node] = (*where, value.dtype)

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
            self._note(value, self._constant(value))
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

    def _simplify(self) -> None:
        """Remove views with the memory, shape and strides of the tensor that they view."""
        for key, node in list(self._nodes.items()):
            before = _viewed(node)
            while before is not None and self._places.get(before) != self._places[node]:
                before = _viewed(before)
            if before is not None:
                node.replace_all_uses_with(before)
                self._graph.erase_node(node)
                self._nodes[key] = before

    def _fold(self) -> None:
        """Replace results that depend on no input, and are not written to, by constants."""
        nodes = list(self._graph.nodes)
        given_away = [x for node in nodes for x in _written(node)] + nodes[-1].all_input_nodes
        changing = {_memory(node) for node in given_away}
        fixed: dict[fx.Node, Tensor] = {}
        for node in nodes:
            known = node in self._values and self._is_fixed(node, fixed)
            if known and _memory(node) not in changing:
                fixed[node] = self._values[node]
        for node, value in fixed.items():
            users = [user for user in node.users if user not in fixed]
            if users and node.op == "call_function" and value.numel() <= LARGEST:
                with self._graph.inserting_before(node):
                    constant = self._constant(value)
                for user in users:
                    user.replace_input_with(node, constant)

    def _is_fixed(self, node: fx.Node, fixed: Mapping[fx.Node, Tensor]) -> bool:
        """Return whether a tensor is the same for all inputs.

        Args:
            node: The tensor's node.
            fixed: The nodes before it that are the same for all inputs.
        """
        if node.op != "call_function" or node.target in FILLED:
            return node.op != "placeholder"
        return all(before in fixed for before in node.all_input_nodes)


def _bound(source: str, scope: dict[str, Any]) -> str:
    """Return source text that calls operations by short global names.

    Args:
        source: Source text with names such as `torch.ops.aten.add.Tensor`.
        scope: The globals of the source; the operations are added under their short names.
    """

    def name(found: re.Match[str]) -> str:
        operation = getattr(getattr(getattr(torch.ops, found[1]), found[2]), found[3])
        scope[short := "_".join(found.groups())] = getattr(operation, "_op", operation)
        return short

    return re.sub(r"torch\.ops\.(\w+)\.(\w+)\.(\w+)(?=\()", name, source)
