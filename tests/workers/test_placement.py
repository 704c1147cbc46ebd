"""Where Ray places trials, cells and workers of an engine, on GPUs that are declared and not there.

The trainings run on the CPU, or not at all; each process records the GPUs that it gets, and when.
"""

import json
import os
import sys
import time
from collections import Counter
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
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
from tests.support import SMALL, build, config_of
from tests.tuning.test_prepare import layers_of

ray = pytest.importorskip("ray")
pytest.importorskip("ray.tune")

from flbench.engine import ray as ray_engine  # noqa: E402
from flbench.jobs.launchers import launcher, ray_actors  # noqa: E402
from flbench.tuning import search, trial  # noqa: E402
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


def recording_trial(config, *, seen, together, **given):
    """Train a trial on the CPU, and record its assignment."""
    with recorded(seen, str(config["index"]), together):
        trial.of_study(config, **given)


class RecordingActor:
    """Stands for `JobWorker`: it trains nothing."""

    folder: Path
    together: int

    def __init__(self, parcel):
        pass

    def train(self, task, samples, rest, partition):
        with recorded(self.folder, task.path.name, self.together):
            return Outcome(None)


class RecordingWorker:
    """Stands for the worker of an engine: it has no engine."""

    def __init__(self, samples, rest):
        pass

    def assigned(self):
        time.sleep(LONGER)  # so that each has one call
        return ray.get_gpu_ids(), os.environ["CUDA_VISIBLE_DEVICES"]


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


@pytest.mark.full  # eight processes of Ray at once take the whole machine for more than a minute
def test_trials_with_a_quarter_of_a_gpu_are_four_on_each(two_devices, tmp_path, monkeypatch):
    """12 trials, all asked for at once: 8 run, and the others follow in their processes."""
    seen = tmp_path / "seen"
    seen.mkdir()
    recording = partial(recording_trial, seen=seen, together=8)
    monkeypatch.setattr(search, "of_study", recording)
    monkeypatch.setattr(search, "quiet", lambda: None)  # the environment is that of later tests
    asked = TuneRequest(
        ("fedavg",), trials=12, seeds=0, scheduler="none", concurrent=12, out=tmp_path / "studies"
    )
    prepared = prepare.prepare(asked, layers_of("fedavg", more=["train.rounds=1"]))
    prepared = replace(prepared, resources=replace(prepared.resources, gpus=0.25))
    folder = prepare.create(prepared, ["flbench", "tune"])
    try:
        search.train(folder, prepared, shown=False)
        states = Counter(record["state"] for record in folder.records())
    finally:
        folder.close()
    found = assignments(seen)
    devices = on_each(found)
    assert states == {"finished": 12}
    assert len(found) == 12
    assert most_at_once(found) == 8
    assert {gpu: most_at_once(some) for (_, gpu), some in devices.items()} == {"0": 4, "1": 4}


def test_cells_have_a_gpu_each(two_devices, tmp_path, monkeypatch):
    RecordingActor.folder, RecordingActor.together = tmp_path, DEVICES
    monkeypatch.setattr(ray_actors, "JobWorker", RecordingActor)

    trained_cells(tmp_path, 4, Resources(DEVICES, CPU, 1.0, 0, kind=CELL))

    devices = on_each(assignments(tmp_path))
    assert {gpu for _, gpu in devices} == {"0", "1"}
    assert sum(map(len, devices.values())) == 4
    assert {most_at_once(some) for some in devices.values()} == {1}


def test_workers_of_an_engine_have_a_gpu_each(two_devices, monkeypatch):
    monkeypatch.setattr(ray_engine, "Worker", RecordingWorker)
    built = build(*SMALL)
    config = config_of(*SMALL, "engine.name=ray", "engine.workers=auto", "engine.device=cuda")
    engine = ray_engine.RayEngine(built.net, built.federation, config.engine)
    found = {}
    try:
        for number in range(DEVICES):  # an actor that is ready first may do all of them
            engine._pool.submit(number, "assigned")
        while len(found) < DEVICES:
            for one in engine._pool.ended(1.0):
                gpus, visible = one.value
                found[visible] = [str(gpu) for gpu in gpus]
                engine._pool.submit(one.key, "assigned")
    finally:
        engine.close()
    assert found == {"0": ["0"], "1": ["1"]}


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

    with pytest.raises(RunError) as error:
        fl.run("fedavg", **SHORT, engine=engine, output={"dir": tmp_path})

    assert "`engine.device`=cuda does not exist" in str(error.value)


def test_a_cell_says_that_the_gpu_of_its_node_is_not_there(two_devices, tmp_path):
    engine = {"precision": "tf32"}

    with pytest.raises(RunError) as error:
        fl.compare(
            "local", **SHORT, engine=engine, seeds=1, jobs=1, address=CONNECTED, out=tmp_path
        )

    assert "needs a GPU" in str(error.value)


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

    for named in (f"a {kind} needs", "3 GPUs", f"{DEVICES} GPUs", *cures):
        assert named in str(error.value)


def test_more_workers_than_gpus_are_refused(two_devices):
    config = EngineConfig(name="ray", workers=3)

    with pytest.raises(ConfigError, match=r"`engine\.workers`=3.*GPUs.*has 2"):
        ray_engine._workers(config, {"GPU": 2.0}, print, on_gpu=True)


@pytest.mark.full
def test_two_nodes_with_a_gpu_each_both_work(tmp_path, monkeypatch):
    if ray.is_initialized():
        ray.shutdown()
    from ray.cluster_utils import Cluster

    RecordingActor.folder, RecordingActor.together = tmp_path, 2
    monkeypatch.setattr(ray_actors, "JobWorker", RecordingActor)
    node = {"num_cpus": 1, "num_gpus": 1, "object_store_memory": 80 * 2**20}
    nodes = Cluster(initialize_head=True, head_node_args={**node, "include_dashboard": False})
    try:
        nodes.add_node(**node)
        resources = Resources(2, CPU, 1.0, 0, address=nodes.address, kind=CELL)
        trained_cells(tmp_path, 4, resources)
    finally:
        if ray.is_initialized():
            ray.shutdown()
        nodes.shutdown()
    devices = on_each(assignments(tmp_path))
    assert len({node for node, _ in devices}) == 2
    assert {most_at_once(some) for some in devices.values()} == {1}
