"""The pages of the papers: published and measured numbers, from docs/papers/NAME.tar.xz.

The commands that `papers.sh --print` prints for NAME say of which tables an archive has the runs.
"""

import argparse
import shlex
import subprocess
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import chain
from math import isnan
from pathlib import Path
from statistics import fmean
from typing import Any, Final

import pandas as pd
from scipy.stats import kendalltau, rankdata
from shown import ROOT, render

from flbench.analysis import statistics
from flbench.cli.words import layers
from flbench.comparison.archive import KNOWN
from flbench.comparison.folder import MARKER, read_cells
from flbench.config.resolve import as_data
from flbench.config.sources import merge
from flbench.core import archives
from flbench.core.errors import UserError
from flbench.reports.render import grid
from flbench.reproduce import measure, report
from flbench.reproduce.claims import decide
from flbench.reproduce.report import PaperReport, PaperRequest, with_sign
from flbench.results.reading import is_finished

Cell = dict[str, Any]
"""A cell of a table, as the JSON file of a report has it."""
Pair = tuple[Cell, Cell]

PAPERS: Final = ROOT / "docs" / "papers"
COMMANDS: Final = Path(__file__).with_name("papers.sh")
SUFFIX: Final = ".tar.xz"
ABSENT: Final = ("cifar10", "cinic10", "organamnist", "svhn", "tinyimagenet")
"""Data sets of tables that were not there when `papers.sh` trained."""
PERSONALIZED: Final = (
    *("Per-FedAvg", "pFedMe", "Ditto", "APFL", "FedFomo", "FedAMP", "FedALA", "FedPer", "FedRep"),
    *("FedRoD", "FedBABU", "FedCP", "GPFL", "FedDBE", "FedProto"),
)
FURTHER: Final = {
    "fedcpmd": [("7", "Local-Only", "FedAvg")],
    "fedpc": [
        *(("4", "FedPC gm=nearest_proto", other) for other in ("FedAvg", "FedPer", "Ditto")),
        *(("4", f"FedPC {change}", "FedAvg") for change in ("gm=mean_head", "pull=class_mean")),
    ],
    "fedpc-cifar100": [("4", "FedPC gm=nearest_proto", other) for other in ("FedAvg", "FedNH")],
    "pfllib": [
        *(("leaderboard", "GPFL", other) for other in ("FedRep", "FedRoD", "FedPer")),
        *(("leaderboard", "FedCP", other) for other in ("FedRoD", "FedRep", "Ditto")),
        *(("leaderboard", one, "FedAvg") for one in PERSONALIZED),
    ],
}
"""Further differences on the page of an archive: table, row, and the row that is subtracted."""
POOLED: Final = ("pfllib",)
"""Archives whose reports are on several data sets of one table, and whose claims are about all."""
RANKED_FROM: Final = 8
"""Rows of other methods from which a column has a rank correlation with the published numbers."""


def commands(data: Path, out: Path) -> dict[str, list[PaperRequest]]:
    """Return what the commands of `papers.sh` ask for, by NAME."""
    parser = argparse.ArgumentParser()
    for option in ("--table", "--algo"):
        parser.add_argument(option, action="append", default=[])
    for option in ("--dataset", "--seeds", "--out", "--engine"):
        parser.add_argument(option)
    parser.add_argument("words", nargs="*")
    words = ["bash", str(COMMANDS), "--print", str(data), str(out)]
    printed = subprocess.run(words, check=True, capture_output=True, encoding="utf-8").stdout
    found: dict[str, list[PaperRequest]] = {}
    for line in printed.splitlines():
        name, _, _, *arguments = shlex.split(line)
        given = parser.parse_intermixed_args(arguments)
        paper, *keys = given.words
        tables, algos = ([*filter(None, ",".join(x).split(","))] for x in (given.table, given.algo))
        layer = merge(layers(keys, {}))
        request = PaperRequest(paper, tables, given.dataset, algos, layer)
        found.setdefault(name, []).append(request)
    return found


def reports(archive: Path, folder: Path) -> list[PaperReport]:
    """Return the reports of the comparisons of an archive, in the order of the commands.

    Args:
        archive: The archive `NAME.tar.xz`.
        folder: Folder for its comparisons. It must exist until the runs have been read.

    Raises:
        UserError: `papers.sh` does not know NAME, a comparison or a run of one is not in the
            archive, or a run of the archive is in no report.
    """
    asked = commands(Path(), folder.parent / "out").get(archive.name.removesuffix(SUFFIX))
    if asked is None:
        raise UserError(f"{archive}: {COMMANDS.name} has no such paper.")
    archives.unpack(archive, folder, KNOWN.__contains__)
    for marker in sorted(folder.glob(f"*/{MARKER}")):
        for cell in read_cells(marker.parent):
            if not is_finished(marker.parent / "cells" / cell.name):
                raise UserError(f"{archive} does not have the run `{cell.name}`.")
    made: dict[frozenset[Path], PaperReport] = {}
    for request in asked:
        for place in request.places:
            is_there = measure.comparison_of(place, folder) is not None
            if not is_there and as_data([place.base]).data.name not in ABSENT:
                raise UserError(f"{archive} does not have the comparison on {place.dataset}.")
        one = report.make(request, folder, exact=False)
        made[runs_of(one)] = one  # the last of those that train methods of one table
    if unused := {path.parent for path in folder.glob("*/cells/*/config.yaml")} - {*chain(*made)}:
        raise UserError(
            f"{archive} has runs that are in no report of {COMMANDS.name}, such as"
            f" {min(unused).name}. Is the variable SEEDS that of the training?"
        )
    return [*made.values()]


