"""Objects of the user's own code, named by their import path `package.module:name`."""

import functools
import hashlib
import importlib
import inspect
import os
import pickle
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from importlib.machinery import (
    EXTENSION_SUFFIXES,
    SOURCE_SUFFIXES,
    ExtensionFileLoader,
    FileFinder,
    SourceFileLoader,
)
from pathlib import Path
from types import CodeType, ModuleType
from typing import Any, Final

import torch
from torch import nn

from flbench.core import consent, given, user_code
from flbench.core.errors import ConfigError, did_you_mean
from flbench.core.given import OBJECT
from flbench.core.installed import is_installed
from flbench.core.user_code import here

NO_PARTS: Final = frozenset(
    (
        *("flbench", "torch", "lightning", "pytorch_lightning", "numpy", "scipy", "pandas", "PIL"),
        *("ray", "mlflow", "optuna", "cloudpickle", "joblib", "yaml", "pydantic"),
    )
)
"""Packages whose functions are no parts of an experiment; some of them load code or run it.

`flbench.core.user_code.PUBLIC` has another purpose: classes and functions of those packages may be
parts, and their code is not hashed.
"""

NETS: Final = ("torch.nn.", "torchvision.models.")
"""Modules, with a dot at the end, of which only layers and nets can be named; see `names_net`."""

MAKERS: Final = {"timm": ("create_model", "flbench[pretrained]")}
"""Packages whose nets have names, by the function that makes a net, and what installs them.

`timm:NAME` stands for `timm.create_model(NAME)`, unless the package has an attribute NAME.
"""

_OURS: Final = Path(__file__).resolve().parents[1]

# Name of a module -> (its spec, SHA-256 of its file when flbench first used it). A module that is
# imported anew or reloaded has another spec.
_first: dict[str, tuple[Any, str]] = {}

_searched: dict[str, None] = {}  # folders that `search` got, in their order

_text_hashes: ContextVar[Mapping[int, "TextHashes | None"] | None] = ContextVar(
    "text_hashes", default=None
)


def find(path: str) -> Any:
    """Return the object at an import path. The current folder is searched after `sys.path`.

    If the module is there, the folder is appended to `sys.path` and stays there, for imports within
    functions of the module. Otherwise Python does not search it: an optional import of a library
    would find files of strangers. A path from a file is imported only if `flbench.config.trust` has
    found it there and asked about it.

    Args:
        path: `package.module:name`, with dots in `name` for an attribute of an object. The file of
            a module, `FILE.py:name`, stands for the module; see `module_of`. `timm:NAME` is the
            function that makes this net of timm; see `MAKERS`.

    Raises:
        ConfigError: There is no such module or name, the module cannot be imported, or a file
            names it that may be a stranger's.

    >>> find("torchvision.models:resnet18").__name__
    'resnet18'
    """
    name = path.rpartition(":")[2]
    place_of(path)
    module_name = module_of(path)
    if module_name.partition(".")[0] in (*sys.stdlib_module_names, OBJECT):
        raise ConfigError(
            f"`{path}` is in Python's standard library, which has no parts of an experiment. Name a"
            " class or function of a module of your own."
        )
    if consent.is_unasked(path) and user_code.spec_of(module_name.partition(".")[0]) is not None:
        raise ConfigError(
            f"`{path}` is code that a file names, and you have not allowed it. Code can do all that"
            " you can do. Read it, and if you trust it, add --run-code (in Python: trust=True)."
        )
    folder = user_code.folder_of(module_name.partition(".")[0])
    if folder is not None and not is_installed(folder) and module_name not in MAKERS:
        search(str(folder))
    dtype = torch.get_default_dtype()
    try:
        found: Any = importlib.import_module(module_name)
    except (Exception, SystemExit) as error:
        if isinstance(error, ModuleNotFoundError) and module_name.startswith(error.name or "."):
            if module_name in MAKERS:
                raise ConfigError(
                    f"`{path}` needs the package `{module_name}`, which is not installed: pip"
                    f" install '{MAKERS[module_name][1]}'"
                ) from error
            raise ConfigError(
                f"`{path}`: there is no module `{error.name}`. It must be an installed package, or"
                f" a file in the current folder ({here()}) or in a folder of $PYTHONPATH."
            ) from error
        cure = "Correct the module."
        if isinstance(error, SystemExit):
            cure = "Put what it does as a script below if __name__ == '__main__':."
        raise ConfigError(
            f"`{path}`: importing `{module_name}` raised {type(error).__name__}: {error}. {cure}"
        ) from error
    finally:
        torch.set_default_dtype(dtype)  # a module that sets it would change what flbench computes
    keep_hashes(found.__name__)
    if module_name in MAKERS and name not in dir(found):
        names = found.list_models()
        if name.partition(".")[0] not in names:
            raise ConfigError(f"`{path}`: timm has no net `{name}`.{did_you_mean(name, names)}")
        return functools.partial(getattr(found, MAKERS[module_name][0]), name)
    if names_net(path) and name in dir(found) and not _is_net(getattr(found, name)):
        raise ConfigError(
            f"`{path}` is neither a layer of torch.nn nor a net of torchvision.models"
            " (torchvision.models.list_models()). Name one, or code of a module of your own."
        )
    for part in name.split("."):
        known = dir(found)
        if part not in known:
            raise ConfigError(
                f"`{path}`: `{getattr(found, '__file__', module_name)}` has no name"
                f" `{part}`.{did_you_mean(part, known)}"
            )
        found = getattr(found, part)
    _check_is_part(path, found)
    return found


