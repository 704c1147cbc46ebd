"""The table of what was found, a row for each fault."""

import csv
from collections.abc import Iterable
from dataclasses import astuple, dataclass, fields
from pathlib import Path
from typing import Final


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


NAMES: Final = [field.name for field in fields(Row)]


class Table:
    """The rows, in two files that are written again with each row.

    Args:
        about: Versions of what has run.
        folder: Folder of the files.
    """

    def __init__(self, about: str, folder: Path) -> None:
        self.file = folder / "servers.md"
        self._about, self._rows = about, list[Row]()

    @property
    def markdown(self) -> str:
        """The table as Markdown."""
        lines = [self._about, "", _line(NAMES), _line(["---"] * len(NAMES))]
        cells = ([str(cell).replace("|", "\\|") for cell in astuple(row)] for row in self._rows)
        return "\n".join([*lines, *map(_line, cells)]) + "\n"

    def add(self, row: Row) -> None:
        """Add a row."""
        self._rows.append(row)
        self.file.write_text(self.markdown)
        with self.file.with_suffix(".csv").open("w", newline="") as file:
            csv.writer(file).writerows([NAMES, *map(astuple, self._rows)])


def _line(cells: Iterable[str]) -> str:
    return f"| {' | '.join(cells)} |"
