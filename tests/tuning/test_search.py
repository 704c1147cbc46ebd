"""How Ray Tune hears of trials, what is written of them, which are stopped, and which wait."""

import json
from types import SimpleNamespace

import numpy as np
import pytest

from flbench.cli import app
from flbench.config.schema import EngineConfig
from flbench.core.errors import UserError
from flbench.tuning import search
from flbench.tuning.request import FACTOR, grace_of
from flbench.tuning.search import Events, Halving, Search, StudyStopped, TrialProgress
from flbench.tuning.study import StudyFolder, TrialFolder
from flbench.workers.ray_resources import Resources

GIVEN = {"seed": 0, "rounds": 4}


class Counting:
    """Proposes the number of each trial as its learning rate, all at once or after the results."""

    def __init__(self, trials, batch=None):
        self.trials, self.batch = trials, batch or trials

    def given(self, records):
        ended = sum(one["state"] != "running" for one in records.values())
        count = min(self.trials, self.batch * (ended // self.batch + 1))
        return [{"train.optimizer.lr": k} for k in range(count)]


def search_of(study, *methods, trials=2, batch=None, **options):
    ended = []
    proposals = {method: Counting(trials, batch) for method in methods or ["a"]}
    progress = SimpleNamespace(begin_trial=lambda trial: None, end_trial=ended.append)
    each = dict.fromkeys(proposals, trials)
    made = Search(
        StudyFolder(study), proposals, trials=each, common=GIVEN, progress=progress, **options
    )
    made.ended = ended
    return made


def begun(made, name="x", **changes):
    """Write what a worker writes of a trial that Ray Tune calls so."""
    trial = made.trials[name]
    params = {"train.optimizer.lr": trial.index}
    trial.write(trial.begin({"params": params, **GIVEN}) | changes)
    return trial


@pytest.fixture(autouse=True)
def connected(monkeypatch):
    """Whether the servers of Ray are lost."""
    found = SimpleNamespace(lost=False)
    monkeypatch.setattr(search.ray_session, "are_lost", lambda: found.lost)
    return found


def test_every_trial_of_every_method_comes_once_in_order(tmp_path):
    made = search_of(tmp_path, "b", "a", trials=3, was_stopped=lambda *one: True)
    found = [made.suggest(str(k)) for k in range(7)]

    assert [(one["method"], one["index"]) for one in found[:6]] == [
        (method, index) for method in "ba" for index in range(3)
    ]
    assert found[6] is None
    for k in range(6):
        made.on_trial_complete(str(k), {})
    assert made.suggest("7") == made.FINISHED
    assert len(made.ended) == 6


def test_other_methods_begin_while_a_learning_search_waits_for_its_batch(tmp_path):
    made = search_of(tmp_path, "a", "b", trials=4, batch=2, was_stopped=lambda *one: True)
    names = [made.suggest(str(k)) for k in range(5)]

    assert [(one["method"], one["index"]) for one in names[:4]] == [
        *(("a", 0), ("a", 1), ("b", 0), ("b", 1))
    ]
    assert names[4] is None
    for k in (0, 1):
        made.on_trial_complete(str(k), {})
    assert made.suggest("5")["method"] == "a"


def test_resumed_search_gives_what_has_not_ended(tmp_path):
    made = search_of(tmp_path, trials=4, was_stopped=lambda *one: True)
    for name in "xyz":
        made.suggest(name)
        begun(made, name)
    made.on_trial_complete("y", {})

    resumed = search_of(tmp_path, trials=4)

    assert [resumed.suggest(str(k))["index"] for k in range(3)] == [0, 2, 3]


def test_trial_that_began_with_other_parameters_is_refused(tmp_path):
    """As after an update of Optuna: two trials would be one."""
    made = search_of(tmp_path)
    made.suggest("x")
    begun(made, params={"train.optimizer.lr": 7})

    resumed = search_of(tmp_path)

    assert resumed.suggest("x") == resumed.FINISHED
    assert isinstance(resumed.refused, UserError)


def test_trial_that_ended_is_left_as_its_worker_wrote_it(tmp_path):
    made = search_of(tmp_path)
    assert made.suggest("x") == {
        "method": "a",
        "index": 0,
        "params": {"train.optimizer.lr": 0},
    }
    trial = begun(made, state="diverged", reason="all of them", score=0.5, ended="now")
    before = trial.read()

    made.on_trial_complete("x", None, error=True)
    made.say_why("x", "its node went away")

    assert trial.read() == before
    assert made.ended == [before]


def test_trial_that_ends_early_for_no_reason_is_handed_out_again(tmp_path):
    """As when its worker dies between a report and what Ray Tune does with it."""
    made = search_of(tmp_path, trials=1)
    made.suggest("x")
    trial = begun(made, score=0.5, round=2)

    made.on_trial_complete("x", {})

    assert trial.read()["state"] == "running"
    assert made.suggest("y")["index"] == 0
    assert not made.ended


def test_trial_that_was_still_running_was_stopped(tmp_path):
    made = search_of(tmp_path, was_stopped=lambda *one: one == ("a", 0))
    made.suggest("x")
    trial = begun(made, score=0.5, round=2)

    made.on_trial_complete("x", {})

    record = trial.read()
    assert (record["state"], record["score"], record["round"]) == ("stopped", 0.5, 2)
    assert made.ended == [record]


@pytest.mark.parametrize("wrote", [True, False])
def test_trial_whose_worker_fails_for_good_is_failed_with_the_reason(tmp_path, wrote):
    """It may have failed before it wrote anything."""
    made = search_of(tmp_path)
    made.suggest("x")
    if wrote:
        begun(made, score=0.5)

    made.on_trial_complete("x", None, error=True)
    made.say_why("x", "OSError: no space left")

    record = made.trials["x"].read()
    assert (record["state"], record["reason"]) == ("failed", "OSError: no space left")
    assert (record["rounds"], record["params"]) == (4, {"train.optimizer.lr": 0})
    assert made.ended == [record]


@pytest.mark.parametrize(
    ("reasons", "states"),
    [
        (["the memory of the machine was full", "its machine has ended"], ["running", "running"]),
        (["no space left", None], ["failed", "finished"]),
    ],
)
def test_a_resumed_study_trains_again_what_it_has_lost(tmp_path, reasons, states):
    """Never where a method has a winner."""
    (tmp_path / "study.json").write_text(json.dumps({"search": "random", "trials": 2}))
    made = search_of(tmp_path)
    for name, reason in zip("xy", reasons, strict=True):
        made.suggest(name)
        begun(made, name)
        if reason is None:
            begun(made, name, state="finished", score=0.5)
        made.on_trial_complete(name, None, error=reason is not None)
        if reason is not None:
            made.say_why(name, reason)
    is_lost = states[0] == "running"
    folder = StudyFolder(tmp_path)
    prepared = SimpleNamespace(trials={"a": 2})

    assert search.has_lost(folder) == is_lost
    search.begin_again(folder)

    assert [record["state"] for record in folder.records()] == states
    assert search.is_over(folder, prepared) == (not is_lost)
    assert not search.has_lost(folder)


@pytest.mark.parametrize(("kind", "left"), [("random", [0, 1, 2, 3, 4]), ("optuna", [0, 1, 2, 3])])
def test_proposals_that_learned_from_lost_trials_are_made_again(tmp_path, kind, left):
    """Trials 2 and 3 are the batch of the first lost one; trial 4 was proposed from failures."""
    (tmp_path / "study.json").write_text(json.dumps({"search": kind, "batch": 2, "trials": 5}))
    for index in range(5):
        is_lost = index > 1
        record = {"method": "a", "index": index, "state": "failed", "lost": is_lost}
        folder = TrialFolder(tmp_path, "a", index)
        folder.path.mkdir(parents=True)
        folder.write(record | {"seed": 0, "params": {}, "reason": "its machine has ended"})

    search.begin_again(StudyFolder(tmp_path))

    records = list(StudyFolder(tmp_path).records())
    assert [record["index"] for record in records] == left
    assert [record["state"] == "running" for record in records] == [k > 1 for k in left]


def test_worker_that_fails_because_the_study_stops_is_not_a_failure(tmp_path, connected):
    """The resumed study continues the trial."""
    made = search_of(tmp_path)
    made.suggest("x")
    trial = begun(made, score=0.5)
    before, connected.lost = trial.read(), True

    made.on_trial_complete("x", None, error=True)
    made.say_why("x", "its worker process died")

    assert trial.read() == before
    assert before["state"] == "running"
    assert made.ended == []


def kept(study):
    assert all((path.parent / "metrics.csv").is_file() for path in study.rglob("trial.json"))
    return sorted(path.parent.name for path in study.rglob("checkpoints"))


@pytest.mark.parametrize(
    ("keeps_all", "expected"), [(False, ["002"]), (True, [f"{k:03}" for k in range(5)])]
)
def test_checkpoints_of_the_best_trial_stay(tmp_path, keeps_all, expected):
    """A stopped trial cannot win, and a tie is won by the first."""
    made = search_of(tmp_path, trials=5, keeps_all=keeps_all)
    ends = [("finished", 0.5), ("stopped", 0.9), ("finished", 0.7), ("finished", 0.7)]
    for k, (state, score) in enumerate([*ends, ("failed", None)]):
        made.suggest(str(k))
        trial = begun(made, str(k), state=state, score=score)
        (trial.path / "checkpoints").mkdir()
        (trial.path / "metrics.csv").write_text("")
        made.on_trial_complete(str(k), {})

    assert kept(tmp_path) == expected


def test_without_a_score_no_trial_is_the_best(tmp_path):
    made = search_of(tmp_path, trials=1)
    made.suggest("x")
    trial = begun(made, state="diverged")
    (trial.path / "checkpoints").mkdir()
    (trial.path / "metrics.csv").write_text("")

    made.on_trial_complete("x", {})

    assert kept(tmp_path) == []


def test_the_model_of_a_trial_without_checkpoints_is_an_error_with_the_cure(
    finished_run, tmp_path, capsys
):
    trial = tmp_path / "000"
    trial.mkdir()
    for name in ("config.yaml", "metrics.csv", "partition.npz", "partition.json"):
        (trial / name).write_bytes((finished_run / name).read_bytes())
    (trial / "trial.json").write_text(json.dumps({}))

    code = app.main(["export", str(trial), "--client", "0", "--out", str(tmp_path / "x.pt2")])

    assert code == 2
    assert "output.keep_trials=all" in capsys.readouterr().err


def report(scheduler, one, done, score):
    config = {"method": one[0], "index": one[1]}
    return scheduler.on_trial_result(
        None, SimpleNamespace(config=config), {"round": done, "score": score}
    )


def trials_of(method, count=12):
    return [(method, index) for index in range(count)]


def reference(results, rungs):
    """Return the names that a rung stops: worse than the best third seen there so far."""
    seen, stopped = {rung: [] for rung in rungs}, set()
    for name, done, score in results:
        if name in stopped or done not in rungs:
            continue
        if seen[done] and score < np.percentile(seen[done], (1 - 1 / FACTOR) * 100):
            stopped.add(name)
        seen[done].append(score)
    return stopped


def results_of(names, seed=0, rounds=9):
    rng = np.random.default_rng(seed)
    level = rng.random(len(names))
    return [
        (name, done, float(level[k] * (1 - 0.5**done)))
        for done in range(1, rounds + 1)
        for k, name in enumerate(names)
    ]


def test_halving_stops_what_a_slow_reference_stops():
    scheduler, results = Halving({"a": 1}, rounds=9), results_of(trials_of("a"))

    stopped = set()
    for one, done, score in results:
        if one not in stopped and report(scheduler, one, done, score) == "STOP" and done < 9:
            stopped.add(one)

    wanted = reference(results, (1, 3, 9))
    assert stopped == wanted - {("a", 0)}
    assert wanted


@pytest.mark.parametrize(
    ("method", "rounds", "every", "rungs"),
    [
        *(("fedavg", 12, 1, (4,)), ("fedavg", 12, 5, (5,)), ("fedavg", 10, 1, (4,))),
        *(("fedavg", 15, 1, (5,)), ("fedavg", 27, 2, (10,)), ("fedavg", 2, 2, ())),
        *(("hfcd", 12, 1, (6,)), ("hfcd", 15, 2, (8,))),  # beta has grown at half of the rounds
    ],
)
def test_first_rung_is_at_a_third_of_the_rounds_or_later(method, rounds, every, rungs):
    scheduler = Halving({"a": grace_of(method, rounds, every)}, rounds=rounds)
    evaluated = [*range(every, rounds, every), rounds]

    reached = {}
    for k in range(1, 10):
        for done in evaluated:
            reached[k] = done
            if report(scheduler, ("a", k), done, 1 - k / 10) == "STOP":
                break

    # The best one comes first: no other one is in the best third.
    last = rungs[0] if rungs else rounds
    assert list(reached.values()) == [rounds] + [last] * 8
    assert all(3 * rung >= rounds for rung in rungs)


def test_methods_do_not_stop_each_other():
    scheduler = Halving({"a": 1, "b": 1}, rounds=9)

    for k in range(4):
        report(scheduler, ("a", k), 1, 0.9)

    assert all(report(scheduler, ("b", k), 1, 0.1 + 0.01 * k) == "CONTINUE" for k in range(4))


def test_default_parameters_run_to_the_end():
    scheduler = Halving({"a": 1}, rounds=9)
    for k in range(1, 9):
        report(scheduler, ("a", k), 1, 0.9)

    assert report(scheduler, ("a", 0), 1, 0.0) == "CONTINUE"
    assert report(scheduler, ("a", 9), 1, 0.0) == "STOP"


def test_resumed_halving_decides_as_a_straight_one():
    results = results_of(trials_of("a"), seed=3)
    half = len(results) // 2

    def run(scheduler, results, stopped):
        decisions = {}
        for one, done, score in results:
            if one not in stopped:
                decisions[one, done] = report(scheduler, one, done, score)
                if decisions[one, done] == "STOP":
                    stopped.add(one)
        return decisions

    stopped = set()
    straight = Halving({"a": 1}, rounds=9)
    before = run(straight, results[:half], stopped)
    after = run(straight, results[half:], set(stopped))
    seen = [(*one, done, score) for one, done, score in results[:half] if (one, done) in before]
    resumed = Halving({"a": 1}, rounds=9, seen=seen)

    assert run(resumed, results[half:], set(stopped)) == after


def test_trial_whose_driver_died_before_it_could_stop_it_is_stopped():
    seen = [("a", k, 1, 0.9) for k in range(1, 9)] + [("a", 9, 1, 0.1)]

    resumed = Halving({"a": 1}, rounds=9, seen=seen)

    assert report(resumed, ("a", 9), 2, 0.1) == "STOP"
    assert report(resumed, ("a", 8), 2, 0.9) == "CONTINUE"


def test_progress_names_trials_and_counts_a_stopped_one_as_done(tmp_path, capsys):
    config = SimpleNamespace(train=SimpleNamespace(rounds=10))
    prepared = SimpleNamespace(
        request=SimpleNamespace(metric="accuracy"),
        trials={"a": 2, "b": 2},
        configs={"a": config, "b": config},
        resources=SimpleNamespace(kind="trial"),
    )
    folders = [TrialFolder(tmp_path, method, index) for method in "ab" for index in range(2)]
    folders[0].write(folders[0].begin(GIVEN) | {"state": "finished"})
    progress = TrialProgress(StudyFolder(tmp_path), prepared)
    for folder in folders[1:3]:
        progress.begin_trial(folder)
    (folders[2].path).mkdir(parents=True)
    (folders[2].path / "metrics.csv").write_text("round,split\n5,validation,\n")
    record = folders[1].begin(GIVEN) | {"state": "stopped", "score": 0.5, "seconds": {"total": 6}}
    folders[1].write(record)

    progress.end_trial(record)

    said = capsys.readouterr().err
    for part in ("2/4", "a, trial 1", "stopped", "accuracy 0.5000"):
        assert part in said
    [title, *lines] = [progress.table().title, *progress.table().columns[3].cells]
    assert title.startswith("2 of 4 trials")
    assert list(lines) == ["", "trial 0: 5/10"]


@pytest.mark.parametrize(("scores", "count"), [((0.0, 0.0, 0.0, 0.0, 0.0), 1), ((0, 0.1, 0, 0), 0)])
def test_metric_that_tells_no_trials_apart_is_said_once_during_the_search(
    tmp_path, capsys, scores, count
):
    config = SimpleNamespace(train=SimpleNamespace(rounds=9), evaluation_period=1)
    prepared = SimpleNamespace(
        request=SimpleNamespace(metric="rare_recall"),
        trials={"fedavg": 5},
        configs={"fedavg": config},
        resources=SimpleNamespace(kind="trial"),
    )
    progress = TrialProgress(StudyFolder(tmp_path), prepared)
    for index, score in enumerate(scores):
        for done in (1, 3, 3, 9):  # the first rung is at 3; a trial may report it again
            progress.evaluated(TrialFolder(tmp_path, "fedavg", index), done, score)

    assert capsys.readouterr().err.count("--metric") == count


@pytest.fixture
def clock(monkeypatch):
    """A time that the test sets, and a cluster with one CPU, which nobody uses."""
    found = SimpleNamespace(now=0.0, states={"PENDING"}, workers=2)
    monkeypatch.setattr(search.time, "monotonic", lambda: found.now)
    monkeypatch.setattr(search, "nodes_have", lambda needs: "The nodes have 1 CPU free.")
    monkeypatch.setattr(search.Reservations, "states", lambda: found.states)
    monkeypatch.setattr(search, "workers_of", lambda resources: found.workers)
    return found


class Watched:
    """What looks after trials of two workers each, and what it has said."""

    def __init__(self):
        names = {name: SimpleNamespace(name=name) for name in "abcdx"}
        engine = EngineConfig(name="ray", workers=2, wait_seconds=60.0)
        self.notes = []
        self.events = Events(
            SimpleNamespace(trials=names),
            SimpleNamespace(note=self.notes.append),
            Resources(1, engine, 0.0, 0),
        )

    def step(self, waiting="", running=""):
        pairs = [*((name, "PENDING") for name in waiting), *((one, "RUNNING") for one in running)]
        trials = [SimpleNamespace(trial_id=name, status=status) for name, status in pairs]
        self.events.on_step_begin(1, trials)


def test_a_wait_is_never_silent_for_half_a_minute_and_ends_the_study(clock):
    watched = Watched()
    for clock.now in (0.0, 10.0, 22.0, 40.0, 45.0):
        watched.step("abcd")
    assert [note.partition(" s")[0].rpartition(" ")[2] for note in watched.notes] == ["22", "45"]
    for word in ("a, b, c and 1 more", "2 CPUs", "1 CPU free"):
        assert word in watched.notes[0]

    clock.now = 61.0
    with pytest.raises(StudyStopped, match=r"wait_seconds") as stopped:
        watched.step("abcd")
    assert stopped.value.reason is not None


def test_a_trial_that_runs_begins_the_wait_anew(clock):
    watched = Watched()
    for clock.now, running in ((0.0, ""), (3.0, "x"), (62.0, "")):
        watched.step("a", running)


def test_a_worker_that_starts_is_no_missing_resource(clock):
    watched, clock.states = Watched(), {"CREATED"}
    for clock.now in (0.0, 25.0):
        watched.step("a")

    assert ["CPUs that Ray has reserved" in note for note in watched.notes] == [True]


@pytest.mark.parametrize(
    ("states", "left", "waiting", "running"),
    [({"RESCHEDULING"}, 2, "", "a"), ({"PENDING"}, 1, "a", "")],
    ids=["a trial has lost a worker's node", "no node has the CPUs of a trial"],
)
def test_trials_begin_again_within_30_seconds_of_a_lost_node(clock, states, left, waiting, running):
    watched = Watched()
    watched.step(waiting, running)
    clock.states, clock.workers = states, left

    def wait():
        for clock.now in np.arange(0.5, 30.5, 0.5):
            watched.step(waiting, running)

    with pytest.raises(StudyStopped) as stopped:
        wait()

    assert stopped.value.reason is None
    assert "2 CPUs" in watched.notes[-1]
    assert ("engine.workers=1" in watched.notes[-1]) == (left == 1)


@pytest.mark.parametrize(
    ("looks", "left", "running"),
    [
        ([(10.0, "CREATED"), (20.0, "CREATED"), (40.0, "CREATED")], 2, "a"),
        ([(10.0, "PENDING"), (20.0, "PENDING"), (40.0, "PENDING")], 2, ""),
        ([(10.0, "RESCHEDULING"), (16.0, "CREATED"), (30.0, "CREATED")], 2, "a"),
    ],
    ids=["they run", "they will run", "Ray has found another node"],
)
def test_trials_that_will_run_do_not_begin_again(clock, looks, left, running):
    watched, clock.workers = Watched(), left
    for clock.now, state in looks:
        clock.states = {state}
        watched.step("b", running)
