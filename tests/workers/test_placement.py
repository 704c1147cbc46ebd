"""Where Ray places cells and workers of an engine, on GPUs that are declared and not there.

The trainings run on the CPU, or not at all; each process records the GPUs that it gets, and when.
"""

import json
import os
import sys
import time
from contextlib import contextmanager
from pathlib import Path

import cloudpickle
import pytest

import flbench as fl
from flbench.config.schema import EngineConfig
from flbench.core.errors import ConfigError, RunError
from flbench.jobs import executor
from flbench.jobs.job import Job, Outcome, Task
from flbench.jobs.samples import LoadedSamples
from flbench.tuning import prepare
from flbench.tuning.request import TuneRequest
from flbench.workers.ray_resources import CELL, TRIAL, Resources
from tests.support import SMALL, config_of
from tests.tuning.test_prepare import layers_of

ray = pytest.importorskip("ray")
pytest.importorskip("ray.tune")

from flbench.jobs.launchers import launcher, ray_actors  # noqa: E402
from flbench.workers.ray_resources import cluster  # noqa: E402

pytestmark = [pytest.mark.slow, pytest.mark.processes, pytest.mark.timeout(600)]

DEVICES = 2
CPU = EngineConfig(name="sequential", device="cpu", threads=1)
CONNECTED = "127.0.0.1:1"  # an address that is not used: this process is connected to a cluster
SHORT = {"data": "digits", "train": {"rounds": 1}, "progress": False}
PATIENCE = 120.0  # seconds to wait for the others
LONGER = 1.0  # seconds in which a process that must not start would be seen


@contextmanager
def recorded(folder: Path, name: str, together: int):
    """Record the assignment of this process, until as many as `together` have begun."""
    visible, begin = os.environ.get("CUDA_VISIBLE_DEVICES", ""), time.time()
    found = {
        "name": name,
        "gpus": [str(gpu) for gpu in ray.get_gpu_ids()],
        "visible": visible.split(",") if visible else [],
        "node": ray.get_runtime_context().get_node_id(),
        "begin": begin,
    }
    (folder / f"{name}.begun").touch()
    while len(list(folder.glob("*.begun"))) < together and time.time() < begin + PATIENCE:
        time.sleep(0.05)
    time.sleep(LONGER)
    try:
        yield
    finally:
        (folder / f"{name}.json").write_text(json.dumps(found | {"end": time.time()}))


def assignments(folder: Path) -> list[dict]:
    return [json.loads(file.read_text()) for file in sorted(folder.glob("*.json"))]


def most_at_once(found: list[dict]) -> int:
    """The largest number of assignments that overlap."""
    return max(sum(a["begin"] <= b["begin"] < a["end"] for a in found) for b in found)


def on_each(found: list[dict]) -> dict[tuple[str, str], list[dict]]:
    """The assignments of each device, which is a node and an index; each process sees just one."""
    by_device: dict[tuple[str, str], list[dict]] = {}
    for one in found:
        assert one["visible"] == one["gpus"]
        [gpu] = one["gpus"]
        by_device.setdefault((one["node"], gpu), []).append(one)
    return by_device


class RecordingActor:
    """Stands for `JobWorker`: it trains nothing."""

    folder: Path
    together: int

    def __init__(self, parcel):
        pass

    def train(self, task, samples, rest, partition):
        with recorded(self.folder, task.path.name, self.together):
            return Outcome(None)


