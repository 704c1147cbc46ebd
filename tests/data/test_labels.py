"""Classes from labels: the same for numbers, texts, tables, NPZ files and folders."""

from pathlib import Path

import numpy as np
import pytest

import flbench as fl
from flbench.core.errors import DataError
from flbench.data import labels
from tests.data.test_sources import load, picture, write_zip

X = np.random.default_rng(0).integers(0, 255, (12, 8, 8)).astype(np.uint8)


def by_arrays(folder: Path, names: list[str]):
    return fl.Data(X, np.resize(np.array(names), 12)).dataset


def by_numbers(folder: Path, names: list[str]):
    return fl.Data(X, np.resize(np.array(names, dtype=int), 12)).dataset


def by_bytes(folder: Path, names: list[str]):
    return fl.Data(X, np.resize(np.array(names).astype(bytes), 12)).dataset


def by_npz(folder: Path, names: list[str]):
    y = np.resize(np.array(names), 12)
    np.savez(folder / "x.npz", train_images=X, train_labels=y)
    return load(folder / "x.npz")


def by_table(folder: Path, names: list[str]):
    lines = "".join(f"{k / 7},{names[k % len(names)]}\n" for k in range(12))
    return load(write_zip(folder / "x.zip", {"a.csv": f"x,y\n{lines}".encode()}))


def by_folder(folder: Path, names: list[str]):
    # The samples of a folder are in the order of the texts.
    return load(write_zip(folder / "x.zip", {f"{name}/0.png": picture(1) for name in names}))


SOURCES = (by_arrays, by_numbers, by_bytes, by_npz, by_table, by_folder)


@pytest.fixture
def folders(tmp_path):
    """A new folder for each reader."""

    def made():
        made.count += 1
        folder = tmp_path / str(made.count)
        folder.mkdir()
        return folder

    made.count = 0
    return made


def test_classes_are_those_that_occur_in_the_order_of_numbers(folders):
    for read in SOURCES:
        for names, classes in (
            (["10", "1", "3", "2", "11"], ("1", "2", "3", "10", "11")),
            (["0", "1", "2"], ("0", "1", "2")),
        ):
            data = read(folders(), names)

            assert data.classes == classes
            found = [data.classes[k] for k in data.y]
            assert sorted({*found}) == sorted(names)
            assert read is by_folder or found == [names[k % len(names)] for k in range(12)]
    for read in (by_arrays, by_npz, by_table):
        data = read(folders(), ["1", "1.0", "2"])
        assert (data.classes, data.y[:3].tolist()) == (("1", "2"), [0, 0, 1])


def test_missing_labels_are_refused_and_codes_are_names(folders):
    for read in (by_arrays, by_bytes, by_npz, by_table, by_folder):
        assert read(folders(), ["1", "01", "2"]).classes == ("01", "1", "2")
    for read in (by_arrays, by_npz, by_table):
        for label in ("nan", "-nan", "NaN", " ", "<NA>"):
            with pytest.raises(DataError, match=r"sample 2|row 3 "):
                read(folders(), ["a", "b", label])


def test_names_of_classes_that_are_given_count_from_zero():
    given = fl.Data(X, np.arange(12) % 2 + 1, classes=[b"none", "a", "b"]).dataset
    assert (given.classes, given.y[:2].tolist()) == (("none", "a", "b"), [1, 2])
    objects = fl.Data(X, np.resize(np.array([0, 2], dtype=object), 12), classes=["a", "b", "c"])
    assert objects.dataset.y[:2].tolist() == [0, 2]
    for names in (["a", "b"], ["a", "a", "b"], ["a", "", "b"], ["a", None, "b"]):
        with pytest.raises(DataError):
            fl.partition(fl.Data(X, np.arange(12) % 2 + 1, classes=names))


def test_integers_beyond_64_bits_are_names_of_classes():
    data = fl.Data(X, [10**30, 1] * 6).dataset

    assert (data.classes, data.y[:2].tolist()) == (("1", str(10**30)), [1, 0])


def test_names_that_resemble_missing_values_are_names():
    data = fl.Data(X, ["none", "NA"] * 6, clients=["Nan", "nat"] * 6).dataset

    assert (data.classes, data.group_names) == (("NA", "none"), ("Nan", "nat"))


def test_classes_of_all_parts_count(tmp_path):
    arrays = {"train_images": X, "train_labels": np.resize([1, 3], 12)}
    arrays |= {"test_images": X[:2], "test_labels": np.array([2, 1])}
    np.savez(tmp_path / "x.npz", **arrays)

    data = load(tmp_path / "x.npz")

    assert (data.classes, data.y[-2:].tolist()) == (("1", "2", "3"), [1, 0])


@pytest.mark.parametrize(
    "y",
    [
        *(np.zeros((12, 14), int), np.eye(12, dtype=int)),
        *(np.resize([-1, 1], 12), np.resize([0, 1, np.nan], 12)),
    ],
    ids=str,
)
def test_labels_of_arrays_that_are_no_classes_are_refused(tmp_path, y):
    np.savez(tmp_path / "x.npz", train_images=X, train_labels=y)

    with pytest.raises(DataError, match=r"train_labels|label"):
        load(tmp_path / "x.npz")


def test_long_whole_numbers_are_exact():
    names = ["12345678901234567", "12345678901234568", "1e3", "1000", "0.1", "-0", "0"]

    found = labels.class_names(names)

    assert len(set(found.values())) == 5
    assert labels.in_order(set(found.values()))[:3] == ["0", "0.1", "1000"]
