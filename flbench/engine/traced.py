"""Training steps written down once as flat lists of tensor operations.

A step goes through the methods' Python, autograd, and vmap where it is stacked. On a small net that
costs more than its arithmetic, and it is the same in every step. A trace keeps the operations
alone, in their order, those of the backward pass included: the same results, bit for bit.
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

LOOKS = 3  # steps of a kind, at least, that are taken as they are, to learn how long one takes
LONGEST = 0.02  # seconds of a step: of a longer one the overhead is a small part
FIRST = 0.04  # seconds that a trace is taken to cost before one was made
PATIENCE = 1.0  # a kind is traced when its steps have cost so many times what a trace costs
NODES = 50_000  # operations of all traces that are kept
NODE = 1_500  # bytes that one takes, about
KINDS = 1_000  # that are remembered
LARGEST = 10_000  # entries of a constant that is kept instead of computed anew

Found = TypeVar("Found")
"""What a step makes: tensors, in lists, tuples and dicts of each other."""

aten = torch.ops.aten
ALIKE = (  # views, which their schemas do not say
    aten._unsafe_view.default,
    aten.unsafe_split.Tensor,
    aten.unsafe_split_with_sizes.default,
)
READING = (
    torch.Tag.data_dependent_output,
    torch.Tag.dynamic_output_shape,
    torch.Tag.nondeterministic_seeded,
)
READERS = (Tensor.tolist, Tensor.numpy, Tensor.__array__, Tensor.__dlpack__)
"""Functions that give Python the values of a tensor, and do no operation."""
FILLED = (aten.new_zeros.default, aten.ones_like.default, aten.zeros_like.default)
"""Operations that ask a tensor for its shape and type alone."""
STATISTICS = ((3, "running_mean"), (4, "running_var"))
WRITES = {
    aten.native_batch_norm.default: STATISTICS,
    aten.cudnn_batch_norm.default: STATISTICS,
    aten.miopen_batch_norm.default: STATISTICS,
}
"""Arguments that operations write to without a word of it in their schemas."""


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


NO_KIND = Kind()
"""The kind of all steps where nothing is traced."""


def shapes(tensors: Iterable[Tensor]) -> Hashable:
    """Return shapes, strides and types."""
    return tuple((x.shape, x.stride(), x.dtype) for x in tensors)


@dataclass(frozen=True)
class Trace:
    """The operations of a step.

    Attributes:
        replay: does them on other inputs.
        size: how many they are; constants count as so many operations as need their memory.
    """

    replay: Callable[..., Any]
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

    def __init__(self, *, enabled: bool = True) -> None:
        self.enabled = enabled
        self._known: OrderedDict[Hashable, Known] = OrderedDict()
        self._kinds: dict[Kind, Kind] = {}
        self._cost = FIRST
        self._size = 0

    def gather(self, what: Hashable, *trees: Tree) -> tuple[list[Tensor], Kind]:
        """Return the tensors of these trees, each once, and what steps on such trees share.

        Args:
            what: all else that their operations depend on.
            trees: what clients have, and know.
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
        # Equal ones are one object, which compares fast.
        return tensors, self._kinds.setdefault(kind, kind)

    def take(
        self,
        kind: Hashable,
        step: Callable[[], Found],
        inputs: Sequence[Tensor],
        batch: Sequence[Tensor] = (),
    ) -> Found:
        """Return what the step makes of its inputs and a batch; it may write to them.

        Args:
            kind: all that its operations depend on, but for the batch's shapes.
            step: reads these tensors, and nothing else that changes.
            inputs: what clients have, and know.
            batch: tensors whose shapes may be others in the next step.
        """
        if not self.enabled:
            return step()
        kind, inputs = (kind, shapes(batch)), [*inputs, *batch]
        known = self._known.setdefault(kind, Known())
        self._known.move_to_end(kind)
        if known.trace is not None and known.trusted:
            again: Found = known.trace.replay(*inputs)
            return again
        if known.trusted is False:
            return step()
        begin = perf_counter()
        found: Found
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
        """Forget the kinds that were not met for longest, where traces take too much memory."""
        while len(self._known) > 1 and (self._size > NODES or len(self._known) > KINDS):
            _, old = self._known.popitem(last=False)
            self._size -= 0 if old.trace is None else old.trace.size


def _tried(
    trace: Callable[..., Found], step: Callable[[], Found], inputs: Sequence[Tensor]
) -> tuple[Found, bool]:
    """Take a step and replay a trace; return what the step makes, and whether both make the same.

    Each may write to what clients have, which is contiguous: the trace gets copies of that.
    """
    mine = [x.detach().clone() if x.is_contiguous() else x for x in inputs]
    again, found = tree_leaves(trace(*mine)), step()
    mine, theirs = [*mine, *again], [*inputs, *tree_leaves(found)]
    return found, len(mine) == len(theirs) and all(map(_same_bits, mine, theirs))


def _same_bits(one: Tensor | None, other: Tensor | None) -> bool:
    if one is None or other is None:
        return one is other
    if one.dtype != other.dtype or one.shape != other.shape:
        return False
    return torch.equal(_bytes(one), _bytes(other))


def _bytes(x: Tensor) -> Tensor:
    # A single element may have any stride, and bytes need one: a copy has it.
    return x.flatten().clone(memory_format=torch.contiguous_format).view(torch.uint8)


def written_down(step: Callable[[], Found], inputs: Sequence[Tensor]) -> tuple[Found, Trace | None]:
    """Take a step; return what it makes of the inputs, and the operations that it does.

    None stands for operations that may be others for other inputs: Python has read a value; or for
    random numbers of PyTorch, which would be drawn once more.
    """
    tape, readers = Tape(inputs), Readers()
    with readers, tape:
        found = step()
    trace = tape.trace(found)
    return found, None if readers.seen else trace


