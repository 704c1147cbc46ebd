"""How a study goes: a live table on a terminal, a line for each trial that ends elsewhere."""

import time
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from rich.console import Console
from rich.live import Live
from rich.table import Table

from flbench.reports.terminal import duration, open_console
from flbench.tuning.plan import ENDS, winner
from flbench.tuning.study import Job, Record, job_of


@dataclass
class Board:
    """What is known of a study while it goes; a thread of Rich reads it while others write.

    Attributes:
        methods: in the order of the table.
        metric: that scores trials.
        trials: of each method's search.
        finals: of each method.
        rounds: of a whole trial.
        ended: records of the trials that have ended.
        running: rounds done of the trials that are being trained, by their folder.
    """

    methods: tuple[str, ...]
    metric: str
    trials: int
    finals: int
    rounds: int
    console: Console = field(default_factory=lambda: open_console(errors=True))
    ended: dict[str, Record] = field(default_factory=dict)
    running: dict[str, int] = field(default_factory=dict)
    _live: Live | None = None
    _began: float = 0.0  # when the first trial reported
    _before: int = 0

    @contextmanager
    def shown(self) -> Iterator[None]:
        """Keep a live table up to date where there is a terminal."""
        if not self.console.is_terminal:
            yield
            return
        with Live(
            get_renderable=self.table, console=self.console, refresh_per_second=2, transient=True
        ) as self._live:
            yield
        self._live = None

    def take_up(self, records: Iterable[Record]) -> None:
        """Note trials that had ended before."""
        self.ended |= {job_of(record).name: record for record in records}

    def progress(self, job: Job, done: int) -> None:
        """Note the rounds that a trial has done."""
        if not self._began:  # what processes and imports took before says nothing of the rest
            self._began, self._before = time.monotonic(), self._done()
        self.running[job.name] = done

    def end(self, record: Record) -> None:
        """Note a trial that has ended; say so where there is no table."""
        job = job_of(record)
        self.ended[job.name] = record
        self.running.pop(job.name, None)
        if self._live is None:
            self._say(job, record)

    def say(self, text: str) -> None:
        """Print a note above the table."""
        self.console.print(f"note: {text}", soft_wrap=True)

    def table(self) -> Table:
        """Return the table: trials by state, best score so far, rounds, time left."""
        rounds = f"{self._done()} of about {self._all()} rounds, {self._left()}"
        table = Table(title=rounds, title_justify="left", box=None, pad_edge=False)
        for name in ("method", "trials", "running", *ENDS[1:], f"best {self.metric}", "finals"):
            table.add_column(name, justify="left" if name == "method" else "right")
        for method in self.methods:
            search = self._of(method, "search")
            states = Counter(record["state"] for record in search)
            running = [
                f"{name.rpartition('/')[2]}: {done}"
                for name, done in list(self.running.items())
                if name.split("/")[1] == method
            ]
            table.add_row(
                method,
                f"{len(search)}/{self.trials}",
                ", ".join(running),
                *(str(states[state] or "") for state in ENDS[1:]),
                self._best(method),
                f"{len(self._of(method, 'final'))}/{self.finals}",
            )
        return table

    def _say(self, job: Job, record: Record) -> None:
        score = record.get("score")
        found = f"validation {self.metric} {score:.4f}" if score is not None else "no score"
        why = f" ({record['reason']})" if record["state"] in ("failed", "diverged") else ""
        self.console.print(
            f"{job.name}  {record['state']}{why}  {found}  round {record.get('round', 0)}  "
            f" {len(self.ended)}/{len(self.methods) * (self.trials + self.finals)} trials"
            f"  best {self._best(job.method)}  {self._left()}",
            soft_wrap=True,
        )

    def _of(self, method: str, kind: str) -> list[Record]:
        return [
            record
            for record in list(self.ended.values())
            if record["method"] == method and record["kind"] == kind
        ]

    def _best(self, method: str) -> str:
        won = winner(self._of(method, "search"))
        return "-" if won is None else f"{won.score:.4f}"

    def _done(self) -> int:
        """Return the rounds done; a trial that ended early counts whole."""
        return self.rounds * len(self.ended) + sum(list(self.running.values()))

    def _all(self) -> int:
        return self.rounds * len(self.methods) * (self.trials + self.finals)

    def _left(self) -> str:
        done = self._done() - self._before
        if done <= 0 or not self._began:
            return "starting"
        left = (time.monotonic() - self._began) / done * (self._all() - self._done())
        return f"{duration(max(0.0, left))} left"
