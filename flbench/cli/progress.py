"""What a run tells while it goes: a progress bar on a terminal, plain lines elsewhere."""

import time
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from flbench.reports.terminal import duration, open_console

if TYPE_CHECKING:
    from flbench.experiment.loop import Reporter


@contextmanager
def reporter(title: str) -> "Iterator[Reporter]":
    """Give a run something to tell how it goes: a bar on a terminal, plain lines elsewhere."""
    console = open_console(errors=True)
    console.print(title, soft_wrap=True)
    told: Reporter
    with warnings.catch_warnings():
        if console.is_terminal:
            columns = (
                TextColumn("round"),
                MofNCompleteColumn(),
                BarColumn(),
                TextColumn("{task.fields[said]}"),
                TimeRemainingColumn(),
            )
            with Progress(*columns, console=console, transient=True) as progress:
                told = _Bar(progress)
                warnings.showwarning = _shown_by(told)
                yield told
        else:
            told = _Lines(console)
            warnings.showwarning = _shown_by(told)
            yield told


def _shown_by(told: "Reporter") -> Any:
    return lambda message, *_, **__: told.warn(str(message))


class _Lines:
    """One plain line per evaluation."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._begin = (time.monotonic(), 0)
        self._rounds = 0
        self._loss = float("nan")

    def begin(self, done: int, rounds: int) -> None:
        self._begin, self._rounds = (time.monotonic(), done), rounds

    def round_done(self, done: int, loss: float) -> None:
        self._loss = loss

    def evaluated(self, done: int, figures: Mapping[tuple[str, str, str], float]) -> None:
        since, first = self._begin
        left = (time.monotonic() - since) / max(1, done - first) * (self._rounds - done)
        self._console.print(
            f"round {done}/{self._rounds}  {_accuracy(figures)}  loss {self._loss:.4f} "
            f" {duration(left)} left",
            soft_wrap=True,
        )

    def warn(self, text: str) -> None:
        self._console.print(f"note: {text}", soft_wrap=True)


class _Bar:
    """A progress bar with round, validation accuracy, loss and time left."""

    def __init__(self, progress: Progress) -> None:
        self._progress = progress
        self._task = progress.add_task("round", total=None, said="")
        self._said = ""

    def begin(self, done: int, rounds: int) -> None:
        self._progress.update(self._task, total=rounds, completed=done)

    def round_done(self, done: int, loss: float) -> None:
        self._progress.update(self._task, completed=done, said=f"{self._said}loss {loss:.4f}")

    def evaluated(self, done: int, figures: Mapping[tuple[str, str, str], float]) -> None:
        self._said = f"{_accuracy(figures)}  "

    def warn(self, text: str) -> None:
        self._progress.console.print(f"note: {text}", soft_wrap=True)


def _accuracy(figures: Mapping[tuple[str, str, str], float]) -> str:
    """Say the validation accuracy, or the training loss where there is no validation part."""
    value = figures.get(("validation", "personal", "accuracy"))
    return "no validation part" if value is None else f"validation accuracy {value:.4f}"
