"""Resources of trainings at the same time: more than this machine has is refused with a cure."""

import pytest

from flbench.config.schema import EngineConfig
from flbench.core.errors import ConfigError
from flbench.workers import cores
from flbench.workers.ray_resources import CELL, PER_CORE, TRIAL, Resources, gpu_share

CORES = cores.available()


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


@pytest.mark.parametrize("devices", range(1, 9))
@pytest.mark.parametrize("at_once", range(1, 20))
def test_shares_of_gpus_fit_on_the_devices(at_once, devices):
    share = gpu_share(at_once, devices)

    units = round(share * 10_000)  # Ray counts no smaller parts
    on_one = 10_000 // units
    assert on_one * devices >= at_once
    assert share == 1 or (on_one - 1) * devices < at_once  # none of them is idle without need
