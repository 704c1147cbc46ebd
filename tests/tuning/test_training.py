"""A trial without Ray: its files, its samples, and how it resumes."""

import dataclasses
import hashlib
import sys
from contextlib import contextmanager

import cloudpickle
import numpy as np
import pytest
import yaml
from safetensors.torch import load_file
from torch import nn
from torch.nn import functional

from flbench.config import resolve, trust
from flbench.core.errors import UserError
from flbench.core.tree import digest
from flbench.data import partition_files
from flbench.experiment import assembly, checkpoint
from flbench.metrics import names as metric_names
from flbench.results import metrics_file
from flbench.results.summary import best_round
from flbench.tuning.study import (
    StudyFolder,
    TrainingJob,
    read_record,
    write_record,
)
from flbench.tuning.training import TrialTraining
from flbench.workers.portable import portable
from flbench.workers.shipping import Parcel
from tests.deploy import test_inputs
from tests.support import config_of, run

pytestmark = pytest.mark.slow

ITEMS = ("partition.seed=0", "train.rounds=4", "evaluation.every=2", "output.checkpoint_every=1")


@contextmanager
def study_of(folder, federation, methods, *items):
    """A study folder with methods on a federation."""
    folder = StudyFolder.create(folder, "study")
    for method in methods:
        tree = config_of(f"algorithm={method}", *items).tree()
        folder.write(f"methods/{method}.yaml", yaml.safe_dump(tree))
        trust.record(folder.path, tree)
    config = config_of(*items)
    packed, description = partition_files.encode(
        federation.partition, federation.dataset, config.partition
    )
    folder.write("partition.npz", packed)
    folder.write("partition.json", description)
    yield folder.path
    folder.close()


@pytest.fixture
def study(tmp_path, federation):
    """A study folder with two methods on the digits."""
    with study_of(tmp_path, federation, ("fedavg", "fedproto"), *ITEMS) as path:
        yield path


@pytest.fixture(scope="module")
def federation():
    return assembly.load_federation(config_of(*ITEMS))


def job_of(method="fedavg", index=1, *, rate=0.1, **changes):
    job = TrainingJob(method, index, 0, {"train.optimizer.lr": rate})
    return dataclasses.replace(job, **changes)


def trained(study, job, federation, metric="accuracy", deployment="personal", rounds=4):
    options = {"metric": metric, "deployment": deployment, "rounds": rounds}
    training = TrialTraining(study, job, federation, **options)
    steps = []
    while not steps or not steps[-1].done:
        steps.append(training.step())
    training.close()
    return steps


def weights_in(folder):
    """Return the digest of the last checkpoint of a trial or run."""
    return digest([load_file(folder / "checkpoints" / "last.safetensors")])


def weights(study, job):
    return weights_in(study / job.name)


def test_trial_trains_as_a_run_with_its_parameters(study, federation, tmp_path):
    """Its last evaluation has the metrics of probabilities too, for the loss of the trial."""
    job = job_of("fedproto")

    trained(study, job, federation)

    items = (*ITEMS, "train.optimizer.lr=0.1", "evaluation.probabilities=true")
    path, _ = run(tmp_path / "runs", "algorithm=fedproto", *items)
    wanted = [
        row
        for row in metrics_file.read(path / "metrics.csv")
        if row.split in ("validation", "train", "server", "setup")
        and (row.round == 4 or row.metric not in metric_names.PROBABILITY_WITH_MEANS)
    ]
    assert metrics_file.read(study / job.name / "metrics.csv") == wanted
    [loss] = [row.value for row in wanted if row[2:4] == ("personal", "nll")]
    assert read_record(study, job)["loss"] == loss


