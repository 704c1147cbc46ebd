"""Progress of a comparison: a live table on a terminal, and a line for each cell that ends."""

import os
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

from rich.live import Live
from rich.table import Table

from flbench.comparison.folder import ComparisonFolder
from flbench.comparison.plan import Cell
from flbench.comparison.training import Outcome
from flbench.core.documents import as_data_error, read_json
from flbench.reports.terminal import duration, open_console

TAIL: Final = 4096  # bytes at the end of metrics.csv in which the last round is searched


class ComparisonProgress:
    """Progress of a comparison. A thread of Rich reads it while the main thread changes it.

    Args:
        cells: All cells.
        folder: Folder of the comparison.
        done: Number of cells that were finished before.

    Attributes:
        console: Console to print to, on standard error.
    """

    def __init__(self, cells: Sequence[Cell], folder: ComparisonFolder, done: int) -> None:
        self.console = open_console(errors=True)
        self._cells, self._folder = cells, folder
        self._total, self._ended, self._failed = len(cells), done, 0
        self._ended_of = {
            method: sum(folder.is_done(cell) for cell in cells if cell.method == method)
            for method in dict.fromkeys(cell.method for cell in cells)
        }
        self._failed_of = dict.fromkeys(self._ended_of, 0)
        self._running: dict[str, Cell] = {}
        self._told: set[str] = set()
        self._began: float | None = None  # without the time in which processes start
        self._first = {cell.name: self._round(cell) for cell in cells}
        self._live: Live | None = None

    @contextmanager
    def live(self) -> Iterator[None]:
        """Show a live table for the duration of the `with` block, if the output is a terminal."""
        if not self.console.is_terminal or self.console.quiet:
            yield
            return
        with Live(
            get_renderable=self.table, console=self.console, refresh_per_second=2, transient=True
        ) as self._live:
            yield
        self._live = None

    def close(self) -> None:
        """End the live table, if there is one; the cursor of the terminal is visible again."""
        if self._live is not None:
            self._live.stop()

    def begin(self, cell: Cell) -> None:
        """Note that a cell is being trained."""
        self._running[cell.name] = cell

    def end(self, cell: Cell, reason: str | None, outcome: Outcome) -> None:
        """Note that a cell has ended, and print a line about it.

        Args:
            cell: The cell.
            reason: Why it failed; None if it is finished.
            outcome: Its time and its notes.
        """
        self._running.pop(cell.name, None)
        self._began = self._began or time.monotonic() - outcome.seconds
        self._ended += 1
        self._ended_of[cell.method] += reason is None
        self._failed_of[cell.method] += reason is not None
        for sentence in outcome.notes:
            if sentence not in self._told:
                self._told.add(sentence)
                self.note(f"{cell.title}: {sentence}")
        found = f"failed: {reason}" if reason is not None else self._score(cell)
        self.console.print(
            f"{self._ended}/{self._total}  {cell.title}  {found}  {duration(outcome.seconds)}"
            f"  {self._left()}",
            soft_wrap=True,
        )

    def note(self, text: str) -> None:
        """Print a note."""
        self.console.print(f"note: {text}", soft_wrap=True)

    def table(self) -> Table:
        """Return the table: finished, failed and running cells of each method, and time left."""
        title = f"{self._ended} of {self._total} cells, {self._left()}"
        table = Table(title=title, title_justify="left", box=None, pad_edge=False)
        for name in ("method", "finished", "failed", "running"):
            table.add_column(name, justify="right" if name in ("finished", "failed") else "left")
        for method, ended in self._ended_of.items():
            planned = sum(cell.method == method for cell in self._cells)
            running = [
                f"{cell.place}, repetition {cell.repetition + 1}:"
                f" {self._round(cell)}/{cell.config.train.rounds}"
                for cell in list(self._running.values())
                if cell.method == method
            ]
            failed = str(self._failed_of[method] or "")
            table.add_row(method, f"{ended}/{planned}", failed, "; ".join(running))
        return table

    def _score(self, cell: Cell) -> str:
        """Return the test accuracy of a finished cell."""
        file = self._folder.cell(cell) / "summary.json"
        summary = read_json(file)
        with as_data_error(file):
            accuracy = summary.get("best", {}).get("test", {}).get("accuracy")
            return "finished" if accuracy is None else f"test accuracy {accuracy:.4f}"

    def _left(self) -> str:
        """Return the estimated time left, as text."""
        rounds = sum(cell.config.train.rounds for cell in self._cells)
        done = {cell.name: self._round(cell) for cell in self._cells}
        new = sum(done.values()) - sum(self._first.values())
        if new <= 0 or self._began is None:
            return "starting"
        left = (time.monotonic() - self._began) / new * (rounds - sum(done.values()))
        return f"{duration(max(0.0, left))} left"

    def _round(self, cell: Cell) -> int:
        """Return the number of rounds that a cell has done."""
        path = self._folder.cell(cell)
        if (path / "summary.json").is_file():
            return cell.config.train.rounds
        return last_round(path / "metrics.csv")


def last_round(file: Path) -> int:
    """Return the round of the last whole line of a metrics.csv that may be growing; 0 without one.

    Args:
        file: The file.
    """
    with suppress(OSError, ValueError), file.open("rb") as opened:
        opened.seek(max(0, opened.seek(0, os.SEEK_END) - TAIL))
        lines = opened.read().split(b"\n")
        return int(lines[-2].partition(b",")[0]) if len(lines) > 1 else 0
    return 0
