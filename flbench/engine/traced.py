"""Training steps written down once as flat lists of tensor operations.

A stacked step goes through the methods' Python, vmap and autograd. On a small net that costs more
than its arithmetic, and it is the same in every step. A trace keeps the operations alone, in their
order, those of the backward pass included: the same results, bit for bit.
"""

import operator
from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from time import perf_counter
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor, fx
from torch.utils._python_dispatch import TorchDispatchMode

from flbench.engine.bundle import Bundle
from flbench.types import Tree

LOOKS = 3  # steps of a kind, at least, that are taken as they are, to learn how long one takes
LONGEST = 0.02  # seconds of a step: of a longer one the overhead is a small part
FIRST = 0.04  # seconds that a trace is taken to cost before one was made
PATIENCE = 1.0  # a kind is traced when its steps have cost so many times what a trace costs
NODES = 50_000  # operations of all traces that are kept, about 1.5 kB each
KINDS = 1_000  # that are remembered

Step = Callable[..., list[Tensor]]

aten = torch.ops.aten
VIEWS = (
    aten.detach.default,
    aten.alias.default,
    aten.slice.Tensor,
    aten.expand.default,
    aten.view.default,
    aten._unsafe_view.default,
)


class Kind:
    """What steps have in common; its hash is computed once."""

    __slots__ = ("_hash", "_parts")

    def __init__(self, *parts: Hashable) -> None:
        self._parts = parts
        self._hash = hash(parts)

    def __hash__(self) -> int:
        return self._hash

    def __eq__(self, other: object) -> bool:
        return self is other or (isinstance(other, Kind) and self._parts == other._parts)


def shapes(tensors: Iterable[Tensor]) -> Hashable:
    """Return shapes, strides and types."""
    return tuple((x.shape, x.stride(), x.dtype) for x in tensors)


class Layout:
    """The tensors of some bundles, each once, and where they stand.

    Attributes:
        tensors: in the order in which they were met.
        kind: equal for layouts of tensors of the same kind with the same names.
    """

    def __init__(self, *bundles: Bundle) -> None:
        self.tensors: list[Tensor] = []
        self._places: list[tuple[Tree, str, int]] = []
        found: dict[int, int] = {}
        names: list[Hashable] = []
        for bundle in bundles:
            for tree in (bundle.rows, bundle.shared):
                for name, value in tree.items():
                    if id(value) not in found:
                        found[id(value)] = len(self.tensors)
                        self.tensors.append(value)
                    self._places.append((tree, name, found[id(value)]))
            names.append((*bundle.names, *bundle.rows, len(bundle.rows), *bundle.shared))
        order = tuple(index for _, _, index in self._places)
        self.kind = Kind(tuple(names), order, shapes(self.tensors))

    @contextmanager
    def replaced(self, tensors: Sequence[Tensor]) -> Iterator[None]:
        """Let others stand in their places."""
        try:
            for tree, name, index in self._places:
                tree[name] = tensors[index]
            yield
        finally:
            for tree, name, index in self._places:
                tree[name] = self.tensors[index]


@dataclass(frozen=True)
class Trace:
    """The operations of a step.

    Attributes:
        replay: does them on other inputs.
        size: how many they are.
    """

    replay: Step
    size: int


@dataclass
class Known:
    """What is known of one kind of step.

    Attributes:
        count: steps that were taken as they are.
        total: seconds of them.
        best: seconds of the shortest.
        trace: its operations, once they are written down.
        trusted: whether the trace has reproduced a step; None while it is not known.
    """

    count: int = 0
    total: float = 0.0
    best: float = float("inf")
    trace: Trace | None = None
    trusted: bool | None = None

    def looked(self, seconds: float) -> None:
        """Count a step that was taken as it is."""
        self.count, self.total = self.count + 1, self.total + seconds
        self.best = min(self.best, seconds)


class Traces:
    """Steps by kind: taken as they are until they have cost as much as a trace, then replayed.

    Steps of one kind do the same operations. A trace is trusted once it has reproduced another step
    bit for bit; where it does not, and where steps are long, they stay as they are.
    """

    def __init__(self) -> None:
        self._known: OrderedDict[Hashable, Known] = OrderedDict()
        self._cost = FIRST
        self._size = 0

    def take(self, kind: Hashable, step: Step, inputs: Sequence[Tensor]) -> list[Tensor]:
        """Return what the step makes of the inputs; it may write to them.

        Args:
            kind: all that its operations depend on, shapes of inputs included.
            step: a function of tensors, and of nothing else that changes.
            inputs: its arguments.
        """
        known = self._known.setdefault(kind, Known())
        self._known.move_to_end(kind)
        if known.trace is not None and known.trusted:
            return known.trace.replay(*inputs)
        if known.trusted is False:
            return step(*inputs)
        begin = perf_counter()
        if known.trace is not None:
            found, known.trusted = _tried(known.trace.replay, step, inputs)
            if not known.trusted:
                self._size -= known.trace.size
                known.trace = None
            self._cost += perf_counter() - begin
        elif known.count < LOOKS or (known.best <= LONGEST and known.total < PATIENCE * self._cost):
            found = step(*inputs)
            known.looked(perf_counter() - begin)
        elif known.best > LONGEST:
            known.trusted = False
            found = step(*inputs)
        else:
            found, known.trace = written_down(step, inputs)
            known.trusted = False if known.trace is None else None
            self._cost = perf_counter() - begin
            self._size += 0 if known.trace is None else known.trace.size
        self._forget()
        return found

    def _forget(self) -> None:
        """Forget the kinds that were not met for longest, where traces take too much memory."""
        while len(self._known) > 1 and (self._size > NODES or len(self._known) > KINDS):
            _, old = self._known.popitem(last=False)
            self._size -= 0 if old.trace is None else old.trace.size


