"""Complete runs: metrics and tables, the best round, crashes, interrupts and full disks."""

import csv
import errno
import json
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
from flbench.experiment import assembly, checkpoint, evaluate, lifecycle, row_files
from flbench.experiment.engines import with_device
from flbench.experiment.rounds import settings_of
from flbench.experiment.run_folder import RunFolder
from flbench.losses import CrossEntropy
from flbench.results import reading
from flbench.testing import after
from tests.forks import Fork
from tests.support import (
    SMALL,
    Silent,
    build,
    config_of,
    interrupted_run,
    pictures_in_pages,
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


def test_tables_of_best_and_last_round_agree_with_the_metrics(tmp_path):
    path, summary = run(
        tmp_path,
        "algorithm=local",
        "partition.samples=null",
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
    recall = [float(line["recall"]) for line in classes if int(line["test_support"])]
    assert sum(recall) / len(recall) == pytest.approx(summary["last"]["test"]["balanced_accuracy"])


def test_without_a_validation_part_the_best_round_is_the_last(tmp_path):
    _, summary = run(
        tmp_path, "algorithm=local", "partition.split=[0.5,0,0.5]", "evaluation.every=1"
    )

    assert summary["best"]["round"] == 3
    assert "no validation part" in summary["best_by"]


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
        (("algorithm=fedavg", "model.name=lenet5", "train.batchnorm=drop"), False),
        (("algorithm=fedper",), False),
        (("algorithm=fedcpmd", "model.name=lenet5"), False),
        (("algorithm=ifca",), False),
    ],
)
def test_a_model_that_all_share_is_evaluated_once_on_the_common_test_set(keys, once, monkeypatch):
    built = build(*keys, "evaluation.common.limit=50")
    evaluator, state = built.evaluator(print), after(built, 2)
    settings = settings_of(built.algorithm, state)
    asked, engine_run = [], built.engine.run

    def noted(program, ids, **others):
        asked.extend(len(ids) for one in others["observe"] if one.name == "evaluation/common")
        return engine_run(program, ids, **others)

    monkeypatch.setattr(built.engine, "run", noted)
    found = evaluator.evaluate(state, settings, common=True).common["personal"]
    assert asked[0] == (1 if once else 5)
    monkeypatch.setattr(evaluate.Evaluator, "_is_same_for_all", lambda *args: False)
    slow = evaluator.evaluate(state, settings, common=True).common["personal"]

    for name in ("support", "predicted", "correct", "confusion"):
        assert torch.equal(getattr(found, name), getattr(slow, name))
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


def test_common_metrics_come_at_the_last_and_the_best_round_only(tmp_path):
    path, summary = run(
        tmp_path,
        "algorithm=local",
        "train.rounds=8",
        "evaluation.every=1",
        "train.optimizer.lr=0.5",
    )

    assert set(metric_by_round(path, "common", "pm_v", "accuracy")) == {8, summary["best"]["round"]}


def test_cohorts_figures_right_after_local_training_are_reported(tmp_path):
    path, _ = run(tmp_path, "algorithm=fedavg", "train.participation=0.4")

    local = metric_by_round(path, "test", "personal@local", "accuracy")
    assert set(local) == {2, 3}
    assert local != metric_by_round(path, "test", "personal", "accuracy")


def test_finetuned_models_are_evaluated_beside_the_global_one(tmp_path):
    path, summary = run(
        tmp_path, "algorithm=fedavg", "algorithm.finetune_epochs=3", "train.optimizer.lr=0.1"
    )

    assert set(metric_by_round(path, "test", "ft", "accuracy")) == {2, 3}
    assert summary["last"]["test"]["ft"]["accuracy"] > summary["last"]["test"]["accuracy"]


def test_predictions_are_saved_sample_by_sample(tmp_path):
    path, summary = run(tmp_path, "algorithm=fedproto", "output.predictions=true")

    with (path / "predictions.csv").open() as file:
        lines = list(csv.DictReader(file))
    right = [line["true"] == line["predicted"] for line in lines]
    assert sum(right) / len(right) == pytest.approx(summary["last"]["test"]["accuracy"])
    labels = build().federation.dataset.y
    assert all(int(line["true"]) == labels[int(line["sample"])] for line in lines)


