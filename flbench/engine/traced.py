"""Training steps written down once as flat lists of tensor operations.

A stacked step goes through the methods' Python, vmap and autograd. On a small net that costs more
than its arithmetic, and it is the same in every step. A trace keeps the operations alone, in their
order, those of the backward pass included: the same results, bit for bit.
"""

import operator
from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from time import perf_counter
from typing import Any

import torch
from torch import Tensor, fx
from torch.utils._python_dispatch import TorchDispatchMode

LOOKS = 3  # steps of a kind that are taken as they are, to learn how long one takes
WORTH = 0.02  # seconds: the longest step that is traced; of a longer one overhead is a small part
MOST = 256  # kinds that are remembered

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


@dataclass
class Known:
    """What is known of one kind of step.

    Attributes:
        seconds: of the steps that were taken as they are.
        trace: its operations, once they are written down.
        trusted: whether the trace has reproduced a step; None while it is not known.
    """

    seconds: list[float] = field(default_factory=list)
    trace: Step | None = None
    trusted: bool | None = None


class Traces:
    """Steps by kind: taken as they are a few times, then written down, then replayed.

    Steps of one kind do the same operations. A trace is trusted once it has reproduced another step
    bit for bit; where it does not, and where steps are long, they stay as they are.
    """

    def __init__(self) -> None:
        self._known: OrderedDict[Hashable, Known] = OrderedDict()

    def take(self, kind: Hashable, step: Step, inputs: Sequence[Tensor]) -> list[Tensor]:
        """Return what the step makes of the inputs; it may write to them.

        Args:
            kind: all that its operations depend on, shapes of inputs included.
            step: a function of tensors, and of nothing else that changes.
            inputs: its arguments.
        """
        known = self._known.setdefault(kind, Known())
        self._known.move_to_end(kind)
        if len(self._known) > MOST:
            self._known.popitem(last=False)
        if known.trace is not None and known.trusted:
            return known.trace(*inputs)
        if known.trusted is False:
            return step(*inputs)
        if known.trace is not None:
            found, known.trusted = _tried(known.trace, step, inputs)
        elif len(known.seconds) < LOOKS:
            begin = perf_counter()
            found = step(*inputs)
            known.seconds.append(perf_counter() - begin)
        elif min(known.seconds) > WORTH:
            known.trusted = False
            found = step(*inputs)
        else:
            found, known.trace = written_down(step, inputs)
        return found


def _tried(trace: Step, step: Step, inputs: Sequence[Tensor]) -> tuple[list[Tensor], bool]:
    """Take a step and replay a trace; return what the step makes, and whether both make the same.

    Each may write to what clients have, which is contiguous: the trace gets copies of that.
    """
    mine = [x.clone() if x.is_contiguous() else x for x in inputs]
    again, found = trace(*mine), step(*inputs)
    pairs = zip([*found, *inputs], [*again, *mine], strict=True)
    return found, all(torch.equal(one, other) for one, other in pairs)


def written_down(step: Step, inputs: Sequence[Tensor]) -> tuple[list[Tensor], Step]:
    """Take a step; return what it makes of the inputs, and the operations that it does."""
    tape = Tape(inputs)
    with tape:
        found = step(*inputs)
    return found, tape.replay(found)


def _has_effect(node: fx.Node) -> bool:
    schema = getattr(node.target, "_schema", None)
    return node.op in ("placeholder", "output") or (schema is not None and schema.is_mutable)


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
        node = self._graph.call_function(func, self._named(args), self._named(kwargs))
        found = func(*args, **kwargs)
        if isinstance(found, Tensor):
            self._note(found, node)
        elif isinstance(found, list | tuple):
            for k, value in enumerate(found):
                if isinstance(value, Tensor):
                    self._note(value, self._graph.call_function(operator.getitem, (node, k)))
        return found

    def replay(self, found: Sequence[Tensor]) -> Step:
        """Return a function that does the operations on other inputs.

        Args:
            found: what it returns.
        """
        self._simplify()
        self._graph.output(self._named(list(found)))
        self._graph.eliminate_dead_code(_has_effect)
        module = fx.GraphModule(self._constants, self._graph)
        self._alive.clear()

        def run(*inputs: Tensor) -> list[Tensor]:
            with torch.no_grad():
                made: list[Tensor] = module.forward(*inputs)
            return made

        return run

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
