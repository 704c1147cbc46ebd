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
CODE: Final = (type, FunctionType, BuiltinFunctionType)
PLAIN: Final = (type(None), bool, int, float, complex, str, bytes, Tensor)
"""Types without code."""
HOLDERS: Final = (Mapping, tuple, list, set, frozenset, partial, MethodType)
"""Types that only hold other things."""


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
    """
    seen: dict[int, object] = {}
    queue = [thing]
    while queue:
        one = queue.pop()
        if not isinstance(one, PLAIN) and id(one) not in seen:
            seen[id(one)] = one
            queue += _inner(one)
    return [one for one in seen.values() if not isinstance(one, HOLDERS) and not _is_ours(one)]


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
        case nn.Module():  # submodules and hooks are in dicts
            held = vars(thing).values()
            return [
                x for x in held if isinstance(x, Mapping) or (callable(x) and type(x) is not type)
            ]
    if dataclasses.is_dataclass(thing) and not isinstance(thing, type):
        return [getattr(thing, field.name) for field in dataclasses.fields(thing)]
    return ()


def _is_ours(thing: Any) -> bool:
    """Return whether a class, a function, or the class of an object is of a known package."""
    kind = thing if isinstance(thing, CODE) else type(thing)
    known = str(getattr(kind, "__module__", "")).partition(".")[0] in PACKAGES
    return known and WRAPPERS.isdisjoint(one.__name__ for one in getattr(kind, "__mro__", ()))