class Dropping(nn.Module):
    """Dropout as a layer, as a function and in attention."""

    def __init__(self, shape, classes, rate=0.5):
        super().__init__()
        self.rate = rate
        self.enter = nn.Linear(8, 8)
        self.drop = nn.Dropout(rate)
        self.attend = nn.MultiheadAttention(8, 2, dropout=rate, batch_first=True)
        self.head = nn.Linear(8, classes)

    def forward(self, x):
        h = self.drop(self.enter(x.flatten(1, 2)))
        h = self.attend(h, h, h)[0].mean(1)
        return self.head(functional.dropout(h, self.rate, self.training))


@pytest.mark.one_of("method", "kind", "items", "params")
@pytest.mark.parametrize(
    ("method", "kind", "items", "params"),
    [
        ("fedper", None, [f"model={__name__}:Dropping"], {"model.args.rate": 0.2}),
        ("ft", None, ["model=lenet5", "model.freeze=backbone"], {}),
        ("fedper", None, ["model=lenet5", "model.lora.rank=1"], {"model.lora.rank": 2}),
        ("hfcd", "tokens", [], {"model.hidden": 3}),
        ("hfcd", "series", [], {"model.hidden": 3}),
    ],
    ids=["dropout", "features of a frozen backbone", "adapters", "tokens", "series"],
)
def test_trials_on_any_net_and_input_are_runs(tmp_path, method, kind, items, params):
    """The trial and the final training have the weights of runs with the same configuration."""
    if "model.lora.rank" in params:
        pytest.importorskip("peft")
    if kind is not None:
        x = test_inputs.samples(kind)
        np.savez(tmp_path / "x.npz", train_images=x, train_labels=test_inputs.LABELS)
        items = [f"data.path={tmp_path / 'x.npz'}", *test_inputs.KINDS[kind], *items]
    items = ["partition.seed=0", *items, "partition.clients=3", "partition.samples=120"]
    items += ["train.rounds=2", "output.keep_trials=all"]
    federation = assembly.load_federation(config_of(*items))
    params = {"train.optimizer.lr": 0.05, **params}
    job = job_of(method, params=params)
    final = job_of(method, kind="final", variant="tuned", seed=3, params=params)

    with study_of(tmp_path, federation, [method], *items) as study:
        for one in (job, final):
            trained(study, one, federation, rounds=2)

    items += [f"algorithm={method}", *(f"{key}={value}" for key, value in params.items())]
    path, _ = run(tmp_path / "runs", *items)
    assert weights_in(study / job.name) == weights_in(path)
    _, summary = run(tmp_path / "runs", *items, "seed=3")
    found = yaml.safe_load((study / final.name / "summary.json").read_text())
    for key in ("config_hash", "weights_digest"):
        assert found[key] == summary[key]


def test_search_never_reads_a_test_sample(study, federation):
    """Other test samples, other labels: the same trial, to the byte."""
    labels, samples = federation.y.clone(), federation.x.clone()
    for rows in (*federation.partition.parts["test"], federation.common):
        labels[rows] = (labels[rows] + 1) % 10
        samples[rows] = 0
    other = dataclasses.replace(federation, y=labels, x=samples)

    trained(study, job_of(index=1), federation)
    trained(study, job_of(index=2), other)

    first, second = (study / job_of(index=k).name / "metrics.csv" for k in (1, 2))
    assert first.read_bytes() == second.read_bytes()
    assert {row.split for row in metrics_file.read(first)} == {"train", "validation"}


def test_steps_go_from_evaluation_to_evaluation_and_score_the_last(study, federation):
    steps = trained(study, job_of(), federation, metric="macro_f1")

    rows = metrics_file.read(study / job_of().name / "metrics.csv")
    by_round = {
        row.round: row.value for row in rows if row[1:4] == ("validation", "personal", "macro_f1")
    }
    assert [(step.round, step.score) for step in steps] == sorted(by_round.items())
    record = read_record(study, job_of())
    assert (record["state"], record["round"], record["rounds"]) == ("finished", 4, 4)
    assert record["score"] == steps[-1].score