def part(path: str, section: str, what: str, again: str, key: str | None = None) -> Any:
    """Return the part of the user's own that a configuration names.

    Args:
        path: Import path `package.module:name`; or `object`, or `object:NAME`, for a part without
            one, which the user has given to a function of the Python interface.
        section: Name under which it was given; see `flbench.core.given.find`.
        what: The part as messages name it.
        again: Argument of `fl.resume` by which it is given again, such as `model=...`.
        key: Name of the part where several are given together.

    Raises:
        ConfigError: There is no such part (see `find`), or it must be given again.
    """
    if path.partition(":")[0] != OBJECT:
        return find(path)
    found = given.find(section)
    if key is not None:
        found = (found or {}).get(key)
    if found is None:
        raise ConfigError(
            f"{what} is an object of Python without an import path, so it must be given again:"
            f" fl.resume(path, {again})."
        )
    return found


def _check_is_part(path: str, found: Any) -> None:
    """Raise a ConfigError if an object is code that cannot be a part of an experiment.

    A module may have functions of Python and of libraries, by an import or under another name.
    """
    while isinstance(found, functools.partial):
        found = found.func
    if not isinstance(found, type) and not inspect.isroutine(found):
        return
    owner = type(getattr(found, "__self__", None))  # of a method of a built-in class
    home = str(getattr(found, "__module__", None) or owner.__module__)
    top = home.partition(".")[0]
    if top in sys.stdlib_module_names or (top in NO_PARTS and not isinstance(found, type)):
        name = getattr(found, "__qualname__", str(found))
        raise ConfigError(
            f"`{path}` is {name} of {home}, which is no part of an experiment. Name a class or"
            " function of a module of your own."
        )


def where_to_put(reason: str) -> str:
    """Return where processes find modules, as a sentence, if a reason is that there is none.

    Args:
        reason: Text of an error.

    Returns:
        The sentence, with a blank before it; "" for other reasons.

    >>> where_to_put("No module named 'nets'")[:44]
    ' Worker processes import modules from files:'
    >>> where_to_put("division by zero")
    ''
    """
    if "No module named" not in reason:
        return ""
    return (
        " Worker processes import modules from files: in the current folder, in a folder of"
        " $PYTHONPATH, or of an installed package; on a cluster, each machine needs them."
    )


