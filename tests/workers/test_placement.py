"""Which GPUs cells and trials get from Ray, on GPUs that are declared and not there."""

import os
import sys
import time
from itertools import pairwise

import cloudpickle
import pytest

import flbench as fl
from flbench.config.schema import EngineConfig
from flbench.core.errors import RunError
from flbench.jobs import executor
from flbench.jobs.job import Job, Outcome, Task
from flbench.jobs.resources import CELL, Resources
from flbench.jobs.samples import LoadedSamples
from flbench.tuning import prepare
from flbench.tuning.request import TuneRequest
from tests.support import SMALL, build, config_of
from tests.tuning.test_prepare import layers_of

ray = pytest.importorskip("ray")
pytest.importorskip("ray.tune")

from flbench.engine import ray as ray_engine  # noqa: E402
from flbench.jobs.launchers import launcher, ray_actors  # noqa: E402

pytestmark = [pytest.mark.slow, pytest.mark.processes, pytest.mark.timeout(600)]

DEVICES = 2
CPU = EngineConfig(name="sequential", device="cpu", threads=1)
CONNECTED = "127.0.0.1:1"  # an address that is not used: this process is connected to a cluster
SHORT = {"data": "digits", "train": {"rounds": 1}, "progress": False}


class RecordingActor:
    """Stands for `JobWorker`: it trains nothing, and says which GPUs its process has."""

    def __init__(self, parcel):
        pass

    def train(self, task, samples, rest, partition):
        begin = time.time()
        time.sleep(1.0)  # so that others begin before it ends
        assert os.environ["CUDA_VISIBLE_DEVICES"] == ",".join(map(str, ray.get_gpu_ids()))
        found = [os.environ["CUDA_VISIBLE_DEVICES"], str(begin), str(time.time())]
        return Outcome(None, notes=tuple(found))


@pytest.fixture(scope="module")
def two_devices():
    options = {"num_cpus": 12, "num_gpus": DEVICES, "include_dashboard": False}
    ray.init("local", log_to_driver=False, **options)
    yield
    ray.shutdown()


@pytest.fixture
def by_value():
    """The classes of this module travel by value: workers have no path to the tests."""
    for one in (cloudpickle, ray.cloudpickle):
        one.register_pickle_by_value(sys.modules[__name__])
    yield
    for one in (cloudpickle, ray.cloudpickle):
        one.unregister_pickle_by_value(sys.modules[__name__])


def test_cells_have_a_gpu_each(two_devices, by_value, tmp_path, monkeypatch):
    monkeypatch.setattr(ray_actors, "JobWorker", RecordingActor)
    jobs = [Job(f"job{k}", "ft", "", "", k, config_of(*SMALL), {}) for k in range(4)]
    outcomes = []
    resources = Resources(DEVICES, CPU, 1.0, 0, kind=CELL)
    with launcher(jobs, LoadedSamples(), resources, print) as chosen:
        executor.carry_out(
            jobs,
            chosen,
            lambda job: Task(tmp_path / job.name, job.layer),
            lambda job: None,
            lambda job, outcome: outcomes.append(outcome),
        )

    times = {}
    for device, begin, end in (outcome.notes for outcome in outcomes):
        times.setdefault(device, []).append((float(begin), float(end)))
    assert times.keys() == {"0", "1"}
    assert sum(map(len, times.values())) == 4
    for found in map(sorted, times.values()):  # one after the other
        assert all(one[1] <= after[0] for one, after in pairwise(found))


class RecordingWorker:
    """Stands for the worker of an engine: it has no engine."""

    def __init__(self, samples, rest):
        pass

    def assigned(self):
        return [str(gpu) for gpu in ray.get_gpu_ids()]


def test_workers_of_an_engine_have_a_gpu_each(two_devices, by_value, monkeypatch):
    monkeypatch.setattr(ray_engine, "Worker", RecordingWorker)
    built = build(*SMALL)
    config = config_of(*SMALL, "engine.name=ray", "engine.workers=auto", "engine.device=cuda")
    engine = ray_engine.RayEngine(built.net, built.federation, config.engine)
    found = []
    try:
        engine._pool.submit(0, "assigned")
        while not found:
            found = engine._pool.ended(1.0)
    finally:
        engine.close()
    assert found[0].value in (["0"], ["1"])


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

    own = {"engine": {"precision": "tf32"}, "seeds": 1, "jobs": 1, "address": CONNECTED}
    with pytest.raises(RunError, match="GPU"):  # a cell
        fl.compare("local", **SHORT, **own, out=tmp_path)
