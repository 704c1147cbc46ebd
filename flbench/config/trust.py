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
import re
import stat
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import platformdirs

from flbench.core import consent, parts
from flbench.core.errors import ConfigError

PLACES: Final = (
    ("model",),
    ("model", "name"),
    ("algorithm",),
    ("algorithm", "name"),
    ("algorithm", "source"),
    ("data", "source"),
    ("partition",),
    ("partition", "scheme"),
    ("terms",),
    ("terms", "name"),
    ("metrics", "*"),
    ("metrics", "*", "source"),
    ("engine", "address"),
)
"""Last parts of the dotted keys whose values can name code; `*` stands for a name of the user. A
section can be given by its name alone. The address of a Ray cluster is among them: its answers are
unpickled, which executes code."""
SPACE: Final = ("choice", "fixed")
"""Words of a search space below a key."""
PATH: Final = re.compile(r"[\w./~-]+:[\w.]+")
"""What may be an import path in a text."""

_here: set[str] = set()  # what this process has added to the list


@dataclass(frozen=True)
class NamedCode:
    """Code that a file names.

    Attributes:
        key: Dotted key, such as `model.name`.
        path: Import path `package.module:name` or `FILE.py:name`; address of a Ray cluster.
    """

    key: str
    path: str

    @property
    def is_address(self) -> bool:
        """Whether the code is not in a module, but comes from a Ray cluster."""
        return self.key.endswith("engine.address")

    @property
    def place(self) -> str | None:
        """Address, or path of the file; None if there is none, or the name is no import path."""
        try:
            file = None if self.is_address else parts.file_of(parts.module_of(self.path))
        except ConfigError:  # the import says what is wrong
            return None
        if self.is_address:
            return self.path
        return None if file is None else os.path.realpath(file)

    @property
    def is_known(self) -> bool:
        """Whether it is a net of PyTorch or torchvision, or the Ray cluster of this user."""
        if self.is_address:
            return self.path == os.environ.get("RAY_ADDRESS")
        return self.key.endswith(("model", "model.name")) and parts.names_net(self.path)


def named_code(*trees: Any) -> list[NamedCode]:
    """Return the code that trees of values name, without importing anything.

    Args:
        trees: Values as a file has them: a configuration, or a tree with configurations in it.
            Keys may be dotted.

    >>> named_code({"model": {"name": "nets:Net"}, "data.source": "mine:load", "seed": 1})
    [NamedCode(key='model.name', path='nets:Net'), NamedCode(key='data.source', path='mine:load')]
    """
    return [one for one in dict.fromkeys(_found(trees, ())) if not one.is_known]


def check(file: Path, *trees: Any) -> None:
    """Check that the code that a file names may run, before it is imported.

    Args:
        file: The file.
        trees: What the file contains.

    Raises:
        ConfigError: The file, or code that it names, is not on the list, or others can change it,
            and the user has not allowed the code to run.
    """
    named = named_code(*trees)
    places = {one: place for one in named if (place := one.place) is not None}
    if consent.is_allowed():
        record(file, *trees)
    elif places and not all(map(_is_trusted, (os.path.realpath(file), *places.values()))):
        lines = [f"  {one.key}={one.path}: {_about(one, place)}" for one, place in places.items()]
        raise ConfigError(
            f"{file} names code. It is not on the list of what your flbench has written or you have"
            " allowed, or others can change it:\n" + "\n".join(lines) + "\nCode can do all that"
            " you can do. Read it, and if you trust it, add --run-code (in Python: trust=True)."
        )
    # The import compares: what has been overlooked here, or appears later, is not imported.
    found = {*_found(trees, ())}
    accepted = {one.path for one in found if one.is_known or one in places}
    overlooked = {path for text in _texts(trees) for path in PATH.findall(text)}
    consent.refuse((overlooked | {one.path for one in found}) - accepted)


def record(place: Path, *trees: Any) -> None:
    """Add a file or folder of this user to the list, and the files of the code that it names.

    If the list cannot be written, the addition holds for this process alone.

    Args:
        place: The file or folder.
        trees: What it contains. Nothing is added if it names no code.
    """
    if not (named := named_code(*trees)):
        return
    places = [os.path.realpath(place), *(one.place for one in named)]
    added = [one for one in places if one and "\n" not in one and not _is_listed(one)]
    _here.update(added)
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


def _is_trusted(place: str) -> bool:
    """Return whether an address or path is on the list, and nobody else can change the file."""
    return _is_listed(place) and (not os.path.isabs(place) or _is_private(Path(place)))


def _is_listed(place: str) -> bool:
    """Return whether an address or a path is on the list, or is in a folder that is."""
    listed, file = set(_here), list_file()
    try:
        if _is_private(file):
            listed |= set(file.read_text("utf-8").splitlines())
    except (OSError, ValueError):  # there is none
        pass
    folders = map(str, Path(place).parents) if os.path.isabs(place) else ()
    return not listed.isdisjoint((place, *folders))


def _is_private(file: Path) -> bool:
    """Return whether a file and its folder belong to this user, and nobody else can write there.

    A group that has the number of the user is the user's own.
    """
    if not hasattr(os, "getuid"):
        return True
    try:
        found = [one.stat() for one in (file, file.parent)]
    except OSError:
        return False
    others = [stat.S_IWOTH | (0 if one.st_gid == os.getuid() else stat.S_IWGRP) for one in found]
    return all(
        one.st_uid in (0, os.getuid()) and not one.st_mode & mode
        for one, mode in zip(found, others, strict=True)
    )


def _about(code: NamedCode, place: str) -> str:
    """Return where code is, and whose it is."""
    if code.is_address:
        return "a Ray cluster, whose answers can execute code"
    try:
        return f"{place}, owner {Path(place).owner()}"
    except (OSError, KeyError, NotImplementedError):
        return f"{place}, owner unknown"


def _found(value: Any, place: tuple[str, ...]) -> Iterator[NamedCode]:
    """Yield the code that a value at a place names, and what it contains."""
    if isinstance(value, str):
        # An entry of a list has a number, and a search space has a word, after the key. A metric
        # can have such a word as its name.
        key = tuple(part for part in place if not part.isdecimal() and part not in SPACE)
        is_object = value.startswith(f"{parts.OBJECT}:") and "terms" in key[-2:]
        is_code = any(_matches(one, last) for one in (key, place) for last in PLACES)
        if ":" in value and is_code and not is_object:
            yield NamedCode(".".join(place), value)
    elif isinstance(value, Mapping):
        for name, inner in value.items():
            yield from _found(inner, (*place, *str(name).split(".")))
    elif isinstance(value, list | tuple):
        for inner in value:
            yield from _found(inner, place)


def _matches(place: Sequence[str], last: Sequence[str]) -> bool:
    """Return whether a place ends with given parts, one of which may be any."""
    return len(place) >= len(last) and all(
        wanted in ("*", part) for wanted, part in zip(last, place[-len(last) :], strict=True)
    )


def _texts(value: Any) -> Iterator[str]:
    """Yield the keys and values of a tree that are texts."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping):
        for key, inner in value.items():
            yield from (str(key), *_texts(inner))
    elif isinstance(value, list | tuple):
        for inner in value:
            yield from _texts(inner)
