"""The source code that a part of the user's own consists of, and the packages that it imports.

A module consists of its file and of the modules that it imports, directly or through others, from
the same package or the same folder. Code in Python's own folders for installed packages is not
hashed; the versions of these packages are recorded.
"""

import ast
import dis
import enum
import hashlib
import inspect
import json
import linecache
import os
import sys
import textwrap
from collections import Counter, OrderedDict, defaultdict
from collections.abc import Callable, Container, Iterable, Iterator, Mapping
from contextlib import suppress
from functools import cache, lru_cache, partial
from importlib.machinery import ModuleSpec, PathFinder
from importlib.metadata import distributions, entry_points, packages_distributions, version
from itertools import chain, count
from pathlib import Path
from types import CodeType, FunctionType, MappingProxyType, MethodType, ModuleType, SimpleNamespace
from typing import Any, Final
from urllib.parse import urlsplit
from urllib.request import url2pathname

import numpy as np
from torch import Tensor, nn

from flbench.core.installed import is_installed

OURS: Final = "flbench"
PUBLIC: Final = frozenset(
    {
        *("torch", "torchvision", "lightning", "pytorch_lightning", "torchmetrics", "numpy"),
        *("scipy", "sklearn", "pandas", "ray", "mlflow", "optuna"),
    }
)
"""Packages that are known by their version, which provenance.json has; their code is not hashed.

`flbench.core.imported.NO_PARTS` has another purpose: it lists packages whose functions are refused.
"""
POINTS: Final = ("flbench.algorithms", "flbench.models", "flbench.losses")
"""Groups of entry points by which packages register parts."""
CONSTANTS: Final = (bool, int, float, complex, str, bytes, type(None))
NUMBERS: Final = (Tensor, np.ndarray, np.generic)
FUNCTIONS: Final = ast.FunctionDef | ast.AsyncFunctionDef
CHANGING: Final = frozenset(
    {
        *("append", "extend", "insert", "pop", "popitem", "remove", "clear", "add", "discard"),
        *("update", "setdefault", "appendleft", "popleft", "sort", "reverse"),
    }
)
"""Methods that change the object that they are called on."""
MAPPINGS: Final = (dict, OrderedDict, defaultdict, MappingProxyType)
GLOBALS: Final = ("LOAD_GLOBAL", "LOAD_NAME")
"""Instructions that look up a name in the module."""

sender: str | None = None  # current folder of the process that this one works for
named_folders: dict[str, None] = {}  # folders of files that were named by their paths


def siblings(name: str, thing: Any = None) -> dict[str, Path]:
    """Return the files of the modules of the same package or folder that a module imports.

    Modules that these import are among them. Imports within functions count too, and so do calls
    of `importlib.import_module` with the name of a module. A module that such a call gets for
    another argument counts if the importing module keeps it, or a class or function of it.

    Args:
        name: Name of a module that has been imported.
        thing: What is used of the module; None for all of it. The modules that define its bases,
            and what it wraps, count too.

    Returns:
        Paths by the names of the modules, without the module itself.
    """
    found: dict[str, Path] = {}
    for root in (name, *(one for one in _homes(thing) if is_own(one, name))):
        found |= _closure(root, name)[0]
    return {one: file for one, file in found.items() if one != name}


