"""Memory that reading and normalizing samples takes, beside the samples."""

import tracemalloc

import numpy as np
import pytest

from flbench.config.schema import DataConfig, PartitionConfig
from flbench.data import federation, normalization, npz_files
from flbench.data.dataset import Dataset
from flbench.data.own import Data


def peak_of(call):
    """Return what a function returns, and the largest memory that NumPy and Python took in it."""
    tracemalloc.start()
    try:
        found = call()
        return found, tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


def images(kind, count=1500, side=48):
    draw = np.random.default_rng(0)
    x = draw.integers(0, 256, (count, 3, side, side), dtype=np.uint8)
    x = x if kind == np.uint8 else x.astype(kind) / 7
    return Dataset("made", x, draw.integers(0, 3, count), ("a", "b", "c"), train=count)


def build(dataset):
    return federation.build(dataset, DataConfig(), PartitionConfig(clients=3), 0)


def test_normalization_of_pixels_takes_little_memory_and_keeps_its_bits(monkeypatch):
    dataset = images(np.uint8)
    monkeypatch.setattr(normalization, "PIECE", 2**40)  # one piece
    whole = build(dataset)
    monkeypatch.setattr(normalization, "PIECE", 2**21)
    pieces, peak = peak_of(lambda: build(dataset))

    assert (pieces.offset == whole.offset).all()
    assert (pieces.scale == whole.scale).all()
    assert peak < dataset.x.nbytes / 2  # in float64 they take 8 times as much as in uint8


@pytest.mark.parametrize("kind", [np.uint8, np.float32])
def test_an_npz_file_is_held_twice_at_most(tmp_path, kind):
    dataset = images(kind)
    file = tmp_path / "made.npz"
    half = len(dataset.x) // 2
    np.savez(
        file,
        train_images=dataset.x[:half],
        train_labels=dataset.y[:half],
        test_images=dataset.x[half:],
        test_labels=dataset.y[half:],
    )

    read, peak = peak_of(lambda: npz_files.read(file, DataConfig(layout="channels_first")))

    assert np.array_equal(read.x, dataset.x)
    assert read.train == half
    assert peak < 2.3 * dataset.x.nbytes


@pytest.mark.parametrize("kind", [np.uint8, np.float32])
def test_arrays_of_the_user_are_copied_and_stay_in_their_mapping(kind):
    dataset = images(kind, 20, 8)
    given = {"train_images": dataset.x, "train_labels": dataset.y}

    made = Data(given, layout="channels_first").dataset

    assert not np.shares_memory(made.x, dataset.x)
    assert set(given) == {"train_images", "train_labels"}
