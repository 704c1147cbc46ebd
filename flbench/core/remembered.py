"""What functions and objects remember outside of their arguments, as far as Python can see it.

A function keeps state in the variables of its closure, in global variables, in its defaults and
attributes; an object in its attributes and those of its class. `remembered` describes the values
that can be reached from there, so that two descriptions tell what has changed between two calls.
"""

import dis
import itertools
import random
import sys
import types
import warnings
from collections import Counter, deque
from collections.abc import Iterator, Mapping, Sequence, Set
from functools import partial
from hashlib import sha256
from typing import Any, Final

import numpy as np
import torch
from torch import Tensor, nn

from flbench.core.installed import is_installed
from flbench.core.ownership import PACKAGES

MOST: Final = 2_000
"""Largest number of entries of a collection that are examined."""
ALL: Final = 100_000
"""Largest number of values that are examined altogether."""
LARGEST: Final = 2**24
"""Largest number of bytes of a tensor or array that are read."""
DEEPEST: Final = 12
"""Largest depth of nested objects."""
PLAIN: Final = (type(None), bool, int, float, complex, str, bytes, np.generic)
"""Types of values that are described by themselves."""
WRITERS: Final = frozenset({"append", "appendleft", "extend", "add", "=", "+="})
"""Uses that only write: methods of collections that add to them, and assignments. What is never
read changes nothing."""
SHOWING: Final = frozenset({"print", "debug", "info", "warning", "error", "exception", "critical"})
"""Functions that only show their arguments, if nothing takes what they return."""
READERS: Final = frozenset({"vars", "globals", "locals", "eval", "exec", "__dict__"})
"""Names of code that may read variables and attributes without naming them."""
STATES: Final = (
    np.random.Generator,
    np.random.BitGenerator,
    np.random.RandomState,
    random.Random,
)
"""Types of libraries whose objects change in each use."""


def remembered(roots: Mapping[str, object], *, skip: Set[int] = frozenset()) -> dict[str, str]:
    """Return a description of each value that can be reached from some objects.

    The caches of `functools` are not seen, nor is what objects of libraries contain, except for
    collections, tensors, arrays, modules and random generators.

    Args:
        roots: Functions and objects, by the words that messages name them with.
        skip: The `id` of objects that are left out.

    Returns:
        Descriptions by the place of the value, such as "the variable `calls` of `term`".
    """
    walk = _Walk(set(skip))
    for name, root in roots.items():
        walk.packages.add(_package(root))
        walk.visit(root, name, 0)
    unread = walk.unread()
    return {
        place: text
        for place, text in walk.found.items()
        if not walk.names.get(place.partition("[")[0], {""}) <= unread
    }


def changes(before: Mapping[str, str], after: Mapping[str, str]) -> list[str]:
    """Return the places of values that differ; entries of a collection count as the collection.

    Args:
        before: What `remembered` returned.
        after: What it returned later.

    >>> changes({"`a`": "int 1", "`b`[0]": "int 2"}, {"`a`": "int 1", "`b`[0]": "int 3"})
    ['`b`']
    """
    places = [*before, *(place for place in after if place not in before)]
    changed = (place for place in places if before.get(place) != after.get(place))
    return list(dict.fromkeys(place.partition("[")[0] for place in changed))


