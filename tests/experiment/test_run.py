"""Complete runs: metrics and tables, the best round, crashes, interrupts and full disks."""

import csv
import errno
import shutil
import signal
import time
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file

from flbench.algorithms import ALGORITHMS
from flbench.cli import app
from flbench.client.program import LocalProgram, Phase, Transform
from flbench.config.resolve import resolve, resolve_written
from flbench.config.schema import OptimizerConfig
from flbench.config.sources import Layer, from_overrides
from flbench.config.trust import run_code
from flbench.core import files
from flbench.core.errors import ConfigError, DataError, RunError, UserError
from flbench.data.sources import digits
from flbench.experiment import assembly, checkpoint, lifecycle, row_files
from flbench.experiment.engines import with_device
from flbench.experiment.rounds import settings_of
from flbench.experiment.run_folder import RunFolder
from flbench.losses import CrossEntropy
from flbench.testing import after
from tests.forks import Fork
from tests.support import (
    SMALL,
    Silent,
    build,
    config_of,
    interrupted_run,
    reproducible,
    run,
    summary_of,
    write_npz,
)

pytestmark = pytest.mark.slow

METHODS = ("local", "fedavg", "fedprox", "fedproto", "hfcd")


def rows(path: Path) -> list[dict[str, str]]:
    with (path / "metrics.csv").open() as file:
        return list(csv.DictReader(file))


def metric_by_round(path: Path, split: str, protocol: str, metric: str) -> dict[int, float]:
    return {
        int(row["round"]): float(row["value"])
        for row in rows(path)
        if (row["split"], row["protocol"], row["metric"]) == (split, protocol, metric)
    }


# Metrics and tables of a run


def test_best_round_is_chosen_by_validation_and_test_is_only_reported(tmp_path):
    path, summary = run(
        tmp_path, "algorithm=hfcd", "train.rounds=8", "evaluation.every=1", "train.optimizer.lr=0.3"
    )

    validation = metric_by_round(path, "validation", "personal", "accuracy")
    test = metric_by_round(path, "test", "personal", "accuracy")
    best = max(validation, key=lambda number: (validation[number], -number))
    assert summary["best"]["round"] == best
    assert summary["best"]["test"]["accuracy"] == test[best]
    assert summary["last"]["test"]["accuracy"] == test[8]
    assert set(metric_by_round(path, "common", "personal", "accuracy")) == {8, best}
    assert sum(summary["seconds"][one] for one in ("train", "evaluate", "write")) <= (
        summary["seconds"]["total"] + 0.002
    )


def test_tables_of_best_and_last_round_agree_with_the_metrics(tmp_path):
    path, summary = run(
        tmp_path,
        "algorithm=local",
        "partition.samples=60",
        "partition.split=[0.8,0.1,0.1]",
        "train.rounds=8",
        "evaluation.every=1",
        "train.optimizer.lr=0.5",
    )

    with (path / "clients.csv").open() as file:
        clients = list(csv.DictReader(file))
    for moment in {line["moment"] for line in clients}:
        lines = [line for line in clients if line["moment"] == moment]
        mean = sum(float(line["accuracy"]) for line in lines) / len(lines)
        assert mean == pytest.approx(summary[moment]["test"]["accuracy_mean"])
    with (path / "per_class.csv").open() as file:
        classes = [line for line in csv.DictReader(file) if line["moment"] == "last"]
    absent = [line for line in classes if line["test_support"] == "0"]
    assert {(line["recall"], line["f1"]) for line in absent} == {("", "")}
    recall = [float(line["recall"]) for line in classes if line not in absent]
    assert sum(recall) / len(recall) == pytest.approx(summary["last"]["test"]["balanced_accuracy"])


def test_without_a_validation_part_the_best_round_is_the_last(tmp_path):
    _, summary = run(
        tmp_path, "algorithm=local", "partition.split=[0.5,0,0.5]", "evaluation.every=1"
    )

    assert summary["best"]["round"] == 3


