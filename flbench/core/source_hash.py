"""SHA-256 of the source of a part of the user's own.

The source of a module is its file and those of the modules beside it that it imports, directly or
through others. Installed packages are not hashed; their versions are recorded. The source of a
function or class of a script or notebook is its text, the text of the functions and classes there
that it names, and the modules beside the script that these import.
"""

import hashlib
import inspect
import io
import os
import sys
import textwrap
from collections.abc import Iterable, Mapping
from contextlib import suppress
from functools import cache, partial
from importlib.metadata import packages_distributions, version
from modulefinder import ModuleFinder
from pathlib import Path
from types import CodeType, FunctionType, MethodType, ModuleType
from typing import Any, Final

from flbench.core.errors import ConfigError
from flbench.core.parts import OBJECT, file_of, folder_of, given, is_installed, module_of, path_of

SOURCE, PACKAGE = 1, 5  # kinds of modules, as `modulefinder` calls them
HASHES: Final = "hashes"
"""Name under which a worker is offered the hashes of the objects that it is sent, by their `id`.

The source of a script, or of a notebook's cell, is known only to the process that runs it.
"""
CONSTANTS: Final = (bool, int, float, complex, str, bytes, type(None))

# Name of a module -> (its spec, SHA-256 of its file when it was first hashed). A module that is
# imported anew or reloaded has another spec.
_first: dict[str, tuple[Any, str]] = {}


def of_path(path: str) -> str:
    """Return the SHA-256 (hex) of the source of an import path's module, without importing it.

    The hash of a module that imports none beside it is that of its file.

    Args:
        path: `package.module:name` or `FILE.py:name`.

    Raises:
        ConfigError: The module has no source file that can be read, or a file was edited after this
            process imported and hashed it.
    """
    found = {name: _of_file(path, name, file) for name, file in files(module_of(path)).items()}
    return next(iter(found.values())) if len(found) == 1 else combined(found)


def of_object(thing: Any) -> str | None:
    """Return the SHA-256 (hex) of the source of a function or class of a script or notebook.

    Args:
        thing: The function or class, a partial function, or an object of such a class; what the
            `repr` of the latter two says counts.

    Returns:
        The hash; None if there is no text, as of code of `exec` or of an extension.
    """
    known: Mapping[int, str | None] = given(HASHES) or {}
    if id(thing) in known:
        return known[id(thing)]
    try:
        found = _texts(_code(thing))
    except OSError:
        return None
    values = (thing.args, thing.keywords) if isinstance(thing, partial) else thing
    if thing is not _code(thing) and " at 0x" not in repr(values):
        found.add(repr(values))
    return _sha256("\n".join(sorted(found)).encode())


def of_net(net: Any) -> str | None:
    """Return the SHA-256 (hex) of the code of a net that was given as an object.

    Args:
        net: The net, whose submodules count, or the function or class that makes it.

    Returns:
        The hash; None if all code is that of installed packages.
    """
    known: Mapping[int, str | None] = given(HASHES) or {}
    if id(net) in known:
        return known[id(net)]
    is_net = hasattr(net, "modules") and not isinstance(net, type)
    kinds = {type(one) for one in net.modules()} if is_net else {_code(net)}
    found = {}
    for kind in kinds:
        if not is_of_package(kind):
            name = f"{kind.__module__}:{kind.__qualname__}"
            found[name] = of_path(path) if (path := path_of(kind)) else of_object(kind) or ""
    return combined(found) if found else None


def checked(thing: Any, path: str, recorded: str | None, whose: str, cure: str) -> str | None:
    """Return the SHA-256 (hex) of the source of a function or class; None if it is not known.

    Args:
        thing: The function or class.
        path: Its import path; `object`, or `object:NAME`, if it has none.
        recorded: The hash that was recorded earlier; None for none.
        whose: What the source belongs to, for the message.
        cure: What to do if the source is not that of the recorded hash.

    Raises:
        ConfigError: The source has changed since the hash was recorded.
    """
    now = of_object(thing) if path.partition(":")[0] == OBJECT else of_path(path)
    if recorded not in (None, now):
        raise ConfigError(
            f"SHA-256 of the source of {whose} was {recorded} and is now {now}. {cure}"
        )
    return now


def combined(hashes: Mapping[str, str]) -> str:
    """Return the SHA-256 (hex) over hashes by name."""
    return _sha256("".join(f"{name} {hashes[name]}\n" for name in sorted(hashes)).encode())


def files(module: str) -> dict[str, Path]:
    """Return the files of a module and of the modules beside it that it imports, by their names.

    Nothing is imported. Imports within functions count, and so do those of modules that are
    imported. The module itself is the first.
    """
    file = file_of(module)
    if file is None or is_installed(file):
        return {module: Path(str(file))}
    found = _imports(module).files
    return {module: file, **{name: found[name] for name in sorted(found) if name != module}}


def versions(modules: Iterable[str]) -> dict[str, str]:
    """Return the versions of the installed packages that modules belong to, or import."""
    tops: set[str] = set()
    for name in modules:
        file = file_of(name)
        others = () if file is None or is_installed(file) else _imports(name).badmodules
        tops |= {one.partition(".")[0] for one in (name, *others)}
    owners = _owners() if tops else {}
    names = {owner for top in tops for owner in owners.get(top, ())}
    return {name: version(name) for name in sorted(names) if name != "flbench"}


@cache
def _owners() -> Mapping[str, list[str]]:
    """Return the installed packages of each top-level module: it takes a third of a second."""
    return packages_distributions()


