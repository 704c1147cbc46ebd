"""Trials that wait for what no node of a cluster has."""

from types import SimpleNamespace

import pytest

from flbench.config.schema import EngineConfig
from flbench.workers.ray_resources import Resources

pytest.importorskip("ray")

from flbench.tuning import waits as module
from flbench.tuning.search import Events, StudyStopped


@pytest.fixture
def clock(monkeypatch):
    """A time that the test sets, and a cluster with one CPU, which nobody uses."""
    found = SimpleNamespace(now=0.0, states={"PENDING"}, workers=2)
    monkeypatch.setattr(module.time, "monotonic", lambda: found.now)
    monkeypatch.setattr(module, "nodes_have", lambda needs: "The nodes have 1 CPU free.")
    monkeypatch.setattr(module.Reservations, "states", lambda: found.states)
    monkeypatch.setattr(module, "workers_of", lambda resources: found.workers)
    return found


def waits_of(notes: list[str]) -> module.Waits:
    engine = EngineConfig(name="ray", workers=2, wait_seconds=60.0)
    return module.Waits(Resources(1, engine, 0.0, 0), notes.append)


def test_a_wait_is_never_silent_for_half_a_minute_and_ends_the_study(clock):
    notes: list[str] = []
    waits = waits_of(notes)
    for clock.now in (0.0, 10.0, 22.0, 40.0, 45.0):
        assert waits.look(["a", "b", "c", "d"], []) is None
    assert [note.partition(" s")[0].rpartition(" ")[2] for note in notes] == ["22", "45"]
    for word in ("a, b, c and 1 more", "2 CPUs", "1 CPU free"):
        assert word in notes[0]

    clock.now = 61.0
    trial = SimpleNamespace(PENDING="PENDING", RUNNING="RUNNING", status="PENDING", trial_id="x")
    search = SimpleNamespace(trials={"x": SimpleNamespace(name="fedavg/0000")})
    with pytest.raises(StudyStopped, match=r"fedavg/0000.*wait_seconds"):
        Events(search, None, waits).on_step_begin(1, [trial])


def test_a_trial_that_runs_begins_the_wait_anew(clock):
    waits = waits_of([])
    waits.look(["a"], [])
    clock.now = 3.0
    waits.look(["a"], ["x"])
    clock.now = 62.0

    assert waits.look(["a"], []) is None


def test_a_worker_that_starts_is_no_missing_resource(clock):
    notes: list[str] = []
    waits = waits_of(notes)
    clock.states = {"CREATED"}
    for clock.now in (0.0, 25.0):
        waits.look(["a"], [])

    assert ["is starting" in note for note in notes] == [True]


@pytest.mark.parametrize(
    ("states", "left", "waiting", "running"),
    [({"RESCHEDULING"}, 2, [], ["a"]), ({"PENDING"}, 1, ["a"], [])],
    ids=["a trial has lost a worker's node", "no node has the CPUs of a trial"],
)
def test_trials_begin_again_within_30_seconds_of_a_lost_node(clock, states, left, waiting, running):
    waits = waits_of([])
    assert waits.must_begin_again(waiting, running) is None
    clock.states, clock.workers, lost = states, left, clock.now
    found = None
    while found is None:
        clock.now += 0.5
        found = waits.must_begin_again(waiting, running)

    assert clock.now - lost <= 30.0
    assert "a: waiting for 2 CPUs" in found
    assert ("engine.workers=1" in found) == (left == 1)


@pytest.mark.parametrize(
    ("states", "left", "running"), [({"CREATED"}, 2, ["a"]), ({"PENDING"}, 2, [])]
)
def test_trials_that_will_run_do_not_begin_again(clock, states, left, running):
    waits = waits_of([])
    clock.states, clock.workers = states, left
    for clock.now in (10.0, 20.0, 40.0):
        assert waits.must_begin_again(["b"], running) is None


def test_a_reservation_that_ray_has_moved_to_another_node_is_kept(clock):
    waits = waits_of([])
    for clock.now, states in ((10.0, {"RESCHEDULING"}), (16.0, {"CREATED"}), (30.0, {"CREATED"})):
        clock.states = states
        assert waits.must_begin_again([], ["a"]) is None
