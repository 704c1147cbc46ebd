"""Workers of this machine: the bits of one process, whatever happens to the workers."""

import os
import re
import signal
import subprocess
import sys
import time
import warnings
from contextlib import closing, suppress
from dataclasses import replace
from pathlib import Path
from unittest.mock import Mock

import pytest
import torch

import flbench as fl
from flbench.client.program import LocalProgram, Statistic, Transform
from flbench.core import startup
from flbench.core.errors import ConfigError, MethodError, RunError
from flbench.core.tree import digest
from flbench.core.types import Dispatch, Samples
from flbench.engine import local_processes as local
from flbench.engine import worker
from flbench.engine.base import LocalWork
from flbench.engine.local_processes import LocalEngine
from flbench.experiment import evaluate, rounds
from flbench.testing.setting import NET
from flbench.workers import nesting, pool, process_pool
from flbench.workers.process_pool import ProcessPool
from tests.engine.playing import played
from tests.engine.test_vectorized import REDUCE, count
from tests.support import build, run

pytestmark = pytest.mark.slow

KEYS = {
    "sequential": (*NET, "engine.workers=3"),
    "vectorized": (*NET, "engine.workers=2", "engine.name=vectorized", "engine.block=1"),
}


def of_children(process: int) -> list[int]:
    """Return the ids of the children of a process."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            # The second entry is the name, which may contain blanks.
            entries = (folder / "stat").read_text().rpartition(")")[2].split()
            if int(entries[1]) == process and entries[0] != "Z":
                found.append(int(folder.name))
    return sorted(found)


def workers_of(process: int) -> list[int]:
    """Return the ids of the workers that the fork server of a process has started."""
    return [one for server in of_children(process) for one in of_children(server)]


def counted(monkeypatch, method="submit"):
    """Count the calls of a method of pools."""
    calls = Mock(side_effect=getattr(ProcessPool, method))
    monkeypatch.setattr(ProcessPool, method, lambda *given: calls(*given))
    return calls


def runs(process: int) -> bool:
    with suppress(OSError):
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    return False


def has_ended(processes: list[int], seconds: float = 5.0) -> bool:
    """Return whether processes have ended; wait for that at most some seconds."""
    end = time.monotonic() + seconds
    while any(map(runs, processes)) and time.monotonic() < end:
        time.sleep(0.02)
    return not any(map(runs, processes))


def opened(built, notes=None, net=None) -> LocalEngine:
    """Return an engine with workers for an experiment, also where this process is a worker."""
    told = print if notes is None else notes.append
    with pytest.MonkeyPatch.context() as patch:
        patch.delenv(nesting.VARIABLE, raising=False)
        return LocalEngine(
            built.engine, net or built.net, built.federation, built.config.engine, told
        )


@pytest.fixture(scope="module")
def engines():
    """One engine with workers of each kind for all methods: it knows net and samples alone."""
    found = {kind: opened(build(*keys)) for kind, keys in KEYS.items()}
    yield found
    for engine in found.values():
        engine.close()
    assert has_ended(workers_of(os.getpid()))


@pytest.mark.parametrize(
    ("kind", "name"),
    [
        *(("sequential", name) for name in ("fedavg", "fedcpmd", "dispfl", "pfedhn", "floco")),
        ("vectorized", "scaffold"),
        ("vectorized", "hfcd"),
    ],
)
def test_state_ends_with_the_bits_of_one_process(engines, kind, name):
    built = build(*KEYS[kind], f"algorithm.name={name}")

    one, many = played(built, built.engine), played(built, engines[kind])

    assert digest([one.server, one.clients]) == digest([many.server, many.clients])
    assert torch.equal(one.participation_count, many.participation_count)
    assert engines[kind].report()["workers"] >= 2


def evaluated(built, engine, state):
    """Return the metrics and the confusion counts of all models."""
    evaluator = replace(built.evaluator(lambda text: None), engine=engine)
    settings = rounds.settings_of(built.algorithm, state)
    found = evaluator.evaluate(state, settings, common=True)
    counts = [*found.local.values(), *found.common.values()]
    fields = ("support", "predicted", "correct", "confusion")
    return built.judge.rows(found), [
        getattr(one, name).tolist() for one in counts for name in fields
    ]


@pytest.mark.parametrize(  # personal, shared and fine-tuned models
    ("kind", "name"), [("sequential", "ditto"), ("vectorized", "fedavg"), ("sequential", "ft")]
)
def test_evaluation_is_that_of_one_process(engines, kind, name, monkeypatch):
    built = build(*KEYS[kind], f"algorithm.name={name}")
    state = played(built, built.engine, 1)
    whole = evaluated(built, built.engine, state)
    for size in ("BLOCK", "KEPT"):  # clients are stacked by two
        monkeypatch.setattr(evaluate, size, 2)
    monkeypatch.setattr(evaluate, "PIECE", 40)
    calls = counted(monkeypatch)

    many = evaluated(built, engines[kind], state)

    assert many == evaluated(built, built.engine, state) == whole
    assert calls.called


def test_large_models_are_sent_in_several_pieces(engines, monkeypatch):
    built = build(*KEYS["sequential"], "algorithm.name=ditto", "partition.clients=13")
    state = built.start()
    settings, calls = rounds.settings_of(built.algorithm, state), counted(monkeypatch)
    monkeypatch.setattr(worker, "SENT", 1)
    with closing(opened(built)) as engine:
        ids = torch.arange(13)
        one, many = (
            rounds.train(built.algorithm, some, state, settings, ids=ids).results
            for some in (built.engine, engine)
        )

    assert digest([many.kept]) == digest([one.kept])
    assert calls.call_count == 13  # one client at a time for each worker


def test_results_come_in_cohort_order_with_failures_and_observations(engines):
    built = build(*KEYS["sequential"], "algorithm.name=local")
    state = built.start()
    state.clients["head.weight"][3] = torch.nan
    settings = rounds.settings_of(built.algorithm, state)
    observe = (Statistic("test", count, REDUCE, samples=Samples("test")),)
    ids = torch.tensor([4, 3, 0, 2])

    one, many = (
        rounds.train(built.algorithm, engine, state, settings, ids=ids, observe=observe).results
        for engine in (built.engine, engines["sequential"])
    )

    assert many.ids.tolist() == [4, 0, 2]
    assert [(f.client, f.reason) for f in one.failures] == [
        (f.client, f.reason) for f in many.failures
    ]
    for a, b in ((one.kept, many.kept), (one.observed, many.observed)):
        assert list(a) == list(b)
        assert all(torch.equal(value, b[key]) for key, value in a.items())
    assert torch.equal(one.losses, many.losses)


def test_killed_worker_is_started_again_and_changes_nothing(engines):
    built = build(*KEYS["sequential"], "algorithm.name=scaffold")
    expected = played(built, built.engine, 2)
    before = workers_of(os.getpid())

    for one in before:
        os.kill(one, signal.SIGKILL)
    state = played(built, engines["sequential"], 2)

    assert digest([state.server, state.clients]) == digest([expected.server, expected.clients])
    assert not set(workers_of(os.getpid())) & set(before)


def test_worker_that_is_killed_while_it_starts_is_started_again(monkeypatch):
    built, notes, killed = build(*KEYS["sequential"]), [], []
    begin = process_pool.started

    def begin_and_kill(*given):
        before = workers_of(os.getpid())
        process = begin(*given)
        if len(killed) < pool.RESTARTS:
            [new] = set(workers_of(os.getpid())) - set(before)
            os.kill(new, signal.SIGKILL)
            killed.append(new)
        return process

    monkeypatch.setattr(process_pool, "started", begin_and_kill)
    with closing(opened(built, notes)) as one:
        found = played(built, one, 1)

    assert digest([found.server]) == digest([played(built, built.engine, 1).server])
    assert len(notes) == len(killed)


class OnCpu(worker.Worker):
    """A worker which this machine need not have a GPU for."""

    def __init__(self, samples, rest, *, stacks):
        net, federation, config = rest
        super().__init__(samples, (net, federation, config.altered(device="cpu")), stacks=stacks)


def gpu_of(context):
    """What the worker of a client sees of the GPUs; it takes some time, so that all have work."""
    time.sleep(0.2)
    return {"head.bias": torch.full((10,), float(os.environ["CUDA_VISIBLE_DEVICES"]))}


@pytest.mark.parametrize(("visible", "gpus"), [(None, {0, 1}), ("5, 7", {5, 7})])
def test_workers_take_the_gpus_of_the_machine_in_turn(monkeypatch, visible, gpus):
    """Two GPUs are pretended: the workers train on a CPU."""
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    if visible is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    built = build(*KEYS["sequential"])
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(local, "Worker", OnCpu)
    used = built.config.engine.altered(device="cuda", workers=3)
    settings = rounds.settings_of(built.algorithm, built.start())
    program = LocalProgram((Transform(gpu_of),), sends=frozenset({"head.bias"}))
    work = LocalWork(program, lambda _: {}, lambda _: Dispatch(), settings)

    with closing(opened(with_engine(built, used))) as engine:
        first = engine.run(work, torch.arange(3))
        for one in workers_of(os.getpid()):
            os.kill(one, signal.SIGKILL)
        second = engine.run(work, torch.arange(3))
        state = played(built, engine, 1)

    for found in (first, second):  # three workers: one GPU has two of them
        has = found.sent.values["head.bias"][:, 0].int().tolist()
        assert set(has) == gpus
        assert has.count(min(gpus)) == 2
    assert digest([state.server]) == digest([played(built, built.engine, 1).server])


def with_engine(built, section):
    return replace(built, config=built.config.altered(engine=section))


@pytest.mark.parametrize(
    ("device", "workers", "is_shared"),
    [("cuda", 2, True), ("cuda", "auto", False), ("cuda", 1, False), ("cuda:1", 2, False)],
)
def test_gpus_have_workers_if_their_number_is_given_and_no_gpu_is_named(device, workers, is_shared):
    built = build(*NET)
    used = built.config.engine.altered(device=device, workers=workers)
    engine = with_engine(built, used).with_workers(print).engine
    assert isinstance(engine, LocalEngine) == is_shared
    engine.close()


class Elsewhere(torch.nn.Module):
    """A net that no other process can read."""

    def __reduce__(self):
        return __import__, ("a_module_of_this_process",)


def test_this_process_trains_alone_if_workers_cannot_begin():
    built, notes = build(*KEYS["sequential"]), []
    engine = opened(built, notes, Elsewhere())
    before = workers_of(os.getpid())
    found = played(built, engine, 1)

    assert digest([found.server]) == digest([played(built, built.engine, 1).server])
    assert engine.report()["workers"] == 1
    [note] = notes
    assert "a_module_of_this_process" in note
    assert workers_of(os.getpid()) == before


class Calling:
    """Function of a Transform that calls another one, in workers alone."""

    def __init__(self, function):
        self.function, self.main = function, os.getpid()

    def __call__(self, context):
        if os.getpid() != self.main:
            self.function()
        return {}


def trained(engine, function):
    """Run a program of one Transform at five clients."""
    built = build(*KEYS["sequential"])
    settings = rounds.settings_of(built.algorithm, built.start())
    program = LocalProgram((Transform(Calling(function)),))
    work = LocalWork(program, lambda _: {}, lambda _: Dispatch(), settings)
    return engine.run(work, torch.arange(5))


def dies():
    os.kill(os.getpid(), signal.SIGKILL)


def fails():
    raise_spike()


def raise_spike():
    raise ValueError("a spike of the loss")


def warns():
    warnings.warn("a strange loss", UserWarning, stacklevel=1)


def test_worker_that_always_dies_ends_the_run(engines, monkeypatch):
    monkeypatch.setattr(worker, "RESTARTS", 1)
    with pytest.raises(RunError, match=r"engine\.workers"):
        trained(engines["sequential"], dies)


def test_error_of_the_users_code_in_a_worker_names_its_line(engines):
    where = r"spike .*test_local_processes\.py:\d+\) at client [0-4] in round 1"
    with pytest.raises(ConfigError, match=where):
        trained(engines["sequential"], fails)


def test_warning_that_is_an_error_here_is_an_error_in_workers(engines):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with pytest.raises((UserWarning, MethodError), match="a strange loss"):
            trained(engines["sequential"], warns)


class Odd(torch.nn.Module):
    """A net that warns in each step."""

    def __init__(self, shape, classes):
        super().__init__()
        self.head = torch.nn.Linear(64, classes)

    def forward(self, x):
        warnings.warn("a strange input", UserWarning, stacklevel=1)
        return self.head(x.flatten(1))


@pytest.mark.parametrize("workers", [1, 2])
def test_warning_of_a_net_is_one_note_with_its_line(tmp_path, monkeypatch, capsys, workers):
    monkeypatch.delenv(nesting.VARIABLE, raising=False)
    with warnings.catch_warnings():
        warnings.simplefilter("default")
        fl.run(
            "fedavg",
            model=Odd,
            partition={"clients": 4, "samples": 200},
            train={"rounds": 3},
            engine={"workers": workers},
            output={"dir": str(tmp_path)},
        )

    [note] = [line for line in capsys.readouterr().err.splitlines() if "strange" in line]
    line = rf"\({re.escape(__file__)}:\d+\)"
    assert re.fullmatch(rf"note: a strange input {line}", note)


def test_auto_starts_no_workers_for_little_work():
    built, notes = build(*NET), []
    engine = opened(built, notes)
    before = workers_of(os.getpid())

    played(built, engine, 1)

    assert (workers_of(os.getpid()), notes) == (before, [])
    assert engine.report()["workers"] == 1


def test_auto_starts_workers_when_enough_was_trained(monkeypatch):
    monkeypatch.setattr(local, "STARTED", 0.0)
    monkeypatch.setattr(local, "WORTH", 0.0)
    monkeypatch.setattr(local, "SENDING", 0.0)
    monkeypatch.setattr(local, "available_cores", lambda: 2)
    built, notes = build(*NET, "algorithm.name=fedavg"), []
    engine = opened(built, notes)
    expected = played(built, built.engine, 2)

    played(built, engine, 1)
    state = played(built, engine, 2)

    assert digest([state.server]) == digest([expected.server])
    assert engine.report()["workers"] == 2
    assert notes == []
    engine.close()


@pytest.mark.parametrize("asked", ["auto", "2"])
def test_workers_do_not_multiply(monkeypatch, asked):
    monkeypatch.setenv(nesting.VARIABLE, "1")
    monkeypatch.setattr(local, "STARTED", 0.0)
    built, notes = build(*NET, f"engine.workers={asked}"), []
    used = built.config.engine
    engine = LocalEngine(built.engine, built.net, built.federation, used, notes.append)
    before = workers_of(os.getpid())

    played(built, engine, 1)

    assert workers_of(os.getpid()) == before
    assert len(notes) == (asked != "auto")
    assert all("engine.workers=2" in note for note in notes)


SCRIPT = """
import os, sys, time
import torch
from flbench.client.program import LocalProgram, Transform
from flbench.core.types import Dispatch
from flbench.engine.base import LocalWork
from flbench.engine.local_processes import LocalEngine
from flbench.engine.sequential import SequentialEngine
from flbench.experiment import rounds
from flbench.testing.setting import NET, build

