"""Writes pages and archives of the five papers from the reports of `flbench reproduce`.

usage: python benchmarks/paper_pages.py OUT_DIR [FOLDER] (default: docs/papers)

OUT_DIR is the folder that `benchmarks/papers.sh` wrote. The page `measured-PAPER.md` is the report
without the folders of the runs, and with the differences between the paper's method and the others,
paired by seed. `PAPER.tar.xz` has the runs, as `flbench pack` writes them. The runs on CIFAR-100
that have settings of their own, in OUT_DIR/cifar100, are on the page `measured-PAPER-cifar100.md`
and in `PAPER-cifar100.tar.xz`. The runs with all rounds of the paper, in OUT_DIR/long, are on the
page `measured-PAPER-long.md`, which has the tables of all reports of that folder, and in
`PAPER-long.tar.xz`.
"""

import json
import sys
from pathlib import Path
from typing import Any, Final

import pandas as pd

import flbench as fl
from flbench.comparison import statistics
from flbench.reports.tables import grid

INTERVALS: Final = (
    "means over seeds, with 95 % intervals of the corrected resampled t-test, because each seed"
    " draws a partition from the same samples. The correction uses the ratio of the clients' test"
    " samples to their training samples. Each difference has the unit of its table."
)
"""What the differences of a page are."""


def page(found: dict[str, Any], report: str) -> str:
    """Return a report as a page.

    Args:
        found: Content of the report's `.json`.
        report: Report of `flbench reproduce` in Markdown.
    """
    text = report.partition("## Runs")[0].rstrip() + "\n"
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


def reports(out: Path) -> dict[str, tuple[Path, dict[str, Any], set[str]]]:
    """Return the report of each paper with the most runs: path, content, and run folders.

    Of reports with the same runs, the one with the most measured cells is returned.

    Raises:
        SystemExit: A report has runs that the paper's report with the most runs does not have.
    """
    ranked = []
    for report in sorted(out.glob("*.md")):
        content = json.loads(report.with_suffix(".json").read_text("utf-8"))
        cells = [cell for cell in content["cells"] if cell["runs"]]
        runs = {run for cell in cells for run in cell["runs"].values()}
        ranked.append((len(runs), len(cells), report, content, runs))
    ranked.sort(key=lambda one: one[:2], reverse=True)
    found: dict[str, tuple[Path, dict[str, Any], set[str]]] = {}
    for *_, report, content, runs in ranked:
        paper = key(content)
        largest = found.setdefault(paper, (report, content, runs))
        if not runs <= largest[2]:
            raise SystemExit(
                f"{report} has runs that {largest[0]} does not have: make one report on all of"
                " them, or remove one of the two"
            )
    return found


def part(report: str, heading: str) -> str:
    """Return the text of a section of a report; empty where the report has no such section."""
    return report.partition(f"\n## {heading}")[2].partition("\n## ")[0].partition("\n")[2].strip()


def long_page(reports: list[Path]) -> tuple[str, set[str]]:
    """Return one page with the tables of reports on one paper, and the folders of their runs.

    Args:
        reports: Reports in Markdown, each with its `.json` beside it.
    """
    found = [json.loads(report.with_suffix(".json").read_text("utf-8")) for report in reports]
    texts = [report.read_text("utf-8") for report in reports]
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
    runs = {run for one in found for cell in one["cells"] for run in cell["runs"].values()}
    return "\n\n".join(blocks) + "\n", runs


def write_long(out: Path, folder: Path) -> None:
    """Write the pages and archives of the runs with all rounds of the paper.

    Args:
        out: Folder of the reports.
        folder: Folder of the pages.
    """
    papers: dict[str, list[Path]] = {}
    for report in sorted(out.glob("*.md")):
        papers.setdefault(report.name.partition("-")[0], []).append(report)
    for paper, found in papers.items():
        text, runs = long_page(found)
        (folder / f"measured-{paper}-long.md").write_text(text)
        fl.pack(sorted(runs), folder / f"{paper}-long.tar.xz")
        print(f"{paper}: {len(runs)} runs from {len(found)} reports", file=sys.stderr)


def main() -> None:
    """Write the pages."""
    out = Path(sys.argv[1])
    folder = Path(sys.argv[2] if len(sys.argv) > 2 else "docs/papers")
    for source, ending in ((out, ""), (out / "cifar100", "-cifar100")):
        for paper, (report, found, runs) in reports(source).items():
            text = page(found, report.read_text("utf-8"))
            (folder / f"measured-{paper}{ending}.md").write_text(text)
            fl.pack(sorted(runs), folder / f"{paper}{ending}.tar.xz")
            print(f"{paper}{ending}: {len(runs)} runs from {report.name}", file=sys.stderr)
    write_long(out / "long", folder)


if __name__ == "__main__":
    main()
