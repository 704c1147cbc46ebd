"""Writes the pages of the papers from the raw results: one per archive.

usage: python benchmarks/paper_pages.py [--pack OUT_DIR] [FOLDER] (default: docs/papers)

Each FOLDER/NAME.tar.xz gets a page FOLDER/measured-NAME.md. The comparisons of the archive are
unpacked into a temporary folder, and the commands that `benchmarks/papers.sh --print` prints for
NAME say of which tables they are: nothing is trained, and no samples are read. The page has the
tables of all reports, and the differences between the rows, paired by seed.

With --pack, the archives are written first, from OUT_DIR, the folder in which
`benchmarks/papers.sh` has trained.
"""

import argparse
import shlex
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import chain
from math import isnan
from pathlib import Path
from statistics import fmean
from typing import Any, Final

import pandas as pd
from scipy.stats import kendalltau, rankdata

import flbench as fl
from flbench.analysis import statistics
from flbench.cli.layers import CommandLine
from flbench.comparison.archive import KNOWN
from flbench.comparison.folder import MARKER, read_cells
from flbench.config.sources import merge
from flbench.core import archives
from flbench.reports.render import grid
from flbench.reproduce import report
from flbench.reproduce.claims import decide
from flbench.reproduce.report import PaperReport, PaperRequest, with_sign
from flbench.results.reading import is_finished

Cell = dict[str, Any]
"""A cell of a table, as the JSON file of a report has it."""

COMMANDS: Final = Path(__file__).with_name("papers.sh")
SUFFIX: Final = ".tar.xz"
FURTHER_PAIRS: Final = {
    "fedcpmd": [("7", "Local-Only", "FedAvg")],
    "fedpc": [
        *(("4", "FedPC gm=nearest_proto", other) for other in ("FedAvg", "FedPer", "Ditto")),
        *(("4", f"FedPC {change}", "FedAvg") for change in ("gm=mean_head", "pull=class_mean")),
    ],
    "fedpc-cifar100": [
        ("4", "FedPC gm=nearest_proto", "FedAvg"),
        ("4", "FedPC gm=nearest_proto", "FedNH"),
    ],
    "pfllib": [
        *(("leaderboard", "GPFL", other) for other in ("FedRep", "FedRoD", "FedPer")),
        *(("leaderboard", "FedCP", other) for other in ("FedRoD", "FedRep", "Ditto")),
        *(
            ("leaderboard", personalized, "FedAvg")
            for personalized in (
                *("Per-FedAvg", "pFedMe", "Ditto", "APFL", "FedFomo", "FedAMP", "FedALA", "FedPer"),
                *("FedRep", "FedRoD", "FedBABU", "FedCP", "GPFL", "FedDBE", "FedProto"),
            )
        ),
    ],
}
"""Further differences on the page of an archive: table, row, and the row that is subtracted."""
POOLED: Final = ("pfllib",)
"""Archives whose reports are on several data sets of one table, and whose claims are about all."""
RANKED_FROM: Final = 8
"""Rows of other methods from which a column has a rank correlation with the published numbers."""
DIFFERENCES: Final = (
    "Differences are means over the seeds that both rows have (column `seeds`), paired by seed, in"
    " the unit of the table. The 95 % intervals are those of the corrected resampled t-test,"
    " because each seed draws a partition from the same samples. The correction uses the ratio of"
    " the clients' test samples to their training samples, as a mean over the seeds. These are"
    " intervals of single differences, which are not corrected for the number of comparisons. There"
    " is no interval for fewer than three seeds, and where the difference is the same for all"
    " seeds."
)
"""What the differences of a page are."""
DIFFERENCE_HEADER: Final = (
    *("table", "column", "row", "minus", "difference", "95 % interval", "seeds"),
)


