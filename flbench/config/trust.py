"""Whether code that a file names may run.

A configuration can name code: a net, a method, a loss term, a metric, a partition scheme, or a
function that returns data. Reading results imports none of it. Training, predicting and exporting
do, and a file may come from somebody else. Code that a file names therefore runs only if

- the user says so: `--run-code`, in Python `trust=True`; or
- flbench itself has written the file for this user, with the same names, arguments and source. The
  record of this is in the user's state folder; see `state_folder`.

Code that the user names on the command line or in Python needs neither, and neither do the layers
of `torch.nn` and the nets of `torchvision.models`.
"""

import hashlib
import json
import os
import stat
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import platformdirs

from flbench.config.sources import from_file
from flbench.core import consent, files, imported, user_code
from flbench.core.errors import ConfigError
from flbench.core.given import OBJECT

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
ADDRESS: Final = "engine.address"
SPACE: Final = ("choice", "fixed")
"""Words of a search space below a key."""
HASHED: Final = frozenset({"model", "algorithm", "partition", "terms", "metrics"})
"""Sections whose `sha256` is that of the source that the section names."""
LARGEST: Final = 100_000
"""Largest number of bytes of a record."""

_here: dict[str, Mapping[str, str]] = {}  # records of this process: hashes of modules by digest


@dataclass(frozen=True)
class NamedCode:
    """Code that a file names.

    Attributes:
        key: Dotted key, such as `model.name`.
        path: Import path `package.module:name` or `FILE.py:name`.
        sha256: SHA-256 (hex) of the source, if the file has it.
    """

    key: str
    path: str
    sha256: str | None = None


def named_code(tree: Any) -> list[NamedCode]:
    """Return the code that a tree of values names, without importing anything.

    Args:
        tree: Values as a file has them: a configuration, or a tree with configurations in it. Keys
            may be dotted.

    >>> named_code({"model": {"name": "nets:Net"}, "data.source": "mine:load", "seed": 1})
    [NamedCode(key='model.name', path='nets:Net', sha256=None), NamedCode(key='data.source', \
path='mine:load', sha256=None)]
    """
    return [one for one in _found(tree, (), None) if not _is_known(one)]


def _is_known(code: NamedCode) -> bool:
    """Return whether code is a net of PyTorch or torchvision, or the Ray cluster of this user."""
    if _is_address(code):
        return code.path == os.environ.get("RAY_ADDRESS")
    return imported.names_net(code.path) and code.key.endswith(("model", "model.name"))


def _is_address(code: NamedCode) -> bool:
    """Return whether code is not in a module, but comes from a Ray cluster."""
    return code.key.endswith(ADDRESS)


def check(file: Path, *trees: Any, is_input: bool = False) -> None:
    """Check that the code that a file names may run, before it is imported.

    Args:
        file: The file.
        trees: What the file contains.
        is_input: Whether the user writes and edits the file, as the one of `--config`. Once the
            user has allowed its code, file and code may be edited, as long as the file names the
            same files, and they, what they import beside them and their folders belong to the user,
            and nobody else can write to them.

    Raises:
        ConfigError: The source of a part differs from the hash in the file; or this user's flbench
            has not written the file, and the user has not allowed its code to run.
    """
    named = [one for one in named_code(trees) if _is_there(one)]
    for one in named:
        _check_sha256(one)
    _ask(file, trees, named, is_input=is_input)
    # The import compares: what has been overlooked here, or appears later, is not imported.
    known = [one for one in _found(trees, (), None) if _is_known(one)]
    consent.note_texts(_texts(trees), [one.path for one in (*named, *known)])


def _ask(file: Path, trees: Sequence[Any], named: Sequence[NamedCode], *, is_input: bool) -> None:
    """Raise a ConfigError if code that a file names may not run; see `check`."""
    if not named:
        return
    if consent.is_allowed():
        record(*trees)
        if is_input:
            _write(_digest_of_input(file, named), named, {})
    elif not (_is_written(trees, named) or (is_input and _is_known_input(file, named))):
        raise ConfigError(
            f"{file} names code, and your flbench has not written it on this machine with this"
            f" code:\n{_listed(named)}\nCode can do all that you can do. Read it, and if you trust"
            " it, add --run-code (in Python: trust=True)."
        )


def record(*trees: Any) -> None:
    """Note that this user's flbench has written a file, or that the user trusts it.

    The code that it names has been imported, or may be. Nothing is noted if it names none. If the
    state folder cannot be written, the record holds for this process alone.

    Args:
        trees: What the file contains.
    """
    named = named_code(trees)
    if not named:
        return
    modules = _sources(named)
    if modules or all(map(_is_address, named)):
        _write(_digest(trees), named, modules)


