"""Progress of a study: a live table on a terminal, otherwise a line for each trial that ends."""

import time
from collections import Counter
from collections.abc import Iterable
from statistics import fmean

from rich.console import Console
from rich.table import Table

from flbench.core.wording import listed
from flbench.jobs.progress import NAMED, LiveProgress
from flbench.tuning.study import ENDS, Record, TrialFolder, name_of, winner


class ProgressTable(LiveProgress):
    """Progress of a study.

    Args:
        methods: Names of the methods, in the order of the table.
        metric: Metric that scores the trials.
        trials: Number of trials of each method's search.
        rounds: Number of rounds of a complete trial.
        console: Console to print to; standard error by default.

    Attributes:
        ended: Records of the trials that have ended, by job name.
        running: Rounds that each running trial has done, by job name.
        interrupted: Rounds that interrupted trials had done before the study was resumed.
    """

    def __init__(
        self,
        methods: tuple[str, ...],
        metric: str,
        trials: int,
        rounds: int,
        console: Console | None = None,
    ) -> None:
        super().__init__(console)
        self.ended: dict[str, Record] = {}
        self.running: dict[str, int] = {}
        self.interrupted: dict[str, int] = {}
        self._methods, self._metric, self._rounds = methods, metric, rounds
        self._trials = trials
        self._before = 0  # rounds that had been done before the first report of a trial

    def add_ended(self, records: Iterable[Record]) -> None:
        """Add the records of trials that had ended before the study was resumed."""
        self.ended |= {name_of(record): record for record in records}

    def add_interrupted(self, records: Iterable[Record]) -> None:
        """Add the records of trials that were interrupted, none of which runs now."""
        self.running.clear()
        self.interrupted |= {name_of(record): record.get("round", 0) for record in records}

    def update(self, trial: TrialFolder, done: int) -> None:
        """Set the number of rounds that a trial has done."""
        if self._began is None:  # the estimate of the time left excludes the start of processes
            self._began, self._before = time.monotonic(), self._done()
        self.running[trial.name] = done

    def interrupt(self, trial: TrialFolder) -> None:
        """Note that a trial has lost its worker, and does not run until it has another one."""
        if (done := self.running.pop(trial.name, None)) is not None:
            self.interrupted[trial.name] = done

    def end(self, record: Record) -> None:
        """Add the record of a trial that has ended; print a line if there is no live table."""
        self.ended[name_of(record)] = record
        self.running.pop(name_of(record), None)
        if self._live is None:
            self._print_ended(record)

    def table(self) -> Table:
        """Return the table: trials by state, best score so far, rounds and time left."""
        done = self._done()
        rounds = f"{done} of about {done + self._to_do()} rounds, {self._left()}"
        table = Table(title=rounds, title_justify="left", box=None, pad_edge=False)
        for name in ("method", "trials", "running", *ENDS[1:], f"best {self._metric}"):
            table.add_column(name, justify="left" if name == "method" else "right")
        for method in self._methods:
            search = self._of(method)
            states = Counter(record["state"] for record in search)
            running = [
                f"{name.rpartition('/')[2]}: {done}"
                for name, done in list(self.running.items())
                if name.split("/")[1] == method
            ]
            table.add_row(
                method,
                f"{len(search)}/{self._trials}",
                ", ".join(running),
                *(str(states[state] or "") for state in ENDS[1:]),
                self._best(method),
            )
        return table

    def _print_ended(self, record: Record) -> None:
        """Print a line for a trial that has ended."""
        score = record.get("score")
        found = f"validation {self._metric} {score:.4f}" if score is not None else "no score"
        why = f" ({record['reason']})" if record["state"] in ("failed", "diverged") else ""
        self.print(
            f"{name_of(record)}  {record['state']}{why}  {found}  round {record.get('round', 0)}  "
            f" {len(self.ended)}/{self._trials * len(self._methods)} trials"
            f"  best {self._best(record['method'])}  {self._left()}"
        )

    def line(self) -> str:
        """Return the number of rounds so far, and those of the trials that run."""
        done = self._done()
        running = [f"{name}: round {count}" for name, count in list(self.running.items())]
        begin = f"{done} of about {done + self._to_do()} rounds"
        return "  ".join(filter(None, (begin, listed(running, NAMED), self._left())))

    def _of(self, method: str) -> list[Record]:
        return [one for one in list(self.ended.values()) if one["method"] == method]

    def _best(self, method: str) -> str:
        won = winner(self._of(method))
        return "-" if won is None else f"{won.score:.4f}"

    def _done(self) -> int:
        """Return the number of rounds that were trained, also before the study was resumed."""
        ended = dict(self.ended)
        begun = self.interrupted | dict(self.running)
        before: int = sum(record.get("round", 0) for record in ended.values())
        return before + sum(done for name, done in begun.items() if name not in ended)

    def _to_do(self) -> int:
        """Return the estimated number of rounds that are still to be trained.

        Trials are expected to last as long as those that have ended, because the scheduler stops
        some of them early.
        """
        ended = list(self.ended.values())
        lasted = [record.get("round", 0) for record in ended if record["state"] != "failed"]
        expected = round(fmean(lasted)) if lasted else self._rounds
        begun = self.interrupted | dict(self.running)
        done = [count for name, count in begun.items() if name not in self.ended]
        waiting = max(0, len(self._methods) * self._trials - len(ended) - len(done))
        rest = sum((expected if count < expected else self._rounds) - count for count in done)
        return waiting * expected + rest

    def _left(self) -> str:
        """Return the estimated time left, as text."""
        return self.time_left(self._done() - self._before, self._to_do())