def commands(data: Path, out: Path) -> dict[str, list[list[str]]]:
    """Return the commands of `papers.sh`, by the name of the paper in this script.

    Args:
        data: Folder with data sets.
        out: Folder of runs and reports.

    Returns:
        The arguments of `flbench` for each command.
    """
    printed = subprocess.run(
        ["bash", str(COMMANDS), "--print", str(data), str(out)],
        check=True,
        capture_output=True,
        text=True,
        encoding="utf-8",
    )
    by_paper: dict[str, list[list[str]]] = {}
    for line in printed.stdout.splitlines():
        name, _, *arguments = shlex.split(line)
        by_paper.setdefault(name, []).append(arguments)
    return by_paper


def asked(arguments: Sequence[str]) -> tuple[PaperRequest, Path]:
    """Return what a command of `papers.sh` asks for, and its folder."""
    parser = argparse.ArgumentParser()
    for option in ("--table", "--algo"):
        parser.add_argument(option, action="append", default=[])
    for option in ("--dataset", "--seeds", "--out", "--engine"):
        parser.add_argument(option)
    parser.add_argument("words", nargs="*")
    options = parser.parse_intermixed_args(arguments[1:])
    paper, *keys = options.words
    given = merge(CommandLine(keys, {}).layers())
    tables, algos = (",".join(one).split(",") for one in (options.table, options.algo))
    named = [[one for one in each if one] for each in (tables, algos)]
    return PaperRequest(paper, named[0], options.dataset, named[1], given), Path(options.out)


def reports(archive: Path, folder: Path) -> list[PaperReport]:
    """Return the reports of the comparisons of an archive, in the order of the commands.

    Args:
        archive: The archive `NAME.tar.xz`; NAME is a name of a paper in `papers.sh`.
        folder: Folder for its comparisons. It must exist until the runs have been read.

    Raises:
        SystemExit: The script does not know the paper, a run of a comparison is not in the archive,
            or a run of the archive is in no report.
    """
    name = archive.name.removesuffix(SUFFIX)
    of_paper = commands(Path(), folder.parent / "out").get(name)
    if of_paper is None:
        raise SystemExit(f"{archive}: {COMMANDS.name} has no paper `{name}`")
    archives.unpack(archive, folder, KNOWN.__contains__)
    for marker in sorted(folder.glob(f"*/{MARKER}")):
        for cell in read_cells(marker.parent):
            if not is_finished(marker.parent / "cells" / cell.name):
                raise SystemExit(f"{archive} does not have the run `{cell.name}`.")
    made: dict[frozenset[Path], PaperReport] = {}
    for arguments in of_paper:
        one = report.make(asked(arguments)[0], folder, exact=False)
        made[runs_of(one)] = one  # the last of those that train methods of one table
    if unused := {path.parent for path in folder.glob("*/cells/*/config.yaml")} - {*chain(*made)}:
        raise SystemExit(
            f"{archive} has runs that are in no report of {COMMANDS.name}, such as"
            f" {min(unused).name}. Is the variable SEEDS that of the training?"
        )
    return [*made.values()]


def pooled(made: Sequence[PaperReport]) -> PaperReport:
    """Return reports on several data sets of one table as one, whose claims are about all."""
    lines = {line.cell.number: line for each in made for line in each.lines}
    paper = made[0].paper
    verdicts = tuple(decide(claim, paper, lines) for claim in paper.claims)
    return replace(made[0], lines=tuple(lines.values()), verdicts=verdicts)


def runs_of(one: PaperReport) -> frozenset[Path]:
    """Return the folders of the runs that a report has numbers of."""
    return frozenset(run for line in one.lines for run in line.runs.values())


def pack(out: Path, folder: Path) -> None:
    """Write the archives of the comparisons of the papers.

    Args:
        out: Folder in which `papers.sh` has trained.
        folder: Folder of the archives.
    """
    for name, of_paper in commands(out, out).items():
        found: dict[Path, None] = {}
        for arguments in of_paper:
            request, place = asked(arguments)
            runs = runs_of(report.make(request, place / request.paper, exact=False))
            found |= dict.fromkeys(sorted(run.parents[1] for run in runs))
        if found:
            fl.pack([*found], folder / f"{name}{SUFFIX}")
            print(f"{name}{SUFFIX}: {len(found)} comparisons", file=sys.stderr)