def _write(digest: str, named: Sequence[NamedCode], modules: Mapping[str, str]) -> None:
    """Write a record: the code that is named, and the hashes of files by the names of modules."""
    _here[digest] = modules
    content = {"code": [[one.key, one.path] for one in named], "modules": dict(modules)}
    folder = state_folder()
    try:
        for one in (folder.parent, folder):  # others may see neither, whatever the umask is
            one.mkdir(mode=0o700, parents=True, exist_ok=True)
            one.chmod(0o700)
        files.write(folder / f"{digest}.json", json.dumps(content, indent=1).encode())
    except OSError:
        return


def record_file(file: Path, tree: Any) -> None:
    """Note that this user's flbench has written a configuration; see `record`.

    The record is of what the file contains when it is read. Most configurations name no code: these
    are not read, because parsing YAML takes as long as a round of a small run.

    Args:
        file: The file.
        tree: What was written to it.
    """
    if named_code(tree):
        record(from_file(file).tree)


def state_folder() -> Path:
    """Return the folder with a record of each file with code that this user's flbench wrote.

    It is below the folder for the state of programs, on Linux `~/.local/state/flbench`.
    """
    return platformdirs.user_state_path("flbench", appauthor=False) / "code"


def _found(value: Any, place: tuple[str, ...], sha256: str | None) -> Iterator[NamedCode]:
    """Yield the code that a value at a place names, and what it contains."""
    if isinstance(value, str):
        # An entry of a list has a number, and a search space has a word, after the key. A metric
        # can have such a word as its name.
        key = tuple(part for part in place if not part.isdecimal() and part not in SPACE)
        keys = (key, place)
        if _is_path(value, key) and any(_matches(one, last) for one in keys for last in PLACES):
            yield NamedCode(".".join(place), value, sha256)
    elif isinstance(value, Mapping):
        for name, inner in value.items():
            key = (*place, *str(name).split("."))
            own = value.get("sha256") if set(place[-2:]) & HASHED else None
            yield from _found(inner, key, own if isinstance(own, str) else None)
    elif isinstance(value, list | tuple):
        for inner in value:
            yield from _found(inner, place, sha256)


def _texts(value: Any) -> Iterator[str]:
    """Yield the keys and values of a tree that may contain an import path."""
    if isinstance(value, str):
        if ":" in value:
            yield value
    elif isinstance(value, Mapping):
        for key, inner in value.items():
            yield from _texts(str(key))
            yield from _texts(inner)
    elif isinstance(value, list | tuple):
        for inner in value:
            yield from _texts(inner)


def _matches(place: tuple[str, ...], last: tuple[str, ...]) -> bool:
    """Return whether a place ends with given parts, one of which may be any."""
    return len(place) >= len(last) and all(
        wanted in ("*", part) for wanted, part in zip(last, place[-len(last) :], strict=True)
    )


def _is_path(text: str, key: tuple[str, ...]) -> bool:
    """Return whether a text is an import path; a term that is an object is `object:NAME`."""
    return ":" in text and not (text.startswith(f"{OBJECT}:") and "terms" in key[-2:])


def _is_there(code: NamedCode) -> bool:
    """Return whether code can run. The import of a module that Python does not find says so."""
    if _is_address(code):
        return True
    try:
        imported.place_of(code.path)
    except ConfigError:
        return False
    module = _module(code.path)
    if module is None:  # a file that is not there
        return True
    top = module.partition(".")[0]
    return top in sys.modules or user_code.spec_of(top) is not None


def _check_sha256(code: NamedCode) -> None:
    """Raise a ConfigError if the source of code differs from the hash in a file."""
    if code.sha256 is None or len(code.sha256) != 64:
        return
    try:
        now = imported.source_sha256(code.path, code.sha256)
    except ConfigError:
        if _module(code.path) in sys.modules:  # its file was edited since, or cannot be read
            raise
        return  # the import says what is wrong
    if now != code.sha256:
        raise ConfigError(
            # Short: the command line shows both hashes in full.
            f"SHA-256 of the source of `{code.path}` was {code.sha256} and is now {now}. Restore"
            f" the source, or start a new run.{imported.edited_last(code.path)}"
        )


def _recorded(digest: str) -> Mapping[str, str] | None:
    """Return the hashes of modules in the record of this name; None if there is no such record."""
    if digest in _here:
        return _here[digest]
    file = state_folder() / f"{digest}.json"
    try:
        if hasattr(os, "getuid") and file.lstat().st_uid != os.getuid():
            return None
        modules: Mapping[str, str] = json.loads(files.read_text(file, LARGEST))["modules"]
    except (OSError, ValueError, KeyError, TypeError):
        return None
    return modules