def test_global_and_personal_figures_on_the_common_test_set(tmp_path):
    path, summary = run(
        tmp_path, "algorithm=fedavg", "evaluation.common.every=1", "evaluation.common.limit=null"
    )

    gm = metric_by_round(path, "common", "gm", "accuracy")
    personal = metric_by_round(path, "common", "personal", "accuracy")
    assert set(gm) == {1, 2, 3}  # these rounds are only due because of the common test set
    assert gm == personal  # every client is evaluated with the same model
    assert summary["last"]["test"]["gm"] == gm[3]
    assert {"pm_v", "pm_l"} <= set(summary["last"]["test"])


@pytest.mark.parametrize(
    ("keys", "once"),
    [
        (("algorithm=fedavg",), True),
        (("algorithm=scaffold",), True),  # clients keep leaves that do not belong to the net
        (("algorithm=fedavg", "model.name=lenet5", "train.batchnorm=local"), False),
        (("algorithm=fedper",), False),
        (("algorithm=ifca",), False),
    ],
)
def test_a_model_that_all_share_is_evaluated_once_on_the_common_test_set(keys, once, monkeypatch):
    built = build(*keys, "evaluation.common.limit=50")
    evaluator, state = built.evaluator(print), after(built, 2)
    settings = settings_of(built.algorithm, state)
    asked, engine_run = [], built.engine.run

    def noted(work, ids):
        asked.extend(len(ids) for one in work.observe if one.name == "evaluation/common")
        return engine_run(work, ids)

    monkeypatch.setattr(built.engine, "run", noted)
    found = evaluator.evaluate(state, settings, common=True).common["personal"]
    assert asked[0] == (1 if once else 5)
    assert bool((found.support.sum(dim=1) == 50).all())


def test_figures_on_the_common_test_set_right_after_training_are_the_cohorts(tmp_path):
    """The deviation over clients is 0 for a cohort of one, and positive for all five clients."""
    keys = ("evaluation.common.every=1", "evaluation.common.limit=null", "train.participation=0.2")
    path, summary = run(tmp_path, "algorithm=fedavg", *keys)

    for name in ("pm_v", "pm_l"):
        local = metric_by_round(path, "common", f"{name}@local", "accuracy")
        assert set(local) == {1, 2, 3}
        assert local != metric_by_round(path, "common", name, "accuracy")
        assert set(metric_by_round(path, "common", f"{name}@local", "client_std").values()) == {0.0}
        assert 0.0 not in metric_by_round(path, "common", name, "client_std").values()
        assert summary["last"]["test"][f"{name}@local"] == local[3]


def test_local_only_is_the_same_before_and_after_aggregation(tmp_path):
    """All clients participate and nothing is aggregated."""
    keys = ("algorithm=local", "model.name=lenet5", "evaluation.common.every=2")
    path, _ = run(tmp_path, *keys)

    assert metric_by_round(path, "test", "personal@local", "accuracy") == metric_by_round(
        path, "test", "personal", "accuracy"
    )
    for name in ("pm_v", "pm_l", "personal"):
        for metric in ("accuracy", "client_std"):
            local = metric_by_round(path, "common", f"{name}@local", metric)
            assert local == metric_by_round(path, "common", name, metric)
            assert set(local) == {2, 3}


def test_share_of_trained_classes_is_that_of_the_partition_and_bounds_local_models(tmp_path):
    """Local models predict hardly any class that their clients do not hold."""
    keys = ("partition.alpha=0.1", "evaluation.common.every=1", "evaluation.common.limit=null")
    path, _ = run(tmp_path, "algorithm=local", *keys)

    share = metric_by_round(path, "common", "personal", "trained_class_share")
    assert set(share) == {1, 2, 3}
    held = np.load(path / "partition.npz")["train_counts"] > 0
    data = digits()
    common = np.bincount(data.y[data.train :], minlength=10)
    assert share[3] == pytest.approx((held @ common / common.sum()).mean())
    assert 0 < metric_by_round(path, "common", "personal", "accuracy_mean")[3] < share[3] < 1