def altered(name: str, file: Path, others: Iterable[Path] = ()) -> str:
    """Return what a program has set in a module after its import, as a text; "" for nothing.

    These are constants of the module and of its classes whose value is not the only one that the
    file gives them, and functions of a script or notebook in the place of its own. Installed
    modules are left out, and so is what the user's modules set themselves: attributes of classes,
    such as `Net.has_warned = True`, and attributes of modules while modules are imported.

    Args:
        name: Name of the module. If it has not been imported, nothing has been set.
        file: Its file.
        others: Files of the modules that are imported with it.
    """
    found: list[str] = []
    if is_installed(file):
        return ""
    module = sys.modules.get(name, SimpleNamespace())
    tree = _tree(file.read_bytes())
    trees = [tree, *(_tree(one.read_bytes()) for one in others if one.exists())]
    scopes: list[tuple[str, list[ast.stmt], Mapping[str, Any]]] = [("", tree.body, vars(module))]
    of_classes = Counter(key for one in trees for key in _set_on_others(ast.walk(one)))
    of_modules = Counter(key for one in trees for key in _set_on_others(_at_import(one)))
    while scopes:
        prefix, body, space = scopes.pop()
        stored = Counter(_stored(body)) + (of_classes if prefix else of_modules)
        stars = [k for k, node in enumerate(body) if "*" in _stored([node])]
        for k, node in enumerate(body):
            match node:
                case ast.ClassDef(name=key):
                    kind = space.get(key)
                    if isinstance(kind, type) and not isinstance(kind, enum.EnumMeta):
                        scopes.append((f"{prefix}{key}.", node.body, vars(kind)))
                case (
                    ast.Assign(targets=[ast.Name(id=key)], value=ast.expr() as value)
                    | ast.AnnAssign(target=ast.Name(id=key), value=ast.expr() as value)
                ) if stored[key] == 1 and key in space and k > max(stars, default=-1):
                    now = space[key]
                    for first in _literal(value) if isinstance(now, (*NUMBERS, *CONSTANTS)) else ():
                        if isinstance(now, NUMBERS) or first != now:
                            found.append(f"{prefix}{key} = {_described(now, [], name)}")
        for key, value in list(space.items()):
            for one in _functions(value):
                if _module_of(one) == "__main__":
                    found.append(f"{prefix}{key}: {texts(one)}")
    return "\n".join(sorted(found))


def versions(names: Iterable[str]) -> dict[str, str]:
    """Return the versions of the installed packages that modules belong to, or import.

    Args:
        names: Names of modules that have been imported. Their siblings count.
    """
    tops: set[str] = set()
    for name in names:
        tops |= _closure(name, name)[1] | {name.partition(".")[0]}
    if not tops:
        return {}
    owners = _owners()
    found = {owner for top in tops for owner in owners.get(top, ())}
    folders = {folder for top in tops - owners.keys() if (folder := folder_of(top)) is not None}
    for folder, name in _editable() if folders else ():  # its metadata may list no modules
        found |= {name} if any(one.is_relative_to(folder) for one in folders) else set()
    for group in POINTS:
        for point in entry_points(group=group):
            if point.dist is not None and point.module.partition(".")[0] in tops:
                found.add(point.dist.name)
    return {name: version(name) for name in sorted(found) if name != OURS}


def combined(hashes: Mapping[str, str]) -> str:
    """Return the SHA-256 (hex) over hashes by name."""
    lines = "".join(f"{name} {hashes[name]}\n" for name in sorted(hashes))
    return hashlib.sha256(lines.encode()).hexdigest()


def texts(thing: Any) -> dict[str, str] | None:
    """Return the source of a function or class, and of what it uses of the module that defines it.

    This is for code without an import path: that of a script, or of a notebook's cells. Functions
    and classes that it refers to by name count with their source, and other objects with their
    value. Values of closures, default arguments and attributes of an object count too. The values
    of a net do not: they are its parameters.

    Args:
        thing: The function or class, or an object of such a class.

    Returns:
        Texts by name; that of the function or class is the first. None if nothing is known of it.
    """
    code = _code_of(thing)
    text = _source(code)
    if text is None:
        return None
    home, found, seen, queue = _module_of(code), {_title(code): text}, {id(code)}, [code]
    values = [] if code is thing else [(_title(code), thing)]
    changed = _changed(code)
    while values or queue:
        if not values:
            values = list(_named_by(queue.pop(), home))
            continue
        name, value = values.pop()
        used: list[Any] = []
        described = _described(value, used, home)
        if not _is_name_alone(value, home) and name.rpartition(".")[2] not in changed:
            found[_new(f"{name} =", found)] = described
        for one in used:
            if id(one) not in seen:
                seen.add(id(one))
                found[_new(_title(one), found)] = _source(one) or ""
                changed |= _changed(one)
                queue.append(one)
    return found


