"""Clients that are held out of a partition until the training is over."""

from dataclasses import replace

import numpy as np
import pytest

from flbench.config.schema import DataConfig, PartitionConfig
from flbench.core.errors import ConfigError
from flbench.data.dataset import PARTS, Dataset
from flbench.data.federation import build
from flbench.data.partitioning import make_partition
from flbench.data.sources import digits

DATA = DataConfig(name="digits")


@pytest.fixture(scope="module")
def dataset():
    return digits()


def parts_of(federation, part):
    return [rows.tolist() for rows in federation.partition.parts[part]]


def test_clients_are_divided_and_keep_their_samples(dataset):
    keys = {"clients": 10, "alpha": 0.5}
    whole = make_partition(dataset, PartitionConfig(**keys), seed=0)

    held = build(dataset, DATA, PartitionConfig(**keys, new_clients=0.2), seed=0)

    assert (held.clients, held.new.clients) == (8, 2)
    together = held.with_new_clients()
    assert (together.clients, together.new) == (10, None)
    for part in PARTS:
        found = {tuple(rows) for rows in parts_of(together, part)}
        assert found == {tuple(rows.tolist()) for rows in whole.parts[part]}
    train = np.sort(np.concatenate(held.partition.parts["train"]))
    mean = dataset.x[train].astype(float).mean()
    assert float(held.offset) == pytest.approx(mean)  # digits have one channel


def test_clients_are_held_out_by_their_names(dataset):
    names = ("photo", "art", "sketch")
    named = replace(dataset, groups=np.arange(len(dataset.y)) % 3, group_names=names)

    def held(*wanted, **keys):
        config = PartitionConfig(scheme="natural", new_clients=list(wanted), **keys)
        return build(named, DATA, config, seed=0)

    found = held("sketch")
    assert (found.partition.names, found.new.names) == (("photo", "art"), ("sketch",))
    assert {*(found.new.rows(0) % 3)} == {2}
    assert held("sketch", seed=5).partition.names == found.partition.names
    assert held("sketch", "photo").new.names == ("photo", "sketch")
    for wanted, key in ((["skech"], "`sketch`"), (names, "new_clients")):
        with pytest.raises(ConfigError, match=key):
            held(*wanted)
    with pytest.raises(ConfigError, match="`a`"):
        build(dataset, DATA, PartitionConfig(new_clients=["a"]), seed=0)
    with pytest.raises(ConfigError, match="new_clients"):
        build(dataset, DATA, PartitionConfig(clients=5, new_clients=5), seed=0)


def test_new_clients_that_are_not_drawn_unknown_or_all_are_refused(dataset):
    named = replace(
        dataset, groups=np.arange(len(dataset.y)) % 12, group_names=(*map(str, range(12)),)
    )
    drawn = make_partition(named, PartitionConfig(scheme="natural", clients=2), seed=0).names
    other = next(name for name in named.group_names if name not in drawn)
    for wanted in ([int(other)], ["12"], drawn):
        config = PartitionConfig(scheme="natural", clients=2, new_clients=wanted)
        with pytest.raises(ConfigError, match="new_clients"):
            build(named, DATA, config, seed=0)


def test_choice_depends_on_the_seed_of_the_partition_alone(dataset):
    config = PartitionConfig(clients=10, new_clients=3, seed=4)
    first, second = (build(dataset, DATA, config, seed=seed).partition.hash() for seed in (0, 1))
    other = build(dataset, DATA, config.altered(seed=5), seed=0).partition.hash()
    assert first == second != other
    chosen = set()
    for seed in range(20):
        config = PartitionConfig(clients=5, new_clients=1, scheme="iid", seed=seed)
        chosen.add(build(dataset, DATA, config, seed=0).partition.notes[-1])
    assert len(chosen) > 1


def test_gaps_of_tables_are_filled_without_the_means_of_new_clients():
    rng = np.random.default_rng(0)
    x = rng.normal(size=(120, 3)).astype(np.float32)
    x[rng.random(x.shape) < 0.1] = np.nan
    y = np.arange(120) % 2
    table = Dataset("table", x, y, ("0", "1"), train=120, columns=("a", "b", "c"), words=((),) * 3)
    config = PartitionConfig(clients=6, scheme="iid", min_samples=1, new_clients=2)

    held = build(table, DataConfig(name="table"), config, seed=0)

    means = np.array([np.nanmean(table.x[rows], axis=0) for rows in held.partition.parts["train"]])
    assert held.table.fill.shape == (7, table.x.shape[1])  # those of all clients, and the last row
    assert held.table.fill[-1] == pytest.approx(means.mean(axis=0), rel=1e-5)
    own = build(table, DataConfig(name="table", normalize="client"), config, seed=0)
    rows = own.new.parts["train"][1]
    assert len(own.offset) == 7
    assert own.offset[5].numpy() == pytest.approx(np.nanmean(x[rows], axis=0), rel=1e-4, abs=1e-6)
    assert set(own.owner[rows].tolist()) == {5}