def place_of(path: str) -> tuple[str, bool]:
    """Return the module or the file that an import path names, and whether it is a file.

    What ends in `.py` is a file; dotted identifiers are a module; nothing else is an import path.

    Args:
        path: `package.module:name` or `FILE.py:name`.

    Raises:
        ConfigError: It is neither.

    >>> place_of("package.module:name"), place_of("torch.nn./../theirs/nets.py:Net")
    (('package.module', False), ('torch.nn./../theirs/nets.py', True))
    """
    place = path.rpartition(":")[0] or path
    is_file = place.endswith(".py")
    if not is_file and not _is_dotted(place):
        raise ConfigError(
            f"`{path}` is no import path. Write `package.module:name`, or `FILE.py:name`."
        )
    return place, is_file


def _is_dotted(place: str) -> bool:
    """Return whether a text is the name of a module: identifiers with dots between them."""
    return all(part.isidentifier() for part in place.split("."))


def names_net(path: str) -> bool:
    """Return whether an import path names something of `torch.nn` or `torchvision.models`.

    `find` accepts only their layers and nets under such a path.

    Args:
        path: `package.module:name` or `FILE.py:name`.
    """
    try:
        place, is_file = place_of(path)
    except ConfigError:
        return False
    name = path.rpartition(":")[2]
    return not is_file and f"{place}.".startswith(NETS) and name.isidentifier()


def _is_net(found: Any) -> bool:
    """Return whether an object is a class of layers of `NETS`, or makes a net of torchvision."""
    if isinstance(found, type):
        return issubclass(found, nn.Module) and f"{found.__module__}.".startswith(NETS)
    from torchvision import models

    return any(found is models.get_model_builder(one) for one in models.list_models())


def module_of(path: str) -> str:
    """Return the name of the module of an import path.

    For a file in the current folder, or below it, that is the name by which it is imported from
    there, and for any other file the name by which it is imported from its folder.

    Args:
        path: `package.module:name` or `FILE.py:name`.

    Raises:
        ConfigError: There is no such file, or Python finds another module under its name.

    >>> module_of("package.module:name")
    'package.module'
    """
    place = path.rpartition(":")[0] or path
    if not place.endswith(".py"):
        return place
    file = Path(here(), Path(place).expanduser()).resolve()
    if not file.is_file():
        raise ConfigError(
            f"`{path}`: there is no file {place}. Name a file of Python, or a module without `.py`."
        )
    current = Path(here()).resolve()
    parts = file.relative_to(current).with_suffix("").parts if file.is_relative_to(current) else ()
    if not parts or not all(part.isidentifier() for part in parts):
        parts = (file.stem,)
        if not file.stem.isidentifier():
            raise ConfigError(
                f"`{path}`: `{file.name}` cannot be imported. Rename the file: the name of a module"
                " has letters, digits and underscores alone."
            )
        user_code.named_folders.setdefault(str(file.parent))
    name = ".".join(parts)
    known = user_code.file_of(name)
    if known is None or known.resolve() != file:
        raise ConfigError(
            f"`{path}`: the module `{name}` is {known or 'not a file'}, not {file}. Rename the"
            " file, so that its name is that of no other module."
        )
    return name


def search(folder: str) -> None:
    """Let Python search a folder last, unless it does already, and load the sources there.

    Args:
        folder: Folder with modules of the user, without symbolic links.
    """
    if folder not in _searched:
        _searched[folder] = None
        if _finder not in sys.path_hooks:
            sys.path_hooks.insert(0, _finder)
        sys.path_importer_cache.clear()  # Python's own finders load bytecode
    if folder not in map(os.path.realpath, sys.path):
        sys.path.append(folder)


class _SourceLoader(SourceFileLoader):
    """Compiles the source of a module, which is what is hashed, and reads no bytecode beside it."""

    def get_code(self, fullname: str) -> CodeType:
        return self.source_to_code(self.get_data(self.path), self.path)


def _finder(folder: str) -> FileFinder:
    """Return what finds modules in a folder of the user's own code; see `sys.path_hooks`."""
    place = Path(folder).resolve()
    is_other = is_installed(place) or place.is_relative_to(_OURS)
    if is_other or not any(place.is_relative_to(one) for one in _searched):
        raise ImportError(f"{folder} has no code of the user")
    extensions = (ExtensionFileLoader, EXTENSION_SUFFIXES)
    return FileFinder(folder, extensions, (_SourceLoader, SOURCE_SUFFIXES))