def _new(name: str, names: Container[str]) -> str:
    """Return a name that is not among others: the name itself, or with a number."""
    return next(one for one in chain([name], (f"{name} {k}" for k in count(2))) if one not in names)


def modules_used(thing: Any) -> set[str]:
    """Return the names of the modules beside a script that a part of the script uses.

    Args:
        thing: The function, class or object.
    """
    code = _code_of(thing)
    home, found, seen, queue = _module_of(code), set[str](), set[int](), [code]
    while queue:
        one = queue.pop()
        if id(one) in seen:
            continue
        seen.add(id(one))
        source = _code_text(one).encode()
        found |= {
            name for base, names, _ in _statements(source, "") for name in _modules(base, names)
        }
        for _, used in _named_by(one, home):
            inner: list[Any] = []
            _described(used, inner, home)
            queue += inner
            if isinstance(used, ModuleType):
                found.add(used.__name__)
            else:
                found |= _homes(used)
    return {one for one in found if is_own(one, home) and one != home and file_of(one) is not None}


def is_of_package(thing: Any) -> bool:
    """Return whether a function or class is of an installed package, or of Python itself.

    Args:
        thing: The function, class or object.
    """
    top = _module_of(_code_of(thing)).partition(".")[0]
    if top in (OURS, *PUBLIC, *sys.stdlib_module_names):
        return True
    folder = None if top in ("", "__main__") else folder_of(top)
    return folder is not None and is_installed(folder)


def settings(module: nn.Module) -> dict[str, str]:
    """Return the attributes of a module that are numbers, texts, or collections of them, as texts.

    Args:
        module: The module. Its mode, its parameters and what PyTorch keeps in it are left out.
    """
    values = {name: one for name, one in _kept(module).items() if not name.startswith("_")}
    values |= {"hparams": dict(getattr(module, "hparams", {}))}
    found = {}
    for name, value in values.items():
        if name != "training" and _is_plain(value):
            found[name] = _described(value, [], "")
    return {name: text for name, text in found.items() if text != "{}"}


def _stored(nodes: Iterable[ast.AST]) -> Iterator[str]:
    """Yield the names that statements set in their own scope, and those that functions declare.

    An import of all names of a module yields "*".
    """
    for node in nodes:
        if isinstance(node, ast.Global):
            yield from node.names
        elif isinstance(node, ast.Import | ast.ImportFrom):
            yield from (one.asname or one.name.partition(".")[0] for one in node.names)
        elif isinstance(node, FUNCTIONS | ast.ClassDef):
            inner = ast.walk(node)
            yield from (name for one in inner if isinstance(one, ast.Global) for name in one.names)
        else:
            if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
                yield node.id
            yield from _stored(ast.iter_child_nodes(node))


def _at_import(node: ast.AST) -> Iterator[ast.AST]:
    """Yield the nodes of a module that its import runs: all but those of functions."""
    for one in ast.iter_child_nodes(node):
        if not isinstance(one, FUNCTIONS | ast.Lambda):
            yield one
            yield from _at_import(one)


def _set_on_others(nodes: Iterable[ast.AST]) -> Iterator[str]:
    """Yield the names of attributes that code sets on something else than `self`."""
    for node in nodes:
        match node:
            case ast.Attribute(value=ast.Name(id="self")):
                pass
            case ast.Attribute(attr=name, ctx=ast.Store()):
                yield name


def _literal(node: ast.expr) -> Iterator[Any]:
    """Yield the value of an expression that is a number or a text; nothing for another one."""
    with suppress(ValueError, TypeError):
        if isinstance(value := ast.literal_eval(node), CONSTANTS):
            yield value


def _is_plain(value: Any) -> bool:
    """Return whether a value is a number, a text, or a collection of them."""
    if isinstance(value, list | tuple | set | frozenset):
        return all(map(_is_plain, value))
    if type(value) in MAPPINGS:
        return all(map(_is_plain, value)) and all(map(_is_plain, value.values()))
    return isinstance(value, CONSTANTS)


