"""Parts of the user's own code: by import path `package.module:name`, by file, or as objects."""

import importlib
import inspect
import os
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from functools import lru_cache, partial
from importlib.machinery import (
    EXTENSION_SUFFIXES,
    SOURCE_SUFFIXES,
    ExtensionFileLoader,
    FileFinder,
    ModuleSpec,
    PathFinder,
    SourceFileLoader,
)
from pathlib import Path
from types import CodeType
from typing import Any, Final

from flbench.core.errors import ConfigError, did_you_mean

OBJECT: Final = "object"
"""Value of `data.source`, `partition.scheme` and `model.name` for objects without an import path.

The name of such a function in `train.terms` is `object:NAME`.
"""
METRICS: Final = "evaluation.metrics"
"""Name under which the functions of `evaluation.metrics` are offered, as a dict by their names."""
TERMS: Final = "train.terms"
"""Name under which the functions of `train.terms` are offered, as a dict by their names there."""
NETS: Final = ("torch.nn.", "torchvision.models.")
"""Modules, with a dot at the end, of which only layers and nets can be named; see `names_net`."""
_OURS: Final = Path(__file__).resolve().parents[1]
_PYTHON: Final = Path(os.__file__).resolve().parent

_named: dict[str, None] = {}  # folders of files that were named by their paths
_objects: ContextVar[Mapping[str, Any] | None] = ContextVar("objects", default=None)


@contextmanager
def offered(objects: Mapping[str, Any]) -> Iterator[None]:
    """Return a context manager in which `given` returns these objects.

    Args:
        objects: Objects without an import path, by the section of the configuration that they
            stand for.

    >>> with offered({"data": 3}):
    ...     given("data")
    3
    """
    token = _objects.set(objects)
    try:
        yield
    finally:
        _objects.reset(token)


def given(section: str) -> Any:
    """Return the object that was given for a section, such as `model` or `METRICS`, or None."""
    return (_objects.get() or {}).get(section)


def part(path: str, section: str, what: str, again: str, key: str | None = None) -> Any:
    """Return the part of the user's own that a configuration names.

    Args:
        path: Import path `package.module:name`; or `object`, or `object:NAME`, for a part without
            one, which the user has given to a function of the Python interface.
        section: Name under which it was given; see `given`.
        what: The part as messages name it.
        again: Argument of `fl.resume` by which it is given again, such as `model=...`.
        key: Name of the part where several are given together.

    Raises:
        ConfigError: There is no such part (see `find`), or it must be given again.
    """
    if path.partition(":")[0] != OBJECT:
        return find(path)
    found = given(section)
    if key is not None:
        found = (found or {}).get(key)
    if found is None:
        raise ConfigError(
            f"{what} is an object of Python without an import path, so it must be given again:"
            f" fl.resume(path, {again})."
        )
    return found


def find(path: str) -> Any:
    """Return the object at an import path. The current folder is searched after `sys.path`.

    Args:
        path: `package.module:name`, with dots in `name` for an attribute of an object. The file of
            a module, `FILE.py:name`, stands for the module; see `module_of`. `timm:NET` and
            `timm:NET.TAG` are functions that call `timm.create_model` with this name.

    Raises:
        ConfigError: There is no such module or name, or the module cannot be imported.

    >>> find("torchvision.models:resnet18").__name__
    'resnet18'
    """
    import torch

    name = path.rpartition(":")[2]
    module = module_of(path)
    top = module.partition(".")[0]
    if top in (*sys.stdlib_module_names, OBJECT):  # nobody is asked for trust in `object:NAME`
        raise ConfigError(
            f"`{path}`: `{top}` is a name of Python. Name a module of your own, with another name."
        )
    folder = folder_of(top)
    if folder is not None and not is_installed(folder):
        search(str(folder))
    dtype = torch.get_default_dtype()
    try:
        found: Any = importlib.import_module(module)
    except (Exception, SystemExit) as error:
        cure = (
            "Install it: pip install 'flbench[pretrained]'."
            if top == "timm"
            else "Correct the module, or install it; of files, those of the current folder and of"
            " the folders of $PYTHONPATH are modules."
        )
        raise ConfigError(
            f"`{path}`: importing `{module}` raised {type(error).__name__}: {error}. {cure}"
        ) from error
    finally:
        torch.set_default_dtype(dtype)  # a module that sets it would change what flbench computes
    if module == "timm":
        if (net := name.partition(".")[0]) not in (nets := found.list_models()):
            raise ConfigError(f"`{path}`: timm has no net `{net}`.{did_you_mean(net, nets)}")
        return partial(found.create_model, name)
    for one in name.split("."):
        if one not in (known := dir(found)):
            file = getattr(found, "__file__", module)
            raise ConfigError(f"`{path}`: `{file}` has no name `{one}`.{did_you_mean(one, known)}")
        found = getattr(found, one)
    if names_net(path) and not _is_net(found):
        raise ConfigError(
            f"`{path}` is neither a layer of torch.nn nor a net of torchvision.models"
            " (torchvision.models.list_models()). Name one, or code of a module of your own."
        )
    return found