def is_searched_early(folder: str) -> bool:
    """Return whether Python searches a folder before its own modules.

    The user arranges this: it holds for the folder of a script, for the current folder in a
    notebook, and for those of $PYTHONPATH.
    """
    order = [os.path.abspath(one) for one in sys.path]
    own = os.path.dirname(os.path.abspath(os.__file__))
    early = order[: order.index(own)] if own in order else order
    return os.path.abspath(folder) in early


def portable(thing: Any, dumps: Callable[[Any], bytes]) -> Any:
    """Return an object which arrives as `thing` in another process that unpickles it.

    Modules of the user are found there where they are found here: the other process searches the
    folders of this one in their order, and has its own folders of Python and its packages between
    those that this process searches before and after Python's own modules.

    Args:
        thing: What is sent.
        dumps: Function that pickles it.
    """
    folders = [os.path.abspath(one) for one in sys.path if os.path.isdir(one or ".")]
    early = [one for one in dict.fromkeys(folders) if is_searched_early(one)]
    late = [one for one in dict.fromkeys([*folders, *_searched]) if one not in early]
    return _Portable((early, late, list(_searched), here()), dumps(thing))


_Folders = tuple[list[str], list[str], list[str], str]
"""Folders that are searched before and after Python's own modules, those among them whose modules
are loaded from their sources, and the current folder."""


class _Portable:
    """Pickles as what `_arrived` returns.

    Args:
        folders: Folders in which modules of the user are.
        content: The pickled object.
    """

    def __init__(self, folders: _Folders, content: bytes) -> None:
        self._sent = (folders, content)

    def __reduce__(self) -> tuple[Callable[..., Any], tuple[_Folders, bytes]]:
        return _arrived, self._sent


def _arrived(folders: _Folders, content: bytes) -> Any:
    """Return the object that another process has sent."""
    early, late, searched, user_code.sender = folders
    own = [one for one in sys.path if os.path.abspath(one) not in (*early, *late)]
    if sys.path != (order := [*early, *own, *late]):
        sys.path[:] = order
    for folder in searched:
        search(folder)
    return pickle.loads(content)


def check_arguments(
    function: Callable[..., Any],
    takes: Sequence[str],
    arguments: Mapping[str, Any],
    what: str,
    prefix: str = "",
    others: Iterable[str] = (),
) -> None:
    """Check that a function of the user can be called with its arguments.

    A function that is not written in Python may have no signature, and is then not checked.

    Args:
        function: The function.
        takes: What it gets by position, in words.
        arguments: Its keyword arguments by name.
        what: The function as messages name it.
        prefix: What stands before the name of an argument in its key, such as `partition.args.`.
        others: Further names that the user may have meant.

    Raises:
        ConfigError: The function has no such keyword argument, or cannot be called so.

    >>> def scheme(y, clients, rng, /, shift=0): ...
    >>> takes = ["labels", "number of clients", "random generator"]
    >>> check_arguments(scheme, takes, {"shift": 1}, "`in_turn`")
    >>> check_arguments(scheme, takes, {"y": 1}, "`in_turn`")
    Traceback (most recent call last):
        ...
    flbench.core.errors.ConfigError: `in_turn` has no keyword argument `y`. It has: shift.
    """
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError):
        return
    accepted = list(signature.parameters.values())
    names = [
        one.name for one in accepted if one.kind in (one.POSITIONAL_ONLY, one.POSITIONAL_OR_KEYWORD)
    ]
    keys = [
        one.name
        for one in accepted
        if one.kind in (one.POSITIONAL_OR_KEYWORD, one.KEYWORD_ONLY)
        and one.name not in names[: len(takes)]
    ]
    if not any(one.kind is one.VAR_KEYWORD for one in accepted):
        for key in (key for key in arguments if key not in keys):
            hint = did_you_mean(key, [*keys, *others]) or f" It has: {', '.join(keys) or 'none'}."
            raise ConfigError(f"{what} has no keyword argument `{prefix}{key}`.{hint}")
    try:
        signature.bind(*[None] * len(takes), **arguments)
    except TypeError as error:
        raise ConfigError(
            f"{what} must accept {', '.join(takes)} and the keyword arguments {sorted(arguments)}:"
            f" {error}."
        ) from error