def runs_of(one: PaperReport) -> frozenset[Path]:
    """Return the folders of the runs that a report has numbers of."""
    return frozenset(run for line in one.lines for run in line.runs.values())


def names() -> list[str]:
    """Return the names of the archives."""
    return sorted(file.name.removesuffix(SUFFIX) for file in PAPERS.glob(f"*{SUFFIX}"))


def page(name: str, folder: Path = PAPERS) -> str:
    """Return the page of the archive FOLDER/NAME.tar.xz.

    A page of runs with all rounds of the paper has the claims that are decided, and leaves out what
    the page of the small runs says about the paper.

    Raises:
        UserError: See `reports`.
    """
    with tempfile.TemporaryDirectory() as work:
        made = reports(folder / f"{name}{SUFFIX}", Path(work) / "runs")
        every = columns(made)
        pairs: dict[str, list[Pair]] = {}
        for column in every:
            for kind, *pair in compared(name, column):
                pairs.setdefault(kind, []).append((pair[0], pair[1]))
        all_rounds = "train.rounds" not in made[0].changed
        return render(
            "measured",
            name=name,
            archive=f"{name}{SUFFIX}",
            paper=made[0].paper,
            made=made,
            all_rounds=all_rounds,
            runs=len(frozenset().union(*map(runs_of, made))),
            shared=[note for note in made[0].notes if all(note in one.notes for one in made)],
            pairs=pairs,
            lines={kind: [difference(*pair) for pair in some] for kind, some in pairs.items()},
            otherwise=measured_otherwise(every),
            orders=orders(every),
            claims=claims([pooled(made)] if name in POOLED else made, decided_only=all_rounds),
            claim_header=(*report.CLAIM_HEADER[:-1], "95 % interval", "seeds", "here"),
            grid=grid,
        )


def pooled(made: Sequence[PaperReport]) -> PaperReport:
    """Return reports on several data sets of one table as one, whose claims are about all."""
    lines = {line.cell.number: line for each in made for line in each.lines}
    verdicts = tuple(decide(claim, made[0].paper, lines) for claim in made[0].paper.claims)
    return replace(made[0], lines=tuple(lines.values()), verdicts=verdicts)


def columns(made: Sequence[PaperReport]) -> list[list[Cell]]:
    """Return the cells with measured values, column by column.

    `place` of a cell is its table and its column, which has the substitute of its data set.
    """
    found: dict[tuple[int, str, str], list[Cell]] = {}
    for number, each in enumerate(made):
        _, other = each.changed.get("data.name", (None, None))
        for cell in each.tree()["cells"]:
            if cell["values"]:
                cell["place"] = cell["table"], cell["column"] + (f" ({other})" if other else "")
                found.setdefault((number, cell["table"], cell["column"]), []).append(cell)
    return list(found.values())


def is_own(cell: Cell) -> bool:
    """Return whether the method of a row is the paper's method, or a variant of it."""
    return bool(cell["algorithm"] == cell["paper"].casefold())


def own_row(column: Sequence[Cell]) -> Cell | None:
    """Return the row of the paper's method; None if there is none, or all rows are variants of it.

    Without a row of the method's name, the first variant is the row of the method.
    """
    own = [cell for cell in column if is_own(cell)]
    if len(own) == len(column):
        return None
    names = {(name := column[0]["paper"]), f"{name} share=full"}
    return next((cell for cell in own if cell["row"] in names), next(iter(own), None))


def compared(name: str, column: Sequence[Cell]) -> Iterator[tuple[str, Cell, Cell]]:
    """Yield the pairs of rows whose difference the page of an archive has.

    A row beside that of a method, such as `FedCPMD, all clients as deployed`, has another metric of
    the same runs.

    Args:
        name: Name of the archive.
        column: The cells of a column.

    Yields:
        The kind of the pair, and its two cells: the row of the paper's method and each `other` row
        but those beside the rows of other methods; rows beside that of the paper's method, and
        other methods that are measured `alike`; if all rows are variants of the paper's method,
        each `variant` and the first row with its metric; and `further` pairs.
    """
    own, first = own_row(column), dict[str, Cell]()
    for cell in column:
        is_beside = any(cell["row"].startswith(f"{one['row']}, ") for one in column)
        if own is not None and cell is not own and (is_own(cell) or not is_beside):
            yield "other", own, cell
        if own is not None and cell["row"].startswith(f"{own['row']}, "):
            for one in column:
                if not is_own(one) and one["metric"] == cell["metric"]:
                    yield "alike", cell, one
        if all(map(is_own, column)) and first.setdefault(cell["metric"], cell) is not cell:
            yield "variant", cell, first[cell["metric"]]
    rows = {(cell["table"], cell["row"]): cell for cell in column}
    for table, row, minus in FURTHER.get(name, []):
        if (table, row) in rows and (table, minus) in rows:
            yield "further", rows[table, row], rows[table, minus]