def test_finetuned_models_are_evaluated_beside_the_global_one(tmp_path):
    path, summary = run(
        tmp_path, "algorithm=fedavg", "algorithm.finetune_epochs=3", "train.optimizer.lr=0.1"
    )

    assert set(metric_by_round(path, "test", "ft", "accuracy")) == {2, 3}
    assert summary["last"]["test"]["ft"]["accuracy"] > summary["last"]["test"]["accuracy"]


def test_target_accuracy_has_the_cost_up_to_its_round(tmp_path):
    keys = ("algorithm=fedavg", "train.rounds=6", "evaluation.every=1", "train.optimizer.lr=0.1")
    keys = ("partition.samples=null", *keys)
    path, summary = run(tmp_path, *keys, "evaluation.target_accuracy=0.5")
    _, never = run(tmp_path, *keys, "evaluation.target_accuracy=0.9999")
    tested = (*keys, "partition.split=[0.8,0,0.2]", "evaluation.target_accuracy=0.5")
    without, found = run(tmp_path, *tested)

    validation = metric_by_round(path, "validation", "personal", "accuracy")
    first = min(number for number, value in validation.items() if value >= 0.5)
    assert summary["target"]["round"] == first
    assert summary["target"]["communication"]["up_bytes"] == sum(
        value
        for number, value in metric_by_round(path, "train", "", "up_bytes").items()
        if number <= first
    )
    assert summary["target"]["split"] == "validation"
    test = metric_by_round(without, "test", "personal", "accuracy")
    first = min(number for number, value in test.items() if value >= 0.5)
    assert (found["target"]["split"], found["target"]["round"]) == ("test", first)
    assert never["target"] == {"accuracy": 0.9999, "split": "validation", "round": None}


def test_confusable_classes_follow_a_reference_run(tmp_path):
    reference, _ = run(tmp_path, "algorithm=fedavg")

    path, summary = run(tmp_path, "algorithm=local", f"evaluation.confusable={reference}")
    _, own = run(tmp_path, "algorithm=local", "evaluation.confusable=own")

    with (path / "per_class.csv").open() as file:
        marked = [int(line["class"]) for line in csv.DictReader(file) if line["confusable"] == "1"]
    assert len(marked) == 2
    assert "confusable_f1" in summary["last"]["test"]
    assert "confusable_f1" in own["last"]["test"]


def test_config_of_a_run_repeats_it(tmp_path):
    path, summary = run(tmp_path, "algorithm=hfcd", "algorithm.tau=0.4", "seed=3")
    from flbench.config.sources import from_file

    config, origins = resolve([from_file(path / "config.yaml")])
    again = lifecycle.run(config, origins)

    assert summary_of(again)["weights_digest"] == summary["weights_digest"]


# Divergence


def test_diverged_clients_are_counted_or_stop_the_run(tmp_path):
    keys = ("algorithm=fedavg", "train.optimizer.lr=1e30")
    assert run(tmp_path, *keys)[1]["diverged"] == 15
    with pytest.raises(RunError, match=r"round 1, client \d"):
        run(tmp_path, *keys, "train.on_divergence=stop")


# Interrupts and crashes


def test_tensors_of_the_server_are_aligned_after_a_resume(tmp_path):
    """Products of float32 depend on it; a file has tensors at multiples of 8 bytes."""
    start = build("algorithm=fedavg").start()
    odd = {f"odd{size}": torch.arange(float(size)) for size in (1, 3, 5)}
    path = tmp_path / "last.safetensors"
    checkpoint.save(path, replace(start, server=odd | start.server), "hash", {})

    loaded, _ = checkpoint.load(path, "hash")

    assert len(loaded.server) == len(start.server) + 3
    assert all(value.data_ptr() % 64 == 0 for value in loaded.server.values())