def test_target_accuracy_has_the_cost_up_to_its_round(tmp_path):
    keys = ("algorithm=fedavg", "train.rounds=6", "evaluation.every=1", "train.optimizer.lr=0.1")
    keys = ("partition.samples=null", *keys)
    path, summary = run(tmp_path, *keys, "evaluation.target_accuracy=0.5")
    _, never = run(tmp_path, *keys, "evaluation.target_accuracy=0.9999")

    validation = metric_by_round(path, "validation", "personal", "accuracy")
    first = min(number for number, value in validation.items() if value >= 0.5)
    assert summary["target"]["round"] == first
    assert summary["target"]["communication"]["up_bytes"] == sum(
        value
        for number, value in metric_by_round(path, "train", "", "up_bytes").items()
        if number <= first
    )
    assert summary["target"]["split"] == "validation"
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


def test_same_partition_file_gives_the_same_run(tmp_path):
    path, summary = run(tmp_path, "algorithm=fedavg")

    _, again = run(
        tmp_path,
        "algorithm=fedavg",
        "partition.scheme=file",
        f"partition.path={path / 'partition.npz'}",
    )

    assert again["partition_hash"] == summary["partition_hash"]
    assert again["weights_digest"] == summary["weights_digest"]


def test_config_of_a_run_repeats_it(tmp_path):
    path, summary = run(tmp_path, "algorithm=hfcd", "algorithm.tau=0.4", "seed=3")
    from flbench.config.sources import from_file

    config, origins = resolve([from_file(path / "config.yaml")])
    again = lifecycle.run(config, origins)

    assert summary_of(again)["weights_digest"] == summary["weights_digest"]


def test_natural_hospitals_and_images_of_ones_own_train(tmp_path):
    (tmp_path / "wards").mkdir()
    rng = np.random.default_rng(0)
    for name in ("a", "b"):
        lines = "\n".join(f"{x:.3f},{y:.3f},{int(x + y > 0)}" for x, y in rng.normal(size=(60, 2)))
        (tmp_path / "wards" / f"{name}.csv").write_text(f"x,y,label\n{lines}\n")

    _, table = run(
        tmp_path, "algorithm=fedavg", f"data.path={tmp_path / 'wards'}", "partition.scheme=natural",
        "partition.clients=null", "train.rounds=20", "train.optimizer.lr=0.5"
    )  # fmt: skip
    images = ("algorithm=fedavg", f"data.path={write_npz(tmp_path / 'x.npz')}", "train.rounds=30")
    _, plain = run(tmp_path, *images, "train.optimizer.lr=0.2")
    _, augmented = run(tmp_path, *images, "train.optimizer.lr=0.2", "data.augment=[crop, flip]")

    assert table["clients"] == 2
    assert table["last"]["test"]["accuracy"] > 0.85
    assert plain["last"]["test"]["accuracy"] > 0.85
    assert augmented["weights_digest"] != plain["weights_digest"]


# Divergence


def test_diverged_client_is_left_out_with_a_note_and_counted(tmp_path):
    config, origins = resolve(
        [
            from_overrides(
                [*SMALL, f"output.dir={tmp_path}", "algorithm=fedavg", "train.optimizer.lr=1e30"]
            )
        ]
    )
    silent = Silent()

    path = lifecycle.run(config, origins, [silent])

    assert summary_of(path)["diverged"] == 15
    assert sum("round 1, client" in note for note in silent.notes) == 5
    start = build("algorithm=fedavg").start()
    saved, _ = checkpoint.load(
        path / "checkpoints" / "last.safetensors", summary_of(path)["config_hash"]
    )
    assert all(torch.equal(saved.server[name], value) for name, value in start.server.items())


def test_kept_rows_of_a_diverged_client_stay(tmp_path):
    path, _ = run(tmp_path, "algorithm=local", "train.optimizer.lr=1e30")

    start = build("algorithm=local").start()
    saved, _ = checkpoint.load(
        path / "checkpoints" / "last.safetensors", summary_of(path)["config_hash"]
    )
    assert all(torch.equal(saved.clients[name], value) for name, value in start.clients.items())


def test_divergence_can_stop_the_run_with_what_was_done(tmp_path):
    with pytest.raises(RunError, match=r"round 1, client \d.*on_divergence"):
        run(tmp_path, "algorithm=fedavg", "train.optimizer.lr=1e30", "train.on_divergence=stop")


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

    def interrupted(self, program, ids, **keys):
        calls.append(ids)
        if len(calls) == 3 and program.sends:
            signal.raise_signal(signal.SIGINT)  # to this thread: another one might run later
        return original(self, program, ids, **keys)

    monkeypatch.setattr(SequentialEngine, "run", interrupted)
    config, origins = resolve(
        [
            from_overrides(
                [
                    *SMALL,
                    f"output.dir={tmp_path / 'b'}",
                    "algorithm=fedavg",
                    "train.rounds=4",
                    "evaluation.every=4",
                ]
            )
        ]
    )
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


