"""Ray Tune as flbench sets it up."""

from types import SimpleNamespace

import pytest

ray = pytest.importorskip("ray")
pytest.importorskip("ray.tune")

from ray.air.execution import FixedResourceManager
from ray.air.execution._internal.actor_manager import RayActorManager

from flbench.tuning.ray_tune import losing_one_worker
from flbench.workers.lost import LOST

ERRORS = (
    ray.exceptions.OutOfMemoryError("Task was killed due to the node running low on memory."),
    ray.exceptions.NodeDiedError("x"),
    ray.exceptions.ActorDiedError(),
)


@pytest.mark.parametrize("error", ERRORS, ids=[type(error).__name__ for error in ERRORS])
def test_lost_worker_is_an_error_of_its_trial(error):
    """Ray's memory monitor ended a worker during a call, and with it the whole study."""
    assert isinstance(error, LOST)
    told = []
    worker = SimpleNamespace(actor_id=1, _on_error=lambda actor, error: told.append(error))
    call = SimpleNamespace(_tracked_actor=worker, _on_error=lambda actor, error: None)
    manager = RayActorManager(FixedResourceManager({"CPU": 1}))
    manager._cleanup_actor = lambda tracked_actor: None

    with losing_one_worker():
        manager._actor_task_failed(call, error)

    assert told == [error]


def test_ray_knows_its_own_error_afterwards():
    from ray.air.execution._internal import actor_manager

    with losing_one_worker():
        assert actor_manager.RayActorError is LOST

    assert actor_manager.RayActorError is ray.exceptions.RayActorError
