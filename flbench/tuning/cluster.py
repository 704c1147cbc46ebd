"""The Ray cluster of a study, and the resources that a trial reserves on it."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Final

import ray
from ray import tune

from flbench.config.schema import EngineConfig
from flbench.core.errors import ConfigError
from flbench.core.wording import setting
from flbench.engine.ray_session import connect, disconnect
from flbench.tuning.supervisor import Server, Supervisor

# Environment variables of Ray Tune, set before its first use. The study folder holds all that a
# resumed study needs, so that Ray Tune's own loggers and checkpoints of the search are not needed.
QUIET: Final = {
    "TUNE_DISABLE_AUTO_CALLBACK_LOGGERS": "1",
    "TUNE_GLOBAL_CHECKPOINT_S": "3600",
    "TUNE_WARN_THRESHOLD_S": "60",
    "RAY_AIR_NEW_OUTPUT": "0",
    "TUNE_DISABLE_SIGINT_HANDLER": "1",  # the handler would make Ctrl-C look like a normal end
    "TUNE_PRINT_ALL_TRIAL_ERRORS": "0",  # flbench prints a sentence for each of them
    "TUNE_MAX_PENDING_TRIALS_PG": "64",  # all trials of a population can wait for resources
}


@dataclass(frozen=True)
class Resources:
    """Resources that a study may use.

    Attributes:
        concurrent: Number of trials that run at the same time.
        engine: Engine settings of each trial.
        gpus: Number of GPUs of each trial; a fraction shares a GPU between trials.
        retries: How often a trial whose worker fails is started again.
        address: Address of a Ray cluster; None starts a local one.
    """

    concurrent: int
    engine: EngineConfig
    gpus: float
    retries: int
    address: str | None

    @property
    def cpus(self) -> int:
        """Number of CPU cores of one trial."""
        workers = self.engine.workers
        if self.engine.name == "ray":
            return workers if isinstance(workers, int) else 1
        return self.engine.threads or 1

    def bundles(self) -> Any:
        """Return the resources that Ray reserves for one trial.

        With `engine.name=ray` a trial starts workers of its own. Each worker needs a bundle, and
        the trial itself an empty one; without them the trial would wait for its workers forever.
        """
        if self.engine.name == "ray":
            worker = {"CPU": 1, "GPU": 1} if self.gpus else {"CPU": 1}
            return tune.PlacementGroupFactory([{"CPU": 0}, *[worker] * self.cpus])
        return {"CPU": self.cpus, "GPU": self.gpus}


@contextmanager
def cluster(resources: Resources, supervisor: Supervisor) -> Iterator[None]:
    """Connect to a Ray cluster, or start a local one, for the duration of the `with` block.

    A cluster that this call started is shut down at the end; one that was already connected stays.
    Environment variables of Ray Tune that are not set yet are set for this time: a Tuner of the
    user's own in the same process needs Ray Tune's results and checkpoints of the search.

    Args:
        resources: Resources of the study.
        supervisor: Watches the servers of the cluster that this process calls.

    Raises:
        ConfigError: No cluster answers at the address, or no node has the resources of one trial.
    """
    with _quiet():
        # A local cluster declares as many cores as the concurrent trials need, which limits them.
        owns = connect(
            resources.address, key=setting("address"), cpus=resources.concurrent * resources.cpus
        )
        supervisor.catch_signals()
        try:
            supervisor.watch(_servers(), is_local=owns and resources.address is None)
            _check(resources)
            yield
        finally:
            if owns and not supervisor.is_lost():
                supervisor.watch((), is_local=True)
                disconnect()


@contextmanager
def _quiet() -> Iterator[None]:
    """Set the environment variables of Ray Tune that are not set yet, for the `with` block."""
    missing = {key: value for key, value in QUIET.items() if key not in os.environ}
    os.environ.update(missing)
    try:
        yield
    finally:
        for key in missing:
            os.environ.pop(key, None)


def _servers() -> list[Server]:
    """Return the servers that this process calls: the cluster's and that of its node."""
    context = ray.get_runtime_context()
    host, _, port = context.gcs_address.rpartition(":")
    nodes = [node for node in ray.nodes() if node["NodeID"] == context.get_node_id()]
    return [
        (host.strip("[]"), int(port)),
        *((node["NodeManagerAddress"], node["NodeManagerPort"]) for node in nodes),
    ]


def _check(resources: Resources) -> None:
    """Raise a ConfigError if no node has the resources of a trial: Ray would wait forever."""
    nodes = [node["Resources"] for node in ray.nodes() if node["Alive"]]
    needs = {"CPU": float(resources.cpus), "GPU": resources.gpus}
    if resources.engine.name == "ray":  # workers may run on any node, each with its own GPU
        nodes = [ray.cluster_resources()]
        needs["GPU"] *= resources.cpus
    if not any(all(node.get(key, 0.0) >= needs[key] for key in needs) for node in nodes):
        there = "; ".join(
            f"{node.get('CPU', 0):g} CPUs and {node.get('GPU', 0):g} GPUs" for node in nodes
        )
        raise ConfigError(
            f"a trial needs {resources.cpus} CPUs and {needs['GPU']:g} GPUs, but Ray has {there}."
            f" Lower engine.threads, engine.workers or {setting('gpus_per_trial')}."
        )
