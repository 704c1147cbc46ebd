"""What Ray Tune needs for a study: its environment, and the resources that it reserves."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from typing import Any, Final

from ray import tune

from flbench.workers.cluster import workers_of
from flbench.workers.lost import LOST
from flbench.workers.resources import Resources

# Environment variables of Ray Tune. The study folder holds all that a resumed study needs, so that
# Ray Tune's own loggers and checkpoints of the search are not needed.
QUIET: Final = {
    "TUNE_DISABLE_AUTO_CALLBACK_LOGGERS": "1",
    "TUNE_GLOBAL_CHECKPOINT_S": "3600",
    "TUNE_WARN_THRESHOLD_S": "60",
    "RAY_AIR_NEW_OUTPUT": "0",
    "TUNE_DISABLE_SIGINT_HANDLER": "1",  # the handler would make Ctrl-C look like a normal end
    "TUNE_PRINT_ALL_TRIAL_ERRORS": "0",  # flbench prints a sentence for each of them
    "TUNE_MAX_PENDING_TRIALS_PG": "64",  # all trials of a population can wait for resources
}


@contextmanager
def quiet() -> Iterator[None]:
    """Set the environment variables of Ray Tune that are not set yet, for the `with` block.

    Afterwards, a Tuner of the user's own in the same process has Ray Tune's results and checkpoints
    of the search, which it needs.
    """
    missing = {key: value for key, value in QUIET.items() if key not in os.environ}
    os.environ.update(missing)
    try:
        yield
    finally:
        for key in missing:
            os.environ.pop(key, None)

_LOSES_WORKERS: Final = (
    "ray.air.execution._internal.actor_manager",
    "ray.tune.execution.tune_controller",
)
"""Modules of Ray that read their name `RayActorError` to tell a lost worker from other errors."""


@contextmanager
def losing_one_worker() -> Iterator[None]:
    """Let every error of `flbench.workers.lost.LOST` cost one worker, for the `with` block.

    Ray Tune knows a lost worker by `RayActorError` alone. Any other error, such as that of Ray's
    memory monitor while a worker trains, would end the whole study.
    """
    modules = [import_module(name) for name in _LOSES_WORKERS]
    before = [module.RayActorError for module in modules]
    for module in modules:
        module.RayActorError = LOST  # type: ignore[attr-defined]
    try:
        yield
    finally:
        for module, known in zip(modules, before, strict=True):
            module.RayActorError = known  # type: ignore[attr-defined]


def bundles(resources: Resources) -> Any:
    """Return the resources that Ray reserves for one trial.

    With `engine.name=ray` a trial starts workers of its own. Each worker needs a bundle, and the
    trial itself an empty one; without them the trial would wait for its workers forever.
    """
    if resources.engine.name == "ray":
        worker = {"CPU": 1, "GPU": 1} if resources.gpus else {"CPU": 1}
        return tune.PlacementGroupFactory([{"CPU": 0}, *[worker] * workers_of(resources)])
    return {"CPU": resources.cpus, "GPU": resources.gpus}
