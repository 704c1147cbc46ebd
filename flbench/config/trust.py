"""Whether code that a file names may run.

A configuration can name code: a net, a method, a loss term, a metric, a partition scheme, or a
function that returns data. Reading results imports none of it. Training, predicting and exporting
do, and a file may come from somebody else. Code that a file names therefore runs only if the user
says so (`--run-code`, in Python `trust=True`), or if the file and the files of the code are on the
user's list: flbench has written them, or the user has allowed them before. As ssh does with its
keys, flbench ignores the list for files that others can change.

Code that the user names on the command line or in Python needs neither, and neither do the layers
of `torch.nn` and the nets of `torchvision.models`.
"""

import os
import stat
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from pathlib import Path
from typing import Any, Final

import platformdirs

from flbench.core import parts
from flbench.core.errors import ConfigError

ADDRESS: Final = "engine.address"
"""Key with the address of a Ray cluster, whose answers are unpickled, which executes code."""

_allowed: ContextVar[bool] = ContextVar("run_code", default=False)


@contextmanager
def run_code(allowed: bool) -> Iterator[None]:
    """Return a context manager in which code that files name may run, if the user allows it."""
    token = _allowed.set(allowed or _allowed.get())
    try:
        yield
    finally:
        _allowed.reset(token)


def allow() -> None:
    """Let code that files name run until the end of the enclosing `run_code`."""
    _allowed.set(True)


def named_code(*trees: Any) -> dict[str, str]:
    """Return the code that trees of values name, as `KEY=VALUE` with the path of its file.

    Every value that is an import path of a module counts, whatever its key is. Nothing is imported.
    The path is "" for a module without a file, which is never on the list; a Ray cluster has its
    address there.

    Args:
        trees: Values as a file has them: a configuration, or a tree with configurations in it.
            Keys may be dotted.
    """
    texts = [*_texts(trees, "")]
    modules = {text: _module(text) for _, text in texts}  # all, as one may add a folder to search
    found = {}
    for key, text in texts:
        module, top = modules[text], modules[text].partition(".")[0]
        if ADDRESS in key:
            if text != os.environ.get("RAY_ADDRESS"):
                found[f"{key}={text}"] = text
        elif top in sys.modules or parts.spec_of(top):  # packages are imported with their modules
            file = parts.file_of(module)
            found[f"{key}={text}"] = os.path.realpath(file) if file else ""
    return found


def check(file: Path, *trees: Any) -> None:
    """Check that the code that a file names may run, before it is imported.

    Raises:
        ConfigError: The file, or code that it names, is not on the list, or others can change it,
            and the user has not allowed the code to run.
    """
    named = named_code(*trees)
    if _allowed.get():
        record(file, *trees)
    elif named and not all(map(_is_trusted, (os.path.realpath(file), *named.values()))):
        lines = [f"  {key}: {place or 'no file'}" for key, place in named.items()]
        raise ConfigError(
            f"{file} names code. It is not on the list of what your flbench has written or you have"
            " allowed, or others can change it:\n" + "\n".join(lines) + "\nCode can do all that"
            " you can do. Read it, and if you trust it, add --run-code (in Python: trust=True)."
        )


def record(place: Path, *trees: Any) -> None:
    """Add a file or folder of this user to the list, and the files of the code that it names.

    If the list cannot be written, the user is asked again.

    Args:
        place: The file or folder.
        trees: What it contains. Nothing is added if it names no code.
    """
    if not (named := named_code(*trees)):
        return
    places = [os.path.realpath(place), *named.values()]
    added = [one for one in places if one and "\n" not in one and not _is_listed(one)]
    file = list_file()
    try:
        file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        file.parent.chmod(0o700)  # others may not see it, whatever the umask is
        with file.open("a", encoding="utf-8") as stream:
            stream.write("".join(f"{one}\n" for one in added))
    except OSError:
        return


def list_file() -> Path:
    """Return the list: a path or address on each line. A folder stands for all that is in it.

    It is in the folder for the state of programs, on Linux `~/.local/state/flbench`.
    """
    return platformdirs.user_state_path("flbench", appauthor=False) / "trusted"


def _texts(value: Any, key: str) -> Iterator[tuple[str, str]]:
    """Yield the texts in a tree of values, with their dotted keys."""
    if isinstance(value, str):
        yield key, value.strip()
    elif isinstance(value, Mapping):
        for name, inner in value.items():
            yield from _texts(inner, f"{key}.{name}" if key else str(name))
    elif isinstance(value, list | tuple):
        for inner in value:
            yield from _texts(inner, key)


def _module(text: str) -> str:
    """Return the module of an import path that must be judged; "" for any other text."""
    if ":" not in text or text.startswith(f"{parts.OBJECT}:") or parts.names_net(text):
        return ""
    try:
        return parts.module_of(text)
    except ConfigError:  # nothing can be imported by it
        return ""


def _is_trusted(place: str) -> bool:
    """Return whether an address or path is on the list, and nobody else can change the file."""
    return _is_listed(place) and (not os.path.isabs(place) or _is_private(Path(place)))


def _is_listed(place: str) -> bool:
    """Return whether an address or a path is on the list, or is in a folder that is."""
    file = list_file()
    try:
        listed = file.read_text("utf-8").splitlines() if _is_private(file) else []
    except (OSError, ValueError):  # it cannot be read
        return False
    folders = map(str, Path(place).parents) if os.path.isabs(place) else ()
    return not {place, *folders}.isdisjoint(listed)


def _is_private(file: Path) -> bool:
    """Return whether a file and its folder belong to this user, and nobody else can write there.

    A group that has the number of the user is the user's own.
    """
    try:
        found = [one.stat() for one in (file, file.parent)]
    except OSError:
        return False
    others = [stat.S_IWOTH | (0 if one.st_gid == os.getuid() else stat.S_IWGRP) for one in found]
    return all(
        one.st_uid in (0, os.getuid()) and not one.st_mode & mode
        for one, mode in zip(found, others, strict=True)
    )
