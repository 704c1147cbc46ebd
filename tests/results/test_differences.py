"""How runs are told apart, and which of them can be compared."""

from dataclasses import replace
from pathlib import Path

import pandas as pd
import pytest

from flbench.config.resolve import resolve
from flbench.config.sources import from_overrides
from flbench.results.differences import differences
from flbench.results.reading import StoredRun


def run(*overrides: str, data_hash: str | None = None) -> StoredRun:
    config, _ = resolve([from_overrides(overrides)])
    summary = {"dataset": "digits", "partition_hash": f"{config.seed:064x}"}
    tables = {"classes": pd.DataFrame(), "clients": pd.DataFrame()}
    path = Path("-".join(overrides))
    return StoredRun(path, config, summary, [], finished=True, **tables, data_hash=data_hash)


def test_local_optimizer_is_tuned_for_each_method_and_seeds_need_no_note():
    keys = ("train.optimizer.momentum=0.9", "train.schedule=cosine")
    runs = [run(f"algorithm={name}", f"seed={k}") for name in ("fedavg", "hfcd") for k in (0, 1)]

    tuned = differences([run("algorithm=fedavg"), run("algorithm=fedper", *keys)])
    repeated = differences(runs)

    assert (tuned.differing, tuned.reason, len(tuned.notes)) == ([], None, 1)
    assert all(key.partition("=")[0] in tuned.notes[0] for key in keys)
    assert repeated.methods == ("fedavg", "fedavg", "hfcd", "hfcd")
    assert (repeated.differing, repeated.reason, repeated.notes) == ([], None, [])


def test_optimizer_of_one_method_names_its_variants():
    apart = differences([run("algorithm=fedavg"), run("algorithm=fedavg", "train.optimizer.lr=1")])

    assert apart.methods == ("fedavg lr=0.01", "fedavg lr=1")
    assert (apart.differing, apart.notes) == ([], [])


@pytest.mark.parametrize("key", ["train.rounds=7", "train.local_epochs=1", "train.batch_size=8"])
def test_amount_of_training_is_part_of_the_setting(key):
    first, second = run("algorithm=fedavg"), run("algorithm=fedper", "train.optimizer.lr=1", key)

    apart = differences([first, second])

    assert key.partition("=")[0] in apart.reason
    assert "train.optimizer.lr" in apart.notes[0]


def test_unfinished_run_is_not_on_another_partition():
    runs = [run("algorithm=fedavg"), run("algorithm=hfcd"), run("algorithm=fedper")]
    runs[0] = replace(runs[0], summary={"dataset": "digits"}, finished=False)

    assert differences(runs).reason is None
    runs[2] = replace(runs[2], summary=runs[2].summary | {"partition_hash": "f" * 64})
    assert "partition" in differences(runs).reason


@pytest.mark.parametrize(
    ("first", "second", "expected"),
    [
        ({}, {"data_hash": "b" * 64}, True),
        ({}, {"data_hash": "a" * 64}, False),
        ({}, {}, False),  # a run without a hash of its samples
        ({"keys": ("seed=1",)}, {"data_hash": "b" * 64}, True),
        ({"keys": ("data.label=a",)}, {"data_hash": "b" * 64}, False),  # the key explains it
    ],
)
def test_samples_that_no_key_explains_are_named(first, second, expected):
    runs = [run(*first.get("keys", ()), data_hash="a" * 64), run(**second)]

    apart = differences(runs)

    assert ("samples" in apart.differing, bool(apart.divided)) == (expected, expected)
    assert all(name in " ".join(apart.divided) for name in ("aaaaaa", "bbbbbb") * expected)
