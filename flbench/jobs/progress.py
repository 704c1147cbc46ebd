"""Progress of jobs: a live table on a terminal, and a line for each job that ends."""

import os
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

from rich.live import Live
from rich.table import Table

from flbench.core.documents import as_data_error, read_json
from flbench.core.wording import listed
from flbench.jobs.folder import JobFolder
from flbench.jobs.job import Job, Outcome
from flbench.reports.terminal import Silence, duration, open_console

TAIL: Final = 4096  # bytes at the end of metrics.csv in which the last round is searched
NAMED: Final = 4  # running jobs that a line names


class JobProgress:
    """Progress of the jobs of a campaign, which a thread reads while other threads change it.

    It is a live table on a terminal. Otherwise a line says how far the trainings are when there was
    none for a while; see `Silence`.
    """

    def __init__(self, jobs: Sequence[Job], folder: JobFolder, kind: str) -> None:
        self.console = open_console(errors=True)
        self._silence = Silence()
        self._began: float | None = None  # without the time in which processes start
        self._jobs, self._folder, self._kind = jobs, folder, kind
        self._planned = Counter(job.method for job in jobs)
        before = [job for job in jobs if folder.is_done(job)]
        failed = [job for job in before if folder.has_failed(job)]
        self._failed = Counter(job.method for job in failed)
        self._finished = Counter(job.method for job in before) - self._failed
        self._running: dict[str, Job] = {}
        self._told: set[str] = set()
        self._first = {job.name: last_round(self._rows(job)) for job in jobs}
        # Jobs that have ended, with their last rounds: their files are not read again.
        self._last = {job.name: self._first[job.name] for job in before}

    @contextmanager
    def live(self) -> Iterator[None]:
        """Show a live table, or print lines from time to time, for the duration of the block."""
        if self.console.quiet:
            yield
            return
        if not self.console.is_terminal:
            with self._silence.broken_by(lambda: self.print(self.line())):
                yield
            return
        with Live(
            get_renderable=self.table, console=self.console, refresh_per_second=2, transient=True
        ):
            yield

    def note(self, text: str) -> None:
        """Print a note above the table."""
        self.print(f"note: {text}")

    def print(self, text: str) -> None:
        """Print a line above the table."""
        self._silence.end()
        self.console.print(text, soft_wrap=True)

    def begin(self, job: Job) -> None:
        """Note that a job is being trained."""
        self._running[job.name] = job
        self._last.pop(job.name, None)

    def end(self, job: Job, reason: str | None, outcome: Outcome, found: str | None = None) -> None:
        """Note that a job has ended, and print a line about it.

        Args:
            job: The job.
            reason: Why it failed; None if it is finished.
            outcome: Its time and its notes.
            found: What it has found; by default the test accuracy in its folder.
        """
        self._running.pop(job.name, None)
        rounds = last_round(self._rows(job))
        self._last[job.name] = rounds or (job.config.train.rounds if reason is None else 0)
        self._began = self._began or time.monotonic() - outcome.seconds
        (self._finished if reason is None else self._failed)[job.method] += 1
        for sentence in outcome.notes:
            if sentence not in self._told:
                self._told.add(sentence)
                self.note(f"{job.title}: {sentence}")
        found = f"failed: {reason}" if reason is not None else found or self._score(job)
        self.print(
            f"{self._ended}/{len(self._jobs)}  {job.title}  {found}  {duration(outcome.seconds)}"
            f"  {self._left()}"
        )

    def line(self) -> str:
        """Return the numbers of ended jobs and of the rounds of those that have begun."""
        begun = [
            f"{job.title}: round {self._round(job)} of {job.config.train.rounds}"
            for job in list(self._running.values())
        ]
        return "  ".join(
            filter(
                None,
                (f"{self._ended}/{len(self._jobs)}", listed(begun, NAMED, "; "), self._left()),
            )
        )

    def table(self) -> Table:
        """Return the table: finished, failed and running jobs of each method, and time left."""
        title = f"{self._ended} of {len(self._jobs)} {self._kind}s, {self._left()}"
        table = Table(title=title, title_justify="left", box=None, pad_edge=False)
        for name in ("method", "finished", "failed", "running"):
            table.add_column(name, justify="right" if name in ("finished", "failed") else "left")
        for method, planned in self._planned.items():
            running = [
                f"{job.which}: {self._round(job)}/{job.config.train.rounds}"
                for job in list(self._running.values())
                if job.method == method
            ]
            finished, failed = self._finished[method], self._failed[method]
            table.add_row(method, f"{finished}/{planned}", str(failed or ""), "; ".join(running))
        return table

    @property
    def _ended(self) -> int:
        """Number of jobs that have ended."""
        return self._finished.total() + self._failed.total()

    def _score(self, job: Job) -> str:
        """Return the test accuracy of a finished job."""
        file = self._folder.run_folder(job) / "summary.json"
        summary = read_json(file)
        with as_data_error(file):
            accuracy = summary.get("best", {}).get("test", {}).get("accuracy")
            return "finished" if accuracy is None else f"test accuracy {accuracy:.4f}"

    def _left(self) -> str:
        """Return the estimated time left, as text; a job that has ended has no rounds left."""
        rounds = {job.name: self._round(job) for job in self._jobs}
        done = sum(rounds.values()) - sum(self._first.values())
        if done <= 0 or self._began is None:
            return "starting"
        others = [job for job in self._jobs if job.name not in self._last]
        left = sum(job.config.train.rounds - rounds[job.name] for job in others)
        return f"{duration((time.monotonic() - self._began) / done * left)} left"

    def _round(self, job: Job) -> int:
        """Return the number of rounds that a job has done."""
        known = self._last if job.name in self._last else self._first
        return last_round(self._rows(job)) if job.name in self._running else known[job.name]

    def _rows(self, job: Job) -> Path:
        """Return the metrics.csv of a job, which need not exist."""
        return self._folder.run_folder(job) / "metrics.csv"


def last_round(file: Path) -> int:
    """Return the round of the last whole line of a metrics.csv that may grow; 0 without one."""
    with suppress(OSError, ValueError), file.open("rb") as opened:
        opened.seek(max(0, opened.seek(0, os.SEEK_END) - TAIL))
        lines = opened.read().split(b"\n")
        return int(lines[-2].partition(b",")[0]) if len(lines) > 1 else 0
    return 0