def test_interrupt_ends_after_saving_and_resume_ends_like_the_straight_run(tmp_path):
    straight, summary = run(tmp_path / "a", "algorithm=hfcd", "train.rounds=5")
    folder = interrupted_run(tmp_path / "b", "algorithm=hfcd", "train.rounds=5")
    saved, _ = checkpoint.load(folder / "checkpoints" / "last.safetensors", summary["config_hash"])
    assert saved.round == 2
    lifecycle.resume(folder, Layer({}))

    assert summary_of(folder)["weights_digest"] == summary["weights_digest"]
    assert (folder / "metrics.csv").read_bytes() == (straight / "metrics.csv").read_bytes()


def test_interrupt_in_the_middle_of_training_discards_only_that_round(tmp_path, monkeypatch):
    from flbench.engine.sequential import SequentialEngine

    _, summary = run(tmp_path / "a", "algorithm=fedavg", "train.rounds=4")
    original, calls = SequentialEngine.run, []

    def interrupted(self, work, ids):
        calls.append(ids)
        if len(calls) == 3 and work.program.sends:
            signal.raise_signal(signal.SIGINT)  # to this thread: another one might run later
        return original(self, work, ids)

    monkeypatch.setattr(SequentialEngine, "run", interrupted)
    keys = (f"output.dir={tmp_path / 'b'}", "algorithm=fedavg", "train.rounds=4")
    config, origins = resolve([from_overrides([*SMALL, *keys, "evaluation.every=4"])])
    with pytest.raises(KeyboardInterrupt):
        lifecycle.run(config, origins)
    [folder] = (tmp_path / "b").glob("*/*")
    saved, _ = checkpoint.load(folder / "checkpoints" / "last.safetensors", summary["config_hash"])
    assert saved.round == 2

    lifecycle.resume(folder, Layer({}))

    assert summary_of(folder)["weights_digest"] == summary["weights_digest"]


@pytest.mark.processes
@pytest.mark.parametrize(
    "name",
    [name if name == "hfcd" else pytest.param(name, marks=pytest.mark.full) for name in METHODS],
)
def test_kill_and_resume_end_like_the_straight_run(tmp_path, name):
    """Kill a fork with SIGKILL at a random moment."""
    items = [
        *SMALL,
        f"algorithm={name}",
        "partition.samples=null",
        "train.rounds=20",
        "output.checkpoint_every=3",
        "evaluation.every=10",
    ]
    straight, summary = run(tmp_path / "a", *items)
    process = Fork(tmp_path, app.main, ["run", *items, f"output.dir={tmp_path / 'b'}"])
    try:
        deadline = time.monotonic() + 120
        while (
            not list((tmp_path / "b").glob("*/*/checkpoints/last.safetensors"))
            and time.monotonic() < deadline
        ):
            time.sleep(0.01)
        time.sleep(0.02 * (1 + METHODS.index(name) % 8))
    finally:
        process.kill()
    [folder] = (tmp_path / "b").glob("*/*")
    assert not (folder / "summary.json").exists(), "the run was over before it could be killed"

    lifecycle.resume(folder, Layer({}))

    assert reproducible(summary_of(folder)) == reproducible(summary)
    assert (folder / "metrics.csv").read_bytes() == (straight / "metrics.csv").read_bytes()


def test_resume_of_a_finished_run_changes_nothing_and_refuses_changes(tmp_path):
    path, _ = run(tmp_path, "algorithm=local")
    before = {file: file.read_bytes() for file in path.rglob("*") if file.is_file()}
    silent = Silent()

    lifecycle.resume(path, Layer({}), [silent])

    assert silent.notes
    for change, key in (("train.rounds=20", "train.rounds"), ("output.dir=other", "output.dir")):
        with pytest.raises(ConfigError, match=f"`{key}`"):
            lifecycle.resume(path, from_overrides([change]))
    assert {file: file.read_bytes() for file in path.rglob("*") if file.is_file()} == before


