"""Hooks, the read-only view, stopping, memory under resume, and callbacks that fail."""

import pytest
import torch
from lightning.pytorch.callbacks import EarlyStopping as LightningEarlyStopping
from pydantic import ValidationError

from flbench.callbacks import Callback
from flbench.callbacks.early_stopping import EarlyStopping
from flbench.config.sources import Layer
from flbench.core.errors import CallbackError, ConfigError
from flbench.core.tree import digest_of_models
from flbench.experiment import lifecycle
from flbench.results import metrics_file
from tests.callbacks.support import CrashAfter, CrashError, only_run, run_with
from tests.support import reproducible, summary_of

pytestmark = pytest.mark.slow


class Recording(Callback):
    """Records the hooks with their arguments."""

    def __init__(self):
        self.calls = []
        self.metrics = {}

    def on_run_start(self, run):
        self.calls.append(("start", run.round, run.rounds))

    def on_round_end(self, run, metrics):
        self.calls.append(("round", run.round))
        self.metrics |= {(run.round, name): value for name, value in metrics.items()}
        assert run.loss == metrics["train/loss"]

    def on_evaluation_end(self, run, metrics):
        self.calls.append(("evaluation", run.round))
        self.metrics |= {(run.round, name): value for name, value in metrics.items()}
        assert metrics.items() <= run.metrics.items()

    def on_checkpoint(self, run, path):
        assert path.is_file()
        self.calls.append((path.stem, run.round))

    def on_run_end(self, run):
        self.calls.append(("end", run.round, run.summary["weights_digest"]))
        self.digest = digest_of_models(run.weights(client) for client in range(run.clients))

    def on_exception(self, run, error):
        self.calls.append(("exception", run.round, type(error)))


class Vandal(Callback):
    """Writes to everything that it can get, in each hook."""

    def on_round_end(self, run, metrics):
        for tree in (run.server, run.client(1), run.weights(1)):
            assert tree
            for name in tree:
                tree[name].fill_(torch.nan)
        run.participation_count.zero_()
        run.history("train/loss").clear()
        torch.manual_seed(run.round)
        torch.rand(7)

    def on_evaluation_end(self, run, metrics):
        for mapping in (metrics, run.metrics, run.server):
            with pytest.raises(TypeError):
                mapping["train/loss"] = 0.0
        for name, value in (("round", 9), ("config", None), ("rows", []), ("summary", {})):
            with pytest.raises(AttributeError):
                setattr(run, name, value)
        with pytest.raises(ValidationError):
            run.config.train.rounds = 1
        with pytest.raises(AttributeError):
            run.rows[0].value = 0.0
        with pytest.raises(IndexError):
            run.weights(5)


class StopAfter(Callback):
    def __init__(self, when, hook="on_round_end"):
        self.when = when
        setattr(self, hook, self.stop_if_due)

    def stop_if_due(self, run, metrics):
        if run.round == self.when:
            run.stop("enough")


class Counting(Callback):
    """Remembers the losses that it has seen."""

    def __init__(self):
        self.losses = []

    def on_round_end(self, run, metrics):
        self.losses.append(metrics["train/loss"])

    def state_dict(self):
        return {"losses": self.losses}

    def load_state_dict(self, state):
        self.losses = state["losses"]


class Failing(Callback):
    def __init__(self, hook, when=3):
        def fail(run, *_):
            if run.round == when:
                raise ZeroDivisionError("my mistake")

        setattr(self, hook, fail)


