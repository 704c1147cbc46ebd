"""Where a paper's data sets are here, what stands for them, and which are not there."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from flbench.config.resolve import resolve
from flbench.config.schema import DataConfig
from flbench.config.sources import Layer, from_file
from flbench.core.errors import UserError, did_you_mean
from flbench.data import catalogue, sources
from flbench.reproduce import cells, library
from flbench.reproduce.request import Request
from flbench.reproduce.schema import Paper


@dataclass(frozen=True)
class Source:
    """Where the samples of one of the paper's data sets come from here.

    Attributes:
        values: of `data.*`.
        substitute: what stands for it; None if it is the data set itself.
        absent: why there are no samples; None if there are.
    """

    values: Mapping[str, Any]
    substitute: str | None
    absent: str | None


def find(
    request: Request, paper: Paper, numbers: Sequence[str], given: Layer
) -> tuple[dict[str, Source], list[str]]:
    """Return where the samples of each of the tables' data sets come from, and notes."""
    used = [cell.dataset for n in numbers for cell in cells.of_table(paper, n) if cell.dataset]
    printed = list(dict.fromkeys(used))
    base = _base(request, given)
    notes: list[str] = []
    stands: dict[str, str] = {}  # printed name -> flbench's name of what stands for it
    if request.dataset is not None:
        left, sign, right = (part.strip() for part in request.dataset.partition("="))
        mine = _printed(left, paper, printed)
        if sign:
            if mine is None:
                raise UserError(
                    f"--dataset {request.dataset}: `{left}` is no data set of the table."
                    f"{did_you_mean(left, printed)} Known: {', '.join(printed)}."
                )
            if _printed(right, paper, [mine]) is None:
                stands = {mine: right}
        elif mine is None:
            mine = printed[0] if printed else None
            if mine is None:
                raise UserError(f"--dataset {left}: the table has no data set.")
            stands = {mine: left}
            if len(printed) > 1:
                notes.append(
                    f"{left} stands for {mine}, the first of {', '.join(printed)}; for another one:"
                    f" --dataset NAME={left}."
                )
        printed = [str(mine)]
    elif base.path is not None:
        if len(printed) > 1:
            notes.append(
                f"data.path stands for {printed[0]}, the first of {', '.join(printed)}; for another"
                " one name it with --dataset."
            )
        printed = printed[:1]
    return {name: _source(request, paper, name, stands.get(name), base) for name in printed}, notes


def _base(request: Request, given: Layer) -> DataConfig:
    """Return `data.*` as the overrides have it; all but a method's keys are checked here."""
    tree = {key: value for key, value in given.tree.items() if key != "algorithm"}
    config, _ = resolve([from_file(library.preset(request.paper)), Layer(tree, given.origins)])
    return config.data


def _printed(name: str, paper: Paper, printed: Sequence[str]) -> str | None:
    """Return the paper's name for a data set, given that or flbench's name; None if it is none."""

    def plain(text: str) -> str:
        return "".join(letter for letter in text.casefold() if letter.isalnum())

    for label in printed:
        if plain(name) in (plain(label), plain(paper.datasets[label].name)):
            return label
    return None


def _source(
    request: Request, paper: Paper, printed: str, stands: str | None, base: DataConfig
) -> Source:
    name = stands or paper.datasets[printed].name
    root = base.root.absolute()
    if base.path is not None:
        if not base.path.exists():
            raise UserError(f"`data.path` {base.path} does not exist.")
        values = {"name": name, "root": root, "path": base.path.absolute()}
        return Source(values, str(base.path), None)
    absent = None
    config, known = DataConfig(name=name, root=root), sources.known().get(name)
    if not catalogue.is_available(config):
        if stands is not None and known is None:
            sources.load(config)  # raises the error that says what is known and where it was sought
        fetched = known is not None and known.load is not None
        if not (request.download and fetched):
            absent = f"the data set `{name}` is not in {base.root}: {_cure(name, fetched)}"
    return Source({"name": name, "root": root, "path": None}, stands, absent)


def _cure(name: str, fetched: bool) -> str:
    fetch = "let torchvision fetch it with --download, " if fetched else ""
    return f"put {name}.npz or {name}.zip there, {fetch}or name its folder with data.root=DIR"
