"""How repetitions were drawn is counted in the partitions of their runs."""

from itertools import pairwise

import numpy as np
import pandas as pd
import pytest

import flbench as fl
from flbench.analysis.arrangement import arrange
from flbench.analysis.tables import Analysis
from flbench.comparison.collect import collect
from flbench.core.errors import DataError
from flbench.results import partition_arrays
from tests.comparison.made import matrix, run_folder

POOL, CLIENTS = 600, 6
ACCURACIES = {
    "fedavg": [0.50, 0.55, 0.48, 0.60, 0.51],
    "ditto": [0.79, 0.82, 0.82, 0.78, 0.80],
}
OWNERS = np.arange(POOL) % CLIENTS


def parts_of(count, rng):
    return rng.choice(3, size=count, p=(0.6, 0.2, 0.2)).astype(np.uint8)


def drawn(rng):
    """All samples, at clients that are drawn anew."""
    return {"index": rng.permutation(POOL), "client": rng.integers(0, CLIENTS, POOL)}


def half(rng):
    """Half of the samples, at clients that are drawn anew."""
    index = rng.choice(POOL, POOL // 2, replace=False)
    return {"index": index, "client": rng.integers(0, CLIENTS, POOL // 2)}


def alone(rng):
    """Half of the samples at one client, which says nothing about owners."""
    index = rng.choice(POOL, POOL // 2, replace=False)
    return {"index": index, "client": np.zeros(POOL // 2, dtype=np.int64)}


def apart(rng):
    """Samples that hardly any other repetition has."""
    return {"index": rng.integers(0, 2**40, 50), "client": np.arange(50) % CLIENTS}


def fixed(rng):
    """The same clients, whose samples are split anew."""
    index = rng.permutation(POOL)
    return {"index": index, "client": OWNERS[index]}


def chosen(rng):
    """Five of the six clients, with numbers of their own."""
    kept = rng.permutation(CLIENTS)[:5]
    index = np.flatnonzero(np.isin(OWNERS, kept))
    return {
        "index": index,
        "client": np.array([np.flatnonzero(kept == k)[0] for k in OWNERS[index]]),
    }


def compared(folder, draw, keys=(), **options):
    """A comparison of runs whose partitions are drawn by a function, and these partitions."""
    rng = np.random.default_rng(7)
    found = []
    for k in range(5):
        samples = draw(rng)
        samples["part"] = parts_of(len(samples["index"]), rng)
        found.append(samples)
        for method, values in ACCURACIES.items():
            run_folder(
                folder / f"{method}-{k}",
                method,
                values[k],
                repetition=k,
                keys=keys,
                samples=samples,
            )
    runs = collect([folder])
    return Analysis(arrange(runs.runs, notes=runs.notes, **options)), found


@pytest.mark.slow
@pytest.mark.parametrize(
    ("draw", "words"),
    [
        (drawn, "over new partitions of these samples"),
        (half, "over new partitions of these samples"),
        (alone, "over new partitions of these samples"),
        (apart, "over new partitions of these samples"),
        (fixed, "over new splits of these clients"),
        (chosen, "over new draws from these clients"),
    ],
)
def test_population_is_found_in_the_partitions(tmp_path, draw, words):
    found, partitions = compared(tmp_path, draw)

    sampling = found.comparison.sampling_at("digits")
    assert sampling.population == words
    assert words in found.answer[0]
    rows = [set(one["index"].tolist()) for one in partitions]
    shares = [2 * len(a & b) / (len(a) + len(b)) for a, b in pairwise(rows)]
    assert sampling.shared == pytest.approx(np.mean(shares))
    assert sampling.has_fixed_clients == (draw in (fixed, chosen))
    table = found.clients.query("repetition == 1 and method == 'ditto'")  # the first run
    ratio = table["test_size"].sum() / table["train_size"].sum()
    assert sampling.overlap == pytest.approx(ratio * np.mean(shares) * (draw in (fixed, chosen)))
    validation = min((one["part"] == 1).sum() for one in partitions)
    assert sampling.validation == validation
    [row] = found.pairs.to_dict("records")
    is_fixed = draw in (fixed, chosen)
    assert row["test"] == ("corrected resampled t-test" if is_fixed else "paired t-test")
    assert (row["p"] == row["corrected"]) == is_fixed
    assert (row["p"] == row["paired_t"]) == (not is_fixed)


@pytest.mark.slow
def test_natural_clients_that_are_drawn_are_fixed_ones(tmp_path):
    """Few of the samples are shared, but the data set has the clients."""

    def few(rng):
        kept = rng.permutation(CLIENTS)[:2]
        index = np.flatnonzero(np.isin(OWNERS, kept))
        return {"index": index, "client": OWNERS[index]}

    found, _ = compared(tmp_path, few, keys=("partition.scheme=natural",))

    assert found.comparison.sampling_at("digits").population == "over new draws from these clients"


@pytest.mark.slow
def test_few_validation_samples_choose_by_chance(tmp_path):
    found, _ = compared(tmp_path / "a", drawn)
    assert found.comparison.warnings == ()

    def small(rng):
        index = rng.choice(POOL, 200, replace=False)
        return {"index": index, "client": rng.integers(0, CLIENTS, 200)}

    found, partitions = compared(tmp_path / "b", small)
    fewest = min((one["part"] == 1).sum() for one in partitions)
    assert fewest < 100
    [warning] = found.comparison.warnings
    assert str(fewest) in warning


DESIGNS = {  # keys of repetition k, the hash of its partition, what varies, and for what it holds
    "seeds": (("seed={k}", "partition.seed=0"), "a", "training", "on this one partition"),
    "partitions": (
        *(("seed=0", "partition.seed={k}"), "{k}", "partition"),
        "for this one seed of the training",
    ),
    "seeds that repeat": (("seed={half}", "partition.seed={k}"), "{k}", "both", ""),
    "partitions that repeat": (("seed={k}", "partition.seed={half}"), "{half}", "both", ""),
    "nothing": (("seed=0", "partition.seed={k}"), "a", "nothing", ""),
}


@pytest.mark.slow
@pytest.mark.parametrize("design", DESIGNS)
def test_claims_need_seeds_of_their_own(design, tmp_path):
    """With one seed for all repetitions, its luck is taken for a difference."""
    keys, digest, vary, population = DESIGNS[design]
    for k in range(5):
        values = {"k": k, "half": k % 2}
        for method, accuracies in ACCURACIES.items():
            run_folder(
                tmp_path / f"{method}-{k}",
                method,
                accuracies[k],
                keys=tuple(one.format(**values) for one in keys),
                partition_hash=digest.format(**values) * 64,
            )

    found = Analysis(arrange(collect([tmp_path]).runs))

    sampling = found.comparison.sampling_at("digits")
    assert (found.comparison.vary, sampling.population) == (vary, population)
    assert sampling.supports_claims == (design == "seeds")
    assert set(found.pairs["verdict"]) == {"better" if design == "seeds" else "no claim"}
    assert found.pairs["p_holm"].isna().all() == (design != "seeds")
    assert ("better than" in found.answer[0]) == (design == "seeds")
    assert found.pairs["corrected"].isna().all()


@pytest.mark.slow
def test_ranks_count_a_kind_of_partition_once(tmp_path):
    """Three alphas, of which two data sets share one."""
    hashes = iter(range(100))
    for data in ("digits", "wine"):
        for alpha in ("0.1", "1"):
            keys = (
                f"data.name={data}",
                f"partition.alpha={alpha}",
                f"partition.samples={90 + len(data)}",
            )
            matrix(tmp_path / f"{data}-{alpha}-{next(hashes)}", ACCURACIES, keys=keys)

    found = fl.report(tmp_path)

    assert set(found.tree()["kinds"].values()) == {
        "dirichlet alpha=0.1 balanced=false",
        "dirichlet alpha=1 balanced=false",
    }
    assert len(found.tree()["kinds"]) == 4
    across = Analysis(arrange(collect([tmp_path]).runs)).across
    assert (across.places, across.blocks) == (4, 2)


@pytest.mark.slow
@pytest.mark.parametrize(
    "arrays",
    [
        {"client": np.zeros(5)},
        {"part": np.zeros(4, dtype=np.int64)},
        {"index": np.zeros((5, 1), dtype=np.int64)},
    ],
)
def test_a_damaged_partition_leaves_its_run_out(tmp_path, arrays):
    good = {name: np.arange(5) for name in ("index", "client", "part")}
    for k in range(3):
        samples = good | (arrays if k == 0 else {})
        run_folder(tmp_path / f"a{k}", "fedavg", 0.5 + k / 10, repetition=k, samples=samples)
    with pytest.raises(DataError, match=r"partition\.npz"):
        partition_arrays.read_samples(tmp_path / "a0" / "partition.npz")

    found = fl.report(tmp_path)

    assert len(found.runs) == 2
    assert any("a0" in one and "partition.npz" in one for one in found.warnings)


@pytest.mark.slow
def test_methods_on_different_partitions_have_one_partition_each(tmp_path):
    """They share no repetition, so nothing is compared over partitions."""
    for place, methods in (("1", ("fedavg",)), ("2", ("ditto",))):
        for method in methods:
            for k, value in enumerate(ACCURACIES[method]):
                keys = (f"partition.seed={place}",)
                folder = tmp_path / f"{method}-{k}"
                run_folder(
                    folder, method, value, repetition=k, keys=keys, partition_hash=place * 64
                )

    found = Analysis(arrange(collect([tmp_path]).runs))

    assert found.comparison.sampling_at("digits").overlap == 0
    assert found.pairs.empty


@pytest.mark.slow
def test_known_partitions_tell_of_the_others(tmp_path):
    """One run of an earlier version lacks the samples of its partition."""
    found, _ = compared(tmp_path, fixed)
    for method in ACCURACIES:
        path = tmp_path / f"{method}-4" / "partition.npz"
        with np.load(path) as arrays:
            counts = arrays["train_counts"]
        np.savez(path, train_counts=counts)

    again = Analysis(arrange(collect([tmp_path]).runs))

    assert again.comparison.sampling_at("digits").has_fixed_clients
    pd.testing.assert_frame_equal(again.pairs, found.pairs)
