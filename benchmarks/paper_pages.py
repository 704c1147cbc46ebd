"""Writes the pages of the five papers from the raw results: one per archive.

usage: python benchmarks/paper_pages.py [--pack OUT_DIR] [FOLDER] (default: docs/papers)

Each FOLDER/NAME.tar.xz gets a page FOLDER/measured-NAME.md. The runs of the archive are unpacked
into a temporary folder. There, the commands that `benchmarks/papers.sh --print` prints for NAME
make their reports of these runs: nothing is trained, and no samples are read. The page is the
report, or the tables of all reports, without the folders of the runs, and with the differences
between the rows, paired by seed.

With --pack, the archives are written first, from OUT_DIR, the folder in which
`benchmarks/papers.sh` has trained.
"""

import argparse
import json
import shlex
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from contextlib import chdir, redirect_stderr, redirect_stdout
from dataclasses import dataclass
from io import StringIO
from pathlib import Path
from typing import Any, Final

import pandas as pd
import yaml

import flbench as fl
from flbench.cli import app
from flbench.comparison import statistics
from flbench.reports.tables import grid

COMMANDS: Final = Path(__file__).with_name("papers.sh")
SUFFIX: Final = ".tar.xz"
INTERVALS: Final = (
    "means over seeds, with 95 % intervals of the corrected resampled t-test, because each seed"
    " draws a partition from the same samples. The correction uses the ratio of the clients' test"
    " samples to their training samples. Each difference has the unit of its table."
)
"""What the differences of a page are."""


@dataclass(frozen=True)
class Report:
    """A report of `flbench reproduce`.

    Attributes:
        text: The report in Markdown.
        content: Content of the report's JSON file.
    """

    text: str
    content: dict[str, Any]

    @property
    def runs(self) -> set[Path]:
        """The folders of the runs that the report has numbers of."""
        return {Path(run) for cell in self.content["cells"] for run in cell["runs"].values()}


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
    found: dict[str, list[list[str]]] = {}
    for line in printed.stdout.splitlines():
        name, _, *arguments = shlex.split(line)
        found.setdefault(name, []).append(arguments)
    return found


def output(arguments: Sequence[str]) -> Path:
    """Return the folder in which a command writes runs and reports."""
    return Path(arguments[arguments.index("--output") + 1])


def unpack(archive: Path, folder: Path, data: Path) -> None:
    """Unpack the runs of an archive, so that `flbench reproduce` finds them.

    The configurations in an archive have no folders of the machine that trained the runs. Here they
    get the folder of the data sets, and the folder of the run that determines the confusable
    classes. An empty file stands for each data set, because `flbench reproduce` leaves out the data
    sets that it does not find.

    Args:
        archive: The archive.
        folder: Folder for the folders of the runs.
        data: Folder of the data sets.
    """
    shutil.unpack_archive(archive, folder, filter="data")
    for file in folder.glob("*/config.yaml"):
        config = yaml.safe_load(file.read_text("utf-8"))
        config["data"]["root"] = str(data)
        (data / f"{config['data']['name']}.npz").touch()
        reference = str(config["evaluation"]["confusable"])
        if (folder / reference).is_dir():
            config["evaluation"]["confusable"] = str(folder / reference)
        file.write_text(yaml.safe_dump(config), "utf-8")


def flbench(arguments: Sequence[str]) -> dict[str, Any]:
    """Return what a command of flbench prints with `--json`.

    Raises:
        SystemExit: The command failed.
    """
    out, err = StringIO(), StringIO()
    with redirect_stdout(out), redirect_stderr(err):
        code = app.main([*arguments, "--json"])
    if code:
        raise SystemExit(f"flbench {shlex.join(arguments)}: {err.getvalue()}")
    found: dict[str, Any] = json.loads(out.getvalue())
    return found