@pytest.fixture(scope="module")
def straight(tmp_path_factory) -> str:
    """The digest of the weights of that run without the interrupt."""
    return run(tmp_path_factory.mktemp("straight"), "algorithm=fedavg")[1]["weights_digest"]


@pytest.fixture(scope="module")
def interrupted(tmp_path_factory) -> Path:
    """The folder of a run that was interrupted after two rounds."""
    return interrupted_run(tmp_path_factory.mktemp("interrupted"), "algorithm=fedavg")


@pytest.fixture
def unfinished(tmp_path, interrupted) -> Path:
    """A copy of it, which the test may write to."""
    return shutil.copytree(interrupted, tmp_path / "runs" / "digits" / interrupted.name)


def test_resume_without_a_checkpoint_starts_from_the_beginning(straight, unfinished):
    shutil.rmtree(unfinished / "checkpoints")

    lifecycle.resume(unfinished, Layer({}))

    assert summary_of(unfinished)["weights_digest"] == straight


def test_resume_refuses_metrics_that_lack_rows_of_the_checkpoint(unfinished):
    metrics = unfinished / "metrics.csv"
    lines = metrics.read_text().splitlines(keepends=True)
    metrics.write_text("".join(lines[:5]))

    with pytest.raises(DataError, match=r"metrics\.csv"):
        lifecycle.resume(unfinished, Layer({}))

    metrics.write_text("".join(lines))
    lifecycle.resume(unfinished, Layer({}))
    assert metrics.read_text().startswith("".join(lines))


def test_resume_writes_through_no_link_of_the_folder(tmp_path, unfinished):
    path, private = unfinished, tmp_path / "private"
    private.write_text("secret")
    (path / "checkpoints" / "last.safetensors.part").symlink_to(private)
    (path / "checkpoints" / "best.safetensors.part").symlink_to(private)

    lifecycle.resume(path, Layer({}))
    assert private.read_text() == "secret"

    (path / "summary.json").unlink()
    (path / "metrics.csv").unlink()
    (path / "metrics.csv").symlink_to(private)
    with pytest.raises(UserError, match=r"metrics\.csv"):
        lifecycle.resume(path, Layer({}))
    assert private.read_text() == "secret"


def test_resume_joins_no_foreign_cluster_that_the_folder_names(unfinished, monkeypatch):
    path = unfinished
    config = (path / "config.yaml").read_text()
    for before, after_it in (("name: sequential", "name: ray"), ("address: null", "address: a:1")):
        assert before in config
        config = config.replace(before, after_it)
    (path / "config.yaml").write_text(config)
    joined = []

    def built(config, *_, **__):
        joined.append(config.engine.address)

    monkeypatch.setattr(lifecycle, "build", built)

    with pytest.raises(ConfigError, match=r"(?s)a:1.*--run-code"):
        lifecycle.resume(path, Layer({}))
    assert joined == []

    with run_code(True), pytest.raises(AttributeError):  # the replaced `build` returns None
        lifecycle.resume(path, Layer({}))
    assert joined == ["a:1"]


def test_resume_refuses_another_configuration(unfinished):
    with pytest.raises(ConfigError, match=r"`train\.rounds`"):
        lifecycle.resume(unfinished, from_overrides(["train.rounds=9"]))
    text = (unfinished / "config.yaml").read_text()
    (unfinished / "config.yaml").write_text(text.replace("rounds: 3", "rounds: 4"))

    with pytest.raises(DataError, match=r"last\.safetensors"):
        lifecycle.resume(unfinished, Layer({}))


@pytest.mark.parametrize(
    "change",
    [
        {"position": '{"stage": 0}'},
        {"position": '{"stage": 9, "stage_round": 1, "round": 1, "is_initial": false}'},
        {"names": "3"},
        {"extra": '{"rows": 1, "seconds": {"train": "long"}}'},
        b"hello",
        None,
    ],
    ids=str,
)
def test_resume_names_a_checkpoint_that_is_damaged_or_was_edited(change, unfinished):
    file = unfinished / "checkpoints" / "last.safetensors"
    if isinstance(change, dict):
        with safe_open(file, framework="pt") as stored:
            metadata = stored.metadata() | change
        save_file(load_file(file), file, metadata)
    else:
        file.write_bytes(change or file.read_bytes()[:900])

    with pytest.raises(DataError, match=r"last\.safetensors"):
        lifecycle.resume(unfinished, Layer({}))


