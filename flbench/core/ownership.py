"""Whether code belongs to PyTorch or flbench, or comes from elsewhere.

What PyTorch's layers and the parts of flbench compute depends on their inputs, parameters and
buffers alone, and their random numbers come from PyTorch's generators. Nothing is known of other
code: engines seed it for each client, and vectorize it only after a trial.
"""

import dataclasses
from collections.abc import Iterable, Mapping
from functools import partial
from types import BuiltinFunctionType, FunctionType, MethodType
from typing import Any, Final

from torch import Tensor, nn

PACKAGES: Final = ("torch", "flbench")
"""The packages whose code is known."""
WRAPPERS: Final = frozenset({"GraphModule", "ScriptModule"})
"""Classes of PyTorch whose objects run code that was made of other code."""
PLAIN: Final = (type(None), bool, int, float, complex, str, bytes, Tensor)
"""Types without code."""
HOLDERS: Final = (Mapping, tuple, list, set, frozenset, partial, MethodType)
"""Types that only hold other things."""
HOOKS: Final = tuple(
    name
    for name, value in vars(nn.Module()).items()
    if isinstance(value, dict) and name.endswith("hooks")
)
"""Attributes of a module that hold its hooks."""


def is_known(thing: object) -> bool:
    """Return whether all code of a thing belongs to PyTorch or flbench; see `unknown_parts`.

    >>> is_known(nn.Sequential(nn.Linear(2, 2), nn.ReLU()))
    True
    >>> is_known(partial(sorted, key=lambda row: row[0]))
    False
    """
    return not unknown_parts(thing)


def unknown_parts(thing: object) -> list[Any]:
    """Return the classes, functions and objects of a thing whose code is not known.

    Args:
        thing: A net with its submodules and hooks, a program, a loss term, a function with what is
            bound to it, or a collection of them.

    >>> unknown_parts((nn.ReLU(), sorted))
    [<built-in function sorted>]
    """
    found: dict[int, Any] = {}
    seen: dict[int, object] = {}
    queue = [thing]
    while queue:
        one = queue.pop()
        if isinstance(one, PLAIN) or id(one) in seen:
            continue
        seen[id(one)] = one
        queue += _inner(one)
        is_code = isinstance(one, type | FunctionType | BuiltinFunctionType)
        if not isinstance(one, HOLDERS) and not _is_ours(one if is_code else type(one)):
            found[id(one)] = one
    return list(found.values())


def _inner(thing: Any) -> Iterable[object]:
    """Return what a thing consists of, beside its own class or function."""
    match thing:
        case Mapping():
            return thing.values()
        case tuple() | list() | set() | frozenset():
            return thing
        case partial():
            return thing.func, *thing.args, *thing.keywords.values()
        case MethodType():
            return thing.__func__, thing.__self__
        case FunctionType():
            cells = thing.__closure__ or ()
            return [value for cell in cells for value in _content(cell) if callable(value)]
        case nn.Module():
            hooks = [hook for name in HOOKS for hook in (getattr(thing, name, None) or {}).values()]
            own = [x for x in vars(thing).values() if callable(x) and not isinstance(x, type)]
            return *thing.children(), *hooks, *own
        case _ if dataclasses.is_dataclass(thing) and not isinstance(thing, type):
            return [getattr(thing, field.name) for field in dataclasses.fields(thing)]
    return ()


def _content(cell: Any) -> Iterable[object]:
    """Yield the value of a variable of a closure, if it has one."""
    try:
        yield cell.cell_contents
    except ValueError:
        return


def _is_ours(kind: Any) -> bool:
    """Return whether a class or function was defined by a known package."""
    known = str(getattr(kind, "__module__", "")).partition(".")[0] in PACKAGES
    return known and WRAPPERS.isdisjoint(one.__name__ for one in getattr(kind, "__mro__", ()))
