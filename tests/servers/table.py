"""The table of what was found, a row for each fault, in a page of the documentation."""

import csv
from collections.abc import Iterable, Sequence
from dataclasses import astuple, dataclass, fields
from pathlib import Path
from typing import Final

PAGE: Final = Path(__file__).resolve().parents[2] / "docs" / "servers.md"
BEGIN: Final = "<!-- begin faults -->\n"
END: Final = "<!-- end faults -->\n"


@dataclass(frozen=True)
class Row:
    """What was found for one fault. Numbers of MLflow are those before and after `flbench sync`.

    Attributes:
        fault: What happened.
        servers: Name of the installation.
        work: What was trained.
        exit: Exit code of the work.
        runs: Runs in MLflow: before, after, and of the twin.
        points: Values of metrics.
        files: Files.
        weights: How many trainings have the twin's weights.
        again: What a second `flbench sync` has sent.
        silence: Longest time in seconds without a line on standard error; in brackets the twin's.
    """

    fault: str
    servers: str
    work: str
    exit: int
    runs: str
    points: str
    files: str
    weights: str
    again: int
    silence: str

    @property
    def name(self) -> tuple[str, ...]:
        """What the row is about."""
        return self.fault, self.servers, self.work


HEADER: Final = tuple(field.name for field in fields(Row))


class Table:
    """The rows of this call, which replace those of earlier calls in the page.

    Args:
        about: Versions of what has run, for a line of the page.
        order: Faults in the order of the rows; other rows are removed from the page.
        file: File of CSV with the rows of this call.
        page: The page. It has the table between two comments.
    """

    def __init__(
        self, about: str, order: Sequence[tuple[str, ...]], file: Path, page: Path = PAGE
    ) -> None:
        self.file, self.page = file, page
        self._about, self._order = about, list(order)
        self._rows: list[Row] = []

    def add(self, row: Row) -> None:
        """Add a row to the file and to the page."""
        self._rows.append(row)
        with self.file.open("w", newline="") as file:
            csv.writer(file).writerows([HEADER, *map(astuple, self._rows)])
        before, rest = self.page.read_text().split(BEGIN)
        old, after = rest.split(END)
        self.page.write_text(f"{before}{BEGIN}{self._merged(old, row)}{END}{after}")

    @property
    def lines(self) -> list[str]:
        """The rows of this call as lines of Markdown."""
        return [_line(HEADER), *(_line(map(str, astuple(row))) for row in self._rows)]

    def _merged(self, old: str, row: Row) -> str:
        """Return the content of the page with a new row."""
        found = {}
        for line in old.splitlines():
            cells = tuple(cell.strip() for cell in line.strip("|").split("|"))
            if cells[:3] in self._order:
                found[cells[:3]] = line
        found[row.name] = _line(map(str, astuple(row)))
        rows = sorted(found, key=self._order.index)
        head = [self._about, "", _line(HEADER), _line(["---"] * len(HEADER))]
        return "\n".join([*head, *map(found.__getitem__, rows)]) + "\n"


def _line(cells: Iterable[str]) -> str:
    return f"| {' | '.join(cells)} |"
