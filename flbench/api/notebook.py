"""What notebooks show of a run: a bar while it is trained, and a card."""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from typing import Any, Final

from flbench.api.progress import Progress
from flbench.reports import run as pages
from flbench.reports.shown import card
from flbench.results.reading import StoredRun

INTERVAL: Final = 0.2  # seconds between two updates of the bar, at least


def card_of(run: StoredRun) -> str:
    """Return what notebooks show of a run, finished or not."""
    summary = run.summary
    state = {} if run.finished else {"state": f"unfinished: fl.resume({str(run.path)!r})"}
    facts = pages.facts_of(summary) if run.finished else {"seed": str(summary["seed"])}
    return card(
        f"{summary['algorithm']} on {summary['dataset']}",
        {**state, **facts, "folder": str(run.path)},
        pages.metrics(run),
        summary.get("notes", ()),
    )


class NotebookBar(Progress):
    """Shows a bar with notes below it, by the `display` of IPython, which every notebook has."""

    def __init__(self, title: str) -> None:
        super().__init__(title)
        self._notes: list[str] = []
        self._shown = time.monotonic()
        shown: Any = import_module("IPython.display")  # it has no types
        self._html = shown.HTML
        self._handle = shown.display(self._html(self._page()), display_id=True)

    @contextmanager
    def live(self) -> Iterator[None]:
        """Context manager at whose end the last state is shown."""
        try:
            yield
        finally:
            self._update()

    def show(self, *, is_due: bool) -> None:
        """Show the newest state, unless that was done a moment ago."""
        if is_due or time.monotonic() - self._shown > INTERVAL:
            self._update()

    def on_note(self, text: str) -> None:
        """Add a note below the bar."""
        self._notes.append(text)
        self._update()

    def _update(self) -> None:
        self._shown = time.monotonic()
        self._handle.update(self._html(self._page()))

    def _page(self) -> str:
        return card(self._title, self, self._notes)