def test_trial_is_scored_by_the_deployment_that_is_asked_for(study, federation):
    job = job_of("fedproto")
    steps = trained(study, job, federation, deployment="head")

    rows = metrics_file.read(study / job.name / "metrics.csv")
    of_head = {
        row.round: row.value for row in rows if row[1:4] == ("validation", "head", "accuracy")
    }
    assert [(step.round, step.score) for step in steps] == sorted(of_head.items())
    assert read_record(study, job)["score"] == of_head[4]


@pytest.fixture
def written(monkeypatch):
    """The rounds of the checkpoints that are written, in order."""
    rounds, save = [], checkpoint.save

    def counted(path, state, *rest):
        rounds.append(state.round)
        return save(path, state, *rest)

    monkeypatch.setattr(checkpoint, "save", counted)
    return rounds


def with_output(study, **keys):
    """Change keys of the section `output` of a study's method."""
    path = study / "methods" / "fedavg.yaml"
    tree = yaml.safe_load(path.read_text())
    tree["output"] |= keys
    tree["evaluation"]["every"] = 1
    path.write_text(yaml.safe_dump(tree))


def test_both_checkpoints_of_a_round_are_one_file(study, federation, written):
    with_output(study)
    trained(study, job_of(), federation)

    folder = study / job_of().name
    rows = metrics_file.read(folder / "metrics.csv")
    best = best_round(rows)
    assert written == [1, 2, 3, 4]  # the best rounds are not written twice
    loaded, _ = checkpoint.load(
        folder / "checkpoints" / "last.safetensors", resolve.read(folder / "config.yaml").hash()
    )
    assert loaded.round == 4
    if best < 4:
        best_file = folder / "checkpoints" / "best.safetensors"
        saved, _ = checkpoint.load(best_file, resolve.read(folder / "config.yaml").hash())
        assert saved.round == best


def test_checkpoints_are_written_by_time_and_a_killed_trial_ends_alike(study, federation, written):
    with_output(study)
    trained(study, job_of(index=1), federation)
    with_output(study, checkpoint_seconds=1000.0)
    keys = {"metric": "accuracy", "rounds": 4}
    killed = TrialTraining(study, job_of(index=2), federation, **keys)
    killed.step()
    killed.step()
    del written[:]

    trained(study, job_of(index=2), federation)  # as after a kill: nothing was saved

    assert written[-1] == 4
    assert weights(study, job_of(index=2)) == weights(study, job_of(index=1))
    first, second = (study / job_of(index=k).name / "metrics.csv" for k in (1, 2))
    assert first.read_bytes() == second.read_bytes()


def test_a_stopped_trial_keeps_the_state_of_its_last_round(study, federation, written):
    with_output(study, checkpoint_seconds=1000.0)
    stopped = TrialTraining(study, job_of(), federation, metric="accuracy", rounds=4)
    stopped.step()
    stopped.step()
    stopped.close()

    assert written[-1] == 2
    again = TrialTraining(study, job_of(), federation, metric="accuracy", rounds=4)
    assert again.record["round"] == 2
    again.close()


@pytest.mark.parametrize("keep", ["best", "all"])
def test_a_trial_that_the_scheduler_has_stopped_is_saved_if_all_are_kept(
    study, federation, written, keep
):
    with_output(study, checkpoint_seconds=1000.0, keep_trials=keep)
    stopped = TrialTraining(study, job_of(), federation, metric="accuracy", rounds=4)
    stopped.step()
    write_record(study, job_of(), read_record(study, job_of()) | {"state": "stopped"})
    stopped.close()

    assert written == ([1, 1] if keep == "all" else [1])  # that of the best round, and of the stop
    [last] = study.rglob("last.safetensors")
    assert last.is_file()


class OfMissingModule:
    """An object that a worker process cannot read."""

    def __reduce__(self):
        return __import__, ("module_of_this_process_alone",)