@pytest.mark.parametrize("code", [errno.ENOSPC, None], ids=["disk", "memory"])
def test_no_checkpoint_is_called_damaged_for_want_of_memory_or_disk(code, monkeypatch, unfinished):

    def fail(*given):
        raise OSError(code, "full") if code else RuntimeError("can't allocate memory")

    if code:
        monkeypatch.setattr(RunFolder, "rewind", fail)
    else:
        monkeypatch.setattr(row_files, "read", fail)
    with pytest.raises(OSError if code else RuntimeError):
        lifecycle.resume(unfinished, Layer({}))


def test_two_processes_cannot_write_to_one_folder(unfinished):
    folder = RunFolder.reopen(unfinished)
    try:
        with pytest.raises(UserError, match=folder.path.name):
            lifecycle.resume(folder.path, Layer({}))
    finally:
        folder.close()


# Disks


@pytest.mark.parametrize("when", ["metrics", "checkpoint", "table"])
def test_full_disk_is_one_message_and_damages_no_file(straight, tmp_path, monkeypatch, when):
    full = OSError(errno.ENOSPC, "No space left on device")
    calls = []

    def third_time_full(original):
        def guarded(*args, **keys):
            calls.append(1)
            if len(calls) >= 3:
                raise full
            return original(*args, **keys)

        return guarded

    def full_for(name, original):
        def guarded(path):
            if path.name == f"{name}.part":
                raise full
            original(path)

        return guarded

    with monkeypatch.context() as patch:
        if when == "checkpoint":
            patch.setattr(row_files, "save_file", third_time_full(row_files.save_file))
        elif when == "metrics":
            from flbench.results import metrics_file

            patch.setattr(metrics_file, "to_text", third_time_full(metrics_file.to_text))
        else:
            patch.setattr(files, "sync", full_for("clients.csv", files.sync))
        with pytest.raises(RunError, match="No space left"):
            run(tmp_path, "algorithm=fedavg", "output.checkpoint_every=1")
    [folder] = tmp_path.glob("*/*")
    assert not list(folder.rglob("*.part"))

    lifecycle.resume(folder, Layer({}))

    assert summary_of(folder)["weights_digest"] == straight


def test_one_thread_is_the_default_on_every_machine(monkeypatch):
    monkeypatch.setenv("OMP_NUM_THREADS", "3")
    assert with_device(config_of().engine).threads == 1
    assert with_device(config_of("engine.threads=2").engine).threads == 2


def test_resume_refuses_other_samples_with_the_same_labels_and_other_data(tmp_path):
    data = write_npz(tmp_path / "x.npz")
    folder = interrupted_run(tmp_path / "runs", "algorithm=fedavg", f"data.path={data}")
    with np.load(data) as arrays:
        changed = {name: array.copy() for name, array in arrays.items()}
    changed["train_images"].flat[0] += 1
    np.savez(data, **changed)

    with pytest.raises(DataError, match=folder.name):
        lifecycle.resume(folder, Layer({}))


def test_worker_resumes_with_samples_from_shared_memory(unfinished):
    folder = unfinished
    whole = assembly.load_federation(resolve_written(folder / "config.yaml")[0])
    shared = whole.without_samples().with_samples(whole.x.numpy())

    lifecycle.resume(folder, Layer({}), federation=shared)

    assert (folder / "summary.json").is_file()


# Evaluating


@dataclass(frozen=True)
class SpoilOne:
    """A Transform that makes the weights of the client with a given number of samples infinite."""

    samples: int

    def __call__(self, context):
        factor = torch.where(context.info.n == self.samples, torch.inf, 1.0)
        return {"head.bias": context.leaves["head.bias"] * factor + factor - 1}


