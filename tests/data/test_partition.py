import json
import time
from dataclasses import replace
from itertools import pairwise, product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flbench.config.schema import PartitionConfig
from flbench.core.errors import ConfigError, DataError
from flbench.core.rng import generator
from flbench.data import paper_schemes, partition, partition_files, partitioning, schemes, sources
from flbench.data.dataset import Dataset
from flbench.data.partition import split_client
from flbench.data.partitioning import repair
from flbench.data.schemes import dirichlet, largest_remainder


def dataset(n: int = 600, classes: int = 6, groups: int | None = None) -> Dataset:
    y = np.arange(n, dtype=np.int64) % classes
    numbers = None if groups is None else np.arange(n, dtype=np.int64) % groups
    x = np.zeros((n, 1, 2, 2), dtype=np.uint8)
    return Dataset("made", x, y, tuple(map(str, range(classes))), train=n - n // 6, groups=numbers)


def deal(data: Dataset, seed: int = 0, **keys):
    return partitioning.make_partition(data, PartitionConfig(**keys), seed)


def held(made, client: int) -> np.ndarray:
    return np.concatenate([made.parts[part][client] for part in partition.PARTS])


SCHEMES = {
    "iid": {},
    "dirichlet": {"alpha": 0.1},
    "balanced": {"scheme": "dirichlet", "alpha": 0.1, "balanced": True},
    "pathological": {"classes_per_client": 2},
    "grouped": {"main_classes": (1, 2, 3)},
    "quantity": {"alpha": 0.3},
    "shards": {"shards": 2},
    "extended_dirichlet": {"alpha": 0.5},
    "similarity": {"similarity": 0.3},
    "natural": {},
}


def classes_of(made, data: Dataset, client: int) -> set[int]:
    return set(data.y[held(made, client)].tolist())


def test_shards_are_pieces_of_the_sorted_samples():
    data = dataset(n=720, classes=6)
    pieces = deal(data, scheme="shards", clients=10, shards=1, split=(1, 0, 0))
    order = [data.y[held(pieces, client)] for client in range(10)]
    assert {len(rows) for rows in order} == {60}
    # A piece of the sorted labels has neighbouring classes alone.
    assert all(np.ptp(labels) <= 1 for labels in order)
    two = deal(data, scheme="shards", clients=10, shards=2)
    assert all(len(classes_of(two, data, client)) <= 4 for client in range(10))


def test_extended_dirichlet_has_few_classes_in_skewed_shares():
    data = dataset(n=6000)
    keys = {"scheme": "extended_dirichlet", "clients": 6, "classes_per_client": 3}
    even, skewed = (deal(data, alpha=alpha, **keys) for alpha in (1e6, 0.3))
    sizes = [[len(held(made, client)) for client in range(6)] for made in (even, skewed)]
    assert all(len(classes_of(even, data, client)) == 3 for client in range(6))
    assert all(len(classes_of(skewed, data, client)) <= 3 for client in range(6))
    assert np.ptp(sizes[0]) <= 3 < np.ptp(sizes[1])  # with equal shares it is `pathological`


def test_similarity_is_the_share_of_samples_at_random():
    data = dataset(n=7200)
    for share in (0.0, 0.5, 1.0):
        made = deal(data, scheme="similarity", clients=6, similarity=share)
        found = np.array([np.bincount(data.y[held(made, k)], minlength=6) for k in range(6)])
        assert set(found.sum(axis=1)) == {1000}
        # Each client has one class of its own, and share / 6 of its samples in each of the six.
        assert np.allclose(found.max(axis=1) / 1000, (1 - share) + share / 6, atol=0.06)


def test_target_distributes_intervals_of_a_number():
    rng = np.random.default_rng(0)
    targets = rng.normal(size=600).astype(np.float32)
    x = np.zeros((600, 3), dtype=np.float32)
    zeros = np.zeros(600, dtype=np.int64)
    data = Dataset("numbers", x, zeros, ("all",), train=600, targets=targets[:, None])
    keys = {"scheme": "target", "clients": 5, "bins": 5}
    means = {
        alpha: [targets[held(deal(data, alpha=alpha, **keys), k)].mean() for k in range(5)]
        for alpha in (0.1, 1e6)
    }
    assert np.ptp(means[0.1]) > 10 * np.ptp(means[1e6])
    two = replace(data, targets=np.zeros((600, 2)))
    for wrong in (dataset(), two):
        with pytest.raises(ConfigError, match=r"partition\.scheme=target"):
            deal(wrong, **keys)


def test_schemes_deal_the_pool_once_and_by_their_seed():
    for name, own in SCHEMES.items():
        keys = {"scheme": name, "clients": 10, "min_samples": 3} | own
        data = dataset(groups=10 if name == "natural" else None)

        made = deal(data, 4, **keys)

        everything = np.concatenate([held(made, i) for i in range(made.clients)])
        assert len(set(everything.tolist())) == len(everything), name
        assert everything.max() < data.train
        assert min(len(held(made, i)) for i in range(made.clients)) >= 3
        if name != "grouped":  # grouped does not distribute samples that do not fit its shares
            assert len(everything) == data.train
        assert deal(data, 4, **keys).hash() == made.hash() != deal(data, 5, **keys).hash()


def test_hash_is_the_same_on_every_machine():
    """The hash of the default partition of the digits must not differ between machines."""
    made = partitioning.make_partition(sources.digits(), PartitionConfig(), 0)

    assert made.hash() == "0d6d85a5442e068426aee631a51538b0cde4fe9578665c9e2a9f6a759b92fa39"


def test_partition_seed_wins_over_the_runs():
    data, config = dataset(), PartitionConfig(seed=7)

    assert (
        partitioning.make_partition(data, config, 1).hash()
        == partitioning.make_partition(data, config, 2).hash()
    )


def test_merged_pool_deals_the_test_part_too():
    data = dataset()

    made = deal(data, scheme="iid", clients=5, pool="merged")

    assert sum(len(held(made, i)) for i in range(5)) == len(data.y)


def test_samples_of_the_pool_are_drawn_with_its_shares_of_classes():
    data, drawn = dataset(groups=5), []
    for scheme, seed in (("iid", 0), ("dirichlet", 0), ("natural", 0), ("natural", 1)):
        made = deal(data, seed=seed, scheme=scheme, samples=103, min_samples=3)
        rows = np.concatenate([held(made, i) for i in range(made.clients)])
        assert len(set(rows.tolist())) == 103
        assert rows.max() < data.train
        assert set(np.bincount(data.y[rows]).tolist()) == {17, 18}
        drawn.append({*rows.tolist()})
    assert drawn[0] == drawn[2] != drawn[3]


def test_dirichlet_shares_are_right_for_any_alpha():
    for alpha in (1e-6, 1e-3, 0.01, 1.0, 100.0):
        rng = generator(0, "partition")
        shares = np.stack([dirichlet(alpha, 8, rng) for _ in range(2000)])
        assert np.allclose(shares.sum(axis=1), 1.0, atol=1e-9)
        # A share has the mean 1/8 and the variance (1/8)(7/8) / (8 alpha + 1). The test allows five
        # standard deviations of its mean over 2,000 draws.
        spread = np.sqrt((1 / 8) * (7 / 8) / (8 * alpha + 1) / 2000)
        assert np.abs(shares.mean(axis=0) - 1 / 8).max() < 5 * spread


def test_dirichlet_of_a_tiny_alpha_gives_everything_to_one():
    for seed, alpha in product(range(20), (5e-324, 1e-310, 1e-308)):
        shares = dirichlet(alpha, 5, np.random.default_rng(seed))

        assert np.isfinite(shares).all()
        assert sorted(shares) == [0, 0, 0, 0, 1]
        # It is the limit: the same client as under a larger alpha that does not overflow.
        assert np.array_equal(shares, dirichlet(1e-300, 5, np.random.default_rng(seed)))


@pytest.mark.slow
def test_dirichlet_variance_follows_alpha():
    rng = generator(0, "partition")
    shares = np.stack([dirichlet(0.5, 4, rng) for _ in range(20_000)])

    assert shares.var(axis=0) == pytest.approx(
        np.full(4, (1 / 4) * (3 / 4) / (4 * 0.5 + 1)), rel=0.05
    )


def test_scheme_that_misses_the_minimum_is_repaired():
    made = deal(dataset(), scheme="dirichlet", clients=40, alpha=0.001, min_samples=10)

    assert min(len(held(made, i)) for i in range(40)) == 10
    few = len(dataset().y) // 3  # of two classes, which two clients have, there are fewer
    keys = {"scheme": "pathological", "classes_per_client": 1, "clients": 2}
    made = deal(dataset(), **keys, min_samples=few)
    assert min(len(held(made, i)) for i in range(2)) == few


def plain_repair(assigned, pool, minimum, rng):
    """Move samples one by one, and look for the largest client each time."""
    samples = [list(rng.permutation(rows)) for rows in assigned]
    spare = rng.permutation(np.setdiff1d(np.arange(pool), np.concatenate(assigned))).tolist()
    for client in [k for k in range(len(samples)) if len(samples[k]) < minimum]:
        while len(samples[client]) < minimum:
            sizes = [len(rows) for rows in samples]
            samples[client].append(spare.pop() if spare else samples[np.argmax(sizes)].pop())
    return samples


@given(
    st.lists(st.integers(0, 30), min_size=2, max_size=12), st.integers(0, 20), st.integers(0, 99)
)
def test_repair_is_the_plain_loop(sizes, unused, seed):
    bounds = np.cumsum([0, *sizes])
    dealt = [np.arange(a, b) for a, b in pairwise(bounds)]
    pool = sum(sizes) + unused
    minimum = pool // len(sizes)

    repaired = repair(dealt, pool, minimum, np.random.default_rng(seed))

    plain = plain_repair(dealt, pool, minimum, np.random.default_rng(seed))
    assert [rows.tolist() for rows in repaired] == plain


def plain_dirichlet(y, clients, alpha, rng):
    """Distribute class by class, and cut each class into one piece per client."""
    assigned = [[] for _ in range(clients)]
    for label in np.unique(y):
        samples = rng.permutation(np.flatnonzero(y == label))
        below_share = np.array([len(rows) < len(y) / clients for rows in assigned])
        shares = np.where(below_share, dirichlet(alpha, clients, rng), 0.0)
        if shares.sum() == 0.0:
            shares = below_share.astype(float)
        ends = np.cumsum(shares / shares.sum())[:-1] * len(samples)
        for rows, piece in zip(
            assigned, np.split(samples, np.floor(ends + 1e-9).astype(int)), strict=True
        ):
            rows += piece.tolist()
    return assigned


def plain_pathological(y, clients, count, rng):
    """Sort all classes by the number of clients that have them, for each client in turn."""
    labels = np.unique(y)
    owners = {label: [] for label in labels}
    for client in rng.permutation(clients):
        order = rng.permutation(len(labels))
        scarce = sorted(order, key=lambda k: len(owners[labels[k]]))
        for k in scarce[: min(count, len(labels))]:
            owners[labels[k]].append(client)
    assigned = [[] for _ in range(clients)]
    for label, mine in owners.items():
        samples = rng.permutation(np.flatnonzero(y == label))
        if mine:
            for client, piece in zip(mine, np.array_split(samples, len(mine)), strict=True):
                assigned[client] += piece.tolist()
    return assigned


labels_of_few_classes = st.lists(st.integers(0, 9), min_size=1, max_size=80).map(np.array)


@given(labels_of_few_classes, st.integers(1, 12), st.sampled_from([0.01, 0.5, 10.0]))
def test_dirichlet_is_the_plain_loop(y, clients, alpha):
    config = PartitionConfig(alpha=alpha)

    found = schemes.dirichlet_by_class(y, 10, clients, config, np.random.default_rng(1))

    plain = plain_dirichlet(y, clients, alpha, np.random.default_rng(1))
    assert [rows.tolist() for rows in found] == plain


@pytest.mark.slow
@given(labels_of_few_classes, st.integers(1, 12), st.integers(1, 10))
def test_pathological_is_the_plain_loop(y, clients, count):
    config = PartitionConfig(classes_per_client=count)

    found = paper_schemes.pathological(y, 10, clients, config, np.random.default_rng(1))

    plain = plain_pathological(y, clients, count, np.random.default_rng(1))
    assert [rows.tolist() for rows in found] == plain


@given(st.lists(st.integers(-1, 6), min_size=1, max_size=40).map(np.array))
def test_natural_clients_have_their_groups_in_order(groups):
    if groups.max() < 0:
        return
    data = replace(dataset(len(groups)), train=len(groups), groups=groups)

    assigned = paper_schemes.natural(data, np.arange(len(groups)), PartitionConfig(), 0)

    plain = [np.flatnonzero(groups == number).tolist() for number in np.unique(groups[groups >= 0])]
    assert [rows.tolist() for rows in assigned] == plain


@pytest.mark.slow
@pytest.mark.parametrize("scheme", ["dirichlet", "pathological", "natural"])
def test_thousands_of_classes_and_clients_take_seconds(scheme):
    n = 3_000
    data = replace(dataset(n, classes=n), train=n, groups=np.arange(n))
    data = replace(data, y=np.arange(n))
    began = time.process_time()

    made = deal(data, scheme=scheme, clients=1_000, min_samples=1, alpha=1000.0)

    assert made.clients == 1_000
    assert time.process_time() - began < 20


@given(
    st.lists(st.floats(0, 1), min_size=1, max_size=9).filter(lambda s: sum(s) > 0.01),
    st.integers(0, 1000),
)
def test_largest_remainder_sums_up_and_stays_within_one(shares, total):
    counts = largest_remainder(np.array(shares), total)

    exact = np.array(shares) / sum(shares) * total
    assert sum(counts) == total
    assert np.abs(np.array(counts) - exact).max() <= 1 + 1e-6


@settings(max_examples=60)
@given(
    st.lists(st.integers(0, 4), min_size=1, max_size=60),
    st.sampled_from(
        [(0.6, 0.2, 0.2), (0.5, 0.0, 0.5), (1.0, 0.0, 0.0), (0.4, 0.3, 0.3), (0.01, 0.0, 0.99)]
    ),
)
def test_split_is_a_stratified_partition(labels, ratios):
    y = np.array(labels)

    parts = split_client(np.arange(len(y)), y, ratios, np.random.default_rng(0))

    assert sorted(np.concatenate(parts).tolist()) == list(range(len(y)))
    assert len(parts[0]) >= 1
    for part, ratio in zip(parts, ratios, strict=True):
        assert abs(len(part) - ratio * len(y)) <= 1 + 1e-6
        for label in range(5):
            share = ratio * (y == label).sum()
            # Each part has floor(ratio * n) samples or more of a class of n; one sample may have
            # moved to an empty training part.
            assert (y[part] == label).sum() >= np.floor(share + 1e-9) - 1


def test_grouped_gives_main_classes_their_share():
    data = dataset(6000, classes=10)

    made = deal(data, scheme="grouped", clients=20, pool="merged")

    sizes = [len(held(made, i)) for i in range(20)]
    for client, (low, high) in (
        (0, (0, 2)),
        (6, (0, 2)),
        (7, (2, 5)),
        (13, (2, 5)),
        (14, (5, 10)),
        (19, (5, 10)),
    ):
        y = data.y[held(made, client)]
        assert ((y >= low) & (y < high)).mean() == pytest.approx(0.8, abs=0.02)
    assert max(sizes) - min(sizes) <= 1
    # With disjoint main classes each client can have at most 1 / 3.24 of the samples of class 0.
    assert sizes[0] == int(600 / 3.24)


def test_balanced_dirichlet_has_equal_sizes_and_stays_skewed():
    data = dataset(2000, classes=10)

    made = deal(data, scheme="dirichlet", clients=10, alpha=0.05, balanced=True, pool="merged")

    assert {len(held(made, i)) for i in range(10)} == {200}
    shares = [np.bincount(data.y[held(made, i)], minlength=10).max() / 200 for i in range(10)]
    assert np.mean(shares) > 0.4


def test_quantity_skews_sizes_not_classes():
    data = dataset(6000)

    made = deal(data, scheme="quantity", clients=5, alpha=0.5)

    largest = max(range(5), key=lambda i: len(held(made, i)))
    counts = np.bincount(data.y[held(made, largest)], minlength=6)
    assert len(held(made, largest)) > 2 * data.train / 5 * 0.6
    assert counts.min() > 0.7 * counts.max()


GROUPED = {"scheme": "grouped", "main_classes": (1, 2, 3), "clients": 5}
REFUSED = [
    ("clients", {"clients": 100}),
    ("classes_per_client", {"scheme": "pathological", "classes_per_client": 7, "clients": 5}),
    ("classes_per_client", {"scheme": "extended_dirichlet", "classes_per_client": 7}),
    ("shards", {"scheme": "shards", "clients": 10, "shards": 100}),
    ("scheme", {"scheme": "natural"}),
    ("clients", {"scheme": "natural", "clients": 13}, {"groups": 12}),
    ("main_classes", GROUPED | {"main_classes": (4, 4)}),
    ("main_classes", GROUPED | {"clients": 2}),
    ("samples_per_client", GROUPED | {"samples_per_client": 10**6}),
    ("samples_per_client", GROUPED | {"samples_per_client": 3}),
]


@pytest.mark.parametrize("case", REFUSED)
def test_what_cannot_be_dealt_is_refused_by_key(case):
    key, keys, *of_data = case
    with pytest.raises(ConfigError) as caught:
        deal(dataset(**dict(*of_data)), **keys)
    assert caught.value.key == f"partition.{key}"


def saved(tmp_path):
    data, config = dataset(), PartitionConfig(clients=7, alpha=0.3)
    made = partitioning.make_partition(data, config, 3)
    file = tmp_path / "p.npz"
    partition_files.save(made, data, config, file)
    return data, made, file


def test_saved_partition_loads_with_the_same_hash(tmp_path):
    data, made, file = saved(tmp_path)

    loaded = deal(data, scheme="file", path=file)

    assert loaded.hash() == made.hash() == json.loads(file.with_suffix(".json").read_text())["hash"]


def altered(name, change):
    """Return a function that changes an array of a saved partition."""

    def damage(file):
        arrays = dict(np.load(file))
        np.savez(file, **arrays | {name: change(arrays[name])})

    return damage


def first(value):
    return lambda array: np.concatenate([[value], array[1:].astype(np.int64)])


def described(text):
    return lambda file: file.with_suffix(".json").write_text(text)


def of_clients(number):
    def damage(file):
        beside = file.with_suffix(".json")
        beside.write_text(json.dumps(json.loads(beside.read_text()) | {"clients": number}))

    return damage


DAMAGED = {
    "missing": lambda file: file.unlink(),
    "no json": lambda file: file.with_suffix(".json").unlink(),
    "truncated": lambda file: file.write_bytes(file.read_bytes()[:200]),
    "pickle": altered("part", lambda array: np.array([{}], dtype=object)),
    "moved": altered("client", lambda array: np.roll(array, 1)),
    "axes": altered("index", lambda array: array[:, None]),
    "twice": altered("index", first(3)),
    "a row of no sample": altered("index", first(10**6)),
    "a client too many": altered("client", first(99)),
    **{f"{n} clients": of_clients(n) for n in (0, 8, 10**15, "7")},
    **{text[:30]: described(text) for text in ("{", "[" * 100_000, "{}")},
}


def test_damaged_partitions_are_refused(tmp_path):
    for name, damage in DAMAGED.items():
        data, _, file = saved(tmp_path)
        damage(file)
        with pytest.raises(DataError, match=r"p\.npz"):
            pytest.fail(f"{name}: {deal(data, scheme='file', path=file)}")
    _, _, file = saved(tmp_path)
    with pytest.raises(DataError, match=r"p\.npz"):
        deal(dataset(classes=5), scheme="file", path=file)


def test_saved_partition_has_its_own_number_of_clients(tmp_path):
    data = dataset()
    config = PartitionConfig(scheme="iid", clients=4)
    partition_files.save(
        partitioning.make_partition(data, config, 0), data, config, tmp_path / "p.npz"
    )

    with pytest.raises(ConfigError, match=r"p\.npz|partition\.clients"):
        deal(data, scheme="file", path=tmp_path / "p.npz", clients=7)
    assert deal(data, scheme="file", path=tmp_path / "p.npz").clients == 4


@pytest.mark.parametrize("scheme", ["iid", "dirichlet", "natural"])
def test_long_tail_has_the_counts_of_its_formula_for_every_seed(scheme):
    data, mu = dataset(7200, 6, groups=7), 0.05
    counts = [
        np.bincount(
            data.y[np.concatenate([held(made, client) for client in range(made.clients)])],
            minlength=6,
        )
        for made in (
            partitioning.make_partition(data, PartitionConfig(scheme=scheme), seed, mu)
            for seed in (0, 1)
        )
    ]
    expected = [round(1000 * mu ** (c / 5)) for c in range(6)]
    assert sorted(counts[0], reverse=True) == expected
    assert (counts[0] == counts[1]).all()  # the same classes are rare for every seed


def test_long_tail_keeps_a_sample_of_each_class_and_all_of_a_small_one():
    for mu in (1e-6, 0.99):
        y = np.repeat([0, 1, 2, 3], [1000, 2, 2, 2])
        kept = paper_schemes.long_tail(y, 4, mu, np.random.default_rng(0))
        assert (np.diff(kept) > 0).all()
        assert set(np.bincount(y[kept])[1:]) <= ({1, 2} if mu < 0.5 else {2})


def test_long_tail_is_refused_for_targets_and_saved_partitions(tmp_path):
    data = replace(dataset(), targets=np.zeros((600, 1), np.float32))
    with pytest.raises(ConfigError) as refused:
        partitioning.make_partition(data, PartitionConfig(scheme="iid"), 0, 0.1)
    assert refused.value.key == "data.imbalance"
    config = PartitionConfig(scheme="file", path=tmp_path / "p.npz")
    with pytest.raises(ConfigError) as refused:
        partitioning.make_partition(dataset(), config, 0, 0.1)
    assert refused.value.key == "data.imbalance"
