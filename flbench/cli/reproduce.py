"""`flbench reproduce`: tables of a paper, published numbers beside measured ones."""

import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rich.markdown import Markdown

from flbench.api import campaigns
from flbench.api.progress import Caller
from flbench.cli import console
from flbench.cli.words import layers, one_name
from flbench.comparison.folder import read_design
from flbench.config.resolve import as_data
from flbench.config.sources import merge
from flbench.core.errors import RunError, UserError
from flbench.data import catalogue
from flbench.experiment.lifecycle import CHANGEABLE_ON_RESUME
from flbench.reports.terminal import open_console
from flbench.reproduce import measure, paper, report
from flbench.reproduce.paper import Place
from flbench.reproduce.report import PaperRequest


def reproduce(
    words: Sequence[str] | None,
    *,
    table: Sequence[str] | None,
    dataset: str | None,
    algo: Sequence[str] | None,
    seeds: int | None,
    jobs: int | None,
    out: Path,
    download: bool,
    dry_run: bool,
    as_json: bool,
    aliases: Mapping[str, str],
) -> None:
    """List the papers, or measure tables of one of them.

    As JSON, `papers` are printed, or the content of the report's JSON file with `asked`,
    `missing` and `files`.

    Raises:
        UserError: An option is wrong, or nothing could be measured.
        RunError: Trainings failed. The others are reported before that.
    """
    tables, algos = (
        [one.strip() for text in given or [] for one in text.split(",")] for given in (table, algo)
    )
    name, overrides = one_name(words or [], "paper")
    if name is None:
        if overrides or aliases or tables or dataset or algos:
            raise UserError(f"name a paper: {', '.join(paper.names())}.")
        _list(as_json=as_json)
        return
    given = merge(layers(overrides, aliases))
    asked = PaperRequest(name, tables, dataset, algos, given)
    folder = out / name.casefold()
    notes: list[str] = []
    failures: list[str] = []
    listed: dict[str, list[str]] = {}
    for place in asked.places:
        data = as_data([place.base]).data
        if not (download or data.path or catalogue.is_available(data)):
            notes.append(
                f"{place.dataset}: the data set `{data.name}` is not in {data.root}. Put"
                f" {data.name}.npz there, name its folder with data.root=DIR, or use --download."
            )
            continue
        labels = asked.labels(place)
        if dry_run:
            listed[place.dataset] = [*listed.get(place.dataset, []), *labels]
        else:
            count = seeds or paper.load(name).seeds
            failures += train(place, labels, count, folder, jobs, not as_json)
    made = report.make(asked, folder)
    files = [str(path) for path in made.write(out)] if made.is_measured else []
    if as_json:
        console.json(made.tree() | {"asked": listed, "missing": notes, "files": files})
    elif not made.is_measured and not dry_run:
        reasons = [*notes, *failures]
        raise UserError("\n".join([f"no cell of {made.paper.name} could be measured.", *reasons]))
    else:
        console.notes(notes)
        for place_name, labels in listed.items():
            console.line(f"{place_name}: {', '.join(labels)}")
        if made.is_measured:
            open_console().print(Markdown(made.markdown(whole=False)))
        for file in files:
            console.line(file)
    if failures:
        raise RunError("\n".join(failures))


def train(
    place: Place, labels: Sequence[str], seeds: int, folder: Path, jobs: int | None, shown: bool
) -> list[str]:
    """Train what is left of the comparison of a place; return a sentence for each failed cell.

    Raises:
        UserError: A method has been trained with other keys.
    """
    failures: list[str] = []
    path = measure.comparison_of(place, folder)
    campaign = campaigns.Campaign(Caller(shown=shown), jobs=jobs)
    # The other methods need the confusable classes of the finished runs of the reference.
    rest = [label for label in labels if label != place.reference]
    for group in [[place.reference], rest] if place.reference and rest else [labels]:
        design = place.design(group, seeds, path)
        if path is None:
            ending = campaign.start(design, out=folder, command=["flbench", *sys.argv[1:]])
            path = ending.path
        else:
            before, _ = read_design(path)
            names = {measure.label_of(place, one): one.label for one in before.methods}
            more = [one for one in design.methods if one.label not in names]
            if taken := {one.label for one in more} & {one.label for one in before.methods}:
                raise UserError(
                    f"{path} has `{min(taken)}` with other keys. Give the same ones, or another"
                    " --out."
                )
            mine = [place.base.where(lambda key: key.startswith(CHANGEABLE_ON_RESUME))]
            only = {names.get(label, label) for label in group}
            ending = campaign.carry_on(path, more, mine, max(seeds, before.seeds), only)
        failures += ending.failures
    return failures


def _list(*, as_json: bool) -> None:
    """Print the papers whose tables can be measured."""
    papers = {name: paper.load(name) for name in paper.names()}
    tree: list[dict[str, Any]] = [
        {
            "name": name,
            "title": one.title,
            "venue": one.venue,
            "doi": one.doi,
            "tables": {number: table.caption for number, table in one.tables.items()},
        }
        for name, one in papers.items()
    ]
    if as_json:
        console.json(tree)
        return
    for entry in tree:
        console.line(f"{entry['name']}: {entry['title']}. {entry['venue']}, doi {entry['doi']}")
        for number, caption in entry["tables"].items():
            console.line(f"  --table {number:<16} {caption}")
    console.line("\nFor one of them: flbench reproduce NAME --dry-run")
