"""What a copy of a net does not have: hooks of parameters, and functions of the net's own.

Clients train copies of the user's net. A copy has parameters and submodules of its own, but Python
copies no function: a lambda that refers to `self` goes on to use the original's parameters, which
nothing trains.
"""

import dis
import types
from collections.abc import Iterator, Mapping, Set
from functools import partial
from typing import Any, Final

from torch import nn

from flbench.core.parts import is_installed

HOOKS: Final = tuple(
    name
    for name, value in vars(nn.Module()).items()
    if isinstance(value, dict) and name.endswith("hooks")
)
"""Attributes of a module that hold its hooks."""
PLAIN: Final = (bool, int, float, complex, str, bytes, tuple, type(None))
"""Types of attributes that the original and its copies have in common."""


def hooked_parameters(net: nn.Module) -> list[str]:
    """Return the names of the parameters that have hooks.

    Args:
        net: The net.

    >>> net = nn.Linear(2, 2)
    >>> handle = net.weight.register_hook(lambda gradient: 2 * gradient)
    >>> hooked_parameters(net)
    ['weight']
    """
    return [
        name
        for name, one in net.named_parameters()
        if one._backward_hooks or getattr(one, "_post_accumulate_grad_hooks", None)
    ]


def bound_functions(net: nn.Module) -> list[str]:
    """Return descriptions of the functions in a net that refer to its own modules or tensors.

    They are hooks and attributes of its modules, such as lambdas with `self`. Those of installed
    packages are not examined. Functions that read numbers and texts alone are left out.

    Args:
        net: The net, not a copy of it.

    >>> net = nn.Sequential(nn.Linear(2, 2))
    >>> handle = net.register_forward_hook(lambda layer, x, out: out + net[0].bias)
    >>> bound_functions(net)
    ['a hook of `Sequential`']
    """
    own = {id(one) for one in (*net.modules(), *net.parameters(), *net.buffers())}
    found = []
    for name, module in net.named_modules():
        for key, value in vars(module).items():
            if key in HOOKS:
                place = f"a hook of `{name or type(module).__name__}`"
            elif key.startswith("_") and isinstance(value, Mapping):
                continue  # parameters, buffers and submodules
            else:
                place = f"the attribute `{name}.{key}`" if name else f"the attribute `{key}`"
            if value is not None and _is_bound(value, own, set()):
                found.append(place)
    return list(dict.fromkeys(found))


def sentence_on(place: str) -> str:
    """Return what is wrong with a function that `bound_functions` names, and the cure."""
    return (
        f"has a function with a reference to the net itself, such as a lambda with `self`, as"
        f" {place}. Copies of the net, which the clients train, would use the original's tensors:"
        " make it a method and give self.NAME instead."
    )


def _is_bound(value: object, own: Set[int], seen: set[int]) -> bool:
    """Return whether a function, or one in a collection, refers to some of the objects `own`."""
    if id(value) in seen:
        return False
    seen.add(id(value))
    match value:
        case types.FunctionType():
            if is_installed(value.__code__.co_filename):
                return False
            return any(
                _is_object(one, own) if is_needed else _is_bound(one, own, seen)
                for one, is_needed in _referred(value)
            )
        case partial():
            return _is_bound(value.func, own, seen)
        case list() | tuple() | set() | frozenset():
            return any(_is_bound(one, own, seen) for one in value)
        case Mapping():
            return any(_is_bound(one, own, seen) for one in value.values())
    return False


def _is_object(value: object, own: Set[int]) -> bool:
    """Return whether a value is one of the objects `own`, or a method of one."""
    return id(value) in own or (isinstance(value, types.MethodType) and id(value.__self__) in own)


def _referred(function: types.FunctionType) -> Iterator[tuple[object, bool]]:
    """Yield what a function refers to, and whether it needs that very object.

    Modules of which it reads plain attributes alone are left out. A function is yielded a second
    time, to be examined itself.
    """
    codes = list(_codes(function.__code__))
    names = zip(function.__code__.co_freevars, function.__closure__ or (), strict=True)
    values: dict[str, Any] = {}
    for name, cell in names:
        try:
            values[name] = cell.cell_contents
        except ValueError:  # it has no value yet
            continue
    for code in codes:
        for step in dis.get_instructions(code):
            if step.opname == "LOAD_GLOBAL" and step.argval in function.__globals__:
                values.setdefault(step.argval, function.__globals__[step.argval])
    for name, value in values.items():
        if isinstance(value, nn.Module) and _reads_plain_attributes(codes, name, value):
            continue
        yield value, True
        yield value, False
    for value in (*(function.__defaults__ or ()), *(function.__kwdefaults__ or {}).values()):
        yield value, True
        yield value, False


def _reads_plain_attributes(codes: list[types.CodeType], name: str, value: nn.Module) -> bool:
    """Return whether code uses a variable for nothing but its numbers and texts."""
    for code in codes:
        steps = list(dis.get_instructions(code))
        for one, then in zip(steps, [*steps[1:], None], strict=True):
            if one.argval != name or one.opname not in ("LOAD_DEREF", "LOAD_GLOBAL"):
                continue
            key = then.argval if then is not None and then.opname == "LOAD_ATTR" else None
            if not isinstance(key, str) or key == "training":
                return False
            if not isinstance(getattr(value, key, value), PLAIN):
                return False
    return True


def _codes(code: types.CodeType) -> Iterator[types.CodeType]:
    """Yield the code of a function and of the functions in it."""
    yield code
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield from _codes(constant)