def is_own(name: str, of: str) -> bool:
    """Return whether a module is of the same package or folder as another one.

    A module of another folder counts too if it belongs to no installed package, because no version
    says what it is.

    Args:
        name: Name of the module.
        of: Name of the other one.
    """
    top, other = name.partition(".")[0], of.partition(".")[0]
    if top in (OURS, "__main__") or top in PUBLIC or top in sys.stdlib_module_names:
        return False
    if top == other:
        return True
    folder = folder_of(top)
    if folder is None or is_installed(folder):
        return False
    return folder == folder_of(other) or top not in _owners()


@cache
def _editable() -> tuple[tuple[Path, str], ...]:
    """Return the folders and names of the packages that are installed as editable."""
    found = []
    for one in distributions():
        try:
            origin = json.loads(one.read_text("direct_url.json") or "{}")
            if origin.get("dir_info", {}).get("editable"):
                place = url2pathname(urlsplit(origin["url"]).path)
                found.append((Path(place).resolve(), one.name))
        except (ValueError, AttributeError, KeyError, OSError):  # not what pip writes
            continue
    return tuple(found)


@cache
def _owners() -> Mapping[str, list[str]]:
    """Return the names of the installed packages by the modules of the top level."""
    return packages_distributions()


def _closure(name: str, of: str) -> tuple[dict[str, Path], set[str]]:
    """Return the files of a module and its siblings by name, and the other packages they import.

    The result does not depend on what else the process has imported: what a module keeps counts
    only for modules that the import of the first one has imported.

    Args:
        name: Name of the module.
        of: Module to whose package or folder the siblings belong.
    """
    files: dict[str, Path] = {}
    foreign: set[str] = set()
    first, later = [name], list[str]()

    @cache
    def belongs(top: str) -> bool:
        return is_own(top, of)

    while first or later:
        is_imported = bool(first)
        one = (first or later).pop()
        file = None if one in files else file_of(one)
        if file is None or not file.is_file():
            continue
        files[one] = file
        for other, is_first in set(_imports(one, file, is_imported, belongs)):
            if not belongs(other.partition(".")[0]):
                foreign.add(other.partition(".")[0])
            elif is_imported and is_first:
                first.append(other)
            else:
                later.append(other)
    foreign -= {OURS, "__main__", *sys.stdlib_module_names}
    return files, foreign


def _imports(
    name: str, file: Path, is_imported: bool, belongs: Callable[[str], bool]
) -> Iterator[tuple[str, bool]]:
    """Yield the names of the modules that a module imports, and whether its own import does so.

    Args:
        name: Name of the module.
        file: Its file.
        is_imported: Whether it has been imported, so that it has attributes.
        belongs: Function from the top level of a module's name to whether the module is a sibling.
    """
    try:
        source = file.read_bytes() if file.suffix == ".py" else b""
    except OSError:
        source = b""
    package = name if file.stem == "__init__" else name.rpartition(".")[0]
    for base, names, is_first in _statements(source, package):
        inner = names if belongs(base.partition(".")[0]) else ()
        for other in _modules(base, inner):
            yield other, is_first
    module = sys.modules.get(name) if is_imported else None
    for key, value in list(vars(module).items()) if module is not None else ():
        kind = type(value)  # the attribute `__class__` of an object can be code
        if issubclass(kind, ModuleType):
            if value.__name__ != f"{name}.{key}":  # any import of a submodule sets it as attribute
                yield value.__name__, True
        elif issubclass(kind, type | FunctionType):
            yield _module_of(value), True


def _modules(base: str, names: tuple[str, ...]) -> list[str]:
    """Return the modules that a statement imports: those that names stand for, or else `base`.

    Args:
        base: Name of the module.
        names: What is taken from it; empty for the module itself.
    """
    found = [f"{base}.{one}" for one in names if file_of(f"{base}.{one}") is not None]
    return found if names and len(found) == len(names) else [*found, base]