def path_of(thing: Any) -> str | None:
    """Return the import path of a function or class; None if it has none.

    Objects of `__main__`, and those made within a function, cannot be imported by another process.

    Args:
        thing: Any object.

    >>> from fractions import Fraction
    >>> path_of(Fraction), path_of(Fraction.limit_denominator), path_of(Fraction(1, 2))
    ('fractions:Fraction', 'fractions:Fraction.limit_denominator', None)
    """
    module, name = getattr(thing, "__module__", None), getattr(thing, "__qualname__", None)
    if not isinstance(module, str) or not isinstance(name, str) or module == "__main__":
        return None
    if not _is_dotted(module):  # a module that was loaded from a file such as `my-nets.py`
        return None
    found: Any = sys.modules.get(module)
    for part in name.split("."):
        found = getattr(found, part, None)
    return f"{module}:{name}" if found is thing else None


def is_importable(path: str) -> bool:
    """Return whether another process can import the module of an import path.

    It can if Python finds the module where this process has it from. A module that was made in
    memory, or loaded from a file by other means than an import, cannot be imported.

    Args:
        path: `package.module:name`; the module has been imported.
    """
    name = module_of(path)
    file = getattr(sys.modules.get(name), "__file__", None)
    spec = None if file is None else user_code.spec_of(name)
    if file is None or spec is None or spec.origin is None:
        return False
    return Path(spec.origin).resolve() == Path(file).resolve()


def source_sha256(path: str, recorded: str | None = None) -> str:
    """Return the SHA-256 (hex) of the source that an import path's module consists of.

    The whole file counts, because an object may use anything else in it, and so do the modules of
    the same package or folder that it imports, and what a program has set in them after the import;
    see `flbench.core.user_code`. The hash of a module that imports none of them is that of its
    file. If another part of the process imported a module, an edit before its first use by `find`
    is seen only if Python's own loader imported it and has its bytecode on disk.

    Args:
        path: `package.module:name`. If the module has not been imported, nothing is imported.
        recorded: The hash that was recorded earlier; None for none. Hashes of earlier versions are
            those of the file alone. If `recorded` is that of the unchanged file, it is returned.

    Raises:
        ConfigError: The module has no source file that can be read, or a file was edited after the
            import.
    """
    name = module_of(path)
    alone = _file_sha256(path, name)
    hashes = {name: alone}
    for other, file in _siblings(path).items():
        hashes[other] = _file_sha256(path, other, file)
    later = dict(_altered(path))
    hashes |= {f"{one}=": hashlib.sha256(x.encode()).hexdigest() for one, x in later.items()}
    now = alone if len(hashes) == 1 else user_code.combined(hashes)
    return alone if recorded == alone and not later else now


def check_unaltered(path: str) -> None:
    """Raise a ConfigError if a program has set something in the modules of an import path.

    Args:
        path: `package.module:name`, which other processes will import.
    """
    for name, text in _altered(path):
        raise ConfigError(
            f"`{path}`: the program has set `{text.splitlines()[0]}` in the module `{name}`, and"
            " worker processes import the file as it is. Write this into the file, or make it a key"
            " or an argument."
        )


def _siblings(path: str) -> dict[str, Path]:
    """Return the files of the modules that an import path's module consists of, beside itself."""
    name = module_of(path)
    thing = sys.modules.get(name)
    for part in path.rpartition(":")[2].split("."):
        thing = getattr(thing, part, None)
    return user_code.siblings(name, thing)