def test_trial_that_cannot_read_what_it_is_sent_fails_with_the_reason(
    study, federation, monkeypatch
):
    # What arrives sets the folders in which its process looks for modules.
    monkeypatch.setattr(sys, "path", [*sys.path])
    content = {"model": OfMissingModule()}, {}, {}
    sealed = Parcel(cloudpickle.dumps(portable(content, cloudpickle.dumps)))

    training = TrialTraining(
        study, job_of(index=9), federation, metric="accuracy", rounds=4, opened=sealed.opened
    )

    assert training.step().done
    assert not training.has_begun
    assert training.record["state"] == "failed"
    assert "named 'module_of_this_process_alone'" in training.record["reason"]


def test_restarted_trial_resumes_from_its_checkpoint(study, federation):
    straight, broken = job_of(index=1), job_of(index=2)
    trained(study, straight, federation)
    first = TrialTraining(study, broken, federation, metric="accuracy", rounds=4)
    first.step()
    first.close()

    call = "fl.resume('studies/a')"
    again = TrialTraining(study, broken, federation, metric="accuracy", rounds=4, resume=call)
    step = again.step()

    assert step.done
    assert again.folder.resume_command == call
    assert weights(study, broken) == weights(study, straight)
    files = (study / job.name / "metrics.csv" for job in (straight, broken))
    assert len({hashlib.sha256(file.read_bytes()).hexdigest() for file in files}) == 1


def test_trial_that_loads_another_trials_state_continues_like_that_one(study, federation, tmp_path):
    donor, heir = job_of(index=1), job_of(index=2, rate=0.0)
    giving = TrialTraining(study, donor, federation, metric="accuracy", rounds=4)
    giving.step()
    giving.save(tmp_path)
    while not giving.step().done:
        pass

    taking = TrialTraining(
        study,
        dataclasses.replace(heir, params=donor.params),
        federation,
        metric="accuracy",
        rounds=4,
    )
    taking.load(tmp_path)
    step = taking.step()

    assert step.done
    assert weights(study, heir) == weights(study, donor)


def test_trial_with_other_parameters_starts_from_the_beginning(study, federation):
    first = TrialTraining(study, job_of(), federation, metric="accuracy", rounds=4)
    first.step()
    first.close()

    again = TrialTraining(study, job_of(rate=0.2), federation, metric="accuracy", rounds=4)

    assert again.step().round == 2
    assert read_record(study, job_of())["params"] == {"train.optimizer.lr": 0.2}


def test_trial_that_the_method_refuses_is_failed_with_the_reason(study, federation):
    job = dataclasses.replace(job_of(), params={"train.optimizer.lr": -1.0})

    (step,) = trained(study, job, federation)

    record = read_record(study, job)
    assert (step.score, record["state"]) == (None, "failed")
    assert "train.optimizer.lr" in record["reason"]
    assert job.name in record["reason"]


def test_trial_whose_clients_all_diverge_ends_early(study, federation):
    steps = trained(study, job_of(rate=1e30), federation)

    record = read_record(study, job_of())
    assert record["state"] == "diverged"
    assert record["round"] == steps[-1].round == 2


def test_samples_are_the_same_after_trials(study, federation):
    """They lie in memory that all trials share."""
    before = hashlib.sha256(federation.x.numpy().tobytes()).hexdigest()
    read_only = federation.x.numpy().copy()
    read_only.setflags(write=False)
    shared = federation.without_samples().with_samples(read_only)

    trained(study, job_of("fedproto"), shared)

    assert hashlib.sha256(shared.x.numpy().tobytes()).hexdigest() == before


def test_study_is_worked_on_by_one_process_at_a_time(tmp_path):
    folder = StudyFolder.create(tmp_path, "study")
    folder.write("study.json", "{}")

    with pytest.raises(UserError, match="another process"):
        StudyFolder.reopen(folder.path)

    folder.close()
    StudyFolder.reopen(folder.path).close()