def test_default_period_gives_ten_evaluations_and_the_same_weights(tmp_path):
    keys = ("algorithm=local", "model=logistic", "train.rounds=21")
    path, default = run(tmp_path, *keys, "evaluation.every=null")
    _, rarely = run(tmp_path, *keys, "evaluation.every=21")

    assert "every: 2 " in (path / "config.yaml").read_text()
    found = metric_by_round(path, "validation", "personal", "accuracy")
    assert list(found) == [*range(2, 21, 2), 21]
    assert default["weights_digest"] == rarely["weights_digest"]


def test_resume_of_a_finished_run_changes_nothing_and_refuses_changes(tmp_path):
    path, _ = run(tmp_path, "algorithm=local")
    before = {file: file.read_bytes() for file in path.rglob("*") if file.is_file()}
    silent = Silent()

    lifecycle.resume(path, Layer({}), [silent])

    assert "is finished" in silent.notes[0]
    for change, key in (("train.rounds=20", "train.rounds"), ("output.dir=other", "output.dir")):
        with pytest.raises(ConfigError, match=f"`{key}` was"):
            lifecycle.resume(path, from_overrides([change]))
    assert {file: file.read_bytes() for file in path.rglob("*") if file.is_file()} == before


@pytest.fixture(scope="module")
def interrupted(tmp_path_factory) -> Path:
    """The folder of a run that was interrupted after two rounds."""
    return interrupted_run(tmp_path_factory.mktemp("interrupted"), "algorithm=fedavg")


@pytest.fixture
def unfinished(tmp_path, interrupted) -> Path:
    """A copy of it, which the test may write to."""
    return shutil.copytree(interrupted, tmp_path / "runs" / "digits" / interrupted.name)


def test_resume_without_a_checkpoint_starts_from_the_beginning_with_a_note(tmp_path, unfinished):
    _, summary = run(tmp_path / "a", "algorithm=fedavg")
    shutil.rmtree(unfinished / "checkpoints")
    silent = Silent()

    lifecycle.resume(unfinished, Layer({}), [silent])

    assert any("starts from the beginning" in note for note in silent.notes)
    assert summary_of(unfinished)["weights_digest"] == summary["weights_digest"]


def test_resume_refuses_to_change_what_decides_results(unfinished):

    with pytest.raises(ConfigError, match=r"`train.rounds` was 3 .* cannot become 9"):
        lifecycle.resume(unfinished, from_overrides(["train.rounds=9"]))
    lifecycle.resume(unfinished, from_overrides(["output.checkpoint_every=1"]))


def test_resume_writes_through_no_link_of_the_folder(tmp_path):
    path, private = interrupted_run(tmp_path / "runs"), tmp_path / "private"
    private.write_text("secret")
    (path / "checkpoints" / "last.safetensors.part").symlink_to(private)
    (path / "checkpoints" / "best.safetensors.part").symlink_to(private)

    lifecycle.resume(path, Layer({}))
    assert private.read_text() == "secret"

    (path / "summary.json").unlink()
    (path / "metrics.csv").unlink()
    (path / "metrics.csv").symlink_to(private)
    with pytest.raises(UserError, match=r"metrics\.csv is a link"):
        lifecycle.resume(path, Layer({}))
    assert private.read_text() == "secret"


def test_resume_joins_no_foreign_cluster_that_the_folder_names(tmp_path, monkeypatch):
    path = interrupted_run(tmp_path)
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


def test_resume_refuses_a_checkpoint_of_another_configuration(unfinished):
    text = (unfinished / "config.yaml").read_text()
    (unfinished / "config.yaml").write_text(text.replace("rounds: 3", "rounds: 4"))

    with pytest.raises(DataError, match="belongs to another configuration"):
        lifecycle.resume(unfinished, Layer({}))


@pytest.mark.parametrize("damage", ["truncated", "text", "empty"])
def test_resume_refuses_a_damaged_checkpoint(damage, unfinished):
    file = unfinished / "checkpoints" / "last.safetensors"
    content = {"truncated": file.read_bytes()[:900], "text": b"hello", "empty": b""}[damage]
    file.write_bytes(content)

    with pytest.raises(DataError, match="cannot be read"):
        lifecycle.resume(unfinished, Layer({}))


