"""Helpers of the tests of the search: spaces from a few lines of YAML."""

from pathlib import Path

import yaml
from hypothesis import settings

from flbench.tuning.library import load
from flbench.tuning.search_space import Space, parse

NO_CLOCK = settings(deadline=None)  # how long an example takes says nothing on a busy machine


def entries(*lines: str) -> str:
    return "\n".join(["space:", *(f"  {line}" for line in lines)])


def space_of(*lines: str, method: str = "hfcd", rounds: int | None = None) -> Space:
    """A space whose entries are these lines."""
    tree = {"method": method, **yaml.safe_load(entries(*lines))}
    return parse(tree, {}, "test", rounds=rounds)


def space_file(folder: Path, *lines: str, method: str = "hfcd", name: str = "s.yaml") -> Path:
    """A file whose first entry is in line 3."""
    path = folder / name
    path.write_text(f"method: {method}\n{entries(*lines)}\n")
    return path


def space_in(folder: Path, *lines: str, method: str = "hfcd", rounds: int = 10) -> Space:
    """The space of such a file, with its lines."""
    path = space_file(folder, *lines, method=method)
    return load([method], path, rounds=rounds)[method]