def page(archive: Path) -> str:
    """Return the page of an archive.

    Raises:
        SystemExit: See `reports`.
    """
    with tempfile.TemporaryDirectory() as work:
        made = reports(archive, Path(work) / "runs")
        return "\n\n".join(blocks(archive.name.removesuffix(SUFFIX), made)) + "\n"


def blocks(name: str, made: Sequence[PaperReport]) -> list[str]:
    """Return the headings, paragraphs, tables and lists of a page.

    A page of runs with all rounds of the paper has the claims that are decided, and leaves out what
    the page of the small runs says about the paper.

    Args:
        name: Name of the archive.
        made: Reports on its runs.
    """
    paper, all_rounds = made[0].paper, "train.rounds" not in made[0].changed
    title, citation, *_ = made[0].markdown().split("\n\n")
    if all_rounds:
        title = f"# {paper.name}, all rounds of the paper: published and measured numbers"
    runs = frozenset().union(*map(runs_of, made))
    source = (
        f"Written by `benchmarks/paper_pages.py` from the {len(runs)} runs in"
        f" `docs/papers/{name}{SUFFIX}`."
    )
    shared = [note for note in made[0].notes if all(note in each.notes for each in made)]
    page = [title, citation, source, *(f"**{note}**" for note in shared)]
    for each in made:
        opening, *rest = each.tables()
        page += [] if opening in page else [opening]  # the same table on another data set
        page += [f"**{note}**" for note in each.notes if note not in shared]
        page += rest
    page += differences(name, made)
    of_claims = [pooled(made)] if name in POOLED else made
    page += ["## Claims of the text", *claims(of_claims, decided_only=all_rounds)]
    if all_rounds:
        return page
    absent = made[0].absent()
    if absent:
        rows = grid(("why", "cells without"), absent)
        page += ["## What could not be measured here", rows]
    for heading, items in (
        ("Contradictions in the paper", paper.contradictions),
        ("What the paper does not specify, and the choices here", paper.choices),
    ):
        if items:
            page += [f"## {heading}", "\n".join(f"- {item}" for item in items)]
    return page


def columns(made: Sequence[PaperReport]) -> list[list[Cell]]:
    """Return the cells with measured values, column by column."""
    by_place: dict[tuple[int, str, str], list[Cell]] = {}
    for number, each in enumerate(made):
        for cell in each.tree()["cells"]:
            if cell["values"]:
                cell["substitute"] = each.changed.get("data.name", (None, None))[1]
                by_place.setdefault((number, cell["table"], cell["column"]), []).append(cell)
    return list(by_place.values())


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


def differences(name: str, made: Sequence[PaperReport]) -> list[str]:
    """Return the section on the differences between rows, if there are any.

    Args:
        name: Name of the archive.
        made: Reports on its runs.
    """
    paper, every = made[0].paper.name, columns(made)
    to_all = [pair for column in every for pair in own_to_all(column)]
    alike = [pair for column in every for pair in own_to_alike(column)]
    measures = dict.fromkeys(first["metric"] for first, _ in alike)
    page: list[str] = []
    for heading, about, pairs in (
        (f"{paper} and the other rows", measured_otherwise(every), to_all),
        (
            f"{paper} and the other rows, measured alike",
            [f"Measured for both rows: {measure}." for measure in measures],
            alike,
        ),
        (
            "Variants and the first row",
            ["Each row minus the first one that is measured alike."],
            [pair for column in every for pair in to_first(column)],
        ),
        (
            "Further differences",
            [],
            [pair for column in every for pair in further_pairs(name, column)],
        ),
    ):
        if pairs:
            lines = [difference(first, second) for first, second in pairs]
            page += [f"### {heading}", *about, grid(DIFFERENCE_HEADER, lines)]
    if page:
        page = ["## Differences", DIFFERENCES, *page]
    return page + orders(every)