@pytest.mark.parametrize(
    "change",
    [
        {"position": '{"stage": 0}'},
        {"position": '{"stage": "0", "stage_round": 1, "round": 1, "is_initial": false}'},
        {"position": '{"stage": 9, "stage_round": 1, "round": 1, "is_initial": false}'},
        {"rows": "[1]"},
        {"names": "3"},
        {"extra": "{}"},
        {"extra": '{"rows": 1, "seconds": {"train": "long"}}'},
        {"extra": '{"rows": "1", "seconds": {}, "stop": 3}'},
    ],
    ids=str,
)
def test_resume_names_a_checkpoint_whose_metadata_were_edited(change, unfinished):
    file = unfinished / "checkpoints" / "last.safetensors"
    with safe_open(file, framework="pt") as stored:
        metadata = stored.metadata() | change
    save_file(load_file(file), file, metadata)

    with pytest.raises(DataError, match=r"last\.safetensors cannot be read"):
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


def test_show_prints_the_metrics_of_an_unfinished_run(unfinished):
    found = reading.read(unfinished)

    assert not found.finished
    assert found.summary["last"]["round"] in (0, 2)
    assert found.summary["communication"]["up_bytes"] > 0


def test_seconds_include_checkpoints_and_tables(tmp_path, monkeypatch):
    def slowed(function):
        def slow(*arguments, **options):
            time.sleep(0.1)
            slowed.calls += 1
            return function(*arguments, **options)

        return slow

    slowed.calls = 0
    for owner, name in ((RunFolder, "save_state"), (RunFolder, "write_table")):
        monkeypatch.setattr(owner, name, slowed(getattr(owner, name)))
    begin = time.perf_counter()

    _, summary = run(tmp_path, "algorithm=fedavg", "train.rounds=2", "output.checkpoint_every=1")

    seconds = summary["seconds"]
    assert slowed.calls >= 5  # two checkpoints and three tables
    assert seconds["write"] >= 0.1 * slowed.calls
    spent = seconds["train"] + seconds["evaluate"] + seconds["write"]
    assert spent - 0.002 <= seconds["total"] <= time.perf_counter() - begin


def test_two_processes_cannot_write_to_one_folder(unfinished):
    folder = RunFolder.reopen(unfinished)
    try:
        with pytest.raises(UserError, match="another process"):
            lifecycle.resume(folder.path, Layer({}))
    finally:
        folder.close()


# Disks


@pytest.mark.parametrize("when", ["metrics", "checkpoint", "table"])
def test_full_disk_is_one_message_and_damages_no_file(tmp_path, monkeypatch, when):
    _, summary = run(tmp_path / "a", "algorithm=fedavg", "output.checkpoint_every=1")
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
        said = "metrics.csv: No space left" if when == "metrics" else "No space left"
        with pytest.raises(RunError, match=said):
            run(tmp_path / "b", "algorithm=fedavg", "output.checkpoint_every=1")
    [folder] = (tmp_path / "b").glob("*/*")
    assert not list(folder.rglob("*.part"))

    lifecycle.resume(folder, Layer({}))

    assert summary_of(folder)["weights_digest"] == summary["weights_digest"]


def test_checkpoint_is_not_a_pickle(tmp_path):
    path, _ = run(tmp_path, "algorithm=fedavg")
    content = (path / "checkpoints" / "last.safetensors").read_bytes()

    size = int.from_bytes(content[:8], "little")
    assert json.loads(content[8 : 8 + size])["__metadata__"]["format"] == checkpoint.FORMAT


@pytest.mark.parametrize("engine", ["sequential", "vectorized", "ray", "auto"])
def test_one_thread_is_the_default_on_every_machine(monkeypatch, engine):
    monkeypatch.setenv("OMP_NUM_THREADS", "3")
    assert with_device(config_of(f"engine.name={engine}").engine).threads == 1
    assert with_device(config_of("engine.threads=2").engine).threads == 2


def test_resume_refuses_other_samples_with_the_same_labels_and_other_data(tmp_path):
    data = write_npz(tmp_path / "x.npz")
    folder = interrupted_run(tmp_path / "runs", "algorithm=fedavg", f"data.path={data}")
    with np.load(data) as arrays:
        changed = {name: array.copy() for name, array in arrays.items()}
    changed["train_images"].flat[0] += 1
    np.savez(data, **changed)

    with pytest.raises(DataError, match=r"data .* differ from those that .*Restore"):
        lifecycle.resume(folder, Layer({}))
    write_npz(data, n=124)
    with pytest.raises(DataError, match="differ from those that"):
        lifecycle.resume(folder, Layer({}))


def test_worker_resumes_with_samples_from_shared_memory(tmp_path):
    folder = interrupted_run(tmp_path, "algorithm=fedavg")
    whole = assembly.load_federation(resolve_written(folder / "config.yaml")[0])
    shared = whole.without_samples().with_samples(whole.x.numpy())

    lifecycle.resume(folder, Layer({}), federation=shared)

    assert (folder / "summary.json").is_file()