def _is_written(trees: Sequence[Any], named: Sequence[NamedCode]) -> bool:
    """Return whether flbench has written what a file contains, with the code as it is.

    A module that was not there when the file was written is imported as well, so there must be
    none. The record can have more than are found here: those that the code asked for by a name
    that it computed.
    """
    modules = _recorded(_digest(trees))
    return (
        modules is not None
        and _sources(named).keys() <= modules.keys()
        and all(_sha256(name) == sha256 for name, sha256 in modules.items())
    )


def _is_known_input(file: Path, named: Sequence[NamedCode]) -> bool:
    """Return whether the user has allowed the code of a file that the user edits.

    The files that the code imports beside it count too.
    """
    sources = [_file(one.path) for one in named if not _is_address(one)]
    sources += map(user_code.file_of, _sources(named))
    return _recorded(_digest_of_input(file, named)) is not None and all(
        source is not None and _is_private(source) for source in (file, *sources)
    )


def _digest_of_input(file: Path, named: Sequence[NamedCode]) -> str:
    """Return the SHA-256 (hex) of where a file and the code that it names are."""
    sources = [str(_file(one.path)) for one in named if not _is_address(one)]
    text = json.dumps([str(file.resolve()), [[one.key, one.path] for one in named], sources])
    return hashlib.sha256(text.encode()).hexdigest()


def _is_private(file: Path) -> bool:
    """Return whether a file and its folder belong to this user, and nobody else can write there."""
    try:
        found = [one.stat() for one in (file, file.parent, file.resolve().parent)]
    except OSError:
        return False
    return not hasattr(os, "getuid") or all(
        one.st_uid in (0, os.getuid()) and not one.st_mode & (stat.S_IWGRP | stat.S_IWOTH)
        for one in found
    )


def _digest(trees: Sequence[Any]) -> str:
    """Return the SHA-256 (hex) of what determines the code that runs, and its arguments."""
    content = [[_relevant(tree) for tree in trees], [vars(one) for one in named_code(trees)]]
    text = json.dumps(content, sort_keys=True, default=repr)
    return hashlib.sha256(text.encode()).hexdigest()


def _relevant(tree: Any) -> Any:
    """Return a tree with the sections that can name code, if it is a configuration."""
    if not isinstance(tree, Mapping) or "train" not in tree:
        return tree
    kept = {name: tree.get(name) for name in ("model", "algorithm", "data", "partition")}
    parts = {"terms": tree["train"], "metrics": tree.get("evaluation")}
    return kept | {
        name: part.get(name) if isinstance(part, Mapping) else part for name, part in parts.items()
    }


def _sources(named: Iterable[NamedCode]) -> dict[str, str]:
    """Return the hashes of the files that code consists of, by the names of the modules."""
    found = {}
    for one in named:
        name = None if _is_address(one) else _module(one.path)
        for module in (name, *user_code.siblings(name)) if name else ():
            if (sha256 := _sha256(module)) is not None:
                found[module] = sha256
    return found


def _module(path: str) -> str | None:
    """Return the name of the module of an import path; None if there is no such file."""
    try:
        return imported.module_of(path)
    except ConfigError:
        return None


def _file(path: str) -> Path | None:
    """Return the file of the module of an import path; None if there is none."""
    module = _module(path)
    return None if module is None else user_code.file_of(module)


def _sha256(module: str) -> str | None:
    """Return the SHA-256 (hex) of the file of a module; None if there is none."""
    file = user_code.file_of(module)
    try:
        return None if file is None else hashlib.sha256(file.read_bytes()).hexdigest()
    except OSError:
        return None


def _listed(named: Sequence[NamedCode]) -> str:
    """Return a line for each part of the code: what names it, where it is, and whose it is."""
    lines = []
    for one in dict.fromkeys(named):
        if _is_address(one):
            lines.append(f"  {one.key}={one.path}: a Ray cluster, whose answers can execute code")
            continue
        about, file = "no such module is found", _file(one.path)
        if file is not None:
            sha256 = _sha256(str(_module(one.path))) or "unknown"
            about = f"{file}, SHA-256 {sha256}, owner {_owner(file)}"
        lines.append(f"  {one.key}={one.path}: {about}")
    return "\n".join(lines)


def _owner(file: Path) -> str:
    """Return the name of the user whom a file belongs to."""
    try:
        return file.owner()
    except (OSError, KeyError, NotImplementedError):
        return "unknown"