def own_to_all(column: Sequence[Cell]) -> list[tuple[Cell, Cell]]:
    """Return the pairs of the row of the paper's method and each other row.

    Rows beside those of other methods, with other metrics of the same runs, are left out.
    """
    own = own_row(column)
    if own is None:
        return []
    return [
        (own, cell)
        for cell in column
        if cell is not own
        if is_own(cell) or not any(cell["row"].startswith(f"{row['row']}, ") for row in column)
    ]


def own_to_alike(column: Sequence[Cell]) -> list[tuple[Cell, Cell]]:
    """Return the pairs of rows beside that of the paper's method with what is measured alike.

    These rows have other metrics of the same runs, such as `FedCPMD, all clients as deployed`. They
    are paired with the rows of other methods that have the same metric.
    """
    own = own_row(column)
    return [
        (cell, other)
        for cell in column
        for other in column
        if own and cell["row"].startswith(f"{own['row']}, ")
        if not is_own(other) and other["metric"] == cell["metric"]
    ]


def measured_otherwise(every: Sequence[Sequence[Cell]]) -> list[str]:
    """Return the paragraphs on rows of the paper's method with metrics that no other method has."""
    rows: dict[str, dict[str, None]] = {}
    for column in every:
        own = own_row(column)
        if own and own["metric"] not in {cell["metric"] for cell in column if not is_own(cell)}:
            rows.setdefault(own["metric"], {})[own["row"]] = None
    return [
        f"Measured for {', '.join(names)}, in another way than for the other methods: {measure}."
        for measure, names in rows.items()
    ]


def to_first(column: Sequence[Cell]) -> list[tuple[Cell, Cell]]:
    """Return the pairs of a row and the first one with its metric, if all rows are variants."""
    if not all(map(is_own, column)):
        return []
    first: dict[str, Cell] = {}
    return [
        (cell, first[cell["metric"]])
        for cell in column
        if first.setdefault(cell["metric"], cell) is not cell
    ]


def further_pairs(name: str, column: Sequence[Cell]) -> list[tuple[Cell, Cell]]:
    """Return the pairs of `FURTHER_PAIRS` in a column.

    Args:
        name: Name of the archive.
        column: Cells of the column.
    """
    rows = {(cell["table"], cell["row"]): cell for cell in column}
    return [
        (rows[table, row], rows[table, minus])
        for table, row, minus in FURTHER_PAIRS.get(name, [])
        if (table, row) in rows and (table, minus) in rows
    ]


def place(cell: Cell) -> tuple[str, str]:
    """Return table and column of a cell. The column has the substitute of its data set."""
    substitute = f" ({cell['substitute']})" if cell["substitute"] else ""
    return cell["table"], f"{cell['column']}{substitute}"


def difference(first: Cell, second: Cell) -> tuple[str, ...]:
    """Return the line of the difference `first - second`; see `DIFFERENCE_HEADER`."""
    numbers = interval(by_seed(first), by_seed(second), [first])
    return *place(first), first["row"], second["row"], *numbers


def by_seed(entry: dict[str, Any]) -> dict[int, float]:
    """Return the values of a cell by seed."""
    return {int(seed): value for seed, value in entry["values"].items()}


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