print("begun", flush=True)

class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.head = torch.nn.Linear(64, 10)

    def forward(self, x):
        return self.head(x.flatten(1))

def who(context):
    return {"head.bias": torch.full((10,), float(os.getpid()))}

built = build(*NET, "engine.workers=2")
used, net = built.config.engine, Net()
engine = LocalEngine(
    SequentialEngine(net, built.federation, used), net, built.federation, used, print
)
work = LocalWork(
    LocalProgram((Transform(who),), sends=frozenset({"head.bias"})),
    rows=lambda _: {}, dispatch=lambda _: Dispatch(),
    settings=rounds.settings_of(built.algorithm, built.start()),
)
found = engine.run(work, torch.arange(5))
print(os.getpid(), *sorted(set(found.sent.values["head.bias"][:, 0].int().tolist())), flush=True)
time.sleep(100)
"""


@pytest.mark.processes
def test_script_needs_no_guard_and_leaves_no_process_when_it_is_killed(tmp_path):
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)
    variables = startup.environment()
    variables.pop(nesting.VARIABLE, None)
    process = subprocess.Popen(
        [sys.executable, str(script)], env=variables, stdout=subprocess.PIPE, text=True
    )
    try:
        assert process.stdout.readline() == "begun\n"  # once: no worker imports the script
        main, *trained_by = map(int, process.stdout.readline().split())
        workers = workers_of(main)
        assert trained_by == sorted(workers)
        assert len(workers) == 2
        family = [*of_children(main), *workers]
    finally:
        process.kill()
        process.wait()
        process.stdout.close()

    assert has_ended(family, 1.0)


def test_run_has_the_files_of_one_process(tmp_path, monkeypatch):
    monkeypatch.delenv(nesting.VARIABLE, raising=False)
    keys = ("algorithm=hfcd", "train.participation=0.6", "partition.new_clients=2")
    close, used = LocalEngine.close, {}

    def noting(engine):
        used[engine] = engine.report()["workers"]
        close(engine)

    monkeypatch.setattr(LocalEngine, "close", noting)
    one, alone = run(tmp_path / "one", *keys, "engine.workers=1")
    two, many = run(tmp_path / "two", *keys, "engine.workers=2")

    assert list(used.values()) == [2, 2]  # the engine of the rounds, and that of the new clients
    assert "workers: 2" in (two / "config.yaml").read_text()
    assert many["weights_digest"] == alone["weights_digest"]
    assert many["new_clients"] == alone["new_clients"]
    for name in ("metrics.csv", "clients.csv", "new_clients.csv"):
        assert (two / name).read_bytes() == (one / name).read_bytes()