def is_of_package(thing: Any) -> bool:
    """Return whether a function, class or object is code of an installed package or of Python."""
    top = str(_code(thing).__module__).partition(".")[0]
    folder = None if top == "__main__" else folder_of(top)
    return top in ("flbench", *sys.stdlib_module_names) or (
        folder is not None and is_installed(folder)
    )


class _Finder(ModuleFinder):
    """Finds imports of modules in a folder, packages without `__init__.py` included."""

    def __init__(self, folder: Path | None) -> None:
        super().__init__([str(folder)], excludes=["flbench"])

    @property
    def files(self) -> dict[str, Path]:
        """The files that were found, by the names of their modules."""
        found = {name: getattr(one, "__file__", None) for name, one in self.modules.items()}
        return {name: Path(file) for name, file in found.items() if file and os.path.isfile(file)}

    def find_module(self, name: str, path: Any, parent: Any = None) -> Any:
        try:
            return super().find_module(name, path, parent)
        except (ImportError, AttributeError):  # of a folder without `__init__.py`
            if parent is None and name in self.excludes:
                raise
            for folder in path or self.path:
                if name == "__init__":
                    return io.BytesIO(b""), folder, (".py", "rb", SOURCE)
                if Path(folder, name).is_dir():
                    return None, str(Path(folder, name)), ("", "", PACKAGE)
            raise ImportError(name) from None


def _imports(module: str) -> _Finder:
    """Return what a module of the user imports."""
    finder = _Finder(folder_of(module.partition(".")[0]))
    finder.import_hook(module)
    return finder


def _of_file(path: str, name: str, file: Path) -> str:
    """Return the SHA-256 (hex) of the file of a module that an import path needs."""
    try:
        now = _sha256(file.read_bytes())
    except OSError as error:
        raise ConfigError(
            f"`{path}`: the module `{name}` has no source file that can be read. Put the code in a"
            " file of its own."
        ) from error
    spec = getattr(sys.modules.get(name), "__spec__", None)
    if spec is not None and _first.setdefault(name, (spec, now)) != (spec, now):
        if _first[name][0] is spec:
            raise ConfigError(
                f"`{path}`: the file {file} was edited since `{name}` was imported. Restart the"
                " process (in a notebook: the kernel), so that the new code runs."
            )
        _first[name] = (spec, now)
    return now


def _texts(thing: Any) -> set[str]:
    """Return the text of a function or class, and of what it names in its script or notebook.

    Raises:
        OSError: Python does not know the text.
    """
    home = thing.__module__
    space = vars(sys.modules.get(home, ModuleType("none")))
    finder, constants = _Finder(Path.cwd()), set()
    found, queue = {thing: _source(thing)}, [thing]
    while queue:
        compiled = _compiled(found[one := queue.pop()], one)
        finder.scan_code(compiled, finder.add_module("__main__"))
        named = {name: space[name] for name in _names(compiled) if name in space}
        if isinstance(one, FunctionType):
            named |= inspect.getclosurevars(one).nonlocals
        for name, value in named.items():
            value = inspect.unwrap(value)
            if isinstance(value, CONSTANTS):
                constants.add(f"{name} = {value!r}")
            elif not isinstance(value, type | FunctionType | ModuleType):
                continue
            elif getattr(value, "__module__", None) != home:
                with suppress(ImportError, SyntaxError):  # it is not beside the script
                    finder.import_hook(getattr(value, "__module__", None) or value.__name__)
            elif value not in found:
                found[value] = _source(value)
                queue.append(value)
    modules = {file.read_text("utf-8") for file in finder.files.values()}
    return {*found.values(), *constants, *modules}


def _compiled(text: str, thing: Any) -> CodeType:
    """Return a source text as code; of a lambda, whose text is a part of a statement, its own."""
    try:
        return compile(textwrap.dedent(text), "<source>", "exec")
    except SyntaxError:
        return getattr(thing, "__code__", None) or compile("", "<source>", "exec")


def _names(code: CodeType) -> set[str]:
    """Return the names that code, and the functions within it, look up."""
    inner = (one for one in code.co_consts if isinstance(one, CodeType))
    return set(code.co_names).union(*map(_names, inner))


def _source(code: Any) -> str:
    """Return the text of a function or class.

    Before Python 3.13, a class of a notebook knows no line of its text, and its functions do.
    """
    try:
        return inspect.getsource(code)
    except (OSError, TypeError):
        if not isinstance(code, type):
            raise OSError from None
    fields = {k: str(v) for k, v in vars(code).get("__annotations__", {}).items()}
    bases = ", ".join(one.__name__ for one in code.__bases__)
    text = f"class {code.__name__}({bases}):\n    {fields}\n"
    for name, value in vars(code).items():
        if isinstance(value, (*CONSTANTS, tuple)) and name[:2] != "__":
            text += f"    {name} = {value!r}\n"
        elif isinstance(value := getattr(value, "__func__", value), FunctionType):
            with suppress(OSError):  # of a method that `dataclass` has made
                text += inspect.getsource(value)
    return text


def _code(thing: Any) -> Any:
    """Return a function or class itself, what a partial function calls, or an object's class."""
    while isinstance(thing, partial | MethodType):
        thing = thing.func if isinstance(thing, partial) else thing.__func__
    thing = inspect.unwrap(thing)
    return thing if inspect.isroutine(thing) or isinstance(thing, type) else type(thing)


def _sha256(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()
