"""How runs are told apart, and which of them can be compared."""

from pathlib import Path

import pytest

from flbench.config.resolve import resolve
from flbench.config.sources import from_overrides
from flbench.results.differences import differences
from flbench.results.reading import StoredRun


def run(*overrides: str, data_hash: str | None = None) -> StoredRun:
    config, _ = resolve([from_overrides(overrides)])
    summary = {"dataset": "digits", "partition_hash": "0" * 64}
    return StoredRun(Path(), config, summary, [], [], finished=True, data_hash=data_hash)


@pytest.mark.parametrize(
    "changed",
    [
        ("train.optimizer.lr=0.1",),
        ("train.optimizer.momentum=0.9", "train.optimizer.weight_decay=0.001"),
        ("train.schedule=cosine",),
    ],
)
def test_local_optimizer_is_tuned_for_each_method(changed):
    apart = differences([run("algorithm=fedavg"), run("algorithm=fedper", *changed)])

    assert apart.setting == ()
    assert set(apart.tuned) == set(apart.values)
    assert apart.tuned
    [sentence] = apart.warnings
    assert "not comparable" not in sentence
    assert all(key in sentence for key in apart.tuned)


def test_repetitions_need_no_warning():
    apart = differences([run("algorithm=fedavg", f"seed={seed}") for seed in (0, 1)])

    assert apart.values == {"seed": ("0", "1")}
    assert apart.warnings == []


def test_optimizer_of_one_method_needs_no_warning():
    apart = differences([run("algorithm=fedavg"), run("algorithm=fedavg", "train.optimizer.lr=1")])

    assert apart.values == {"train.optimizer.lr": ("0.01", "1")}
    assert apart.warnings == []


@pytest.mark.parametrize("key", ["train.rounds=7", "train.local_epochs=1", "train.batch_size=8"])
def test_amount_of_training_is_part_of_the_setting(key):
    first, second = run("algorithm=fedavg"), run("algorithm=fedper", "train.optimizer.lr=1", key)

    setting, tuned = differences([first, second]).warnings

    assert key.partition("=")[0] in setting
    assert "train.optimizer.lr" in tuned


@pytest.mark.parametrize(
    ("first", "second", "expected"),
    [
        ({}, {"data_hash": "b" * 64}, ("aaaaaa", "bbbbbb")),
        ({}, {"data_hash": "a" * 64}, None),
        ({}, {}, None),  # a run of an earlier version
        ({"keys": ("seed=1",)}, {"data_hash": "b" * 64}, ("aaaaaa", "bbbbbb")),
        ({"keys": ("data.label=a",)}, {"data_hash": "b" * 64}, None),  # the key explains it
    ],
)
def test_samples_that_no_key_explains_are_named(first, second, expected):
    runs = [run(*first.get("keys", ()), data_hash="a" * 64), run(**second)]

    apart = differences(runs)

    assert apart.values.get("samples") == expected
    assert ("samples" in apart.setting) == (expected is not None)
