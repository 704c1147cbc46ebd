"""The Ray cluster of a study, and what a trial takes of it."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Final

import ray
from ray import tune

from flbench.config.schema import EngineConfig
from flbench.core.errors import ConfigError
from flbench.engine.ray import connect

# Of Ray Tune, before it is used: our folders say all that a resume needs.
QUIET: Final = {
    "TUNE_DISABLE_AUTO_CALLBACK_LOGGERS": "1",
    "TUNE_GLOBAL_CHECKPOINT_S": "3600",
    "TUNE_WARN_THRESHOLD_S": "60",
    "RAY_AIR_NEW_OUTPUT": "0",
    "TUNE_DISABLE_SIGINT_HANDLER": "1",  # Ctrl-C is ours: Tune's would look like an end
    "TUNE_MAX_PENDING_TRIALS_PG": "64",  # a whole population waits its turn
}


@dataclass(frozen=True)
class Resources:
    """What a study may use.

    Attributes:
        concurrent: trials at once.
        engine: of the trials.
        gpus: of each trial.
        retries: of a trial whose worker fails.
        address: of a Ray cluster; None starts one.
    """

    concurrent: int
    engine: EngineConfig
    gpus: float
    retries: int
    address: str | None

    @property
    def cpus(self) -> int:
        """Cores of one trial."""
        workers = self.engine.workers
        if self.engine.name == "ray":
            return workers if isinstance(workers, int) else 1
        return self.engine.threads or 1

    def bundles(self) -> Any:
        """Return what Ray reserves for one trial.

        A trial that starts workers of its own needs a bundle for each, and an empty one for itself:
        it would wait for ever for them otherwise.
        """
        if self.engine.name == "ray":
            worker = {"CPU": 1, "GPU": 1} if self.gpus else {"CPU": 1}
            return tune.PlacementGroupFactory([{"CPU": 0}, *[worker] * self.cpus])
        return {"CPU": self.cpus, "GPU": self.gpus}


@contextmanager
def cluster(resources: Resources) -> Iterator[None]:
    """Join or start a Ray cluster for as long as the block lasts."""
    os.environ.update({key: os.environ.get(key, value) for key, value in QUIET.items()})
    # The cores that a cluster of our own says it has keep the number of trials at once.
    owns = connect(resources.address, key="--address", cpus=resources.concurrent * resources.cpus)
    try:
        _check(resources)
        yield
    finally:
        if owns:
            ray.shutdown()


def _check(resources: Resources) -> None:
    """Raise a ConfigError if no node has what a trial needs: Ray would wait for ever."""
    nodes = [node["Resources"] for node in ray.nodes() if node["Alive"]]
    needs = {"CPU": float(resources.cpus), "GPU": resources.gpus}
    if resources.engine.name == "ray":  # its workers may be on any node, each with a GPU of its own
        nodes = [ray.cluster_resources()]
        needs["GPU"] *= resources.cpus
    if not any(all(node.get(key, 0.0) >= needs[key] for key in needs) for node in nodes):
        there = "; ".join(
            f"{node.get('CPU', 0):g} CPUs and {node.get('GPU', 0):g} GPUs" for node in nodes
        )
        raise ConfigError(
            f"a trial needs {resources.cpus} CPUs and {needs['GPU']:g} GPUs, and Ray has {there}."
            " Lower engine.threads, engine.workers or --gpus-per-trial."
        )
