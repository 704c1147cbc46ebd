"""The source code that a part of the user's own consists of, and the packages that it imports.

A module consists of its file and of the modules that it imports, directly or through others, from
the same package or the same folder. Code in Python's own folders for installed packages is not
hashed; the versions of these packages are recorded.
"""

import ast
import hashlib
import importlib.util
import inspect
import linecache
import sys
import sysconfig
from collections.abc import Iterable, Iterator, Mapping
from functools import cache, lru_cache
from importlib.machinery import ModuleSpec
from importlib.metadata import entry_points, packages_distributions, version
from pathlib import Path
from types import CodeType, FunctionType, ModuleType
from typing import Any, Final

OURS: Final = "flbench"
POINTS: Final = ("flbench.algorithms", "flbench.models", "flbench.losses")
"""Groups of entry points by which packages register parts."""
LIBRARIES: Final = frozenset(
    (
        *("torch", "torchvision", "torchmetrics", "lightning", "pytorch_lightning", "numpy"),
        *("scipy", "sklearn", "pandas", "PIL", "ray", "mlflow", "optuna", "cloudpickle", "joblib"),
        *("yaml", "pydantic"),
    )
)
"""Packages that flbench is built on. Of a module of theirs, its file alone is hashed."""
CONSTANTS: Final = (bool, int, float, complex, str, bytes, type(None))


def siblings(name: str) -> dict[str, Path]:
    """Return the files of the modules of the same package or folder that a module imports.

    Modules that these import are among them. Imports within functions count too. A module that a
    call of `importlib` gets counts if the importing module keeps it, or a class or function of it.

    Args:
        name: Name of a module that has been imported.

    Returns:
        Paths by the names of the modules, without the module itself.
    """
    return {one: file for one, file in _closure(name)[0].items() if one != name}


def versions(names: Iterable[str]) -> dict[str, str]:
    """Return the versions of the installed packages that modules belong to, or import.

    Args:
        names: Names of modules that have been imported. Their siblings count.
    """
    tops: set[str] = set()
    for name in names:
        tops |= _closure(name)[1] | {name.partition(".")[0]}
    if not tops:
        return {}
    owners = packages_distributions()
    found = {owner for top in tops for owner in owners.get(top, ())}
    for group in POINTS:  # a package that was installed as editable may list no modules
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
    and classes that it refers to by name count with their source, and constants with their value.

    Args:
        thing: The function or class.

    Returns:
        Texts by name; that of `thing` is the first. None if Python does not know its source.
    """
    text = _source(thing)
    if text is None:
        return None
    found = {_title(thing): text}
    queue = [thing]
    while queue:
        for name, used in _used(queue.pop()):
            key = name if _is_constant(used) else _title(used)
            if key in found:
                continue
            if _is_constant(used):
                found[key] = repr(used)
            elif used is not thing:
                found[key] = _source(used) or ""
                queue.append(used)
    return found


def modules_used(thing: Any) -> set[str]:
    """Return the names of the modules from which a function or class of a script uses something."""
    found, seen, queue = set[str](), set[int](), [thing]
    while queue:
        one = queue.pop()
        if id(one) in seen:
            continue
        seen.add(id(one))
        for _, used in _named_by(one):
            if isinstance(used, ModuleType):
                found.add(used.__name__)
            elif _module_of(used) == _module_of(thing):
                queue.append(used)
            elif isinstance(used, type | FunctionType):
                found.add(_module_of(used))
    return {name for name in found if name in sys.modules and name != "__main__"}


def is_own(name: str, of: str) -> bool:
    """Return whether a module is of the same package or folder as another one.

    Args:
        name: Name of the module.
        of: Name of the other one.
    """
    top, other = name.partition(".")[0], of.partition(".")[0]
    if top == OURS or top in sys.stdlib_module_names:
        return False
    if top == other:
        return True
    folder = _folder(other)
    return folder is not None and not is_installed(folder) and _folder(top) == folder


def locate(name: str) -> Path | None:
    """Return the file of a module, which need not be imported; None if there is none.

    Nothing is imported. `importlib.util.find_spec` would import the package of a module.

    Args:
        name: Name of the module, with the names of its packages.

    >>> locate("logging.handlers").name
    'handlers.py'
    """
    module = sys.modules.get(name)
    if module is not None:
        file = getattr(module, "__file__", None)
        return None if file is None else Path(file)
    places: list[str] | None = None
    spec = None
    parts = name.split(".")
    for k in range(len(parts)):
        one = ".".join(parts[: k + 1])
        spec = _spec(one, places)
        if spec is None:
            return None
        places = list(spec.submodule_search_locations or ())
    return Path(spec.origin) if spec is not None and spec.has_location and spec.origin else None


def _spec(name: str, places: list[str] | None) -> ModuleSpec | None:
    """Return where a module is, given the folders of its package; None if there is none."""
    for finder in sys.meta_path:  # packages that are installed as editable have finders
        try:
            found = finder.find_spec(name, places)
        except (ImportError, ValueError, AttributeError):
            continue
        if found is not None:
            return found
    return None


def is_installed(folder: Path) -> bool:
    """Return whether a folder is within one of Python's folders for modules and packages."""
    return any(folder.is_relative_to(one) for one in _python_folders())


