"""Finds the data sets of a paper on this machine, and their substitutes."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from flbench.config.resolve import resolve
from flbench.config.schema import DataConfig
from flbench.config.sources import Layer, from_file
from flbench.core.errors import UserError, did_you_mean
from flbench.data import catalogue, known_sets, sources
from flbench.reproduce import cells, library
from flbench.reproduce.request import ReproduceRequest
from flbench.reproduce.schema import PaperFacts


@dataclass(frozen=True)
class DataSource:
    """Source of the samples of one of the paper's data sets.

    Attributes:
        values: Values of the keys `data.*`.
        substitute: Name of a substitute; None for the data set itself.
        absent: Why there are no samples; None if there are.
    """

    values: Mapping[str, Any]
    substitute: str | None
    absent: str | None


def find(
    request: ReproduceRequest, paper: PaperFacts, numbers: Sequence[str], given: Layer
) -> tuple[dict[str, DataSource], list[str]]:
    """Return the source of each data set of the tables, and notes for the user.

    Args:
        request: Options of the user.
        paper: Facts of the paper.
        numbers: Numbers of the requested tables.
        given: The user's overrides.

    Raises:
        UserError: `--dataset` names an unknown data set, or `data.path` does not exist.
    """
    used = [cell.dataset for n in numbers for cell in cells.of_table(paper, n) if cell.dataset]
    printed = list(dict.fromkeys(used))
    base = _base(request, given)
    notes: list[str] = []
    substitutes: dict[str, str] = {}  # by the paper's name of the data set
    if request.dataset is not None:
        left, sign, right = (part.strip() for part in request.dataset.partition("="))
        mine = _printed(left, paper, printed)
        if sign:
            if mine is None:
                raise UserError(
                    f"--dataset {request.dataset}: `{left}` is not a data set of the tables."
                    f"{did_you_mean(left, printed)} Known: {', '.join(printed)}."
                )
            if _printed(right, paper, [mine]) is None:
                substitutes = {mine: right}
        elif mine is None:
            mine = printed[0] if printed else None
            if mine is None:
                raise UserError(f"--dataset {left}: the tables have no data set. Leave it out.")
            substitutes = {mine: left}
            if len(printed) > 1:
                notes.append(
                    f"{left} is used instead of {mine}, the first of {', '.join(printed)}. To"
                    f" replace another one: --dataset NAME={left}."
                )
        printed = [str(mine)]
    elif base.path is not None:
        if len(printed) > 1:
            notes.append(
                f"data.path is used instead of {printed[0]}, the first of {', '.join(printed)}. To"
                " replace another one, name it with --dataset."
            )
        printed = printed[:1]
    chosen = {name: _source(request, paper, name, substitutes.get(name), base) for name in printed}
    return chosen, notes


def _base(request: ReproduceRequest, given: Layer) -> DataConfig:
    """Return the settings of the data with the user's overrides.

    All overrides except `algorithm.*` are checked here.
    """
    others = given.where(lambda key: not key.startswith("algorithm."))
    config, _ = resolve([from_file(library.preset(request.paper)), others])
    return config.data


def _printed(name: str, paper: PaperFacts, printed: Sequence[str]) -> str | None:
    """Return the paper's name of a data set, given this name or flbench's; None if unknown."""

    def plain(text: str) -> str:
        return "".join(letter for letter in text.casefold() if letter.isalnum())

    for label in printed:
        if plain(name) in (plain(label), plain(paper.datasets[label].name)):
            return label
    return None


def _source(
    request: ReproduceRequest,
    paper: PaperFacts,
    printed: str,
    substitute: str | None,
    base: DataConfig,
) -> DataSource:
    """Return the source of a data set: `data.path`, its substitute, or the data set itself."""
    name = substitute or paper.datasets[printed].name
    root = base.root.absolute()
    if base.path is not None:
        if not base.path.exists():
            raise UserError(
                f"`data.path` {base.path} does not exist. Give an existing file or folder."
            )
        values = {"name": name, "root": root, "path": base.path.absolute()}
        return DataSource(values, str(base.path), None)
    absent = None
    config, known = DataConfig(name=name, root=root), known_sets.known().get(name)
    if not catalogue.is_available(config):
        if substitute is not None and known is None:
            sources.load(config)  # raises an error with the known names and the searched folders
        downloadable = known is not None and known.load is not None
        if not (request.download and downloadable):
            absent = f"the data set `{name}` is not in {base.root}: {_cure(name, downloadable)}"
    return DataSource({"name": name, "root": root, "path": None}, substitute, absent)


def _cure(name: str, downloadable: bool) -> str:
    """Return how the user can provide a data set, as the end of a sentence."""
    download = "let torchvision download it with --download, " if downloadable else ""
    return f"put {name}.npz or {name}.zip there, {download}or name its folder with data.root=DIR"
