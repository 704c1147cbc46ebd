"""Samples of one patient, writer or device in one part of a client (`data.group`)."""

from pathlib import Path

import numpy as np
import pandas as pd
import pytest

import flbench as fl
from flbench.config.schema import DataConfig, PartitionConfig
from flbench.core.errors import DataError
from flbench.data import partition_files, sources
from flbench.data.dataset import PARTS
from flbench.data.federation import build
from flbench.data.group_splits import split_groups
from flbench.data.own import Data
from flbench.data.partition_files import data_hash
from flbench.data.partitioning import make_partition


def frame(patients: int = 60, visits: int = 4) -> pd.DataFrame:
    """Visits of patients, whose class is that of the patient."""
    rng = np.random.default_rng(0)
    patient = rng.permutation(np.repeat(np.arange(patients), visits))
    return pd.DataFrame(
        {
            "patient": [f"p{k:03}" for k in patient],
            "age": rng.normal(size=len(patient)).round(3),
            "bp": rng.normal(size=len(patient)).round(3),
            "ill": patient % 2,
        }
    )


@pytest.fixture
def hospitals(tmp_path: Path) -> Path:
    """A folder with a table for each of two hospitals."""
    folder = tmp_path / "hospitals"
    folder.mkdir()
    rows = frame()
    north = rows["patient"] < "p040"
    rows[north].to_csv(folder / "north.csv", index=False)
    rows[~north].to_csv(folder / "south.csv", index=False)
    return folder


@pytest.mark.parametrize(
    "scheme",
    [{"scheme": "natural"}, {"scheme": "iid", "clients": 3}, {"clients": 3, "new_clients": 1}],
)
def test_rows_of_one_patient_are_in_one_part_of_a_client(hospitals, scheme):
    config = DataConfig(path=hospitals, group="patient")
    data = sources.load(config)

    made = build(data, config, PartitionConfig(**scheme), 0).with_new_clients()

    patients = pd.concat([pd.read_csv(file)["patient"] for file in sorted(hospitals.iterdir())])
    parts = made.partition.parts
    for client in range(made.clients):
        names = [set(patients.iloc[parts[part][client]]) for part in PARTS]
        assert all(names)
        assert sum(map(len, names)) == len(set.union(*names))
    rows = np.concatenate([rows for part in PARTS for rows in parts[part]])
    assert sorted(rows) == list(range(240))
    assert data.columns == ("age", "bp")
    assert made.x.shape == (240, 2)


def test_groups_at_several_clients_are_noted(hospitals):
    data = sources.load(DataConfig(path=hospitals, group="patient"))

    for scheme, is_noted in (("natural", False), ("iid", True)):
        made = make_partition(data, PartitionConfig(scheme=scheme), 0)
        assert bool(made.notes) == is_noted


def test_groups_are_split_in_proportion_to_the_classes():
    data = Data(frame(), group="patient").dataset

    parts = make_partition(data, PartitionConfig(scheme="iid", clients=1), 0).parts

    assert [len(parts[part][0]) for part in PARTS] == [144, 48, 48]
    for part in PARTS:
        assert data.y[parts[part][0]].mean() == 0.5


@pytest.mark.parametrize(("patients", "parts"), [(1, [1, 0, 0]), (3, [1, 1, 1]), (9, [5, 2, 2])])
def test_parts_of_few_groups(patients, parts):
    rows = np.arange(4 * patients)
    split = split_groups(rows, rows % 2, rows // 4, (0.6, 0.2, 0.2), np.random.default_rng(0))

    assert [len(part) / 4 for part in split] == parts


def test_groups_of_arrays_and_tables_are_the_same(hospitals, tmp_path):
    config = DataConfig(path=hospitals, group="patient")
    data = sources.load(config)
    patients = pd.concat([pd.read_csv(file)["patient"] for file in sorted(hospitals.iterdir())])
    arrays = {"train_images": data.x, "train_labels": data.y, "who": patients.to_numpy(dtype=str)}
    np.savez(tmp_path / "x.npz", **arrays)
    scheme = PartitionConfig(scheme="iid", clients=3)
    expected = make_partition(data, scheme, 0).hash()

    of_file = sources.load(DataConfig(path=tmp_path / "x.npz", group="who"))
    given = Data(data.x, data.y, group=patients).dataset

    for found in (of_file, given):
        assert make_partition(found, scheme, 0).hash() == expected
    plain = sources.load(DataConfig(path=hospitals, drop=["patient"]))
    assert make_partition(plain, scheme, 0).hash() != expected
    assert data_hash(plain) != data_hash(data)


def test_a_saved_partition_that_divides_groups_is_refused(hospitals, tmp_path):
    config, scheme = DataConfig(path=hospitals, group="patient"), PartitionConfig(scheme="natural")
    together = sources.load(config)
    apart = sources.load(DataConfig(path=hospitals, drop=["patient"]))
    for name, data in (("together", together), ("apart", apart)):
        made = make_partition(data, scheme, 0)
        partition_files.save(made, data, scheme, tmp_path / f"{name}.npz")

    saved = PartitionConfig(scheme="file", path=tmp_path / "together.npz")

    assert make_partition(together, saved, 0).hash() == make_partition(together, scheme, 0).hash()
    with pytest.raises(DataError, match=r"apart\.npz .*data\.group"):
        make_partition(together, saved.altered(path=tmp_path / "apart.npz"), 0)

    file = hospitals / "south.csv"
    rows = pd.read_csv(file)
    rows["patient"] = np.roll(rows["patient"], 1)  # other visits are of one patient now
    rows.to_csv(file, index=False)
    with pytest.raises(DataError, match=r"together\.npz .*data\.group"):
        make_partition(sources.load(config), saved, 0)


@pytest.mark.parametrize(
    ("keys", "said"),
    [
        ({"group": "patiennt"}, "patiennt"),
        ({"group": "ill", "label": "ill"}, "data.group=ill"),
        ({"group": "ill", "label": "ill > 0"}, "data.group=ill"),
        ({"group": "one"}, "column `one`"),
    ],
)
def test_groups_that_cannot_be_used_are_refused(hospitals, keys, said):
    for file in hospitals.iterdir():
        pd.read_csv(file).assign(one=1).iloc[:, [0, 1, 2, 4, 3]].to_csv(file, index=False)

    with pytest.raises(DataError, match=said):
        sources.load(DataConfig(path=hospitals, **keys))


def test_groups_that_are_missing_or_of_data_without_columns_are_refused(tmp_path):
    (tmp_path / "x.csv").write_text("who,a,y\n1,2,0\n1,3,1\nNA,4,0\n2,5,1\n")
    with pytest.raises(DataError, match=r"`who`.* sample 2 "):
        sources.load(DataConfig(path=tmp_path / "x.csv", group="who"))
    with pytest.raises(DataError, match=r"data\.group"):
        fl.partition({"name": "digits", "group": "patient"})
    for group in ("patient", [1, 1, 2]):
        with pytest.raises(DataError, match="group"):
            Data(np.zeros((4, 2)), [0, 1, 0, 1], group=group)
