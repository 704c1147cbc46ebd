"""Objects of the user's own code, named by their import path `package.module:name`."""

import hashlib
import importlib
import importlib.util
import inspect
import os
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from importlib.machinery import SourceFileLoader
from pathlib import Path
from types import ModuleType
from typing import Any

from flbench.core.errors import ConfigError, did_you_mean

# Name of a module -> (its spec, SHA-256 of its file when flbench first used it). A module that is
# imported anew or reloaded has another spec.
_first: dict[str, tuple[Any, str]] = {}

_text_hashes: ContextVar[Mapping[int, str | None] | None] = ContextVar("text_hashes", default=None)


def find(path: str) -> Any:
    """Return the object at an import path. The current folder is searched after `sys.path`.

    The folder stays at the end of `sys.path`, for imports within functions of the module.

    Args:
        path: `package.module:name`, with dots in `name` for an attribute of an object.

    Raises:
        ConfigError: There is no such module or name, or the module cannot be imported.

    >>> find("math:sqrt")(9.0)
    3.0
    """
    module_name, _, name = path.partition(":")
    here = os.getcwd()
    if here not in sys.path and "" not in sys.path:
        sys.path.append(here)  # the command `flbench` does not search it, `python -m` does
    try:
        found: Any = importlib.import_module(module_name)
    except Exception as error:
        if isinstance(error, ModuleNotFoundError) and module_name.startswith(error.name or "."):
            raise ConfigError(
                f"`{path}`: there is no module `{error.name}`. It must be an installed package, or"
                f" a file in the current folder ({here}) or in a folder of $PYTHONPATH."
            ) from error
        raise ConfigError(
            f"`{path}`: importing `{module_name}` raised {type(error).__name__}: {error}. Correct"
            " the module."
        ) from error
    _remember(found)
    for part in name.split("."):
        known = dir(found)
        if part not in known:
            raise ConfigError(
                f"`{path}`: `{getattr(found, '__file__', module_name)}` has no name"
                f" `{part}`.{did_you_mean(part, known)}"
            )
        found = getattr(found, part)
    return found


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
    found: Any = sys.modules.get(module)
    for part in name.split("."):
        found = getattr(found, part, None)
    return f"{module}:{name}" if found is thing else None


def source_sha256(path: str) -> str:
    """Return the SHA-256 (hex) of the file that an import path's module was read from.

    The whole file counts, because an object may use anything else in it. If another part of the
    process imported the module, an edit before its first use by `find` is seen only if Python's own
    loader imported it and has its bytecode on disk.

    Args:
        path: `package.module:name`; the module has been imported.

    Raises:
        ConfigError: The module has no source file that can be read, or the file was edited after
            the import.
    """
    module_name = path.partition(":")[0]
    module = sys.modules.get(module_name)
    file = getattr(module, "__file__", None)
    try:
        now = hashlib.sha256(Path(str(file)).read_bytes()).hexdigest()
    except OSError as error:
        raise ConfigError(
            f"`{path}`: the module `{module_name}` has no source file that can be read. Put the"
            " code in a file of its own."
        ) from error
    spec, first = _first.get(module_name, (None, ""))
    if spec is not None and spec is getattr(module, "__spec__", None) and first != now:
        raise ConfigError(
            f"`{path}`: the file {file} was edited since `{module_name}` was imported. Restart the"
            " process (in a notebook: the kernel), so that the new code runs."
        )
    return now


@contextmanager
def with_text_hashes(hashes: Mapping[int, str | None]) -> Iterator[None]:
    """Return a context manager in which `text_sha256` knows the hashes of some objects.

    The source of a script, or of a notebook's cell, is known only to the process that runs it.
    Another process that gets an object from there gets the hash with it.

    Args:
        hashes: Hashes by the `id` of the objects, which the caller keeps alive.
    """
    token = _text_hashes.set(hashes)
    try:
        yield
    finally:
        _text_hashes.reset(token)


def text_sha256(thing: Any) -> str | None:
    """Return the SHA-256 (hex) of the source text of a function, or of an object's class.

    Args:
        thing: The function or object.

    Returns:
        The hash; None if Python does not know the source, as for a function made by `exec`.
    """
    known = _text_hashes.get() or {}
    if id(thing) in known:
        return known[id(thing)]
    try:
        text = inspect.getsource(thing if inspect.isroutine(thing) else type(thing))
    except (OSError, TypeError):
        return None
    return hashlib.sha256(inspect.cleandoc(text).encode()).hexdigest()


def file_of(thing: Any) -> str | None:
    """Return the file that tracebacks name for a function, or for an object's `__call__`.

    Args:
        thing: The function or object; None is returned if it is not written in Python.
    """
    function = inspect.unwrap(thing if inspect.isroutine(thing) else type(thing).__call__)
    code = getattr(function, "__code__", None)
    return None if code is None else str(code.co_filename)


def check_unedited(path: str) -> None:
    """Raise a ConfigError if the file of an import path's module was edited after the import.

    Args:
        path: `package.module:name`; `find` has imported the module.
    """
    if path.partition(":")[0] in _first:
        source_sha256(path)


def _remember(module: ModuleType) -> None:
    """Keep the hash of a module's file, or "" if the file is no longer what was imported."""
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