class _Walk:
    """A walk through all values that can be reached.

    Attributes:
        found: Descriptions by place.
        names: Names of the variables and attributes that hold the value, by place.
        packages: Names of the packages whose functions are examined, beside those of scripts.
    """

    def __init__(self, seen: set[int]) -> None:
        self.found: dict[str, str] = {}
        self.names: dict[str, set[str]] = {}
        self.packages: set[str] = set()
        self._seen = seen
        self._alive: list[object] = []  # keeps ids unique
        self._names_of: dict[int, set[str]] = {}
        self._uses: dict[str, set[str]] = {}
        self._reads_all = False
        self._left = ALL

    def unread(self) -> set[str]:
        """Return the names of variables and attributes that code only writes to."""
        if self._reads_all:
            return set()
        return {name for name, uses in self._uses.items() if uses <= WRITERS}

    def visit(self, value: object, place: str, depth: int) -> None:
        """Describe a value, and all that can be reached from it."""
        if isinstance(value, PLAIN):
            self.found[place] = f"{type(value).__name__} {value!r}"
            self._left -= 1
            return
        if id(value) in self._seen or depth > DEEPEST or self._left <= 0:
            return
        self._seen.add(id(value))
        self._alive.append(value)
        self._left -= 1
        match value:
            case Tensor() | np.ndarray():
                self.found[place] = _digest(value)
            case torch.Generator():
                self.found[place] = _digest(value.get_state())
            case types.FunctionType():
                self._function(value, place, depth)
            case types.MethodType():
                self.visit(value.__func__, place, depth)
                self.visit(value.__self__, place, depth)
            case partial():
                for one in (value.func, value.args, value.keywords):
                    self.visit(one, place, depth + 1)
            case type():
                self._class(value, place, depth)
            case Mapping():
                self.found[place] = f"{type(value).__name__} of {len(value)}"
                for key, one in itertools.islice(list(value.items()), MOST):
                    self.visit(one, f"{place}[{key!r}]", depth + 1)
            case list() | tuple() | set() | frozenset() | deque():
                self.found[place] = f"{type(value).__name__} of {len(value)}"
                for k, one in enumerate(itertools.islice(list(value), MOST)):
                    self.visit(one, f"{place}[{k}]", depth + 1)
            case types.GeneratorType():
                self.found[place] = f"generator {value.gi_frame and value.gi_frame.f_lasti}"
                if value.gi_frame is not None:
                    self.visit(dict(value.gi_frame.f_locals), f"{place}[locals]", depth + 1)
            case Iterator():
                self._iterator(value, place, depth)
            case nn.Module():
                self._module(value, place, depth)
            case _ if isinstance(value, STATES):
                self._iterator(value, place, depth)
            case _ if hasattr(value, "__wrapped__") and callable(value):
                self.visit(value.__wrapped__, place, depth + 1)
            case _ if any(self._is_own(kind) for kind in type(value).__mro__[:-1]):
                self._object(value, place, depth)

    def _is_own(self, thing: object) -> bool:
        """Return whether a function or class is code of the user, not of a library."""
        package = _package(thing)
        if package in PACKAGES or package in sys.stdlib_module_names:
            return False
        file = str(getattr(sys.modules.get(package), "__file__", "") or "")
        return package in self.packages or not file or not is_installed(file)

    def _function(self, function: types.FunctionType, place: str, depth: int) -> None:
        """Describe the variables that a function can reach."""
        if not self._is_own(function):
            return
        for name, cell in zip(
            function.__code__.co_freevars, function.__closure__ or (), strict=True
        ):
            try:
                content = cell.cell_contents
            except ValueError:  # it has no value yet
                continue
            self._named(content, f"the variable `{name}` of {place}", name, depth)
        for key, default in (
            *enumerate(function.__defaults__ or ()),
            *(function.__kwdefaults__ or {}).items(),
        ):
            self.visit(default, f"the default {key} of {place}", depth + 1)
        for key, value in vars(function).items():
            self._named(value, f"the attribute `{key}` of {place}", key, depth)
        names: set[str] = set()
        for code in _codes(function.__code__):
            names |= set(code.co_names)
            self._note_uses(code)
        for name in sorted(names & function.__globals__.keys()):
            value = function.__globals__[name]
            if isinstance(value, types.ModuleType):
                if self._is_own(value):
                    for key in sorted(names & vars(value).keys()):
                        self._named(
                            vars(value)[key], f"the variable `{value.__name__}.{key}`", key, depth
                        )
            else:
                self._named(value, f"the global variable `{name}` of {place}", name, depth)

    def _named(
        self, value: object, place: str, name: str, depth: int, *, is_own: bool = True
    ) -> None:
        """Describe the value of a variable or an attribute; code is described by its own name.

        Args:
            value: The value.
            place: Where it is.
            name: Name of the variable or attribute.
            depth: Depth of the object that has it.
            is_own: Whether only code of the user reads it, which is examined.
        """
        if isinstance(value, types.FunctionType | type):
            place = f"`{value.__qualname__}`"
        else:
            # One object may have several names; numbers and texts have none in common.
            known = (
                set() if isinstance(value, PLAIN) else self._names_of.setdefault(id(value), set())
            )
            known.add(name if is_own else "")
            self.names[place] = known
        self.visit(value, place, depth + 1)

    def _note_uses(self, code: types.CodeType) -> None:
        """Note what a function does with each variable and attribute."""
        self._reads_all |= not READERS.isdisjoint(code.co_names)
        if "getattr" in code.co_names:
            for name in code.co_consts:
                if isinstance(name, str):
                    self._uses.setdefault(name, set()).add("getattr")
        steps = [one for one in dis.get_instructions(code) if one.opname != "PUSH_NULL"]
        names = [one.opname for one in steps]
        shown = list(_shown(steps))
        uses: dict[str, list[str]] = {}
        added: Counter[str] = Counter()
        for k, one in enumerate(steps):
            then = steps[min(k + 1, len(steps) - 1)]
            if one.opname.startswith("LOAD") and isinstance(one.argval, str):
                if any(begin <= _place(one)[0] and _place(one)[1] <= end for begin, end in shown):
                    uses.setdefault(one.argval, [])
                    continue
                use = then.opname
                if use in ("LOAD_ATTR", "LOAD_METHOD"):
                    use = str(then.argval)
                elif use.startswith("LOAD"):  # an entry: `x[key] = y` or `x[key] += y`
                    if names[k + 2 : k + 3] == ["STORE_SUBSCR"]:
                        use = "="
                    elif names[k + 2 : k + 4] == ["COPY", "COPY"]:
                        use = "+="
                uses.setdefault(one.argval, []).append(use)
            elif one.opname.startswith("STORE") and isinstance(one.argval, str):
                uses.setdefault(one.argval, []).append("=")
                before = [step for step in steps[max(0, k - 2) : k] if step.opname != "SWAP"]
                added[one.argval] += bool(before) and before[-1].argrepr.endswith("=")
        for name, found in uses.items():
            # `x += y` reads x once, only to write it again.
            reads = [use for use in found if use not in WRITERS]
            kept = reads if len(reads) > added[name] else []
            self._uses.setdefault(name, set()).update(kept or ["="])

    def _class(self, kind: type, place: str, depth: int) -> None:
        """Describe what a class of the user, and those that it is derived from, can reach."""
        for one in kind.__mro__:
            if not self._is_own(one):
                continue
            for key, value in list(vars(one).items()):
                if key.startswith("__") and key.endswith("__") and key not in ("__call__",):
                    continue
                if isinstance(value, staticmethod | classmethod):
                    value = value.__func__
                if isinstance(value, property):
                    for function in (value.fget, value.fset):
                        self.visit(function, place, depth + 1)
                elif isinstance(value, types.FunctionType):
                    self.visit(value, place, depth + 1)
                else:
                    where = f"the attribute `{key}` of the class `{one.__qualname__}`"
                    self._named(value, where, key, depth)

    def _object(self, value: object, place: str, depth: int) -> None:
        """Describe the attributes of an object of the user's own class."""
        self.visit(type(value), place, depth)
        slots = (name for kind in type(value).__mro__ for name in _slots(kind))
        attributes = {name: getattr(value, name) for name in slots if hasattr(value, name)}
        is_own = self._has_own_code(type(value))
        for key, one in {**attributes, **getattr(value, "__dict__", {})}.items():
            where = f"the attribute `{key}` of {place}"
            self._named(one, where, key, depth, is_own=is_own)

    def _module(self, module: nn.Module, place: str, depth: int) -> None:
        """Describe the tensors of a net, and what its classes and attributes can reach."""
        for name, tensor in (*module.named_parameters(), *module.named_buffers()):
            self._named(tensor, f"`{name}` of {place}", name, depth)
        for name, one in module.named_modules():
            self._seen.add(id(one))
            self.visit(type(one), f"`{type(one).__qualname__}`", depth)
            is_own = self._has_own_code(type(one))
            for key, value in vars(one).items():
                if key not in vars(nn.Module()):
                    where = f"`{name}` of {place}" if name else place
                    where = f"the attribute `{key}` of {where}"
                    self._named(value, where, key, depth, is_own=is_own)

    def _has_own_code(self, kind: type) -> bool:
        """Return whether only code of the user reads the attributes of objects of a class.

        The base classes of flbench read no attributes but their own.
        """
        return all(
            self._is_own(one) or _package(one) == "flbench"
            for one in kind.__mro__
            if one not in (object, nn.Module)
        )

    def _iterator(self, value: object, place: str, depth: int) -> None:
        """Describe an iterator or a random generator by what is needed to copy it."""
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            try:
                parts: Any = value.__reduce_ex__(4)
            except Exception:  # noqa: BLE001 any class may refuse to be copied
                return
        if isinstance(parts, tuple):
            self.visit([one for one in parts if not callable(one)], f"{place}[state]", depth + 1)


