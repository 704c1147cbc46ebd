"""How a run or a study speaks to whoever started it: notes, and progress in the terminal."""

import sys
import time
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Final

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from flbench.callbacks import Callback, RunView
from flbench.core.errors import shortened
from flbench.core.user_code_errors import note_of
from flbench.core.wording import how_to_resume
from flbench.reports.shown import run_score
from flbench.reports.terminal import Silence, duration, open_console, print_notes, told

MORE: Final = 5.0
"""Seconds that a line about what is done waits for the end of a round, whose line says more."""
KERNELS: Final = ("ZMQInteractiveShell", "Shell")  # Jupyter and VS Code; Colab


@dataclass(frozen=True)
class Caller:
    """Who started a run or a study. The defaults are those of the command line.

    Attributes:
        shown: Whether to show progress and notes.
        how_to_resume: Function from a folder to what the user calls to resume it; None for the
            command.
    """

    shown: bool = True
    how_to_resume: Callable[[Path], str] | None = None

    def tell(self, sentences: Sequence[str]) -> None:
        """Print sentences on standard error, as `note: ...`; nothing if notes are not shown."""
        if self.shown:
            print_notes(sentences)

    def during(self, doing: str) -> AbstractContextManager[None]:
        """Return a context manager that says from time to time what is done in it."""
        return told(doing, self.tell)


def program(*, shown: bool, again: Sequence[str] = ()) -> Caller:
    """Return the caller of a function of the Python interface.

    Args:
        shown: Whether to show progress and notes.
        again: What `fl.resume` must be given again; see `flbench.calls.parts.again`.
    """
    resume = partial(how_to_resume, again=again)
    return Caller(shown=shown, how_to_resume=resume)


def is_notebook() -> bool:
    """Return whether this process is the kernel of a notebook, which shows HTML."""
    if "IPython" not in sys.modules:
        return False
    from IPython import get_ipython

    return type(get_ipython()).__name__ in KERNELS


@contextmanager
def display(title: str, known: set[str] | None = None) -> Iterator[Callback]:
    """Show the progress of a run on standard error.

    Python warnings inside the context are printed as notes.

    Args:
        title: Line that is printed first; the middle of a long one is left out.
        known: Notes from before the first round of earlier runs of a comparison, for example on its
            partition. They are not printed again; new ones are added.

    Yields:
        The callback that shows the progress.
    """
    console = open_console(errors=True)
    console.print(shortened(title), soft_wrap=True)
    with warnings.catch_warnings():
        if console.is_terminal:
            columns = (
                TextColumn("round"),
                MofNCompleteColumn(),
                BarColumn(),
                TextColumn("{task.fields[status]}"),
                TimeRemainingColumn(),
            )
            with Progress(*columns, console=console, transient=True) as progress:
                bar = _Bar(progress, known)
                warnings.showwarning = _as_note(bar)
                yield bar
        else:
            lines = _Lines(console, known)
            warnings.showwarning = _as_note(lines)
            with lines.silence.broken_by(lines.say_what_is_done, MORE):
                yield lines


def _as_note(current: Callback) -> Any:
    """Return a function for `warnings.showwarning` that prints a warning as a note, once."""
    shown: set[str] = set()

    def show(message: Warning | str, _: Any, file: str, line: int, *__: Any) -> None:
        if (note := note_of(message, file, line)) not in shown:
            shown.add(note)
            current.on_note(note)

    return show


class _Notes(Callback):
    """Prints notes; those from before the first round only if they are not known yet."""

    def __init__(self, console: Console, known: set[str] | None) -> None:
        self._notes, self._known = console, set() if known is None else known
        self._has_begun = False
        self.silence = Silence()

    def on_run_start(self, run: RunView) -> None:
        self._has_begun = True

    def on_note(self, text: str) -> None:
        if self._has_begun or text not in self._known:
            self.silence.end()
            self._notes.print(f"note: {text}", soft_wrap=True)
        if not self._has_begun:
            self._known.add(text)


class _Lines(_Notes):
    """Prints one line per evaluation, and others if there was none for a while."""

    def __init__(self, console: Console, known: set[str] | None) -> None:
        super().__init__(console, known)
        self._console = console
        self._start_time, self._start_round = time.monotonic(), 0
        self._first_time, self._first_round = self._start_time, 0
        self._has_warmed_up = False
        self._doing = "reading the data and preparing the training"

    def say_what_is_done(self) -> None:
        """Print what is done, for a round, or a time before or after all of them, that is long."""
        self.silence.end()
        self._console.print(f"note: {self._doing}.", soft_wrap=True)

    def on_run_start(self, run: RunView) -> None:
        super().on_run_start(run)
        self._start_time, self._start_round = time.monotonic(), run.round
        self._has_warmed_up = False
        self._note_round(run)

    def _note_round(self, run: RunView) -> None:
        """Note what is done after a round."""
        self._doing = "evaluating the last round, writing the results and ending the workers"
        if run.round < run.rounds:
            self._doing = f"training or evaluating round {run.round + 1} of {run.rounds}"

    def on_round_end(self, run: RunView, metrics: Mapping[str, float]) -> None:
        self._note_round(run)
        if not self._has_warmed_up and run.round < run.rounds:
            # The first round is slower than the others, so the estimate leaves it out.
            self._has_warmed_up = True
            self._first_time, self._first_round = time.monotonic(), run.round
        is_evaluated = run.round % run.config.evaluation_period == 0
        if self.silence.is_long() and not is_evaluated:
            self._print(run, "")

    def on_evaluation_end(self, run: RunView, metrics: Mapping[str, float]) -> None:
        self._print(run, f"  {accuracy_text(run, metrics)}")

    def _print(self, run: RunView, accuracy: str) -> None:
        self.silence.end()
        self._console.print(
            f"round {run.round}/{run.rounds}{accuracy}  loss {run.loss:.4f}"
            f"{self._left(run.round, run.rounds)}",
            soft_wrap=True,
        )

    def _left(self, done: int, rounds: int) -> str:
        """Return the estimated time left; "" before the first round of this process."""
        began, first = self._start_time, self._start_round
        if self._has_warmed_up and done > self._first_round:
            began, first = self._first_time, self._first_round
        if done <= first and done < rounds:
            return ""
        seconds_per_round = (time.monotonic() - began) / max(1, done - first)
        return f"  {duration(seconds_per_round * (rounds - done))} left"


class _Bar(_Notes):
    """Shows a progress bar with round, validation accuracy, training loss and time left."""

    def __init__(self, progress: Progress, known: set[str] | None) -> None:
        super().__init__(progress.console, known)
        self._progress = progress
        self._task = progress.add_task("round", total=None, status="")
        self._accuracy = ""

    def on_run_start(self, run: RunView) -> None:
        super().on_run_start(run)
        self._progress.update(self._task, total=run.rounds, completed=run.round)

    def on_round_end(self, run: RunView, metrics: Mapping[str, float]) -> None:
        status = f"{self._accuracy}loss {run.loss:.4f}"
        self._progress.update(self._task, completed=run.round, status=status)

    def on_evaluation_end(self, run: RunView, metrics: Mapping[str, float]) -> None:
        self._accuracy = f"{accuracy_text(run, metrics)}  "


def accuracy_text(run: RunView, metrics: Mapping[str, float]) -> str:
    """Return the validation accuracy, or the metric by which the best round is chosen, in words."""
    by = run.config.evaluation.best
    value = metrics.get(f"validation/personal/{by.column}")
    if value is None:
        return "no validation part"
    return f"validation {by.title} {run_score(value, has_classes=run.config.has_classes)}"