def _tried(trace: Step, step: Step, inputs: Sequence[Tensor]) -> tuple[list[Tensor], bool]:
    """Take a step and replay a trace; return what the step makes, and whether both make the same.

    Each may write to what clients have, which is contiguous: the trace gets copies of that.
    """
    mine = [x.clone() if x.is_contiguous() else x for x in inputs]
    again, found = trace(*mine), step(*inputs)
    pairs = zip([*found, *inputs], [*again, *mine], strict=True)
    return found, all(_same_bits(one, other) for one, other in pairs)


def _same_bits(one: Tensor, other: Tensor) -> bool:
    if one.dtype != other.dtype or one.shape != other.shape:
        return False
    return torch.equal(_bytes(one), _bytes(other))


def _bytes(x: Tensor) -> Tensor:
    # A single element may have any stride, and bytes need one: a copy has it.
    return x.flatten().clone(memory_format=torch.contiguous_format).view(torch.uint8)


def written_down(step: Step, inputs: Sequence[Tensor]) -> tuple[list[Tensor], Trace | None]:
    """Take a step; return what it makes of the inputs, and the operations that it does.

    None stands for operations that may be others for other inputs: Python has read a value.
    """
    tape = Tape(inputs)
    with tape:
        found = step(*inputs)
    return found, tape.trace(found)


def _has_effect(node: fx.Node) -> bool:
    schema = getattr(node.target, "_schema", None)
    return node.op in ("placeholder", "output") or (schema is not None and schema.is_mutable)


def _reads(func: Any, args: Iterable[Any]) -> bool:
    """Return whether the values of tensors decide what comes after an operation."""
    if torch.Tag.data_dependent_output in func.tags or func is aten.nonzero.default:
        return True
    if func is not aten.index.Tensor:
        return False
    _, places = args
    return any(place is not None and place.dtype == torch.bool for place in places)


class Tape(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Writes down the operations that are done while it is entered, below vmap and autograd.

    Args:
        inputs: the tensors that another run gets others for. All others that no operation made are
            taken for constants.
    """

    def __init__(self, inputs: Sequence[Tensor]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._graph = fx.Graph()
        self._nodes: dict[int, fx.Node] = {}
        self._alive: list[Tensor] = []  # while a tensor lives no other one has its id
        self._constants: dict[str, Tensor] = {}
        self._shapes: dict[fx.Node, Hashable] = {}
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
        """Do an operation, and write it down."""
        kwargs = kwargs or {}
        if func is aten.lift_fresh.default:  # of a constant, which the step may write to
            func = aten.lift_fresh_copy.default
        self._sound = self._sound and not _reads(func, args)
        node = self._graph.call_function(func, self._named(args), self._named(kwargs))
        found = func(*args, **kwargs)
        if isinstance(found, Tensor):
            self._note(found, node)
        elif isinstance(found, list | tuple):
            for k, value in enumerate(found):
                if isinstance(value, Tensor):
                    self._note(value, self._graph.call_function(operator.getitem, (node, k)))
        return found

    def trace(self, found: Sequence[Tensor]) -> Trace | None:
        """Return the operations as a function of the inputs; None where they follow from values.

        Args:
            found: what it returns.
        """
        self._simplify()
        self._graph.output(self._named(list(found)))
        self._graph.eliminate_dead_code(_has_effect)
        self._alive.clear()
        if not self._sound:
            return None
        code = self._graph.python_code("self")
        scope = dict(code.globals)
        try:
            exec(code.src, scope)
        except SyntaxError:  # an argument that cannot be printed, such as a generator
            return None
        forward, constants = scope["forward"], SimpleNamespace(**self._constants)

        def replay(*inputs: Tensor) -> list[Tensor]:
            with torch.no_grad():
                made: list[Tensor] = forward(constants, *inputs)
            return made

        return Trace(replay, len(self._graph.nodes))

    def _note(self, value: Tensor, node: fx.Node) -> None:
        self._nodes[id(value)] = node
        self._alive.append(value)
        self._shapes[node] = (value.shape, value.stride(), value.dtype)

    def _named(self, arguments: Any) -> Any:
        """Return arguments with the nodes of tensors in their places."""
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
        if id(value) not in self._nodes:
            name = f"constant{len(self._constants)}"
            self._constants[name] = value
            self._note(value, self._graph.get_attr(name))
        return self._nodes[id(value)]

    def _simplify(self) -> None:
        """Take out views that show all there is of what they are taken of."""
        for value, node in list(self._nodes.items()):
            before = node.args[0] if node.target in VIEWS else None
            if isinstance(before, fx.Node) and self._shapes[node] == self._shapes[before]:
                node.replace_all_uses_with(before)
                self._graph.erase_node(node)
                self._nodes[value] = before