def names_net(path: str) -> bool:
    """Return whether an import path names something of `torch.nn` or `torchvision.models`.

    `find` accepts only their layers and nets under such a path.

    Args:
        path: `package.module:name` or `FILE.py:name`.
    """
    place, _, name = path.rpartition(":")
    return is_dotted(place) and f"{place}.".startswith(NETS) and name.isidentifier()


def _is_net(found: Any) -> bool:
    """Return whether an object is a class of layers of `NETS`, or makes a net of torchvision."""
    if isinstance(found, type):
        from torch import nn

        return issubclass(found, nn.Module) and f"{found.__module__}.".startswith(NETS)
    from torchvision import models

    return any(found is models.get_model_builder(one) for one in models.list_models())


def is_dotted(place: str) -> bool:
    """Return whether a text is the name of a module: identifiers with dots between them."""
    return all(one.isidentifier() for one in place.split("."))


def module_of(path: str) -> str:
    """Return the name of the module of an import path, which is parsed before anything else.

    What ends in `.py` is a file, dotted identifiers are a module, and nothing else is an import
    path. For a file in the current folder, or below it, the name is that by which it is imported
    from there, and for any other file that by which it is imported from its folder.

    Args:
        path: `package.module:name` or `FILE.py:name`.

    Raises:
        ConfigError: It is neither, there is no such file, or Python finds another module under its
            name.

    >>> module_of("package.module:name")
    'package.module'
    """
    place, _, name = path.rpartition(":") if ":" in path else (path, "", "name")
    is_file = place.endswith(".py")
    if not re.fullmatch(r"[\w.]+", name) or not (is_file or is_dotted(place)):
        raise ConfigError(
            f"`{path}` is no import path. Write `package.module:name`, or `FILE.py:name`."
        )
    if not is_file:
        return place
    current = Path.cwd().resolve()
    file = (current / os.path.expanduser(place)).resolve()
    names = file.relative_to(current).with_suffix("").parts if file.is_relative_to(current) else ()
    if not names or not all(one.isidentifier() for one in names):
        names = (file.stem,)
        _named.setdefault(str(file.parent))
    name = ".".join(names)
    known = file_of(name) if is_dotted(name) else None
    if known is None or known.resolve() != file:
        raise ConfigError(
            f"`{path}`: Python would import `{name}` from {known or 'no file'}, not from {file}."
            " Name a file that exists, whose name has letters, digits and underscores alone and is"
            " that of no other module."
        )
    return name


def path_of(thing: Any) -> str | None:
    """Return the import path of a function or class by which other processes import it, or None.

    Objects of `__main__`, those made within a function, and those of modules that Python does not
    find where this process has them from have none.

    >>> from fractions import Fraction
    >>> path_of(Fraction), path_of(Fraction.limit_denominator), path_of(Fraction(1, 2))
    ('fractions:Fraction', 'fractions:Fraction.limit_denominator', None)
    """
    module, name = getattr(thing, "__module__", None), getattr(thing, "__qualname__", None)
    if not isinstance(module, str) or not isinstance(name, str) or module == "__main__":
        return None
    if not is_dotted(module):  # a module that was loaded from a file such as `my-nets.py`
        return None
    found: Any = sys.modules.get(module)
    file = getattr(found, "__file__", None)
    for one in name.split("."):
        found = getattr(found, one, None)
    spec = spec_of(module) if found is thing else None
    if spec is None or file is None or spec.origin is None:
        return None
    return f"{module}:{name}" if os.path.realpath(spec.origin) == os.path.realpath(file) else None