@lru_cache(maxsize=1024)
def _statements(source: bytes, package: str) -> tuple[tuple[str, tuple[str, ...], bool], ...]:
    """Return what a source imports: modules, what is taken from each, and whether at its beginning.

    Statements within functions are carried out later than the others.

    Args:
        source: The source.
        package: Package of its module; "" for none.
    """
    try:
        tree = ast.parse(source)
    except (SyntaxError, ValueError, RecursionError):
        return ()
    found: list[tuple[str, tuple[str, ...], bool]] = []
    queue: list[tuple[ast.AST, bool]] = [(tree, True)]
    while queue:
        node, is_first = queue.pop()
        inside = is_first and not isinstance(node, FUNCTIONS | ast.Lambda)
        queue += [(child, inside) for child in ast.iter_child_nodes(node)]
        if isinstance(node, ast.Import):
            for alias in node.names:
                found.append((alias.name, (), is_first))
                if "." in alias.name and alias.asname is None:
                    found.append((alias.name.partition(".")[0], (), is_first))
        elif isinstance(node, ast.ImportFrom):
            if base := _absolute(node.module or "", node.level, package):
                names = tuple(alias.name for alias in node.names if alias.name != "*")
                found.append((base, names, is_first))
        elif isinstance(node, ast.Call) and (name := _called_import(node)):
            level = len(name) - len(name.lstrip("."))
            if base := _absolute(name.lstrip("."), level, package):
                found.append((base, (), is_first))
    return tuple(found)


def _absolute(name: str, level: int, package: str) -> str:
    """Return the absolute name of a module that is imported with `level` leading dots."""
    if not level:
        return name
    above = package.split(".")[: len(package.split(".")) - level + 1]
    return ".".join([*above, *([name] if name else [])])


def _called_import(call: ast.Call) -> str | None:
    """Return the name that is written in a call of `importlib.import_module`; None for no such."""
    name = getattr(call.func, "attr", None) or getattr(call.func, "id", None)
    if name not in ("import_module", "__import__") or not call.args:
        return None
    value = getattr(call.args[0], "value", None)
    return value if isinstance(value, str) and value.strip(".") else None


def here() -> str:
    """Return the current folder; in a worker process that of the process which it works for.

    Ray starts workers, and trials of Ray Tune, in folders of its own.
    """
    return sender or os.getcwd()


def spec_of(name: str) -> ModuleSpec | None:
    """Return where a module is; None if there is none. Nothing is imported.

    The current folder and those of files that are named by their paths come last. Python itself
    does not search them before `flbench.core.imported.find` imports a module of them.

    Args:
        name: Name of the module.
    """
    above, _, last = name.rpartition(".")
    places = _places(above) if above else None
    if not last or (above and not places):
        return None
    for finder in sys.meta_path:  # packages installed as editable have finders of their own
        try:
            spec = finder.find_spec(name, places)
        except (ImportError, ValueError, AttributeError):
            continue
        if spec is not None:
            return spec
    return None if above else PathFinder.find_spec(name, [sender or "", *named_folders])


def _places(name: str) -> list[str]:
    """Return the folders of a package; an empty list for a module that is no package."""
    if name in sys.modules:
        return list(getattr(sys.modules[name], "__path__", ()))
    spec = spec_of(name)
    return [] if spec is None else list(spec.submodule_search_locations or ())


def file_of(name: str) -> Path | None:
    """Return the file of a module; None if there is none. Nothing is imported.

    Args:
        name: Name of the module.
    """
    if name in sys.modules:
        file = getattr(sys.modules[name], "__file__", None)
    else:
        spec = spec_of(name)
        file = None if spec is None or not spec.has_location else spec.origin
    return None if file is None else Path(file)


def folder_of(top: str) -> Path | None:
    """Return the folder that has a module or package of the top level; None if there is none."""
    if top == "__main__" and file_of(top) is None:  # a notebook
        return Path.cwd().resolve()
    if places := _places(top):
        return Path(places[0]).resolve().parent
    file = file_of(top)
    return None if file is None else file.resolve().parent


def _module_of(thing: Any) -> str:
    return str(getattr(thing, "__module__", "") or "")