@cache
def _python_folders() -> tuple[Path, ...]:
    import site

    paths = {sysconfig.get_path(name) for name in ("stdlib", "platstdlib", "purelib", "platlib")}
    paths |= {*site.getsitepackages(), site.getusersitepackages()}
    return tuple(Path(path).resolve() for path in paths)


def _closure(name: str) -> tuple[dict[str, Path], set[str]]:
    """Return the files of a module and its siblings by name, and the other packages they import."""
    if name.partition(".")[0] in LIBRARIES:
        file = locate(name)
        return ({} if file is None else {name: file}), set()
    files: dict[str, Path] = {}
    foreign: set[str] = set()
    queue = [name]
    while queue:
        one = queue.pop()
        if one in files:
            continue
        file = locate(one)
        if file is None:
            continue
        files[one] = file
        for other in set(_imports(one, file)):
            if is_own(other, name):
                queue.append(other)
            else:
                foreign.add(other.partition(".")[0])
    foreign -= {OURS, "__main__", *sys.stdlib_module_names}
    return files, foreign


def _imports(name: str, file: Path) -> Iterator[str]:
    """Yield the names of the modules that a module imports."""
    module = sys.modules.get(name)
    try:
        source = file.read_bytes() if file.suffix == ".py" else b""
    except OSError:
        source = b""
    is_package = file.stem == "__init__"
    package = name if is_package else name.rpartition(".")[0]
    for base, names in _statements(source, package):
        if not names:
            yield base
            continue
        inner = [f"{base}.{one}" for one in names if is_own(base, name)]
        modules = [one for one in inner if locate(one) is not None]
        yield from modules
        if len(modules) < len(names):
            yield base
    for value in list(vars(module).values()) if module is not None else ():
        if isinstance(value, ModuleType):
            yield value.__name__
        elif isinstance(value, type | FunctionType):
            yield _module_of(value)


@lru_cache(maxsize=1024)
def _statements(source: bytes, package: str) -> tuple[tuple[str, tuple[str, ...]], ...]:
    """Return the import statements of a source: modules, and what is taken from each.

    Args:
        source: The source.
        package: Package of its module; "" for none.
    """
    try:
        tree = ast.parse(source)
    except (SyntaxError, ValueError, RecursionError):
        return ()
    found: list[tuple[str, tuple[str, ...]]] = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                found.append((alias.name, ()))
                if "." in alias.name and alias.asname is None:
                    found.append((alias.name.partition(".")[0], ()))
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            if node.level:
                above = package.split(".")[: len(package.split(".")) - node.level + 1]
                base = ".".join([*above, *([node.module] if node.module else [])])
            if base:
                names = tuple(alias.name for alias in node.names if alias.name != "*")
                found.append((base, names))
    return tuple(found)


def _folder(top: str) -> Path | None:
    """Return the folder that has a module or package of the top level; None if there is none."""
    if top == "__main__" and locate(top) is None:  # a notebook
        return Path.cwd().resolve()
    module = sys.modules.get(top)
    places = list(getattr(module, "__path__", ()))
    if module is None:
        try:
            spec = importlib.util.find_spec(top)
        except (ImportError, ValueError):
            return None
        places = [] if spec is None else list(spec.submodule_search_locations or ())
    if places:
        return Path(places[0]).resolve().parent
    file = locate(top)
    return None if file is None else file.resolve().parent