def test_finetuning_whose_last_step_diverges_is_given_up_too(tmp_path):
    """A single step with a finite loss, after which the weights are not finite."""
    keys = ("algorithm=fedavg", "model=mlp", "algorithm.finetune_epochs=1", "train.rounds=1")
    step = ("train.batch_size=4096", "train.optimizer.lr=1e38", "train.optimizer.weight_decay=1e10")
    last = run(tmp_path, *keys, *step)[1]["last"]["test"]
    assert last["ft"]["accuracy"] == last["accuracy"]


@pytest.mark.parametrize("all_fail", [True, False])
def test_client_whose_finetuning_diverges_is_evaluated_without_it(all_fail, monkeypatch):
    built, notes = build("algorithm=fedavg", "model.name=mlp"), []
    state, sizes = built.start(), built.federation.sizes
    phase = Phase("*", (CrossEntropy(),), OptimizerConfig(lr=1e36 if all_fail else 0.01), epochs=1)
    spoil = () if all_fail else (Transform(SpoilOne(int(sizes[2]))),)
    plain = built.algorithm.deploy(state, torch.arange(5))["personal"]
    tuned = replace(plain, program=LocalProgram((*spoil, phase)))
    monkeypatch.setattr(type(built.algorithm), "deploy", lambda *_: {"personal": tuned})
    evaluator = built.evaluator(notes.append)
    settings = settings_of(built.algorithm, state)

    evaluated = evaluator.evaluate(state, settings, common=False).local["personal", "test"]
    models = list(evaluator.deployed(state, settings))

    monkeypatch.setattr(type(built.algorithm), "deploy", lambda *_: {"personal": plain})
    untuned = evaluator.evaluate(state, settings, common=False).local["personal", "test"]
    assert torch.equal(evaluated.support, untuned.support)
    spoilt = slice(None) if all_fail else slice(2, 3)
    assert torch.equal(evaluated.predicted[spoilt], untuned.predicted[spoilt])
    assert torch.equal(evaluated.predicted, untuned.predicted) == all_fail
    start = built.start().server
    given_up = [torch.equal(model["head.weight"], start["head.weight"]) for model in models]
    assert given_up == ([True] * 5 if all_fail else [False, False, True, False, False])
    assert len(notes) == 2


# Damage


def test_resume_finds_data_that_moved(straight, unfinished):
    lifecycle.resume(unfinished, from_overrides(["data.root=/elsewhere"]))

    assert summary_of(unfinished)["weights_digest"] == straight


def test_dropped_statistics_make_no_global_model(tmp_path):
    keys = ("algorithm=fedavg", "model.name=lenet5")
    _, drop = run(tmp_path, *keys, "train.batchnorm=drop")
    _, average = run(tmp_path, *keys)

    assert "gm" in average["last"]["test"]
    assert "gm" not in drop["last"]["test"]


@pytest.mark.one_of("place")
@pytest.mark.parametrize("name", ["top1, val", "a\nb", 3])
@pytest.mark.parametrize("place", ["aggregate", "deploy"])
def test_names_that_metrics_csv_cannot_hold_are_refused(tmp_path, monkeypatch, place, name):
    """Of whatever a method gives a name to; the message says what does."""

    class Named(ALGORITHMS.find("fedavg")):
        def aggregate(self, state, results):
            update = super().aggregate(state, results)
            return replace(update, metrics={name: 1.0}) if place == "aggregate" else update

        def deploy(self, state, ids):
            models = super().deploy(state, ids)
            return models | ({name: models["personal"]} if place == "deploy" else {})

    monkeypatch.setitem(ALGORITHMS, "named", Named)
    with pytest.raises(ConfigError) as error:
        run(tmp_path, "algorithm=named", "train.rounds=1", "evaluation.every=1")

    assert repr(name) in str(error.value)
    assert not list(tmp_path.rglob("metrics.csv"))