def reports(archive: Path, work: Path) -> list[Report]:
    """Return the reports of the runs of an archive, in the order of the commands.

    Args:
        archive: The archive `NAME.tar.xz`; NAME is a name of a paper in `papers.sh`.
        work: Empty folder. It must exist until the runs have been read.

    Raises:
        SystemExit: The script does not know the paper, a run of its commands is not in the archive,
            or a run of the archive is in no report.
    """
    name, data = archive.name.removesuffix(SUFFIX), work / "data"
    data.mkdir()
    mine = commands(data, work / "out").get(name)
    if mine is None:
        raise SystemExit(f"{archive}: {COMMANDS.name} has no paper `{name}`")
    folder = output(mine[0]) / name
    unpack(archive, folder, data)
    found = []
    with chdir(data):
        for arguments in mine:
            # A run that is not found would be trained.
            planned = flbench([*arguments, "--dry-run"])["runs"]
            if missing := [run["run"] for run in planned if run["state"] != "finished"]:
                raise SystemExit(f"{archive} does not have the run `{missing[0]}`")
            content = flbench(arguments)
            [text] = (Path(file) for file in content["files"] if file.endswith(".md"))
            found.append(Report(text.read_text("utf-8"), content))
    used = set().union(*(report.runs for report in found))
    if unused := set(folder.iterdir()) - used:
        raise SystemExit(
            f"{archive} has runs that are in no report of {COMMANDS.name}, such as"
            f" {min(unused).name}. Is the variable SEEDS that of the training?"
        )
    return found


def pack(out: Path, folder: Path) -> None:
    """Write the archives of the runs that reports in a folder have numbers of.

    Args:
        out: Folder in which `papers.sh` has trained.
        folder: Folder of the archives.
    """
    for name, mine in commands(out, out).items():
        paper = mine[0][1]
        runs: set[Path] = set()
        for file in sorted(output(mine[0]).glob("*.json")):
            content = json.loads(file.read_text("utf-8"))
            if content["paper"]["name"].casefold() == paper:
                runs |= Report("", content).runs
        if runs:
            fl.pack(sorted(runs), folder / f"{name}{SUFFIX}")
            print(f"{name}{SUFFIX}: {len(runs)} runs", file=sys.stderr)


def page(archive: Path) -> str:
    """Return the page of an archive.

    Of several reports, the page has the one with the most runs. If the runs have all rounds of the
    paper, it has the tables of all reports.

    Raises:
        SystemExit: See `reports`.
    """
    with tempfile.TemporaryDirectory() as work:
        made = reports(archive, Path(work))
        if made[0].content["scale"] == "full":
            return long_page(made)
        return short_page(max(made, key=lambda report: len(report.runs)))


def short_page(report: Report) -> str:
    """Return a report as a page."""
    found = report.content
    text = report.text.partition("## Runs")[0].rstrip() + "\n"
    before, claims, after = text.partition("## Claims of the text")
    parts = [before.rstrip(), *to_others([found]), verdicts(found), f"{claims}{after}"]
    return "\n\n".join(parts)


def verdicts(found: dict[str, Any]) -> str:
    """Return the sentence that says what the verdicts of a report mean."""
    return (
        "The verdicts of the next table compare the mean over seeds with the claim, and do not use"
        f" these intervals. Verdicts by intervals are on [the paper's page]({key(found)}.md)."
    )


def key(found: dict[str, Any]) -> str:
    """Return the paper's name in file names."""
    return str(found["paper"]["name"]).casefold()