def _altered(path: str) -> Iterator[tuple[str, str]]:
    """Yield the modules of an import path in which a program has set something, and what."""
    name = module_of(path)
    files = {name: user_code.file_of(name), **_siblings(path)}
    known = [file for file in files.values() if file is not None]
    for one, file in files.items():
        if file is not None and (text := user_code.altered(one, file, known)):
            yield one, text


def edited_last(path: str) -> str:
    """Return a sentence, with a blank before it, on the file of a hash that was edited last.

    Args:
        path: The import path that `source_sha256` hashes the source of.

    Returns:
        The sentence; "" if the hash is that of one file, or of an object without an import path.
    """
    if ":" not in path or path.startswith(f"{OBJECT}:"):
        return ""
    name = module_of(path)
    files = [user_code.file_of(name), *_siblings(path).values()]
    times = {file: file.stat().st_mtime for file in files if file is not None and file.exists()}
    if len(times) < 2:
        return ""
    return f" It covers {len(times)} files; {max(times, key=times.__getitem__)} was edited last."


def _file_sha256(path: str, name: str, file: Path | None = None) -> str:
    """Return the SHA-256 (hex) of the file of a module that an import path needs.

    Args:
        path: The import path, for messages.
        name: Name of the module.
        file: Its file; None to look for it.

    Raises:
        ConfigError: The file cannot be read, or was edited after the import.
    """
    module = sys.modules.get(name)
    place = user_code.file_of(name) if file is None else file
    try:
        now = hashlib.sha256(Path(str(place)).read_bytes()).hexdigest()
    except OSError as error:
        raise ConfigError(
            f"`{path}`: the module `{name}` has no source file that can be read. Put the"
            " code in a file of its own."
        ) from error
    spec, first = _first.get(name, (None, ""))
    if spec is not None and spec is getattr(module, "__spec__", None) and first != now:
        raise ConfigError(
            f"`{path}`: the file {place} was edited since `{name}` was imported. Restart the"
            " process (in a notebook: the kernel), so that the new code runs."
        )
    return now


TextHashes = tuple[str, str]
"""SHA-256 (hex) of the source of a function or class with all that it uses, and of it alone."""


@contextmanager
def with_text_hashes(hashes: Mapping[int, TextHashes | None]) -> Iterator[None]:
    """Return a context manager in which `text_sha256` knows the hashes of some objects.

    The source of a script, or of a notebook's cell, is known only to the process that runs it.
    Another process that gets an object from there gets the hashes with it.

    Args:
        hashes: Hashes by the `id` of the objects, which the caller keeps alive.
    """
    token = _text_hashes.set(hashes)
    try:
        yield
    finally:
        _text_hashes.reset(token)


def text_hashes(thing: Any) -> TextHashes | None:
    """Return the hashes of the source text of a function, of a class, or of an object's class.

    The functions, classes and constants of the same script or notebook that it uses count, and so
    do the modules beside the script that it uses.

    Args:
        thing: The function, class or object.

    Returns:
        The hashes; None for code that is not written in Python.
    """
    known = _text_hashes.get() or {}
    if id(thing) in known:
        return known[id(thing)]
    found = user_code.texts(thing)
    if found is None:
        return None
    hashes = {name: hashlib.sha256(text.encode()).hexdigest() for name, text in found.items()}
    alone = next(iter(hashes.values()))
    for name in user_code.modules_used(thing):
        hashes[f"{name}:"] = source_sha256(f"{name}:")
    return (alone if len(hashes) == 1 else user_code.combined(hashes)), alone