def _module_of(thing: Any) -> str:
    return str(getattr(thing, "__module__", "") or "")


def _title(thing: Any) -> str:
    return str(getattr(thing, "__qualname__", type(thing).__name__))


def _is_constant(value: Any) -> bool:
    """Return whether a value is a number, a text, or a list, tuple or dict of them."""
    if isinstance(value, list | tuple):
        return all(map(_is_constant, value))
    if isinstance(value, dict):
        return all(map(_is_constant, value)) and all(map(_is_constant, value.values()))
    return isinstance(value, CONSTANTS)


def _used(thing: Any) -> Iterator[tuple[str, Any]]:
    """Yield names and values of the same module that a function or class refers to."""
    home = _module_of(thing)
    for name, used in _named_by(thing):
        is_code = isinstance(used, type | FunctionType) and _module_of(used) == home
        if is_code or _is_constant(used):
            yield name, used


def _named_by(thing: Any) -> Iterator[tuple[str, Any]]:
    """Yield names and values of the global variables, cells and bases of a function or class."""
    if isinstance(thing, type):
        for base in thing.__mro__[1:]:
            yield base.__qualname__, base
        for value in vars(thing).values():
            if isinstance(value, type):
                yield value.__qualname__, value
            for function in _functions(value):
                yield from _named_by(function)
        for field in getattr(thing, "__dataclass_fields__", {}).values():
            yield from _functions_in(field.default_factory)
        return
    function = inspect.unwrap(thing) if callable(thing) else thing
    code = getattr(function, "__code__", None)
    if code is None:
        return
    space = getattr(function, "__globals__", {})
    for name in _global_names(code):
        if name in space:
            yield name, space[name]
    names = code.co_freevars
    for name, cell in zip(names, getattr(function, "__closure__", None) or (), strict=False):
        try:
            yield name, cell.cell_contents
        except ValueError:  # not yet filled
            continue
    for value in (*(function.__defaults__ or ()), *(function.__kwdefaults__ or {}).values()):
        yield from _functions_in(value)


def _functions_in(value: Any) -> Iterator[tuple[str, Any]]:
    """Yield a value that is a function or class, with its name."""
    if isinstance(value, type | FunctionType):
        yield value.__qualname__, value


def _functions(value: Any) -> Iterator[Any]:
    """Yield the functions of a value in the namespace of a class."""
    if isinstance(value, staticmethod | classmethod):
        value = value.__func__
    if isinstance(value, property):
        yield from (one for one in (value.fget, value.fset, value.fdel) if one is not None)
    elif isinstance(inspect.unwrap(value) if callable(value) else value, FunctionType):
        yield inspect.unwrap(value)


def _global_names(code: CodeType) -> Iterator[str]:
    """Yield the names that a code and those within it may look up in the module."""
    yield from code.co_names
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _global_names(constant)


def _source(thing: Any) -> str | None:
    """Return the source text of a function or class, also of one in a notebook."""
    try:
        return inspect.cleandoc(inspect.getsource(thing))
    except (OSError, TypeError):
        pass
    if not isinstance(thing, type):
        return None
    for value in vars(thing).values():  # the file of a cell is known to its functions alone
        for function in _functions(value):
            code = getattr(function, "__code__", None)
            if code is None or _module_of(function) != _module_of(thing):
                continue
            cell = "".join(linecache.getlines(code.co_filename))
            text = _class_in(cell, thing.__qualname__)
            if text is not None:
                return text
    return None


def _class_in(source: str, name: str) -> str | None:
    """Return the text of a class of the top level, or within others, of a source."""
    try:
        scope: list[ast.stmt] = ast.parse(source).body
    except (SyntaxError, ValueError):
        return None
    found: ast.ClassDef | None = None
    for part in name.split("."):
        classes = [one for one in scope if isinstance(one, ast.ClassDef) and one.name == part]
        if not classes:
            return None
        found = classes[-1]
        scope = found.body
    return None if found is None else ast.get_source_segment(source, found)
