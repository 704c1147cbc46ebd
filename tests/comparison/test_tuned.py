"""`flbench compare --tuned`: how the setting of the search differs from that of the cells."""

import json
import shutil
from dataclasses import replace

import pytest

import flbench as fl
from flbench.comparison import tuned
from flbench.comparison.folder import TUNING
from flbench.comparison.plan import Design, LabelledLayer, cells
from flbench.comparison.prepare import prepare
from flbench.config.sources import Layer, from_overrides, from_values, merge
from flbench.jobs.samples import LoadedSamples
from tests.support import SMALL, run, write_npz
from tests.tuning import studies

HERE = ("output.", "engine.", "tracking.")
BEST = {"train.optimizer.lr": 0.02}
KEYS = dict(item.split("=", 1) for item in SMALL if not item.startswith(HERE))


@pytest.fixture(scope="module")
def study(tmp_path_factory):
    """A study of FedAvg whose best trial has the small setting of the tests."""
    out = tmp_path_factory.mktemp("study")
    source, _ = run(out / "run", "algorithm=fedavg", "train.optimizer.lr=0.02", "train.rounds=1")
    partition = json.loads((source / "partition.json").read_text())["hash"]
    folder = studies.begin(out / "found", "fedavg", partition_hash=partition, rounds=1, space={})
    shutil.copytree(source, folder / "trials" / "fedavg" / "000")
    (folder / "trials" / "fedavg" / "000" / "summary.json").unlink()
    studies.trial(folder, "fedavg", 0, 0.9, params=BEST)
    return folder


def design(study, *keys, **options):
    values = {**KEYS, "train.rounds": 1, **dict(keys)}
    base = Layer(*merge([from_overrides([f"{key}={value}" for key, value in values.items()])]))
    method = LabelledLayer("fedavg", from_values({"algorithm.name": "fedavg", **BEST}, "test"))
    return Design(base, (method,), tuned=str(study), **{"seeds": 2, **options})


def notes(one):
    return prepare(one, LoadedSamples(), 1).repeated


def test_the_setting_of_the_search_is_known_only_by_its_partition(study):
    [sentence] = notes(design(study))

    assert "repetition 1 has the partition" in sentence
    assert "partition.seed=1" in sentence
    assert notes(design(study, ("partition.seed", 1))) == ()
    [sentence] = notes(design(study, vary="training"))
    assert "each repetition has the partition" in sentence


@pytest.mark.parametrize(
    ("key", "value", "there"),
    [
        ("partition.clients", 7, "5"),
        ("train.rounds", 4, "1"),
        ("train.participation", 0.5, "1"),
        ("train.local_epochs", 3, None),
        ("train.optimizer.momentum", 0.5, "0"),
        ("model.hidden", "[8]", None),
        ("partition.alpha", 0.03, None),
        ("algorithm.agg_weights", "uniform", "samples"),
    ],
)
def test_each_key_that_differs_is_named_with_both_values(study, key, value, there):
    one = design(study, (key, value), ("partition.seed", 1))
    if key.startswith("algorithm."):
        layer = from_values({"algorithm.name": "fedavg", key: value, **BEST}, "test")
        one = replace(
            design(study, ("partition.seed", 1)), methods=(LabelledLayer("fedavg", layer),)
        )

    [sentence] = notes(one)

    assert f"{key}: " in sentence
    assert f"{str(value).strip('[]')} here" in sentence
    assert there is None or f"{key}: {there} there" in sentence
    assert study.name in sentence


def test_other_data_and_another_metric_are_named(study, tmp_path):
    write_npz(tmp_path / "mine.npz", n=600)
    own = ("data.path", tmp_path / "mine.npz"), ("partition.seed", 1)
    [sentence] = notes(design(study, *own))
    assert "the data: digits there, mine here" in sentence
    shutil.copytree(study, tmp_path / "auroc")
    tree = json.loads((study / "study.json").read_text())
    studies.write(tmp_path / "auroc" / "study.json", tree | {"metric": "macro_f1"})
    [sentence] = notes(design(tmp_path / "auroc", ("partition.seed", 1)))
    assert "macro_f1" in sentence


def test_a_study_without_its_trials_or_gone_is_no_error(study, tmp_path):
    shutil.copytree(study, tmp_path / "bare")
    for name in ("config.yaml", "partition.json"):
        (tmp_path / "bare" / "trials" / "fedavg" / "000" / name).unlink()

    [sentence, _] = notes(design(tmp_path / "bare", ("train.rounds", 4)))
    assert "train.rounds: 1 there, 4 here" in sentence
    assert notes(design(tmp_path / "gone")) == ()
    assert tuned.sentences(replace(design(study), tuned=None), [], {}, LoadedSamples()) == []
    assert len(cells(design(study))) == 2


@pytest.mark.slow
def test_the_report_repeats_what_the_command_says(study, tmp_path):
    keys = {key: value for key, value in KEYS.items() if key != "partition.clients"}
    plain = from_overrides([f"{key}={value}" for key, value in keys.items()]).tree
    plain["partition"]["clients"] = 6
    plain["train"] |= {"rounds": 1}
    found = fl.compare(
        ["fedavg"], seeds=1, tuned=study, out=tmp_path, jobs=1, progress=False, **plain
    )

    tree = json.loads((found.path / "comparison.json").read_text())
    [sentence] = tree[TUNING]
    assert "partition.clients: 5 there, 6 here" in sentence
    assert sentence in found.warnings
    assert sentence in fl.report(found.path).warnings
    assert sentence in (found.path / "report.md").read_text()
    packed = fl.pack(found.path, tmp_path / "packed.tar.xz")
    assert sentence in fl.report(packed).warnings