def check_arguments(
    function: Callable[..., Any],
    takes: Sequence[str],
    arguments: Mapping[str, Any],
    what: str,
    others: Iterable[str] = (),
) -> None:
    """Check that a function of the user can be called with its arguments.

    Args:
        function: The function. One without a signature is not checked: it is not in Python.
        takes: What it gets by position, in words.
        arguments: Its keyword arguments by name.
        what: The function as messages name it.
        others: Further names that the user may have meant.

    Raises:
        ConfigError: The function has no such keyword argument, or cannot be called so.
    """
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError):
        return
    try:
        signature.bind(*[None] * len(takes), **arguments)
    except TypeError as error:
        known = [*list(signature.parameters)[len(takes) :], *others]
        hints = (did_you_mean(one, known) for one in arguments if one not in known)
        raise ConfigError(
            f"{what} is called with {', '.join(takes)} and the keyword arguments"
            f" {sorted(arguments)}: {error}.{next(hints, '')}"
        ) from error


def spec_of(name: str) -> ModuleSpec | None:
    """Return where a module is; None if there is none. Nothing is imported.

    The current folder and those of files that are named by their paths come last. Python itself
    does not search them before `find` imports a module of them.
    """
    above, _, last = name.rpartition(".")
    places = _places(above) if above else None
    if not last or (above and not places):
        return None
    for finder in sys.meta_path:  # packages installed as editable have finders of their own
        try:
            spec = finder.find_spec(name, places)
        except (ImportError, ValueError, AttributeError, KeyError):
            continue  # a KeyError: of a folder without `__init__.py` in one that is not imported
        if spec is not None:
            return spec
    return None if above else PathFinder.find_spec(name, ["", *_named])


def _places(name: str) -> list[str]:
    """Return the folders of a package; an empty list for a module that is no package."""
    if name in sys.modules:
        return list(getattr(sys.modules[name], "__path__", ()))
    spec = spec_of(name)
    if spec is not None:
        return list(spec.submodule_search_locations or ())
    above, _, last = name.rpartition(".")
    inner = (os.path.join(one, last) for one in (_places(above) if above else ()))
    return [one for one in inner if os.path.isdir(one)]


def file_of(name: str) -> Path | None:
    """Return the file of a module; None if there is none. Nothing is imported."""
    if name in sys.modules:
        file = getattr(sys.modules[name], "__file__", None)
    else:
        spec = spec_of(name)
        file = None if spec is None or not spec.has_location else spec.origin
    return None if file is None else Path(file)


def folder_of(top: str) -> Path | None:
    """Return the folder that has a module or package of the top level; None if there is none."""
    if places := _places(top):
        return Path(places[0]).resolve().parent
    file = file_of(top)
    return None if file is None else file.resolve().parent


@lru_cache(maxsize=4096)
def is_installed(path: Path | str) -> bool:
    """Return whether a file or folder belongs to Python or to an installed package.

    It is within a folder of this Python, or any folder `site-packages` or `dist-packages`. A
    package that is installed as editable lies in a folder of the user, and is the user's own.

    >>> is_installed(inspect.__file__), is_installed("<string>")
    (True, False)
    """
    place = Path(path)
    return place.is_absolute() and any(
        not {"site-packages", "dist-packages"}.isdisjoint(one.parts) or one.is_relative_to(_PYTHON)
        for one in (place, place.resolve())
    )


def search(folder: str) -> None:
    """Let Python search a folder last, unless it does already, and load sources alone.

    Args:
        folder: Folder with modules of the user, without symbolic links.
    """
    load_sources()
    if folder not in map(os.path.realpath, sys.path):
        sys.path.append(folder)


def load_sources() -> None:
    """Let Python load no bytecode of folders that are not installed."""
    if _finder not in sys.path_hooks:
        sys.path_hooks.insert(0, _finder)
        sys.path_importer_cache.clear()  # Python's own finders load bytecode


class _SourceLoader(SourceFileLoader):
    """Compiles the source of a module, which is what is hashed, and reads no bytecode beside it."""

    def get_code(self, fullname: str) -> CodeType:
        return self.source_to_code(self.get_data(self.path), self.path)


_find: Final = FileFinder.path_hook(
    (ExtensionFileLoader, EXTENSION_SUFFIXES), (_SourceLoader, SOURCE_SUFFIXES)
)


def _finder(folder: str) -> Any:
    """Return what finds modules in a folder of the user's own code; see `sys.path_hooks`."""
    if is_installed(folder) or Path(folder).resolve().is_relative_to(_OURS):
        raise ImportError(f"{folder} has no code of the user")
    return _find(folder)
