"""Options of `flbench reproduce`: a paper, its tables and rows, seeds and a scale."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, Literal

from flbench.config.resolve import resolve
from flbench.config.sources import Layer
from flbench.core.errors import ConfigError, UserError, did_you_mean
from flbench.reproduce.schema import PaperFacts

Scale = Literal["small", "full"]

# Keys that cannot be overridden, because an option of `flbench reproduce` sets them.
OPTIONS: Final = {
    "algorithm.name": "--algo",
    "data.name": "--dataset",
    "output.dir": "--out",
    "evaluation.confusable": "none, the reference run of the table determines the classes",
}
SMALL_SEEDS: Final = 3


@dataclass(frozen=True)
class ReproduceRequest:
    """Options of the user.

    Attributes:
        paper: Name of the paper.
        tables: Numbers of tables, separated by commas; `all`; or None for the main table.
        dataset: A data set of the tables (NAME), or a substitute for one (PRINTED=NAME).
        algos: Methods, separated by commas; None for all.
        scale: Scale of the runs.
        seeds: Number of seeds; None for the paper's number, but at most 3 at small scale.
        output: Folder for runs and reports.
        overrides: What the command line sets: overrides `key=value` and short forms.
        download: Whether torchvision may download missing data sets.
    """

    paper: str
    tables: str | None = None
    dataset: str | None = None
    algos: str | None = None
    scale: Scale = "small"
    seeds: int | None = None
    output: Path = Path("reproduce")
    overrides: Layer = field(default_factory=Layer)
    download: bool = False


def tables(paper: PaperFacts, asked: str | None) -> list[str]:
    """Return the numbers of the requested tables.

    Args:
        paper: Facts of the paper.
        asked: Option `--table`.

    Raises:
        UserError: The paper has no such table.
    """
    if asked is None:
        return list(paper.tables)[:1]
    if any(item.strip().casefold() == "all" for item in asked.split(",")):
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


def rows(asked: str | None, paper: PaperFacts, numbers: Sequence[str]) -> set[tuple[str, str]]:
    """Return (table, row) of the requested rows.

    Args:
        asked: Option `--algo`: labels of rows, names of methods in the paper, or in flbench.
        paper: Facts of the paper.
        numbers: Numbers of the requested tables.

    Raises:
        UserError: No row has this label or method.
    """
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
                f"--algo: the tables have no row `{item.strip()}`.{close} Rows:"
                f" {', '.join(labels)}."
            )
        found |= mine
    return found


def overrides(request: ReproduceRequest) -> Layer:
    """Return the user's overrides.

    Raises:
        ConfigError: A key cannot be overridden, because an option sets it.
    """
    for path in request.overrides:
        if path in OPTIONS:
            raise ConfigError(f"`{path}` cannot be overridden here. Its option: {OPTIONS[path]}.")
    return request.overrides


def seeds(request: ReproduceRequest, paper: PaperFacts, given: Layer) -> tuple[int, ...]:
    """Return the seeds of the runs: consecutive numbers that begin at the override `seed`.

    Raises:
        ConfigError: `seed` is not a whole number >= 0.
    """
    count = request.seeds
    if count is None:
        count = min(paper.seeds, SMALL_SEEDS) if request.scale == "small" else paper.seeds
    first = resolve([given.where("seed".__eq__)])[0].seed
    return tuple(range(first, first + count))