def net_hashes(source: Any) -> TextHashes | None:
    """Return the hashes of the code of a net that was given as an object.

    The classes of the net and of its submodules count, with their sources and with those attributes
    that are numbers, texts or collections of them. Classes of installed packages do not.

    Args:
        source: The net, or the function or class that makes it.

    Returns:
        A pair of equal hashes, because there is none of a part of the code alone; None if all code
        is that of installed packages.
    """
    known = _text_hashes.get() or {}
    if id(source) in known:
        return known[id(source)]
    found: dict[str, str] = {}
    modules = dict(source.named_modules()) if isinstance(source, nn.Module) else {}
    for thing in {type(one) for one in modules.values()} or [source]:
        path = path_of(thing)
        if user_code.is_of_package(thing):
            continue
        if path is not None and is_importable(path):
            found[path] = source_sha256(path)
        elif hashes := text_hashes(thing):
            found[f"{thing.__module__}:{getattr(thing, '__qualname__', '')}"] = hashes[0]
    state = "\n".join(f"{name}: {user_code.settings(one)}" for name, one in modules.items())
    if not found and not any(map(user_code.settings, modules.values())):
        return None
    found["="] = hashlib.sha256(state.encode()).hexdigest()
    now = user_code.combined(found)
    return now, now


def text_sha256(thing: Any, recorded: str | None = None) -> str | None:
    """Return the SHA-256 (hex) of the source text of a function, class or object.

    Args:
        thing: The function, class or object; see `text_hashes`.
        recorded: The hash that was recorded earlier; see `source_sha256`.
    """
    hashes = text_hashes(thing)
    if hashes is None:
        return None
    now, alone = hashes
    return alone if recorded == alone else now


def unchanged_sha256(
    thing: Any, path: str, recorded: str | None, whose: str, cure: str
) -> str | None:
    """Return the SHA-256 (hex) of the source of a function or class of the user.

    Args:
        thing: The function or class.
        path: Its import path; `object`, or `object:NAME`, if it has none.
        recorded: The hash that was recorded earlier; None for none.
        whose: What the source belongs to, for the message.
        cure: What to do if the source is not that of the recorded hash.

    Returns:
        The hash; None if Python does not know the source of something without an import path.

    Raises:
        ConfigError: The source has changed since the hash was recorded.
    """
    has_path = path.partition(":")[0] != OBJECT
    now = source_sha256(path, recorded) if has_path else text_sha256(thing, recorded)
    if recorded not in (None, now):
        raise ConfigError(
            f"SHA-256 of the source of {whose} was {recorded} and is now {now}. {cure}"
            f"{edited_last(path)}"
        )
    return now


def check_unedited(path: str) -> None:
    """Raise a ConfigError if the file of an import path's module was edited after the import.

    Args:
        path: `package.module:name`; `find` has imported the module.
    """
    if module_of(path) in _first:
        source_sha256(path)


def keep_hashes(name: str) -> None:
    """Keep the hashes of the files that a module consists of, to see later edits.

    Args:
        name: Name of a module that has been imported.
    """
    for one in (name, *user_code.siblings(name)):
        if one in sys.modules:
            _keep_hash(sys.modules[one])


def _keep_hash(module: ModuleType) -> None:
    """Keep the hash of a module's file, or "" if the file differs from what was imported."""
    spec, file = module.__spec__, getattr(module, "__file__", None)
    if spec is None or _first.get(module.__name__, (None, ""))[0] is spec:
        return
    try:
        source = Path(str(file)).read_bytes()
        # Other loaders, such as pytest's, neither read nor write Python's bytecode. What is there
        # comes from another process, which may have imported an earlier version of the file.
        is_pythons = type(spec.loader) is SourceFileLoader
        is_same = not is_pythons or _is_bytecode_of(spec.cached, Path(str(file)), source)
    except OSError:
        return
    _first[module.__name__] = (spec, hashlib.sha256(source).hexdigest() if is_same else "")


def _is_bytecode_of(cached: str | None, file: Path, source: bytes) -> bool:
    """Return False if the bytecode that Python wrote at the import is that of another source."""
    if cached is None or sys.dont_write_bytecode or not os.access(Path(cached).parent, os.W_OK):
        return True  # there may be bytecode of an earlier import, which says nothing
    try:
        header = Path(cached).read_bytes()[4:16]  # PEP 552: flags, then 8 bytes on the source
    except OSError:
        return True
    if header[0] & 1:
        return header[4:] == importlib.util.source_hash(source)
    numbers = int(file.stat().st_mtime), len(source)
    return header[4:] == b"".join((one & 0xFFFFFFFF).to_bytes(4, "little") for one in numbers)
