"""Looks after the trials of a study that wait for resources.

The user is told what they wait for. If a node is lost, the trials begin again on those that are
left; if none is left, a wait that is too long ends the study.
"""

import time
from collections.abc import Callable, Sequence
from typing import Final

from flbench.core.wording import listed
from flbench.tuning.ray_tune import Reservations
from flbench.workers.actor_pool import NOTICE, amounts, end_of_wait, nodes_have
from flbench.workers.ray_resources import Resources, workers_of

LOOK: Final = 4.0
"""Seconds between two looks at the nodes of the cluster."""
HOLD: Final = 10.0
"""Seconds that Ray has to find other nodes for what it had reserved on one that is lost."""
NAMED: Final = 3  # trials that a sentence names


class Waits:
    """Watches over the trials of a study that do not run.

    Args:
        resources: Resources of each trial, and how long trials may wait while none runs.
        tell: Function that gets notes for the user.
    """

    def __init__(self, resources: Resources, tell: Callable[[str], None]) -> None:
        self._resources = resources
        self._needs = {"CPU": float(resources.cpus), "GPU": resources.gpus}
        self._workers = workers_of(resources) if resources.engine.name == "ray" else None
        if self._workers is not None:
            self._needs = {"CPU": float(self._workers), "GPU": self._workers * resources.gpus}
        self._patience = resources.engine.wait_seconds
        self._tell = tell
        self._checked = time.monotonic()
        self._broken: float | None = None  # time since when a reservation is broken
        self._since: float | None = None  # time since when trials wait and none runs
        self._due = NOTICE  # seconds of a wait after which the user is told next

    def must_begin_again(self, waiting: Sequence[str], running: Sequence[str]) -> str | None:
        """Return a note for the user if a node is lost, and the trials must begin again without it.

        A trial that has lost a part of its reservation waits until Ray finds another node for it.
        Ray gives CPUs that become free to other trials first, and knows only the number of CPUs
        that was asked for when the cluster was larger.

        Args:
            waiting: Names of the trials that wait for resources.
            running: Names of the trials that have begun.
        """
        now = time.monotonic()
        if now - self._checked < LOOK / 2:
            return None
        self._checked = now
        is_broken = bool(running) and "RESCHEDULING" in Reservations.states()
        is_short = self._is_short() and not running and bool(waiting)
        if not is_broken and not is_short:
            self._broken = None
            return None
        self._broken = now if self._broken is None else self._broken
        if now - self._broken < HOLD:
            return None
        names = listed(running or waiting, NAMED)
        less = ""
        if self._is_short():
            less = f" with engine.workers={workers_of(self._resources)}, as many as are left"
        return (
            f"a node of the Ray cluster was lost. {names}: waiting for {amounts(self._needs)}. All"
            " trials that have begun continue from their last checkpoints on the nodes that are"
            f" left{less}; the results are the same."
        )

    def _is_short(self) -> bool:
        """Return whether trials are to have more workers than the cluster has CPUs or GPUs."""
        return self._workers is not None and workers_of(self._resources) < self._workers

    def look(self, waiting: Sequence[str], running: Sequence[str]) -> str | None:
        """Tell the user of a wait from time to time; return why it ends a study if it is too long.

        Args:
            waiting: Names of the trials that wait for resources.
            running: Names of the trials that have begun.
        """
        now = time.monotonic()
        if running or not waiting:
            self._since, self._due = None, NOTICE
            return None
        self._since = now if self._since is None else self._since
        waited = now - self._since
        if waited >= self._due:
            self._due = waited + NOTICE
            self._tell(self._sentence(waiting, waited))
        if waited < self._patience:
            return None
        return f"{self._sentence(waiting, waited)} {end_of_wait(self._patience)}"

    def _sentence(self, waiting: Sequence[str], waited: float) -> str:
        """Return which trials wait for what."""
        begin = f"no trial has run for {waited:.0f} s. {listed(waiting, NAMED)}: waiting for"
        if "CREATED" in Reservations.states():
            return f"{begin} a worker process, which is starting on CPUs that Ray has reserved."
        return f"{begin} {amounts(self._needs)}. {nodes_have(self._needs)}"