class Cells:
    """A plan that keeps the outcomes."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.outcomes = folder, []

    def task(self, job: Job) -> Task:
        return Task(self.folder / job.name, job.layer)

    def begin(self, job: Job) -> None:
        pass

    def end(self, job: Job, outcome: Outcome) -> None:
        self.outcomes.append(outcome.reason)


@pytest.fixture(scope="module", autouse=True)
def by_value():
    """The classes of this module travel by value: workers have no path to the tests."""
    for one in (cloudpickle, ray.cloudpickle):
        one.register_pickle_by_value(sys.modules[__name__])
    yield
    for one in (cloudpickle, ray.cloudpickle):
        one.unregister_pickle_by_value(sys.modules[__name__])


@pytest.fixture(scope="module")
def two_devices():
    options = {"num_cpus": 12, "num_gpus": DEVICES, "include_dashboard": False}
    ray.init("local", log_to_driver=False, **options)
    yield
    ray.shutdown()


def trained_cells(folder: Path, count: int, resources: Resources) -> None:
    jobs = [Job(f"job{k}", "ft", "", "", k, config_of(*SMALL), {}) for k in range(count)]
    plan = Cells(folder)
    with launcher(jobs, LoadedSamples(), resources, print) as chosen:
        executor.carry_out(jobs, chosen, plan.task, plan.begin, plan.end)
    assert plan.outcomes == [None] * count


def test_cells_have_a_gpu_each(two_devices, tmp_path, monkeypatch):
    RecordingActor.folder, RecordingActor.together = tmp_path, DEVICES
    monkeypatch.setattr(ray_actors, "JobWorker", RecordingActor)

    trained_cells(tmp_path, 4, Resources(DEVICES, CPU, 1.0, 0, kind=CELL))

    devices = on_each(assignments(tmp_path))
    assert {gpu for _, gpu in devices} == {"0", "1"}
    assert sum(map(len, devices.values())) == 4
    assert {most_at_once(some) for some in devices.values()} == {1}


@pytest.mark.parametrize(
    ("keys", "share", "expected"),
    [
        ([], None, ("cuda", 1.0)),
        ([], 0.25, ("cuda", 0.25)),
        ([], 0, ("cpu", 0.0)),
        (["engine.device=cuda:1", "engine.precision=tf32"], None, ("cuda", 1.0)),
        (["engine.device=cpu"], None, ("cpu", 0.0)),
    ],
)
def test_a_study_of_a_machine_without_a_gpu_has_those_of_its_cluster(
    two_devices, keys, share, expected
):
    asked = TuneRequest(("fedavg",), trials=1, seeds=0, concurrent=2, gpus=share, address=CONNECTED)

    prepared = prepare.prepare(asked, layers_of("fedavg", more=["engine.name=vectorized", *keys]))

    device, gpus = expected
    assert (prepared.resources.engine.device, prepared.resources.gpus) == (device, gpus)
    assert prepared.config.engine.device == device


def test_a_worker_says_that_the_gpu_of_its_node_is_not_there(two_devices, tmp_path):
    """The submitting process refuses nothing, and the worker does not train on a CPU instead."""
    engine = {"name": "ray", "workers": 1, "address": CONNECTED, "precision": "tf32"}

    with pytest.raises(RunError, match=r"`engine\.device`=cuda"):
        fl.run("fedavg", **SHORT, engine=engine, output={"dir": tmp_path})

    with pytest.raises(RunError, match="GPU"):  # a cell
        fl.compare(
            "local",
            **SHORT,
            engine={"precision": "tf32"},
            seeds=1,
            jobs=1,
            address=CONNECTED,
            out=tmp_path,
        )


@pytest.mark.parametrize(
    ("kind", "engine", "gpus", "cures"),
    [
        (TRIAL, CPU, 3.0, ("`gpus_per_trial`", "engine.threads")),
        (CELL, CPU, 3.0, ("engine.threads",)),
        (TRIAL, EngineConfig(name="ray", workers=3), 1.0, ("engine.workers",)),
    ],
)
def test_more_gpus_than_there_are_are_refused(two_devices, kind, engine, gpus, cures):
    resources = Resources(1, engine, gpus, 0, kind=kind)

    with pytest.raises(ConfigError) as error, cluster(resources):
        pass

    for named in (kind, "3 GPUs", f"{DEVICES} GPUs", *cures):
        assert named in str(error.value)