def test_hooks_come_in_order_and_their_metrics_are_those_of_the_file(tmp_path):
    seen = Recording()
    keys = ("algorithm=fedper", "model=mlp", "train.rounds=3", "evaluation.every=2")
    path, summary = run_with(tmp_path, [seen, StopAfter(3)], *keys)

    calls = [call for call in seen.calls if call[0] != "best"]
    assert calls == [
        ("start", 0, 3),
        ("round", 1),
        ("round", 2),
        ("evaluation", 2),
        ("last", 2),
        ("round", 3),
        ("evaluation", 3),
        ("last", 3),
        ("end", 3, summary["weights_digest"]),
    ]
    assert ("best", 2) in seen.calls
    assert seen.digest == summary["weights_digest"]
    assert "stopped" not in summary  # it is the last round anyway
    rows = metrics_file.read(path / "metrics.csv")
    found = {(row.round, row.full_name): row.value for row in rows}
    # After the last round, the models of the best one are evaluated on the common test set.
    late = {key for key in found if key[0] == 2 and key[1].startswith("common/")}
    assert seen.metrics == {key: value for key, value in found.items() if key not in late}


def test_nothing_that_a_callback_writes_changes_the_run(tmp_path):
    keys = ("algorithm=fedper", "model=mlp", "evaluation.every=1")
    path, summary = run_with(tmp_path / "a", [], *keys)
    other, touched = run_with(tmp_path / "b", [Vandal()], *keys)

    assert reproducible(touched) == reproducible(summary)
    assert (other / "metrics.csv").read_bytes() == (path / "metrics.csv").read_bytes()


@pytest.mark.parametrize(("hook", "when"), [("on_round_end", 3), ("on_evaluation_end", 4)])
def test_stopped_run_ends_like_a_run_of_so_many_rounds(tmp_path, hook, when):
    """With a constant learning rate the round does not depend on `train.rounds`."""
    keys = ("evaluation.every=2", "train.optimizer.lr=0.3")
    path, stopped = run_with(tmp_path / "a", [StopAfter(when, hook)], "train.rounds=9", *keys)
    other, short = run_with(tmp_path / "b", [], f"train.rounds={when}", *keys)

    assert stopped["stopped"] == {"round": when, "reason": "enough"}
    for key in ("weights_digest", "last", "best", "communication", "client_trainings"):
        assert _without_local(stopped[key]) == _without_local(short[key])
    for table in ("clients.csv", "per_class.csv", "confusion.csv"):
        assert (path / table).read_bytes() == (other / table).read_bytes()
    rows = [
        [row for row in metrics_file.read(folder / "metrics.csv") if "@local" not in row.protocol]
        for folder in (path, other)
    ]
    assert sorted(rows[0]) == sorted(rows[1])


def _without_local(value):
    """Metrics of the cohort right after training are not evaluated after an unforeseen end."""
    if not isinstance(value, dict):
        return value
    return {key: _without_local(item) for key, item in value.items() if "@local" not in key}


def test_stop_in_a_setup_stage_waits_for_a_round_that_counts(tmp_path):
    class StopInSetup(Callback):
        def on_round_end(self, run, metrics):
            rounds.append(run.round)
            if any(name.startswith("setup/") for name in metrics):
                run.stop("enough")

    rounds = []
    keys = ("algorithm=fedap", "model=lenet5", "partition.samples=300", "train.rounds=5")
    _, summary = run_with(tmp_path, [StopInSetup()], *keys)

    assert rounds[-2] == rounds[-3] == rounds[-1] - 1  # the set-up round does not count
    assert summary["stopped"]["round"] == summary["last"]["round"] == rounds[-1] < 5


NINE = ("train.rounds=9", "evaluation.every=2")


@pytest.fixture(scope="module")
def stopped(tmp_path_factory):
    """A run of five rounds of nine, and the losses that a callback has seen."""
    counting = Counting()
    path, _ = run_with(tmp_path_factory.mktemp("stopped"), [counting, StopAfter(5)], *NINE)
    return path, counting.losses


def assert_equal_runs(folder, other):
    assert reproducible(summary_of(folder)) == reproducible(summary_of(other))
    assert (folder / "metrics.csv").read_bytes() == (other / "metrics.csv").read_bytes()


@pytest.mark.parametrize("crash", [3, 5])
def test_memory_and_stop_are_exact_under_a_crash_and_resume(tmp_path, stopped, crash):
    with pytest.raises(CrashError):
        run_with(tmp_path, [Counting(), CrashAfter(crash), StopAfter(5)], *NINE)
    folder, resumed = only_run(tmp_path), Counting()
    lifecycle.resume(folder, Layer({}), [resumed, StopAfter(5)])

    assert resumed.losses == stopped[1]
    assert_equal_runs(folder, stopped[0])