def test_report_is_one_page_without_external_resources(tmp_path):
    with pictures_in_pages():
        path, summary = run(tmp_path, "algorithm=fedproto")

    page = (path / "report.html").read_text()
    assert summary["weights_digest"] in page
    assert "<svg" in page
    assert "head: accuracy" in page
    assert page.count("<script") == page.count("<script>") == 1  # sorts tables
    for outside in ("<link", "src=", "@import", "import(", "fetch(", 'href="http'):
        assert outside not in page


def test_report_escapes_what_files_call_their_classes(tmp_path):
    names = np.array(["<b>a</b>", "b", "c", "d"])
    path, _ = run(tmp_path, f"data.path={write_npz(tmp_path / 'x.npz', class_names=names)}")

    page = (path / "report.html").read_text()
    assert "<b>a</b>" not in page
    assert "&lt;b&gt;a&lt;/b&gt;" in page


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
    silent = Silent()
    keys = ("algorithm=fedavg", "model=mlp", "algorithm.finetune_epochs=1", "train.rounds=1")
    step = ("train.batch_size=4096", "train.optimizer.lr=1e38", "train.optimizer.weight_decay=1e10")
    items = [*SMALL, *keys, *step, f"output.dir={tmp_path}"]
    config, origins = resolve([from_overrides(items)])

    path = lifecycle.run(config, origins, [silent])

    assert any("fine-tuning diverged" in note for note in silent.notes)
    last = summary_of(path)["last"]["test"]
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
    assert all("fine-tuning diverged" in text for text in notes)
    assert len(notes) == 2


# Damage


def test_show_of_a_damaged_run_is_one_message(tmp_path):
    path, _ = run(tmp_path, "algorithm=local")
    (path / "summary.json").write_text("{}")

    with pytest.raises(DataError, match="has no `algorithm`"):
        reading.read(path)
    (path / "summary.json").unlink()
    (path / "metrics.csv").write_bytes(b"\xff\xfe")
    with pytest.raises(DataError, match="UTF-8"):
        reading.read(path)


def test_resume_finds_data_that_moved(tmp_path, unfinished):
    _, summary = run(tmp_path / "a", "algorithm=fedavg")

    lifecycle.resume(unfinished, from_overrides(["data.root=/elsewhere"]))

    assert summary_of(unfinished)["weights_digest"] == summary["weights_digest"]


def test_dropped_statistics_make_no_global_model(tmp_path):
    keys = ("algorithm=fedavg", "model.name=lenet5")
    _, drop = run(tmp_path, *keys, "train.batchnorm=drop")
    _, average = run(tmp_path, *keys)

    assert "gm" in average["last"]["test"]
    assert "gm" not in drop["last"]["test"]
    assert any("gm is not reported" in note for note in drop["notes"])


@pytest.mark.one_of("place")
@pytest.mark.parametrize("name", ["top1, val", 'a"', "a\nb", "a\u2028b", "", 3])
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
    assert place in str(error.value)
    assert not list(tmp_path.rglob("metrics.csv"))


@pytest.mark.parametrize("value", ["much", None, torch.ones(2)])
def test_a_metric_of_the_server_is_a_number(tmp_path, monkeypatch, value):
    class Valued(ALGORITHMS.find("fedavg")):
        def aggregate(self, state, results):
            return replace(super().aggregate(state, results), metrics={"share": value})

    monkeypatch.setitem(ALGORITHMS, "valued", Valued)
    with pytest.raises(ConfigError, match=r"Valued.aggregate.*'share'.*number"):
        run(tmp_path, "algorithm=valued", "train.rounds=1")


def test_merged_pool_has_no_common_metrics(tmp_path):
    path, _ = run(tmp_path, "algorithm=fedavg", "partition.pool=merged")

    assert not [row for row in rows(path) if row["split"] == "common"]


def test_target_accuracy_is_that_of_the_test_parts_without_a_validation_part(tmp_path):
    keys = ("algorithm=fedavg", "train.rounds=6", "evaluation.every=1", "train.optimizer.lr=0.1")
    keys = (*keys, "partition.samples=null", "partition.split=[0.8,0,0.2]")
    path, summary = run(tmp_path, *keys, "evaluation.target_accuracy=0.5")

    test = metric_by_round(path, "test", "personal", "accuracy")
    target = summary["target"]
    assert target["round"] == min(number for number, value in test.items() if value >= 0.5)
    assert target["split"] == "test"
    assert any("counted by the test accuracy" in note for note in summary["notes"])
    label = "test accuracy (there is no validation part) reached 0.5 in round"
    assert label in (path / "report.html").read_text()
