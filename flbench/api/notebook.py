"""Progress of a run in a notebook: a bar with the notes below it, updated in place."""

import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from importlib import import_module
from typing import Any, Final

from flbench.api.caller import accuracy_text
from flbench.callbacks import Callback, RunView
from flbench.reports.terminal import duration

INTERVAL: Final = 0.2  # seconds between two updates, at least


@contextmanager
def display(title: str) -> Iterator["NotebookBar"]:
    """Show the progress of a run below the running cell.

    Args:
        title: Line above the bar.

    Yields:
        The callback that shows the progress.
    """
    bar = NotebookBar(title)
    try:
        yield bar
    finally:
        bar.update(force=True)


class NotebookBar(Callback):
    """Shows a bar, accuracy, loss, time left, and notes.

    It uses the `display` of IPython alone, which every notebook has, so no widgets are needed.

    Args:
        title: Line above the bar.
    """

    def __init__(self, title: str) -> None:
        shown: Any = import_module("IPython.display")  # it has no types
        self._html = shown.HTML
        self._title, self._notes = title, list[str]()
        self._done = self._rounds = self._first = 0
        self._status = self._accuracy = ""
        self._began = self._shown = time.monotonic()
        self._handle = shown.display(self._html(self._page()), display_id=True)

    def on_run_start(self, run: RunView) -> None:
        """Show the rounds that are completed already."""
        self._done, self._rounds, self._first = run.round, run.rounds, run.round
        self._began = time.monotonic()
        self.update(force=True)

    def on_round_end(self, run: RunView, metrics: Mapping[str, float]) -> None:
        """Move the bar."""
        self._done = run.round
        self._status = f"{self._accuracy}loss {run.loss:.4f}"
        self.update()

    def on_evaluation_end(self, run: RunView, metrics: Mapping[str, float]) -> None:
        """Show the validation accuracy."""
        self._accuracy = f"{accuracy_text(run, metrics)}, "
        self.update()

    def on_note(self, text: str) -> None:
        """Add a note below the bar."""
        self._notes.append(text)
        self.update(force=True)

    def update(self, *, force: bool = False) -> None:
        """Show the newest state, unless that was done a moment ago.

        Args:
            force: Whether to show it in any case.
        """
        now = time.monotonic()
        if force or now - self._shown > INTERVAL:
            self._shown = now
            self._handle.update(self._html(self._page()))

    def _page(self) -> str:
        from flbench.api import html

        bar = "starting"
        if self._rounds:
            bar = (
                f'<progress value="{self._done}" max="{self._rounds}"></progress>'
                f"round {self._done} of {self._rounds}, {html.text(self._status)}{self._left()}"
            )
        return html.card(self._title, f"<div>{bar}</div>", html.notes(self._notes))

    def _left(self) -> str:
        """Return the estimated time left; after the last round the time spent."""
        spent = time.monotonic() - self._began
        if self._done >= self._rounds:
            return f", {duration(spent)}"
        done = self._done - self._first
        return f", {duration(spent / done * (self._rounds - self._done))} left" if done else ""
