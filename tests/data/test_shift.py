"""Shifts between clients: feature shift, concept shift, and where they are recorded."""

import json
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
import torch
from torchvision.transforms.functional import rotate

import flbench as fl
from flbench.config.schema import DataConfig, PartitionConfig, ShiftConfig
from flbench.core.errors import ConfigError
from flbench.core.parts import offered
from flbench.data import federation
from flbench.data.dataset import PARTS, Dataset
from flbench.data.sources import digits
from tests.support import run

IID = PartitionConfig(scheme="iid", clients=6, samples=300)


def made(data=None, partition=IID, **keys):
    data = digits() if data is None else data
    return federation.build(data, DataConfig(), partition, 0, ShiftConfig(**keys))


def rows_of(found, client):
    return np.concatenate([found.partition.parts[part][client] for part in PARTS])


def colour(n=60, channels=3):
    rng = np.random.default_rng(0)
    x = rng.integers(0, 256, (n, channels, 8, 8), dtype=np.uint8)
    return Dataset("made", x, np.arange(n) % 3, ("a", "b", "c"), train=n)


def test_rotations_of_all_parts_equal_those_of_torchvision():
    plain, found = made(), made(rotation=[0, 90, 180, 270])
    for client in range(6):
        rows = rows_of(plain, client)
        turned = rotate(plain.x[rows], 90.0 * (client % 4))
        assert torch.equal(found.x[rows], turned)
    mine = np.concatenate([rows_of(plain, client) for client in range(6)])
    others = np.setdiff1d(np.arange(len(plain.x)), mine)
    assert torch.equal(found.x[others], plain.x[others])
    assert found.partition.hash() == plain.partition.hash()
    assert torch.equal(found.y, plain.y)
    assert torch.equal(digits_x(), torch.from_numpy(digits().x))  # the data set is not changed


def digits_x():
    return torch.from_numpy(digits().x)


def orders_of(found):
    texts = [text.rpartition("labels=")[2] for text in found.partition.shifts]
    return [tuple(int(k) for k in text.split("-")) for text in texts]


def brighter(y, clients, rng):
    """A scheme that also inverts the images and moves the classes of the odd clients."""

    def transform(x, y, client, rng):
        return (255 - x, (y + 1) % 3) if client % 2 else (x, y)

    return np.array_split(rng.permutation(len(y)), clients), transform


@pytest.mark.slow
def test_schemes_of_the_user_transform_samples(tmp_path):
    data, keys = colour(), {"scheme": "tests.data.test_shift:brighter", "clients": 4}
    found = made(data, PartitionConfig(**keys))
    for client in range(4):
        rows, odd = rows_of(found, client), client % 2
        assert np.array_equal(found.x[rows], 255 - data.x[rows] if odd else data.x[rows])
        assert found.y[rows].tolist() == ((data.y[rows] + odd) % 3).tolist()
    assert found.partition.hash() == made(data, PartitionConfig(**keys)).partition.hash()
    again = made(replace(data, x=255 - data.x), PartitionConfig(**keys))
    assert again.partition.hash() != found.partition.hash()
    both = made(data, PartitionConfig(**keys), rotation=[90])
    assert torch.equal(
        both.x[rows_of(found, 1)], torch.rot90(found.x[rows_of(found, 1)], 1, (2, 3))
    )
    run = fl.run(
        "fedavg",
        data=(data.x, data.y),
        partition={"scheme": brighter, "clients": 4},
        train={"rounds": 1},
        output={"dir": tmp_path},
        progress=False,
    )
    assert run.partition.hash == run.summary["partition_hash"]
    path = tmp_path / "made.npz"
    fl.partition((data.x, data.y), {"scheme": brighter, "clients": 4}, out=path)
    with pytest.raises(fl.DataError, match=r"made\.npz"):
        fl.partition((data.x, data.y), fl.FromFile(path=path))


TRANSFORMS = [
    lambda x, y, client, rng: x,
    lambda x, y, client, rng: (x[1:], y),
    lambda x, y, client, rng: (x, y + 1),
    lambda x, y, client, rng: (x / 2, y),
    lambda x, y, client, rng, seen=[]: (x + len(seen) + (seen.append(1) or 0), y),
]


@pytest.mark.parametrize("transform", TRANSFORMS)
def test_wrong_transformations_are_refused(transform):
    def scheme(y, clients, rng):
        return np.array_split(np.arange(len(y)), clients), transform

    with offered({"partition": scheme}), pytest.raises(ConfigError, match=r"partition\.scheme"):
        made(colour(), PartitionConfig(scheme="object", clients=4))


