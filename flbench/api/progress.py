"""Notes and progress of a run, a study or a comparison, for whoever started it."""

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Final, Self

from rich.console import Console
from rich.progress import BarColumn, TextColumn
from rich.progress import Progress as RichProgress

from flbench.callbacks import Callback, RunView
from flbench.core.errors import shortened
from flbench.core.wording import how_to_resume
from flbench.reports.shown import run_score
from flbench.reports.terminal import Silence, duration, print_notes, told

MORE: Final = 5.0
"""Seconds that a line about what is done waits for the end of a round, whose line says more."""


@dataclass(frozen=True)
class Caller:
    """Who started a run, a study or a comparison. The defaults are those of the command line.

    Attributes:
        shown: Whether to show progress and notes.
        how_to_resume: Function from a folder to what the user calls to resume it; None for the
            command.
        callbacks: Callbacks of a run, and those of its loggers.
        objects: Objects of the user without an import path, by the name of their section.
    """

    shown: bool = True
    how_to_resume: Callable[[Path], str] | None = None
    callbacks: Sequence[Callback] = ()
    objects: Mapping[str, Any] = field(default_factory=dict)

    @classmethod
    def of(
        cls,
        values: Mapping[str, Any],
        objects: Mapping[str, Any],
        again: Iterable[str] | None = None,
    ) -> Self:
        """Return the caller of a function of the Python interface.

        Args:
            values: Its arguments `progress`, `callbacks` and `logger`.
            objects: The objects of the user without an import path, by the name of their section.
            again: Names of what `fl.resume` must be given again; by default, the objects.
        """
        from flbench.calls import parts  # it imports PyTorch

        names = parts.again(objects if again is None else again)
        callbacks = list(listed(values.get("callbacks", ())))
        if loggers := listed(values.get("logger", ())):
            from flbench.callbacks.logger import LoggerCallback

            callbacks += map(LoggerCallback, loggers)
        resume = partial(how_to_resume, again=names)
        return cls(values["progress"], resume, callbacks, objects)

    def tell(self, sentences: Sequence[str]) -> None:
        """Print sentences on standard error, as `note: ...`; nothing if notes are not shown."""
        if self.shown:
            print_notes(sentences)

    def during(self, doing: str) -> AbstractContextManager[None]:
        """Return a context manager that says from time to time what is done in it."""
        return told(doing, self.tell)


def listed(items: Any) -> list[Any]:
    """Return one item, or a list or tuple of them, as a list."""
    return list(items) if isinstance(items, list | tuple) else [items]


class Progress(Callback):
    """What is known about the progress of a run: rounds, score, loss and time left.

    Args:
        title: Line that is shown first.
    """

    def __init__(self, title: str) -> None:
        self._title = title
        self._has_begun = self._has_warmed_up = False
        self._score = ""
        self.done = self.rounds = self._first = 0
        self._loss, self._began = "", time.monotonic()

    def live(self) -> AbstractContextManager[Any]:
        """Return the context in which the progress is shown."""
        return nullcontext()

    def show(self, *, is_due: bool) -> None:
        """Show how far the run is; `is_due` after an evaluation, and at the beginning."""

    @property
    def text(self) -> str:
        """Round, score at the last evaluation, training loss and time left."""
        if not self._has_begun:
            return "starting"
        parts = (f"round {self.done}/{self.rounds}", self._score, self._loss, self._left())
        return "  ".join(filter(None, parts))

    def on_run_start(self, run: RunView) -> None:
        """Note the rounds that are completed already."""
        self._has_begun, self._has_warmed_up = True, False
        self.done, self.rounds, self._first = run.round, run.rounds, run.round
        self._began = time.monotonic()
        self.show(is_due=True)

    def on_round_end(self, run: RunView, metrics: Mapping[str, float]) -> None:
        """Note the loss of a round."""
        self.done, self._loss = run.round, f"loss {run.loss:.4f}"
        if run.round % run.config.evaluation_period:  # otherwise an evaluation follows
            self.show(is_due=False)
        if not self._has_warmed_up and run.round < run.rounds:
            # The first round is slower than the others, so the estimate leaves it out.
            self._has_warmed_up, self._first = True, run.round
            self._began = time.monotonic()

    def on_evaluation_end(self, run: RunView, metrics: Mapping[str, float]) -> None:
        """Note the validation accuracy, or the metric by which the best round is chosen."""
        by = run.config.evaluation.best
        value = metrics.get(f"validation/personal/{by.column}")
        score = f"{by.title} {run_score(value, has_classes=run.config.has_classes)}"
        self._score = "no validation part" if value is None else f"validation {score}"
        self.show(is_due=True)

    def _left(self) -> str:
        """Return the estimated time left; "" before the first round of this process."""
        done = self.done - self._first
        if done <= 0:
            return ""
        seconds = (time.monotonic() - self._began) / done
        return f"{duration(seconds * (self.rounds - self.done))} left"


class Lines(Progress):
    """Prints a line for each evaluation, and others if there was none for a while."""

    def __init__(self, title: str, console: Console) -> None:
        super().__init__(title)
        self._print, self._silence = console.print, Silence()
        self._print(shortened(title), soft_wrap=True)

    def live(self) -> AbstractContextManager[Any]:
        """Return the context with a thread that says what is done in a round that is long."""
        return self._silence.broken_by(self._say_what_is_done, MORE)

    def show(self, *, is_due: bool) -> None:
        """Print a line after an evaluation, or after a round if there was none for a while."""
        if (is_due and self._score) or self._silence.is_long():
            self._line(self.text)
        self._score = ""  # of this round alone

    def on_note(self, text: str) -> None:
        """Print a note."""
        self._line(f"note: {text}")

    def _line(self, text: str) -> None:
        self._silence.end()
        self._print(text, soft_wrap=True)

    def _say_what_is_done(self) -> None:
        """Print what is done, for a round, or a time before or after all of them, that is long."""
        doing = f"training or evaluating round {self.done + 1} of {self.rounds}"
        if not self._has_begun:
            doing = "reading the data and preparing the training"
        elif self.done == self.rounds:
            doing = "evaluating the last round, writing the results and ending the workers"
        self.on_note(f"{doing}.")


class Bar(Progress):
    """Shows a bar on a terminal."""

    def __init__(self, title: str, console: Console) -> None:
        super().__init__(title)
        self._print = console.print
        self._print(shortened(title), soft_wrap=True)
        columns = BarColumn(), TextColumn("{task.description}")
        self._bar = RichProgress(*columns, console=console, transient=True)
        self._task = self._bar.add_task(self.text, total=None)

    def live(self) -> AbstractContextManager[Any]:
        """Return the bar."""
        return self._bar

    def show(self, *, is_due: bool) -> None:
        """Move the bar."""
        self._bar.update(self._task, description=self.text, total=self.rounds, completed=self.done)

    def on_note(self, text: str) -> None:
        """Print a note above the bar."""
        self._print(f"note: {text}", soft_wrap=True)