def test_run_that_is_killed_after_it_stopped_ends_on_resume(tmp_path, stopped):
    class CrashAfterStop(Callback):
        def on_checkpoint(self, run, path):
            if run.stopped and path.stem == "last":
                raise CrashError

    with pytest.raises(CrashError):
        run_with(tmp_path, [StopAfter(5), CrashAfterStop()], *NINE)
    folder = only_run(tmp_path)
    lifecycle.resume(folder, Layer({}))

    assert_equal_runs(folder, stopped[0])


@pytest.mark.parametrize(("hook", "when"), [("on_run_start", 0), ("on_round_end", 5)])
def test_failing_callback_is_named_and_the_run_is_saved(tmp_path, stopped, hook, when):
    seen, counting = Recording(), Counting()
    callbacks = [Failing(hook, when), seen, counting, StopAfter(5)]
    with pytest.raises(CallbackError, match=f"Failing.*`{hook}`") as caught:
        run_with(tmp_path, callbacks, "output.checkpoint_every=50", *NINE)

    assert isinstance(caught.value.__cause__, ZeroDivisionError)
    assert seen.calls[-1] == ("exception", when, CallbackError)
    assert len(counting.losses) == when  # the hooks of the others are called all the same
    folder, again = only_run(tmp_path), Counting()
    if when:
        assert str(folder) in str(caught.value)
        assert ("last", when) in seen.calls
    lifecycle.resume(folder, Layer({}), [again, StopAfter(5)])
    assert again.losses == stopped[1]
    assert_equal_runs(folder, stopped[0])


@pytest.mark.parametrize("hook", ["on_note", "on_checkpoint"])
def test_failing_callback_neither_hides_an_interrupt_nor_prevents_its_save(tmp_path, hook):
    class Interrupt(Callback):
        def on_round_end(self, run, metrics):
            raise KeyboardInterrupt

    def fail(*given):
        if hook == "on_checkpoint" or given[0].startswith("interrupted"):
            raise ValueError("no")

    failing, seen = Callback(), Recording()
    setattr(failing, hook, fail)
    with pytest.raises(KeyboardInterrupt):
        run_with(tmp_path, [Interrupt(), failing, seen])
    assert seen.calls[-1] == ("exception", 1, KeyboardInterrupt)
    assert (only_run(tmp_path) / "checkpoints" / "last.safetensors").is_file()


def test_memory_must_be_json_and_is_checked_before_the_first_round(tmp_path):
    class Tensors(Callback):
        def state_dict(self):
            return {"weights": torch.zeros(3)}

    seen = Recording()
    with pytest.raises(CallbackError, match="Tensors"):
        run_with(tmp_path, [Tensors(), seen])
    assert ("round", 1) not in seen.calls


@pytest.mark.parametrize("wrong", [EarlyStopping, LightningEarlyStopping("loss"), print])
def test_what_is_not_a_callback_is_refused_before_anything_is_written(tmp_path, wrong):
    with pytest.raises(ConfigError, match="`callbacks`"):
        run_with(tmp_path, [wrong])
    assert not list(tmp_path.iterdir())


def test_failing_note_and_failing_on_exception_hide_no_error_and_the_round_is_saved(tmp_path):
    class Loud(Callback):
        def on_round_end(self, run, metrics):
            run.note("a note")

        def on_note(self, text):
            if text == "a note":
                raise ValueError("no notes")

        def on_exception(self, run, error):
            raise ValueError("no exceptions")

    with pytest.raises(CallbackError, match="`on_note`") as caught:
        run_with(tmp_path, [Loud()], "output.checkpoint_every=50", "partition.scheme=iid")
    assert any("no exceptions" in note for note in caught.value.__notes__)
    assert (only_run(tmp_path) / "checkpoints" / "last.safetensors").is_file()
