"""What the user asks for: a paper, its tables and rows, seeds, a scale."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal

from flbench.config.sources import Layer, from_overrides, leaves
from flbench.core.errors import ConfigError, UserError, did_you_mean
from flbench.reproduce.schema import Paper

Scale = Literal["small", "full"]

# Keys that have an option of their own here.
OPTIONS: Final = {
    "algorithm.name": "--algos",
    "data.name": "--dataset",
    "output.dir": "--output",
    "evaluation.confusable": "none, the table's own reference run says it",
}
SMALL_SEEDS: Final = 3


@dataclass(frozen=True)
class Request:
    """What the user asks for.

    Attributes:
        paper: its name.
        tables: their numbers with commas between, `all`, or None for the main one.
        dataset: a data set of the tables, or one that stands for it: NAME, or PRINTED=NAME.
        algos: methods with commas between; None for all.
        scale: of the runs.
        seeds: how many; None for the paper's number, at small scale 3 at most.
        output: folder for runs and reports.
        overrides: key=value.
        download: let torchvision fetch what is not there.
    """

    paper: str
    tables: str | None = None
    dataset: str | None = None
    algos: str | None = None
    scale: Scale = "small"
    seeds: int | None = None
    output: Path = Path("reproduce")
    overrides: Sequence[str] = ()
    download: bool = False


def tables(paper: Paper, asked: str | None) -> list[str]:
    """Return the numbers of the tables that are asked for."""
    if asked is None:
        return list(paper.tables)[:1]
    if asked.strip().casefold() == "all":
        return list(paper.tables)
    found = []
    for item in asked.split(","):
        number = item.strip().casefold().removeprefix("table").strip(" _-")
        if number not in paper.tables:
            raise UserError(
                f"{paper.name} has no table `{item.strip()}`.{did_you_mean(number, paper.tables)}"
                f" Known: {', '.join(paper.tables)}, all."
            )
        if number not in found:
            found.append(number)
    return found


def rows(asked: str | None, paper: Paper, numbers: Sequence[str]) -> set[tuple[str, str]]:
    """Return (table, row) of the rows asked for: by label, by method, by flbench's name."""
    known = {
        (number, label): row.method or label
        for number in numbers
        for label, row in paper.tables[number].rows.items()
    }
    if asked is None:
        return set(known)
    found: set[tuple[str, str]] = set()
    for item in asked.split(","):
        name = item.strip().casefold()
        by_label = {key for key in known if key[1].casefold() == name}
        by_method = {key for key, method in known.items() if method.casefold() == name}
        by_algo = {
            key
            for key, method in known.items()
            if method in paper.methods and paper.methods[method].algo == name
        }
        mine = by_label or by_method or by_algo
        if not mine:
            labels = list(dict.fromkeys(label for _, label in known))
            algos = [method.algo for method in paper.methods.values()]
            close = did_you_mean(name, [*algos, *(label.casefold() for label in labels)])
            raise UserError(
                f"--algos: no row of the table is `{item.strip()}`.{close} Rows:"
                f" {', '.join(labels)}."
            )
        found |= mine
    return found


def overrides(request: Request) -> Layer:
    """Return the user's overrides.

    Raises: ConfigError for those that have an option of their own.
    """
    given = from_overrides(request.overrides)
    for path in leaves(given.tree):
        if path in OPTIONS:
            raise ConfigError(f"`{path}` has an option of its own here: {OPTIONS[path]}.")
    return given


def seeds(request: Request, paper: Paper, given: Layer) -> tuple[int, ...]:
    """Return the seeds of the runs: as many as asked for, from `seed` on."""
    count = request.seeds
    if count is None:
        count = min(paper.seeds, SMALL_SEEDS) if request.scale == "small" else paper.seeds
    first = given.tree.get("seed", 0)
    if not isinstance(first, int) or isinstance(first, bool) or first < 0:
        raise ConfigError(f"`seed` must be a whole number >= 0, got {first!r} (command line).")
    return tuple(range(first, first + count))