def orders(every: Sequence[Sequence[Cell]]) -> list[str]:
    """Return the section on the published and the measured order of the rows.

    It has the columns with enough rows that have a published number. Rows of the paper's method do
    not count.

    Args:
        every: Columns with measured values.

    Returns:
        Headings, paragraphs and tables; none if no column has `RANKED_FROM` such rows.
    """
    others = ([cell for cell in column if not is_own(cell)] for column in every)
    all_ranked = [[cell for cell in cells if cell["published"] is not None] for cells in others]
    compared = [cells for cells in all_ranked if len(cells) >= RANKED_FROM]
    if not compared:
        return []
    places = {place(cells[0]) for cells in compared}
    has_own_row = any(is_own(cell) and place(cell) in places for c in every for cell in c)
    correlations = []
    ranks: dict[str, dict[str, str]] = {}
    for cells in compared:
        values = [[cell[key] for cell in cells] for key in ("published", "measured")]
        tau = kendalltau(*values)
        numbers = f"{tau.statistic:.2f}", f"{tau.pvalue:.2g}"
        correlations.append((*place(cells[0]), str(len(cells)), *numbers))
        pairs = zip(*(rankdata([-value for value in v], "min") for v in values), strict=True)
        for cell, (published, measured) in zip(cells, pairs, strict=True):
            ranks.setdefault(cell["row"], {})[", ".join(place(cell))] = f"{published} / {measured}"
    header = [", ".join(place(cells[0])) for cells in compared]
    return [
        f"## Order of the {'other ' if has_own_row else ''}methods",
        "Kendall's tau between the published and the measured numbers of a column, with its"
        " p-value: 1 for the same order, -1 for the opposite one.",
        grid(("table", "column", "rows", "Kendall's tau", "p"), correlations),
        "Published and measured rank in a column; the highest number has rank 1. Neighbouring"
        " ranks say little, because many numbers lie within each other's spread.",
        grid(
            ("row", *header),
            [(row, *(of_row.get(title, "-") for title in header)) for row, of_row in ranks.items()],
        ),
    ]


def claims(made: Sequence[PaperReport], *, decided_only: bool) -> list[str]:
    """Return an explanation, and the table of the claims with the intervals of their differences.

    A claim has the lines of all reports that decide it, or that of the first report if none does.

    Args:
        made: Reports on one paper.
        decided_only: Whether to leave out claims that no report decides.
    """
    lines: dict[str, list[tuple[bool, tuple[str, ...]]]] = {}
    for each in made:
        cells, substitute = each.tree()["cells"], each.changed.get("data.name", (None, None))
        mark = f" [{substitute[1]} instead of {substitute[0]}]" if substitute[1] else ""
        for verdict, (text, *middle, last) in zip(each.verdicts, each.claim_rows(), strict=True):
            claim = verdict.claim
            place_of_row = claim.table, claim.measured_row or claim.row
            of_row = [c for c in cells if (c["table"], c["row"]) == place_of_row]
            _, ends, seeds = interval(verdict.by_seed, dict.fromkeys(verdict.by_seed, 0.0), of_row)
            line = (text + mark * (len(made) > 1), *middle, ends, seeds, last)
            is_decided = verdict.outcome != "cannot be decided"
            lines.setdefault(claim.text, []).append((is_decided, line))
    chosen: list[tuple[str, ...]] = []
    for of_claim in lines.values():
        decided = [line for is_decided, line in of_claim if is_decided]
        chosen += decided or ([] if decided_only else [of_claim[0][1]])
    *titles, last = report.CLAIM_HEADER
    about = (
        "A claim against several rows is measured against the one with the best mean. The verdicts"
        " of the table compare the mean over seeds with the claim, and do not use the intervals."
        f" Verdicts by intervals are on [the paper's page]({made[0].paper.name.casefold()}.md)."
    )
    return [about, grid((*titles, "95 % interval", "seeds", last), chosen)]


def main() -> None:
    """Write the pages of a folder."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--pack", type=Path, metavar="OUT_DIR")
    parser.add_argument("folder", type=Path, nargs="?", default=Path("docs/papers"))
    options = parser.parse_args()
    if options.pack is not None:
        pack(options.pack, options.folder)
    for archive in sorted(options.folder.glob(f"*{SUFFIX}")):
        text = page(archive)
        name = archive.name.removesuffix(SUFFIX)
        (options.folder / f"measured-{name}.md").write_text(text, "utf-8")
        print(f"measured-{name}.md", file=sys.stderr)


if __name__ == "__main__":
    main()
