"""Partition schemes of the user's own as objects, and by import path."""

import numpy as np
import pytest

import flbench as fl
from flbench.config.resolve import resolve
from flbench.config.sources import from_overrides
from tests.api import own_parts

SCHEME = "tests.api.own_parts:every_kth"
SMALL = {"clients": 3, "samples": 90, "min_samples": 5}


def dealt(scheme, **keys):
    return fl.partition("digits", {"scheme": scheme, **SMALL, **keys})


def test_function_path_and_object_give_the_same_partition():
    by_path = dealt(SCHEME, args={"shift": 2})
    by_function = dealt(own_parts.every_kth, args={"shift": 2})
    by_object = dealt(lambda y, clients, rng: own_parts.every_kth(y, clients, rng, 2))

    assert by_path.hash == by_function.hash == by_object.hash
    assert by_path.hash != dealt(SCHEME).hash
    assert by_path.sizes[["train", "validation", "test"]].sum(axis=1).tolist() == [30, 30, 30]
    assert (by_function.config["scheme"], by_object.config["scheme"]) == (SCHEME, "object")
    in_yaml = {"scheme": SCHEME, "args": {"shift": 2}, **SMALL}
    assert fl.partition("digits", in_yaml).hash == by_path.hash


def test_positions_are_those_of_the_pool_and_labels_are_theirs():
    seen = []

    def scheme(y, clients, rng):
        seen.append((y, clients, rng.random()))
        return np.array_split(np.argsort(y, kind="stable"), clients)

    first, again = dealt(scheme, seed=1), dealt(scheme, seed=1)
    dealt(scheme, seed=2)

    # Each partition calls the function twice.
    (y, clients, draw), (_, _, same), (_, _, other) = seen[::2]
    assert [draw for _, _, draw in seen[::2]] == [draw for _, _, draw in seen[1::2]]
    assert (len(y), y.dtype, clients) == (90, np.int64, 3)
    assert first.hash == again.hash
    assert draw == same != other
    given = fl.partition("digits", [range(100), range(100, 300)])
    assert given.sizes[["train", "validation", "test"]].sum(axis=1).tolist() == [100, 200]


NO_PARTITIONS = [
    [range(9)],
    [range(9), [0.5] * 9, range(9)],
    [range(9), range(9, 18), range(85, 95)],
    [range(9), range(9, 18), range(-1, 9)],
    [range(9), range(8, 18), range(20, 30)],
    [range(9), [20] * 9, range(9, 18)],
    [range(9), range(9, 18), [30, 31]],
    3,
]


def test_what_is_not_a_partition_is_refused():
    schemes = [lambda y, clients, rng, found=found: found for found in NO_PARTITIONS]
    schemes += [lambda y: [y], own_parts.failing_scheme, SCHEME[:-1], by_clock]
    for scheme in schemes:
        with pytest.raises(fl.ConfigError, match=r"`partition\.scheme|every_kt`"):
            dealt(scheme)
    with pytest.raises(fl.ConfigError, match=r"shiftt.*`shift`"):
        dealt(SCHEME, args={"shiftt": 1})
    with pytest.raises(fl.ConfigError, match="SHA-256"):
        fl.partition("digits", {"scheme": SCHEME, "sha256": "0" * 64, **SMALL})


def by_clock(y, clients, rng):
    return np.array_split(np.random.default_rng().permutation(len(y)), clients)


def test_a_scheme_may_draw_from_a_global_generator():
    def by_numpy(y, clients, rng):
        return np.array_split(np.random.permutation(len(y)), clients)

    hashes = []
    for seed in (1, 2):
        np.random.seed(seed)  # as in another process
        hashes.append(dealt(by_numpy).hash)
    assert hashes[0] == hashes[1]


def test_arguments_can_be_lists_of_plain_values():
    def cut(y, clients, rng, sizes):
        rows = np.split(np.arange(sum(sizes)), np.cumsum(sizes)[:-1])
        sizes.clear()
        return rows

    found = dealt(cut, args={"sizes": [20, 30, 10]})
    assert found.sizes[["train", "validation", "test"]].sum(axis=1).tolist() == [20, 30, 10]
    assert found.config["args"] == {"sizes": [20, 30, 10]}

    in_words = [f"partition.scheme={SCHEME}", "partition.args.sizes=[20, 30, 10]"]
    config, _ = resolve([from_overrides(in_words)])
    assert config.partition.args == {"sizes": [20, 30, 10]}
    with pytest.raises(fl.ConfigError, match=r"partition\.args\.sizes"):
        dealt(cut, args={"sizes": [[20], [30, 10]]})