def _has_effect(node: fx.Node) -> bool:
    return node.op in ("placeholder", "output") or bool(_written(node))


def _written(node: fx.Node) -> list[fx.Node]:
    """Return the tensors that an operation writes to."""
    found: list[fx.Node] = []
    for place, name in _writes(node.target):
        given: Any = node.args[place] if place < len(node.args) else node.kwargs.get(name)
        found += [given] if isinstance(given, fx.Node) else given or ()
    return found


@cache
def _writes(operation: Any) -> tuple[tuple[int, str], ...]:
    """Return places and names of the arguments that an operation writes to."""
    arguments = operation._schema.arguments if hasattr(operation, "_schema") else ()
    says = ((k, argument.name) for k, argument in enumerate(arguments) if argument.is_write)
    return WRITES.get(operation, tuple(says))


def _viewed(node: fx.Node) -> fx.Node | None:
    """Return the tensor in whose memory the result of an operation lies; None for new memory."""
    if node.target is operator.getitem:
        [several, _] = node.args
        assert isinstance(several, fx.Node)
        return _viewed(several)
    if not _is_view(node.target):
        return None
    return _written(node)[0] if _written(node) else node.all_input_nodes[0]


@cache
def _is_view(operation: Any) -> bool:
    returns = operation._schema.returns if hasattr(operation, "_schema") else ()
    return operation in ALIKE or any(found.alias_info is not None for found in returns)


def _memory(node: fx.Node) -> fx.Node:
    """Return the tensor whose memory a tensor is a view of."""
    while (before := _viewed(node)) is not None:
        node = before
    return node


def _reads(func: Any, args: Iterable[Any]) -> bool:
    """Return whether values, or PyTorch's random numbers, decide what comes after an operation."""
    if func is aten.index.Tensor:  # of which the shape follows from values where these are masks
        _, places = args
        return any(place is not None and place.dtype == torch.bool for place in places)
    return any(tag in func.tags for tag in READING)


class Readers(TorchFunctionMode):
    """Notices functions that give Python the values of a tensor, where no operation is done.

    Attributes:
        seen: whether there was one.
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
        """Call a function."""
        self.seen = self.seen or func in READERS
        return func(*args, **(kwargs or {}))


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
        self._values: dict[fx.Node, Tensor] = {}  # while a tensor lives no other one has its id
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
        """Do an operation, and write it down."""
        kwargs = kwargs or {}
        if func is aten.lift_fresh.default:  # of a constant, which the step may write to
            func = aten.lift_fresh_copy.default
        self._sound = self._sound and not _reads(func, args)
        node = self._graph.call_function(func, self._named(args), self._named(kwargs))
        found = func(*args, **kwargs)
        if isinstance(found, Tensor):
            if id(found) not in self._nodes:  # else it has been written to
                self._note(found, node)
        elif isinstance(found, list | tuple):
            for k, value in enumerate(found):
                if isinstance(value, Tensor):
                    self._note(value, self._graph.call_function(operator.getitem, (node, k)))
        return found

    def trace(self, found: Any) -> Trace | None:
        """Return the operations as a function of the inputs; None where they follow from values.

        Args:
            found: what it returns.
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
        except SyntaxError:  # an argument that cannot be printed, such as a generator
            return None
        forward, constants = scope["forward"], SimpleNamespace(**self._constants)

        def replay(*inputs: Tensor) -> Any:
            with torch.no_grad():
                return forward(constants, *inputs)

        constant_bytes = sum(value.nbytes for value in self._constants.values())
        return Trace(replay, len(self._graph.nodes) + constant_bytes // NODE)

    def _note(self, value: Tensor, node: fx.Node) -> None:
        self._nodes[id(value)] = node
        self._values[node] = value
        where = value.data_ptr(), value.shape, value.stride()
        self._places[node] = (*where, value.dtype)

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
            self._note(value, self._constant(value))
        return self._nodes[id(value)]

    def _constant(self, value: Tensor) -> fx.Node:
        name = f"constant{len(self._constants)}"
        self._constants[name] = value.detach()
        return self._graph.get_attr(name)

    def _apart(self, node: fx.Node) -> fx.Node:
        """Return a tensor to give away: of an input not itself, which may be a client's leaf."""
        if node.op != "placeholder":
            return node
        return self._graph.call_function(aten.detach.default, (node,))

    def _simplify(self) -> None:
        """Take out views that show what another tensor shows, of which they are views."""
        for key, node in list(self._nodes.items()):
            before = _viewed(node)
            while before is not None and self._places.get(before) != self._places[node]:
                before = _viewed(before)
            if before is not None:
                node.replace_all_uses_with(before)
                self._graph.erase_node(node)
                self._nodes[key] = before

    def _fold(self) -> None:
        """Let what does not depend on inputs, and is not written to, be a constant."""
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
        """Return whether a tensor is the same for all inputs."""
        if node.op != "call_function" or node.target in FILLED:
            return node.op != "placeholder"
        return all(before in fixed for before in node.all_input_nodes)


def _bound(source: str, scope: dict[str, Any]) -> str:
    """Return code that calls operations without looking them up, and put them into its scope."""

    def name(found: re.Match[str]) -> str:
        operation = getattr(getattr(getattr(torch.ops, found[1]), found[2]), found[3])
        scope[short := "_".join(found.groups())] = getattr(operation, "_op", operation)
        return short

    return re.sub(r"torch\.ops\.(\w+)\.(\w+)\.(\w+)(?=\()", name, source)