def _title(thing: Any) -> str:
    return str(getattr(thing, "__qualname__", type(thing).__name__))


def _code_of(thing: Any) -> Any:
    """Return a function or class itself, what a partial function calls, or an object's class."""
    while isinstance(thing, partial | MethodType):
        thing = thing.func if isinstance(thing, partial) else thing.__func__
    return thing if inspect.isroutine(thing) or isinstance(thing, type) else type(thing)


def _homes(thing: Any) -> set[str]:
    """Return the modules that define a function, or a class with its bases, and what it wraps."""
    found: set[str] = set()
    while thing is not None:
        code = _code_of(thing)
        found |= set(map(_module_of, code.__mro__ if isinstance(code, type) else (code,)))
        thing = getattr(thing, "__wrapped__", None)
    return {name for name in found if name}


def _described(value: Any, used: list[Any], home: str, seen: tuple[int, ...] = ()) -> str:
    """Return a text that stands for a value.

    Args:
        value: The value.
        used: List that the functions and classes of the module `home` in it are appended to.
        home: Name of a module.
        seen: Objects that contain the value, by their `id`.
    """
    if isinstance(value, CONSTANTS):
        return repr(value)
    if id(value) in seen:
        return "..."

    def each(values: Iterable[Any]) -> list[str]:
        return [_described(one, used, home, (*seen, id(value))) for one in values]

    if isinstance(value, list | tuple):
        text = f"[{', '.join(each(value))}]"
    elif isinstance(value, set | frozenset):
        text = f"{{{', '.join(sorted(each(value)))}}}"
    elif type(value) in MAPPINGS:
        pairs = zip(each(value), each(value.values()), strict=True)
        text = f"{{{', '.join(f'{key}: {one}' for key, one in pairs)}}}"
    elif isinstance(value, NUMBERS):
        text = _digest(value)
    elif isinstance(value, partial):
        text = f"partial({', '.join(each((value.func, value.args, value.keywords)))})"
    elif isinstance(value, MethodType):
        text = f"method({', '.join(each((value.__func__, value.__self__)))})"
    elif isinstance(value, type) or inspect.isroutine(value):
        if isinstance(value, type | FunctionType) and _module_of(value) == home:
            used.append(value)
        text = f"{_module_of(value)}:{_title(value)}"
    elif isinstance(value, ModuleType):
        text = value.__name__
    elif isinstance(value, enum.Enum):
        text = f"{each([type(value)])[0]}({value.name}={each([value.value])[0]})"
    elif isinstance(value, range | slice | Path):
        text = repr(value)
    elif isinstance(value, SimpleNamespace) or _is_of(type(value), home):
        is_net = isinstance(value, nn.Module)
        state = {} if is_net else _kept(value)
        text = f"{each([type(value)])[0]}({each([state])[0]})"
    else:
        text = f"{_module_of(type(value))}:{_title(type(value))}"
    return text


def _kept(thing: Any) -> dict[str, Any]:
    """Return the attributes of an object without those that its methods change.

    An attribute that a method other than `__init__` changes, such as a counter, is no setting.
    """
    kinds = [one for one in type(thing).__mro__ if not is_of_package(one)]
    changed = set().union(*map(_changed, kinds))
    state = getattr(thing, "__dict__", {})
    return {name: one for name, one in state.items() if f"self.{name}" not in changed}


def _changed(thing: Any) -> set[str]:
    """Return the names of variables that a function or class changes when it is called.

    These are names that it declares as `global` or `nonlocal`, and those of objects whose items or
    attributes it sets, or which it changes by a method such as `append`. What `self.name` stands
    for is among them as `self.name`, unless `__init__` alone changes it.
    """
    queue: list[ast.AST] = [*_parsed(thing)]
    found: set[str] = set()
    while queue:
        node = queue.pop()
        if isinstance(node, FUNCTIONS) and node.name == "__init__":
            continue
        queue += ast.iter_child_nodes(node)
        if isinstance(node, ast.Global | ast.Nonlocal):
            found |= set(node.names)
        elif isinstance(node, ast.Attribute | ast.Subscript):
            is_set = isinstance(node.ctx, ast.Store | ast.Del)
            if is_set or (isinstance(node, ast.Attribute) and node.attr in CHANGING):
                found |= _root(node if is_set else node.value)
    return found