def _package(thing: object) -> str:
    """Return the name of the package of a function, class, module or object."""
    if isinstance(thing, types.ModuleType):
        return thing.__name__.partition(".")[0]
    module = getattr(thing, "__module__", None)
    return module.partition(".")[0] if isinstance(module, str) else ""


def _codes(code: types.CodeType) -> Iterator[types.CodeType]:
    """Yield the code of a function and of the functions within it."""
    yield code
    for one in code.co_consts:
        if isinstance(one, types.CodeType):
            yield from _codes(one)


def _place(step: dis.Instruction) -> tuple[tuple[int, int], tuple[int, int]]:
    """Return the line and column where the source of an instruction begins, and where it ends."""
    line, end_line, column, end_column = step.positions or (None,) * 4
    return (line or 0, column or 0), (end_line or 0, end_column or 0)


def _shown(
    steps: Sequence[dis.Instruction],
) -> Iterator[tuple[tuple[int, int], tuple[int, int]]]:
    """Yield where calls begin and end that only show their arguments (`SHOWING`)."""
    for call, then in itertools.pairwise(steps):
        if call.opname.startswith("CALL") and then.opname == "POP_TOP":
            begin, end = _place(call)
            callees = [one for one in steps if _place(one)[0] == begin and _place(one)[1] < end]
            if callees and max(callees, key=lambda one: _place(one)[1]).argval in SHOWING:
                yield begin, end


def _slots(kind: type) -> tuple[str, ...]:
    """Return the names of `__slots__` of a class."""
    slots = vars(kind).get("__slots__", ())
    return (slots,) if isinstance(slots, str) else tuple(slots)


def _digest(value: Any) -> str:
    """Return a description of a tensor or array; the values of large ones are not read."""
    if isinstance(value, np.ndarray):
        head = f"array {value.dtype} {value.shape} "
        if value.nbytes > LARGEST or value.dtype.hasobject:
            return head
        return head + sha256(np.ascontiguousarray(value).tobytes()).hexdigest()
    head = f"tensor {value.dtype} {tuple(value.shape)} "
    if value.layout is not torch.strided or value.is_meta:
        return head
    if value.nbytes > LARGEST:
        return f"{head}{value._version}"
    plain = value.detach().resolve_conj().resolve_neg().flatten().contiguous().cpu()
    return head + sha256(plain.view(torch.uint8).numpy().tobytes()).hexdigest()
