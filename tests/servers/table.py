"""The table of what was found, a row for each fault."""

import csv
from dataclasses import astuple, dataclass, fields
from pathlib import Path


@dataclass(frozen=True)
class Row:
    """What was found for one fault. Numbers of MLflow are those before and after `flbench sync`.

    Attributes:
        fault: What happened.
        place: Where.
        work: What was trained.
        code: Exit code of the work.
        runs: Runs in MLflow: before, after, and of the twin.
        points: Values of metrics.
        models: Logged models.
        files: Files.
        weights: How many trainings have the twin's weights.
        again: What a second `flbench sync` has sent.
        silence: Longest time in seconds without a line on standard error; in brackets the twin's.
        after: The last line before it.
        last: Last line of standard error.
    """

    fault: str
    place: str
    work: str
    code: int
    runs: str
    points: str
    models: str
    files: str
    weights: str
    again: int
    silence: str
    after: str
    last: str


def write(rows: list[Row], about: str, folder: Path) -> str:
    """Write the table as Markdown and CSV, and return the Markdown."""
    names = [field.name for field in fields(Row)]
    lines = [about, "", "| " + " | ".join(names) + " |", "|" + " --- |" * len(names)]
    for row in rows:
        cells = [str(cell).replace("|", "\\|") for cell in astuple(row)]
        lines.append("| " + " | ".join(cells) + " |")
    text = "\n".join(lines)
    (folder / "servers.md").write_text(text + "\n")
    with (folder / "servers.csv").open("w", newline="") as file:
        csv.writer(file).writerows([names, *map(astuple, rows)])
    return text