def _root(node: ast.AST) -> set[str]:
    """Return the variable of an expression such as `a.b[0]`; of `self.a.b` it is `self.a`."""
    attribute = ""
    while isinstance(node, ast.Attribute | ast.Subscript):
        attribute = node.attr if isinstance(node, ast.Attribute) else attribute
        node = node.value
    if not isinstance(node, ast.Name):
        return set()
    return {f"self.{attribute}" if node.id == "self" else node.id}


def _is_name_alone(value: Any, home: str) -> bool:
    """Return whether the text of a value is its name: the value is code, or of code of others."""
    if isinstance(value, type | ModuleType | FunctionType) or inspect.isbuiltin(value):
        return True
    known = isinstance(value, (*NUMBERS, enum.Enum, partial))
    is_plain = _module_of(type(value)).partition(".")[0] in sys.stdlib_module_names
    return not (known or is_plain or _is_of(type(value), home))


def _is_of(kind: type, home: str) -> bool:
    """Return whether a class is defined by a module, or by one of its package or folder."""
    module = _module_of(kind)
    return module == home or is_own(module, home)


def _digest(value: Any) -> str:
    """Return a text that stands for a tensor or array: its type, shape and content."""
    array = value.detach().cpu() if isinstance(value, Tensor) else value
    try:
        content = np.ascontiguousarray(array).tobytes()
    except (TypeError, RuntimeError, ValueError):  # bfloat16, sparse
        content = repr(array).encode()
    return f"{value.dtype}{list(value.shape)}{hashlib.sha256(content).hexdigest()}"


def _named_by(thing: Any, home: str) -> Iterator[tuple[str, Any]]:
    """Yield names and values that a function or class of a module refers to.

    These are global variables, cells, default arguments, bases, attributes of the class that it
    gets from other code, such as a decorator, and what it wraps.

    Args:
        thing: The function or class.
        home: Name of the module.
    """
    if isinstance(thing, type):
        yield from _named_by_class(thing, home)
        return
    if isinstance(wrapped := getattr(thing, "__wrapped__", None), FunctionType):
        yield wrapped.__qualname__, wrapped
    code = getattr(thing, "__code__", None)
    if code is None:
        return
    space = getattr(thing, "__globals__", {})
    for name in dict.fromkeys([*_names(code, GLOBALS), *_outer_names(thing)]):
        if name in space and not name.startswith("__"):
            yield name, space[name]
    own = thing.__qualname__
    for name, cell in zip(code.co_freevars, thing.__closure__ or (), strict=False):
        try:
            if name != "__class__":
                yield f"{own}.{name}", cell.cell_contents
        except ValueError:  # not yet filled
            continue
    yield f"{own} defaults", (thing.__defaults__ or (), thing.__kwdefaults__ or {})


def _named_by_class(thing: type, home: str) -> Iterator[tuple[str, Any]]:
    """Yield names and values that a class refers to; see `_named_by`."""
    for base in thing.__mro__[1:]:
        yield base.__qualname__, base
    functions = [one for value in vars(thing).values() for one in _functions(value)]
    space: dict[str, Any] = {}
    for function in functions:
        if _module_of(function) != home:
            yield function.__qualname__, function
        else:
            space = function.__globals__
            if not function.__qualname__.startswith(f"{thing.__qualname__}."):
                yield function.__qualname__, function
            yield from _named_by(function, home)
    space = space or vars(sys.modules.get(home, SimpleNamespace()))
    for name in _outer_names(thing):
        if name in space and name not in vars(thing) and not name.startswith("__"):
            yield name, space[name]
    for name, value in vars(thing).items():
        if not name.startswith("_") and not list(_functions(value)):
            yield f"{thing.__qualname__}.{name}", value
    for field in getattr(thing, "__dataclass_fields__", {}).values():
        yield f"{thing.__qualname__}.{field.name}", field.default_factory


