"""How Ray Tune hears of trials, what is written of them, which are stopped, and which wait."""

import json
from types import SimpleNamespace

import numpy as np
import pytest

from flbench.cli import app
from flbench.config.schema import EngineConfig
from flbench.core.errors import UserError
from flbench.jobs.resources import Resources
from flbench.results import study_folder
from flbench.tuning import search
from flbench.tuning.request import FACTOR, grace_of
from flbench.tuning.search import Events, Halving, Search, StudyStopped, TrialProgress
from flbench.tuning.study import StudyFolder, TrialFolder

GIVEN = {"seed": 0, "rounds": 4}


class Counting:
    """Proposes the number of each trial as its learning rate, all at once or after the results."""

    def __init__(self, trials, batch=None):
        self.trials, self.batch = trials, batch or trials

    def given(self, records):
        ended = sum(one.state != "running" for one in records.values())
        count = min(self.trials, self.batch * (ended // self.batch + 1))
        return [{"train.optimizer.lr": k} for k in range(count)]


class Every:
    """Contains every trial."""

    def __contains__(self, one):
        return True


def search_of(study, *methods, trials=2, batch=None, stops=False, keep="best"):
    ended = []
    proposals = {method: Counting(trials, batch) for method in methods or ["a"]}
    progress = SimpleNamespace(begin_trial=lambda trial: None, end_trial=ended.append)
    train = SimpleNamespace(rounds=GIVEN["rounds"])
    output = SimpleNamespace(keep_trials=keep)
    prepared = SimpleNamespace(
        proposals=lambda: proposals,
        trials=dict.fromkeys(proposals, trials),
        config=SimpleNamespace(seed=GIVEN["seed"], train=train, output=output),
    )
    scheduler = SimpleNamespace(stopped=Every()) if stops else None
    made = Search(StudyFolder(study), prepared, progress, scheduler)
    made.ended = ended
    return made


def begun(made, name="x", **changes):
    """Write what a worker writes of a trial that Ray Tune calls so."""
    trial = made.trials[name]
    params = {"train.optimizer.lr": trial.index}
    trial.write(trial.begin(params, **GIVEN), **changes)
    return trial


@pytest.fixture(autouse=True)
def connected(monkeypatch):
    """Whether the servers of Ray are lost."""
    found = SimpleNamespace(lost=False)
    monkeypatch.setattr(search.ray_session, "are_lost", lambda: found.lost)
    return found


def test_every_trial_comes_once_and_other_methods_begin_while_one_waits_for_its_batch(tmp_path):
    made = search_of(tmp_path, "b", "a", trials=4, batch=2, stops=True)
    found = []
    for number in range(10):
        one = made.suggest(str(number))
        if one is None:  # two trials of each method run
            assert number == 4
            for k in range(4):
                made.on_trial_complete(str(k), {})
        elif one != made.FINISHED:
            found.append((one["method"], one["index"]))
        else:
            break
        if number > 4:
            made.on_trial_complete(str(number), {})

    assert found == [(m, k) for first in (0, 2) for m in "ba" for k in (first, first + 1)]
    assert len(made.ended) == 8


def test_resumed_search_gives_what_has_not_ended(tmp_path):
    made = search_of(tmp_path, trials=4, stops=True)
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


DIVERGED = {"state": "diverged", "reason": "all of them", "score": 0.5, "ended": "now"}


@pytest.mark.parametrize(
    ("wrote", "error", "was_stopped", "is_lost", "state"),
    [
        (DIVERGED, True, False, False, "diverged"),  # as its worker wrote it
        ({"round": 2}, False, True, False, "stopped"),
        ({"round": 2}, False, False, False, None),  # its worker died after a report: it comes again
        ({"round": 2}, True, False, False, "failed"),
        (None, True, False, False, "failed"),  # before it wrote anything
        ({"round": 2}, True, False, True, None),  # the study stops: a resumed one continues it
    ],
)
def test_how_a_trial_ends(tmp_path, connected, wrote, error, was_stopped, is_lost, state):
    made = search_of(tmp_path, trials=1, stops=was_stopped)
    made.suggest("x")
    before = None if wrote is None else begun(made, **wrote).read()
    connected.lost = is_lost

    made.on_trial_complete("x", {}, error=error)
    if error:
        made.end("x", "no space left")

    found = made.trials["x"].read()
    assert made.ended == ([found] if state else [])
    if state is None or wrote is DIVERGED:
        assert found == before
    else:
        assert (found.state, found.rounds, found.params) == (state, 4, {"train.optimizer.lr": 0})
        assert not error or (found.reason, found.lost) == ("no space left", True)
    assert (made.suggest("y") is not None) == (state is not None or not is_lost)


@pytest.mark.parametrize(
    ("search_by", "first", "left", "states"),
    [
        ("random", "failed", [0, 1, 2, 3, 4], "ffrrr"),
        # Trials 2 and 3 are the batch of the first lost one; trial 4 was proposed from failures.
        ("optuna", "failed", [0, 1, 2, 3], "ffrr"),
        ("random", "finished", [0, 1, 2, 3, 4], "fffff"),  # never where a method has a winner
    ],
)
def test_a_resumed_study_trains_again_what_it_has_lost(tmp_path, search_by, first, left, states):
    texts = dict.fromkeys(("id", "created", "dataset", "scheme", "metric", "scheduler"), "x")
    counts = {"seed": 0, "trials": 5, "rounds": 4, "seeds": 1, "batch": 2}
    methods = {"a": {"space": "built in", "defaults": {}, "space_tree": {}}}
    header = {**texts, **counts, "search": search_by, "command": [], "methods": methods}
    header |= {"partition_hash": None, "git_revision": None}
    (tmp_path / "study.json").write_text(json.dumps(header))
    for index in range(5):
        state = {"state": first if index == 0 else "failed", "score": 0.5, "lost": index > 1}
        folder = TrialFolder(tmp_path, "a", index)
        folder.write(folder.begin({}, **GIVEN), **state)
    study = StudyFolder(tmp_path)
    assert bool(search.lost_in(study_folder.read(tmp_path))) == ("r" in states)

    search.begin_again(study)

    trials = study.trials()
    assert [one.index for one in trials] == left
    assert [one.state == "running" for one in trials] == [one == "r" for one in states]
    assert not search.lost_in(study_folder.read(tmp_path))


@pytest.mark.parametrize(
    ("keep", "ends", "expected"),
    [
        ("best", "fsffd", ["002"]),  # a stopped trial cannot win, and a tie is won by the first
        ("all", "fsffd", ["000", "001", "002", "003", "004"]),
        ("best", "d", []),
    ],
)
def test_checkpoints_of_the_best_trial_stay(tmp_path, keep, ends, expected):
    states = {"f": "finished", "s": "stopped", "d": "diverged"}
    made = search_of(tmp_path, trials=len(ends), keep=keep)
    for k, (end, score) in enumerate(zip(ends, (0.5, 0.9, 0.7, 0.7, None), strict=False)):
        made.suggest(str(k))
        trial = begun(made, str(k), state=states[end], score=None if end == "d" else score)
        (trial.path / "checkpoints").mkdir()
        (trial.path / "metrics.csv").write_text("")
        made.on_trial_complete(str(k), {})

    assert sorted(path.parent.name for path in tmp_path.rglob("checkpoints")) == expected
    assert len(list(tmp_path.rglob("metrics.csv"))) == len(ends)


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
    """Also beside a better method, which stops none of its trials."""
    scheduler, results = Halving({"a": 1, "b": 1}, rounds=9), results_of(trials_of("a"))
    for k in range(4):
        report(scheduler, ("b", k), 1, 0.99)

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


def test_a_wait_is_never_silent_for_half_a_minute_and_ends_the_study(monkeypatch):
    """A trial that runs begins the wait anew."""
    clock, said = SimpleNamespace(now=0.0), []
    monkeypatch.setattr(search.time, "monotonic", lambda: clock.now)
    monkeypatch.setattr(search, "nodes_have", lambda needs: "The nodes have 1 CPU free.")
    trials = {name: SimpleNamespace(name=name) for name in "abx"}
    noting = SimpleNamespace(trials=trials, progress=SimpleNamespace(note=said.append))
    events = Events(noting, Resources(1, EngineConfig(wait_seconds=60.0), 0.0, 0))

    def step(now, running=""):
        clock.now = now
        pairs = [("a", "PENDING"), ("b", "PENDING"), *((one, "RUNNING") for one in running)]
        trials = [SimpleNamespace(trial_id=name, status=status) for name, status in pairs]
        events.on_step_begin(1, trials)

    for now, running in ((0, ""), (3, "x"), (62, "")):
        step(now, running)
    assert not said
    for now in (72, 84, 102, 107):
        step(now)
    assert [note.partition(" s")[0].rpartition(" ")[2] for note in said] == ["22", "45"]
    with pytest.raises(StudyStopped, match=r"engine\.wait_seconds"):
        step(123)
