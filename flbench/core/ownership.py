"""Whether code belongs to PyTorch or flbench, or comes from elsewhere.

PyTorch's layers and the parts of flbench are known to be pure: what they compute depends on their
inputs, parameters and buffers alone, and random numbers come from PyTorch's generators. Nothing is
known of other code: it may count its calls, draw random numbers, or read the clock. Therefore
engines vectorize it only after a trial.
"""

import dataclasses
import types
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from typing import Final

from torch import Tensor, nn
from torch.nn.modules import module as torch_module

PACKAGES: Final = ("torch", "flbench")
"""The packages whose code is known."""
WRAPPERS: Final = frozenset({"GraphModule", "ScriptModule"})
"""Classes of PyTorch whose objects run code that was made of other code."""
PLAIN: Final = (type(None), bool, int, float, complex, str, bytes, Tensor)
"""Types without code."""
HOOKS: Final = tuple(
    name
    for name, value in vars(nn.Module()).items()
    if isinstance(value, dict) and name.endswith("hooks")
)
"""Attributes of a module that hold its hooks."""
FOR_ALL: Final = tuple(
    name
    for name, value in vars(torch_module).items()
    if isinstance(value, dict) and name.startswith("_global_") and name.endswith("hooks")
)
"""Variables of PyTorch that hold hooks of all modules."""


def is_known(thing: object) -> bool:
    """Return whether all code of a thing belongs to PyTorch or flbench.

    Args:
        thing: A net, a step of a local program, a loss term, or any other object or function. What
            it consists of is examined too: submodules with their hooks, fields of dataclasses,
            arguments of partial functions, and functions in closures.

    >>> is_known(nn.Sequential(nn.Linear(2, 2), nn.ReLU()))
    True
    >>> is_known(partial(sorted, key=lambda row: row[0]))
    False
    """
    return not any(vars(torch_module)[name] for name in FOR_ALL) and _is_known(thing, set())


@contextmanager
def without_new_hooks() -> Iterator[None]:
    """Context manager that removes hooks of all modules which were registered within it.

    `torch.export` leaves hooks behind when it fails. With them, the code of all nets would be
    unknown for the rest of the process.
    """
    spaces = [vars(torch_module)[name] for name in FOR_ALL]
    before = [{*space} for space in spaces]
    try:
        yield
    finally:
        for space, known in zip(spaces, before, strict=True):
            for key in [key for key in space if key not in known]:
                del space[key]


def unknown_parts(thing: object) -> Iterator[object]:
    """Yield the classes, functions and objects of a thing whose code is not known.

    Args:
        thing: See `is_known`.

    >>> list(unknown_parts((nn.ReLU(), sorted)))
    [<built-in function sorted>]
    """
    match thing:
        case _ if _is_known(thing, set()):
            return
        case nn.Module():
            for module in thing.modules():
                if not _has_known_code(module):
                    yield type(module)
                for part in _parts(module):
                    yield from unknown_parts(part)
        case Mapping():
            yield from unknown_parts(tuple(thing.values()))
        case tuple() | list() | set() | frozenset():
            for part in thing:
                yield from unknown_parts(part)
        case _ if dataclasses.is_dataclass(thing) and _is_ours(type(thing)):
            for field in dataclasses.fields(thing):
                yield from unknown_parts(getattr(thing, field.name))
        case _:
            yield thing


def _is_known(thing: object, seen: set[int]) -> bool:
    """Return whether all code of a thing is known, apart from things whose `id` is in `seen`."""
    if isinstance(thing, PLAIN) and type(thing).__module__.partition(".")[0] in (
        "builtins",
        *PACKAGES,
    ):
        return True
    if id(thing) in seen:
        return True
    seen.add(id(thing))

    def all_known(things: Iterable[object]) -> bool:
        return all(_is_known(one, seen) for one in things)

    match thing:
        case type():
            return _is_ours(thing)
        case types.FunctionType():
            cells = (cell.cell_contents for cell in thing.__closure__ or () if _is_filled(cell))
            return _is_ours(thing) and all_known(one for one in cells if callable(one))
        case types.MethodType():
            return all_known((thing.__func__, thing.__self__))
        case types.BuiltinFunctionType() | types.MethodWrapperType():
            return _is_ours(thing) or _is_ours(type(thing.__self__))
        case partial():
            return all_known((thing.func, *thing.args, *thing.keywords.values()))
        case nn.Module():
            return _has_known_code(thing) and all_known((*thing.children(), *_parts(thing)))
        case Mapping():
            return all_known(thing.values())
        case tuple() | list() | set() | frozenset():
            return all_known(thing)
    if not _is_ours(type(thing)):
        return False
    if dataclasses.is_dataclass(thing):
        return all_known(getattr(thing, one.name) for one in dataclasses.fields(thing))
    return True


def _is_ours(thing: object) -> bool:
    """Return whether a class or function was defined in one of the known packages."""
    module = getattr(thing, "__module__", None)
    return isinstance(module, str) and module.partition(".")[0] in PACKAGES


def _is_filled(cell: types.CellType) -> bool:
    """Return whether a variable of a closure has a value."""
    try:
        return cell.cell_contents is not cell
    except ValueError:
        return False


def _has_known_code(module: nn.Module) -> bool:
    """Return whether a module's class, and what was assigned to it and its class, is known."""
    kind = type(module)
    return (
        _is_ours(kind)
        and WRAPPERS.isdisjoint(one.__name__ for one in kind.__mro__)
        and _is_ours(kind.forward)
        and all(_is_ours(type(leaf)) for leaf in module.parameters(recurse=False))
    )


def _parts(module: nn.Module) -> tuple[object, ...]:
    """Return the hooks of a module, and other functions and objects that it may call."""
    own = vars(module)
    hooks = (hook for name in HOOKS for hook in (own.get(name) or {}).values())
    called = (value for value in own.values() if callable(value) and not isinstance(value, type))
    return (*hooks, *called)