def measured_otherwise(every: Sequence[Sequence[Cell]]) -> dict[str, list[str]]:
    """Return the rows of the paper's method with metrics that no other method has, by metric."""
    rows: dict[str, dict[str, None]] = {}
    for column in every:
        own = own_row(column)
        if own and own["metric"] not in {cell["metric"] for cell in column if not is_own(cell)}:
            rows.setdefault(own["metric"], {})[own["row"]] = None
    return {metric: [*names] for metric, names in rows.items()}


def difference(first: Cell, second: Cell) -> tuple[str, ...]:
    """Return the line of the difference `first - second`."""
    values = ({int(k): value for k, value in one["values"].items()} for one in (first, second))
    return *first["place"], first["row"], second["row"], *interval(*values, [first])


def interval(
    first: Mapping[int, float], second: Mapping[int, float], cells: Sequence[Cell]
) -> tuple[str, str, str]:
    """Return mean, interval and number of seeds of the difference of values by seed, as text.

    Args:
        first: Values by seed.
        second: Values by seed.
        cells: Cells whose runs have the partitions of the values.
    """
    seeds = first.keys() & second.keys()
    runs = [Path(run) for cell in cells for seed, run in cell["runs"].items() if int(seed) in seeds]
    if not runs:
        return "-", "-", "-"
    values = pd.DataFrame({"first": pd.Series(first), "second": pd.Series(second)})
    pair, shared = [("first", "second")], fmean(map(overlap, runs))
    [gap] = statistics.differences(values, pair, overlap=shared).to_dict("records")
    ends = "-" if isnan(gap["low"]) else f"{with_sign(gap['low'])} to {with_sign(gap['high'])}"
    return with_sign(gap["difference"]), ends, str(gap["n"])


def overlap(run: Path) -> float:
    """Return the number of the clients' test samples over that of their training samples."""
    clients = pd.read_csv(run / "clients.csv").drop_duplicates("client")
    return float(clients["test_size"].sum() / clients["train_size"].sum())


def orders(every: Sequence[Sequence[Cell]]) -> dict[str, Any]:
    """Return the published and the measured order of the rows of other methods.

    Returns:
        `correlations`, the lines of the columns with at least `RANKED_FROM` such rows that have a
        published number; `head` and lines of their `ranks`; and `others`, whether these columns
        have rows of the paper's method too. It is empty if there is no such column.
    """
    correlations, ranks = [], dict[str, dict[str, str]]()
    has_own = False
    for column in every:
        cells = [one for one in column if not is_own(one) and one["published"] is not None]
        if len(cells) < RANKED_FROM:
            continue
        has_own |= any(is_own(one) for c in every for one in c if one["place"] == cells[0]["place"])
        values = [[cell[key] for cell in cells] for key in ("published", "measured")]
        tau = kendalltau(*values)
        numbers = f"{tau.statistic:.2f}", f"{tau.pvalue:.2g}"
        correlations.append((*cells[0]["place"], str(len(cells)), *numbers))
        pairs = zip(*(rankdata([-value for value in v], "min") for v in values), strict=True)
        for cell, (published, measured) in zip(cells, pairs, strict=True):
            own = ranks.setdefault(cell["row"], {})
            own[", ".join(cell["place"])] = f"{published} / {measured}"
    head = [", ".join(line[:2]) for line in correlations]
    rows = [(row, *(own.get(one, "-") for one in head)) for row, own in ranks.items()]
    found = {"correlations": correlations, "head": ("row", *head), "ranks": rows, "others": has_own}
    return found if correlations else {}


def claims(made: Sequence[PaperReport], *, decided_only: bool) -> list[tuple[str, ...]]:
    """Return the table of the claims with the intervals of their differences.

    A claim has the lines of all reports that decide it, or that of the first report if none does.
    """
    lines: dict[str, list[tuple[bool, tuple[str, ...]]]] = {}
    for each in made:
        cells = each.tree()["cells"]
        other, substitute = each.changed.get("data.name", (None, None))
        mark = f" [{substitute} instead of {other}]" if substitute and len(made) > 1 else ""
        for verdict, (text, *middle, last) in zip(each.verdicts, each.claim_rows(), strict=True):
            claim = verdict.claim
            row = claim.table, claim.measured_row or claim.row
            mine = [cell for cell in cells if (cell["table"], cell["row"]) == row]
            _, *about = interval(verdict.by_seed, dict.fromkeys(verdict.by_seed, 0.0), mine)
            is_decided = verdict.outcome != "cannot be decided"
            line = text + mark, *middle, *about, last
            lines.setdefault(claim.text, []).append((is_decided, line))
    chosen: list[tuple[str, ...]] = []
    for some in lines.values():
        decided = [line for is_decided, line in some if is_decided]
        chosen += decided or ([] if decided_only else [some[0][1]])
    return chosen