def _functions(value: Any) -> Iterator[FunctionType]:
    """Yield the functions of a value in the namespace of a class."""
    if isinstance(value, staticmethod | classmethod):
        value = value.__func__
    if isinstance(value, property):
        for one in (value.fget, value.fset, value.fdel):
            if isinstance(one, FunctionType):
                yield one
    elif isinstance(value, FunctionType):
        yield value


def _names(code: CodeType, instructions: tuple[str, ...]) -> Iterator[str]:
    """Yield the names that instructions of a code, and of those within it, have as argument."""
    for one in dis.get_instructions(code):
        if one.opname in instructions:
            yield str(one.argval)
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _names(constant, instructions)


def _outer_names(thing: Any) -> Iterator[str]:
    """Yield names that the definition of a function or class evaluates.

    These are the names in its decorators, in default arguments, and in the body of a class.
    """
    queue: list[ast.AST] = [
        one for one in _parsed(thing) if isinstance(one, ast.ClassDef | FUNCTIONS)
    ]
    while queue:
        node = queue.pop()
        if isinstance(node, ast.Name):
            yield node.id
        if isinstance(node, FUNCTIONS):
            queue += [*node.decorator_list, *node.args.defaults]
            queue += [one for one in node.args.kw_defaults if one is not None]
        elif not isinstance(node, ast.Lambda):
            queue += ast.iter_child_nodes(node)


def _parsed(thing: Any) -> list[ast.stmt]:
    """Return the statements of the source of a function or class; an empty list without a text."""
    return list(_tree(_code_text(thing)).body)


def _code_text(thing: Any) -> str:
    """Return the source text of a function or class, which can be parsed; "" if there is none."""
    try:
        return textwrap.dedent(inspect.getsource(thing))
    except (OSError, TypeError):
        return _source(thing) or "" if isinstance(thing, type) else ""


@lru_cache(maxsize=1024)
def _tree(text: str | bytes) -> ast.Module:
    """Return a source text as a tree; an empty one for a text that is no source of Python."""
    try:
        return ast.parse(text)
    except (SyntaxError, ValueError, RecursionError):
        return ast.Module([], [])


def _source(thing: Any) -> str | None:
    """Return the source text of a function or class, also of one in a notebook.

    For code without a text, such as that of standard input or of `exec`, it is the bytecode.
    """
    try:
        return inspect.cleandoc(inspect.getsource(thing))
    except (OSError, TypeError):
        pass
    if not isinstance(thing, type):
        code = getattr(thing, "__code__", None)
        return None if code is None else _bytecode(code)
    functions = [
        one
        for value in vars(thing).values()
        for one in _functions(value)
        if _module_of(one) == _module_of(thing)
    ]
    files = [one.__code__.co_filename for one in functions]  # the file of a cell is known to them
    for file in files or [one for one in reversed(linecache.cache) if not Path(one).exists()]:
        text = _class_in("".join(linecache.getlines(file)), thing.__qualname__)
        if text is not None:
            return text
    return "\n".join(
        [f"class {thing.__qualname__}", *(_bytecode(one.__code__) for one in functions)]
    )


def _bytecode(code: CodeType) -> str:
    """Return the instructions of a code as text, with its constants and names."""
    constants = [
        _bytecode(one) if isinstance(one, CodeType) else _described(one, [], "")
        for one in code.co_consts
    ]
    names = (code.co_names, code.co_varnames, code.co_freevars, code.co_argcount)
    return f"{code.co_name} {code.co_code.hex()} {constants} {names}"


def _class_in(source: str, name: str) -> str | None:
    """Return the text of a class of the top level, or within others, of a source."""
    scope = list(_tree(source).body)
    found: ast.ClassDef | None = None
    for part in name.split("."):
        classes = [one for one in scope if isinstance(one, ast.ClassDef) and one.name == part]
        if not classes:
            return None
        found = classes[-1]
        scope = found.body
    return None if found is None else ast.get_source_segment(source, found)
