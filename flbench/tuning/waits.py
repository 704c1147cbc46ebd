"""Tells the user of a study whose trials wait for resources, or for a node that does not answer."""

import time
from collections.abc import Callable, Sequence
from typing import Final

import ray

from flbench.workers.cluster import workers_of
from flbench.workers.pool import NOTICE, Nodes, amounts, free, there
from flbench.workers.resources import Resources

LOOK: Final = 10.0
"""Seconds between two looks at the nodes of the cluster."""
NAMED: Final = 3  # trials that a sentence names


class Waits:
    """Watches over the trials of a study that do not run.

    Args:
        resources: Resources of each trial, and how long trials may wait while none runs.
        tell: Function that gets notes for the user.
    """

    def __init__(self, resources: Resources, tell: Callable[[str], None]) -> None:
        self._needs = {"CPU": float(resources.cpus), "GPU": resources.gpus}
        if resources.engine.name == "ray":
            workers = workers_of(resources)
            self._needs = {"CPU": float(workers), "GPU": workers * resources.gpus}
        self._patience = resources.engine.wait_seconds
        self._tell = tell
        self._nodes = Nodes()
        self._silent: set[str] = set()  # nodes of which the user knows
        self._looked = time.monotonic()
        self._since: float | None = None  # time since when trials wait and none runs
        self._told = False

    def look(self, waiting: Sequence[str], *, is_running: bool) -> str | None:
        """Tell the user of a wait, once; return why the study must end if it has been too long.

        Args:
            waiting: Names of the trials that wait for resources.
            is_running: Whether other trials run.
        """
        now = time.monotonic()
        if is_running and now - self._looked >= LOOK:
            self._look_at_nodes()
            self._looked = time.monotonic()
        if is_running or not waiting:
            self._since, self._told = None, False
            return None
        self._since = now if self._since is None else self._since
        waited = now - self._since
        if waited >= NOTICE and not self._told:
            self._told = True
            self._tell(self._sentence(waiting, waited))
        if waited < self._patience:
            return None
        return (
            f"{self._sentence(waiting, waited)} `engine.wait_seconds`={self._patience:g} ends this"
            " wait: start a node, or end what uses the others."
        )

    def _look_at_nodes(self) -> None:
        """Tell the user of nodes that have begun to be silent."""
        alive = {node["NodeID"]: node for node in ray.nodes() if node["Alive"]}
        silent = self._nodes.lost(set(alive)) & set(alive)
        for name in sorted(silent - self._silent):
            self._tell(
                f"the node {alive[name]['NodeManagerAddress']} of the Ray cluster does not answer."
                " Its trials wait until it returns; if Ray gives it up, they resume from their"
                " checkpoints on other nodes."
            )
        self._silent = silent

    def _sentence(self, waiting: Sequence[str], waited: float) -> str:
        """Return which trials wait for what."""
        more = f" and {len(waiting) - NAMED} more" if len(waiting) > NAMED else ""
        return (
            f"no trial has run for {waited:.0f} s: {', '.join(waiting[:NAMED])}{more} wait for"
            f" {amounts(self._needs)} each. The nodes of Ray that answer have"
            f" {amounts(free(self._needs))} free of {amounts(there(self._needs))}."
        )
