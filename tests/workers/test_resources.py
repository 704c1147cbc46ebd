"""Resources of trainings at the same time: more than this machine has is refused with a cure."""

import os

import pytest

from flbench.config.schema import EngineConfig
from flbench.core.errors import ConfigError
from flbench.workers.resources import CELL, PER_CORE, TRIAL, Resources

CORES = len(os.sched_getaffinity(0))


@pytest.mark.parametrize("kind", [TRIAL, CELL])
@pytest.mark.parametrize(
    ("engine", "key"),
    [
        (EngineConfig(name="sequential", threads=2), "engine.threads"),
        (EngineConfig(name="ray", workers=2), "engine.workers"),
    ],
)
def test_more_processes_than_cores_can_take_are_refused(kind, engine, key):
    limit = PER_CORE * CORES // 2
    Resources(limit, engine, 0.0, 0, kind=kind).check_cores()

    with pytest.raises(ConfigError) as error:
        Resources(limit + 1, engine, 0.0, 0, kind=kind).check_cores()

    for named in (f"{limit + 1} {kind.name}s", f"{CORES} cores", f"`{kind.at_once}`", key):
        assert named in str(error.value)
    Resources(limit + 1, engine, 0.0, 0, address="10.0.0.1:6379", kind=kind).check_cores()