def measured(found: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the cells of a report that have values."""
    return [cell for cell in found["cells"] if cell["values"]]


def own_row(found: dict[str, Any], cell: dict[str, Any]) -> bool:
    """Return whether a cell belongs to the paper's method, without changes."""
    name = found["paper"]["name"]
    return cell["row"] in (name, f"{name} share=full")


def to_others(reports: list[dict[str, Any]]) -> list[str]:
    """Return the section on the differences of the paper's method to the other rows, if any.

    Args:
        reports: Contents of the reports on one paper.
    """
    rows = [
        (own["table"], own["column"], cell["row"], *difference(own, cell))
        for found in reports
        for own in measured(found)
        if own_row(found, own)
        for cell in measured(found)
        if (cell["table"], cell["column"]) == (own["table"], own["column"]) and cell is not own
    ]
    if not rows:
        return []
    name = reports[0]["paper"]["name"]
    head = ("table", "column", f"{name} minus", "difference", "95 % interval", "seeds")
    opening = f"Differences of {name}'s row to the others: {INTERVALS}"
    return [f"## {name} and the other rows", opening, grid(head, rows)]


def to_first(reports: list[dict[str, Any]]) -> list[str]:
    """Return the section on the differences of rows to the first one, if any.

    It has the tables without a row of the paper's method, whose rows are variants of the method. A
    row that is measured in another way (`K_p 80, after mixing`) is compared with the first row that
    is measured in this way.

    Args:
        reports: Contents of the reports on one paper.
    """
    rows = []
    for found in reports:
        cells = measured(found)
        tables = {cell["table"] for cell in cells if own_row(found, cell)}
        first: dict[tuple[str, str, str], dict[str, Any]] = {}
        for cell in (each for each in cells if each["table"] not in tables):
            kind = cell["row"].partition(", ")[2]
            start = first.setdefault((cell["table"], cell["column"], kind), cell)
            if start is not cell:
                pair = f"{cell['row']}, minus {start['row'].partition(', ')[0]}"
                rows.append((cell["table"], cell["column"], pair, *difference(cell, start)))
    if not rows:
        return []
    head = ("table", "column", "rows", "difference", "95 % interval", "seeds")
    opening = (
        f"Differences of the rows to the first one that is measured in the same way: {INTERVALS}"
    )
    return ["## Differences to the first row", opening, grid(head, rows)]


def difference(first: dict[str, Any], second: dict[str, Any]) -> tuple[str, str, str]:
    """Return mean, interval and number of seeds of the difference of two cells, as text."""
    values = [{int(seed): x for seed, x in cell["values"].items()} for cell in (first, second)]
    gap = statistics.difference(*values, overlap=overlap(first))
    if gap is None:
        return "", "", "0"
    known = gap.low == gap.low  # not NaN
    interval = f"{gap.low:+.2f} to {gap.high:+.2f}" if known else ""
    return f"{gap.mean:+.2f}", interval, str(gap.n)


def overlap(cell: dict[str, Any]) -> float:
    """Return the number of test samples over that of training samples of a run of a cell."""
    run = Path(next(iter(cell["runs"].values())))
    table = pd.read_csv(run / "clients.csv")
    one = table.drop_duplicates("client")
    return float(one["test_size"].sum() / one["train_size"].sum())


def part(report: str, heading: str) -> str:
    """Return the text of a section of a report; empty where the report has no such section."""
    return report.partition(f"\n## {heading}")[2].partition("\n## ")[0].partition("\n")[2].strip()


def long_page(made: Sequence[Report]) -> str:
    """Return one page with the tables of reports on one paper."""
    found = [report.content for report in made]
    texts = [report.text for report in made]
    name = found[0]["paper"]["name"]
    opening = texts[0].partition("\n## ")[0].partition("\n")[2].strip()
    tables: list[str] = []
    for text in texts:
        body = text.partition("\n## Claims of the text")[0].partition("\n## ")[2].strip()
        opened, _, rest = body.partition("\n### ")
        # The same table on another data set has the same heading.
        known = any(table.startswith(f"## {opened}") for table in tables)
        tables.append(f"### {rest}" if known else f"## {body}")
    claims = [part(text, "Claims of the text").splitlines() for text in texts]
    decided = [row for table in claims for row in table[2:] if "cannot be decided" not in row]
    notes = sorted({line for text in texts for line in part(text, "Footnotes").splitlines()})
    title = f"# {name}, all rounds of the paper: published and measured numbers"
    blocks = [title, opening, *tables, *to_others(found), *to_first(found), verdicts(found[0])]
    blocks.append("## Claims of the text\n\n" + "\n".join([*claims[0][:2], *decided]))
    if notes:
        blocks.append("## Footnotes\n\n" + "\n".join(notes))
    return "\n\n".join(blocks) + "\n"


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