def test_labels_are_permuted_alike_in_all_parts():
    plain, found = made(), made(labels=True, groups=3)
    again = made(labels=True, groups=3)
    orders = orders_of(found)
    assert orders[0] == tuple(range(10)) == orders[3]
    assert len(set(orders)) == 3
    for client in range(6):
        rows = rows_of(plain, client)
        assert found.y[rows].tolist() == [orders[client][k] for k in plain.y[rows].tolist()]
    assert torch.equal(found.x, plain.x)
    assert found.counts.sum() == plain.counts.sum()
    assert torch.equal(torch.from_numpy(found.labels), found.y)
    assert torch.equal(found.y, again.y)
    other = federation.build(digits(), DataConfig(), IID, 1, ShiftConfig(labels=True, groups=3))
    assert orders_of(other) != orders


def test_noise_has_its_deviation_and_is_drawn_once_for_each_sample():
    data, part = colour(), IID.altered(samples=None)
    noisy, again = (made(data, part, noise=[0.1], rotation=[0, 90]) for _ in range(2))
    plain = made(data, part, rotation=[0, 90])
    spread = (noisy.x.float() - plain.x.float()).std() / 255
    assert 0.07 < float(spread) < 0.11  # values that leave the range are clipped
    assert torch.equal(noisy.x, again.x)
    assert noisy.partition.shifts[1] == "group 1: rotation=90 noise=0.1"


@pytest.mark.slow
def test_a_run_records_the_shift_of_each_client(tmp_path):
    keys = ("algorithm=fedavg", "partition.scheme=iid", "train.rounds=1")
    path, _ = run(tmp_path, *keys, "shift.rotation=[0, 180]", "shift.labels=true")
    table = pd.read_csv(path / "clients.csv")
    assert table["shift"][1].startswith("group 1: rotation=180 labels=")
    assert json.loads((path / "partition.json").read_text())["shifts"] == list(table["shift"][:5])
    loaded = fl.load(path)
    assert loaded.partition.shifts[0] == "group 0: rotation=0 labels=0-1-2-3-4-5-6-7-8-9"
    assert list(loaded.partition.sizes["shift"]) == list(loaded.partition.shifts)
    assert list(loaded.clients["shift"][:5]) == list(loaded.partition.shifts)
    counts = loaded.partition.counts.to_numpy()
    order = [int(k) for k in loaded.partition.shifts[1].rpartition("=")[2].split("-")]
    plain = fl.partition("digits", {"scheme": "iid", "clients": 5, "samples": 600})
    assert np.array_equal(counts[1][order], plain.counts.to_numpy()[1])


def rows_of_a_table():
    x = np.random.default_rng(0).normal(size=(60, 4)).astype(np.float32)
    return Dataset("rows", x, np.arange(60) % 3, ("a", "b", "c"), 60, columns=tuple("abcd"))


REFUSED = [
    ("shift.rotation", {"rotation": [0, 1, 2], "groups": 2}),
    ("shift", {"rotation": list(range(7))}),
    ("shift.rotation", {"data": rows_of_a_table(), "rotation": [0, 90]}),
    ("shift.noise", {"noise": [0.1, 0.2], "groups": 3}),
]


@pytest.mark.parametrize(("key", "keys"), REFUSED)
def test_shifts_that_do_not_fit_are_refused_by_key(key, keys):
    with pytest.raises(ConfigError) as caught:
        made(partition=IID.altered(samples=60), **keys)
    assert caught.value.key == key


def test_new_clients_are_shifted_as_clients_that_train():
    part = IID.altered(new_clients=2)
    plain, found = made(partition=part), made(partition=part, rotation=[0, 90], labels=True)
    whole, unshifted = found.with_new_clients(), plain.with_new_clients()
    assert whole.clients == 6 == len(whole.partition.shifts)
    assert len(found.partition.shifts) == 4
    for client in range(6):
        rows = unshifted.partition.rows(client)
        assert np.array_equal(rows, whole.partition.rows(client))
        assert torch.equal(whole.x[rows], torch.rot90(plain.x[rows], client % 2, (2, 3)))
        order = orders_of(whole)[client]
        assert whole.y[rows].tolist() == [order[k] for k in plain.y[rows].tolist()]
