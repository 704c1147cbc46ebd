"""Folders as their sources ship them: UCI HAR, LEAF's JSON, and images of several domains."""

import json

import numpy as np
import pytest
from PIL import Image

from flbench.config.schema import DataConfig, PartitionConfig
from flbench.core.errors import DataError
from flbench.data import sources, unlabelled
from flbench.data.dataset import PARTS
from flbench.data.partitioning import make_partition
from flbench.data.unlabelled import Layout
from tests.support import REAL_DATA

SIGNALS = ("body_acc_x", "body_gyro_x", "total_acc_x")


def load(path, **keys):
    return sources.load(DataConfig(path=path, **keys))


def write_har(folder, x, y, persons, test):
    """Write windows [n, channels, length] in the layout of UCI HAR; `test` are persons."""
    names = "\n".join(f"{k + 1} ACTIVITY_{k}" for k in range(int(y.max()) + 1))
    (folder / "UCI HAR Dataset").mkdir()
    (folder / "UCI HAR Dataset" / "activity_labels.txt").write_text(names + "\n")
    for part, mine in (("train", ~np.isin(persons, test)), ("test", np.isin(persons, test))):
        inside = folder / "UCI HAR Dataset" / part
        (inside / "Inertial Signals").mkdir(parents=True)
        for k, signal in enumerate(SIGNALS):
            np.savetxt(inside / "Inertial Signals" / f"{signal}_{part}.txt", x[mine, k])
        np.savetxt(inside / f"y_{part}.txt", y[mine] + 1, fmt="%d")
        np.savetxt(inside / f"subject_{part}.txt", persons[mine], fmt="%d")


@pytest.fixture
def har(tmp_path):
    rng = np.random.default_rng(0)
    x = rng.normal(size=(30, len(SIGNALS), 8)).astype(np.float32)
    y, persons = np.arange(30) % 2, np.repeat([3, 11, 5], 10)
    write_har(tmp_path, x, y, persons, test=[11])
    return tmp_path, x, y, persons


def test_har_has_a_client_for_each_person_of_both_parts(har):
    folder, x, y, persons = har

    data = load(folder)

    order = np.concatenate([np.flatnonzero(persons != 11), np.flatnonzero(persons == 11)])
    np.testing.assert_allclose(data.x, x[order], rtol=1e-6)
    assert np.array_equal(data.y, y[order])
    assert data.classes == ("ACTIVITY_0", "ACTIVITY_1")
    assert np.array_equal(np.array(data.group_names)[data.groups], persons[order].astype(str))
    assert (data.kind, data.train) == ("series", 30)


def test_har_with_a_missing_or_damaged_file_is_refused(har):
    folder, *_ = har
    labels = folder / "UCI HAR Dataset" / "train" / "y_train.txt"
    rows = labels.read_text().splitlines()
    for wrong in ("1.5", "nan", "2 3"):
        labels.write_text("\n".join([*rows[:2], wrong, *rows[3:]]))
        with pytest.raises(DataError, match=r"y_train\.txt"):
            load(folder)
    labels.unlink()
    with pytest.raises(DataError, match=r"y_train\.txt"):
        load(folder)
    first = sorted(labels.parent.glob("Inertial Signals/*"))[0]
    first.write_text(first.read_text().replace(first.read_text().split()[0], "nan", 1))
    with pytest.raises(DataError, match=first.name):
        load(folder)


@pytest.mark.skipif(not (REAL_DATA / "uci_har.npz").exists(), reason="needs uci_har.npz")
def test_real_har_is_read_by_the_names_of_its_arrays():
    names = {"samples": "windows", "labels": "labels", "clients": "subject"}
    data = load(REAL_DATA / "uci_har.npz", kind="series", arrays=names)

    assert data.x.shape == (10_299, 9, 128)
    assert len(data.group_names) == 30
    assert data.classes[0] == "walking"


def write_leaf(folder, parts):
    for part, users in parts.items():
        (folder / part).mkdir(exist_ok=True)
        tree = {"users": list(users), "num_samples": [len(u["y"]) for u in users.values()]}
        (folder / part / "all.json").write_text(json.dumps(tree | {"user_data": users}))


def test_leafs_images_are_those_of_both_parts_by_user(tmp_path):
    x = np.random.default_rng(0).uniform(size=(20, 16)).round(3)
    y = np.arange(20) % 4
    one, two = ({"x": x[k:].tolist()[:10], "y": y[k:].tolist()[:10]} for k in (0, 10))
    more = {"x": x[:2].tolist(), "y": [0, 1]}
    write_leaf(tmp_path, {"train": {"f1": one, "f2": two}, "test": {"f1": more}})

    data = load(tmp_path)

    assert data.x.shape == (22, 1, 4, 4)
    assert data.group_names == ("f1", "f2")
    assert np.bincount(data.groups).tolist() == [12, 10]
    assert np.allclose(data.x[10:12].reshape(2, -1), x[:2])  # the test samples of f1


def test_leafs_texts_are_split_so_that_parts_have_no_character_in_common(tmp_path):
    text = "it was the best of times, it was the worst of times. " * 4
    windows = [(text[k : k + 5], text[k + 5]) for k in range(len(text) - 5)]
    user = {"x": [x for x, _ in windows], "y": [y for _, y in windows]}
    later = {"x": [x for x, _ in windows[-9:]], "y": [y for _, y in windows[-9:]]}
    write_leaf(tmp_path, {"train": {"a": user, "b": user}, "test": {"a": later}})

    data = load(tmp_path)
    parts = make_partition(data, PartitionConfig(scheme="natural"), seed=0).parts

    assert data.kind == "tokens"
    assert "".join(data.tokens[k] for k in data.x[3]) == text[3:8]
    n = len(windows)
    assert data.starts[: n + 9].tolist() == [*range(n), *range(n + 5, n + 14)]
    assert data.starts[n + 9] == 0
    for client in range(2):
        spans = [[(s, s + 6) for s in data.starts[parts[part][client]]] for part in PARTS]
        assert max(end for _, end in spans[0]) <= min(begin for begin, _ in spans[1])
        assert max(end for _, end in spans[1]) <= min(begin for begin, _ in spans[2])


def test_images_of_domains_are_resized_to_one_size(tmp_path):
    rng = np.random.default_rng(0)
    for domain in ("art", "photo"):
        for label in ("cat", "dog"):
            (tmp_path / domain / label).mkdir(parents=True)
            for k, size in enumerate([(9, 7), (12, 12)]):
                pixels = rng.integers(0, 256, size=(*size, 3), dtype=np.uint8)
                Image.fromarray(pixels).save(tmp_path / domain / label / f"{k}.png")

    with pytest.raises(DataError, match=r"data\.resize"):
        load(tmp_path, client="folder")
    data = load(tmp_path, client="folder", resize=12)

    file = tmp_path / "photo" / "dog" / "0.png"
    wanted = np.asarray(Image.open(file).resize((12, 12), Image.Resampling.BILINEAR))
    assert data.x.shape == (8, 3, 12, 12)
    assert data.group_names == ("art", "photo")
    assert np.array_equal(np.moveaxis(data.x[-2], 0, -1), wanted)
    assert load(tmp_path, client="folder", resize=(4, 6)).x.shape[2:] == (4, 6)
    layout = Layout("", data.x[:0], data.y[:0], data.classes, 0, resize=(12, 12))
    [read] = unlabelled.read(file, layout)
    assert np.array_equal(read.x[0], data.x[-2])


@pytest.mark.parametrize(
    ("key", "value"),
    [
        *(("y", value) for value in ([[0], [1, 2]], [{}, 1], [0, 1.5], [1e30, 0], [], 7)),
        *(("x", value) for value in ([[10**400], [1]], [[1], [2, 3]], [[None], [1]], "ab")),
    ],
    ids=str,
)
def test_hostile_files_of_leaf_are_refused_by_name(key, value, tmp_path):
    mine = {"x": [[1.0], [2.0]], "y": [0, 1]}
    tree = {"users": ["one"], "user_data": {"one": mine}}
    (tmp_path / "all_data.json").write_text(json.dumps(tree))
    assert len(load(tmp_path).y) == 2

    mine[key] = value
    (tmp_path / "all_data.json").write_text(json.dumps(tree))
    with pytest.raises(DataError, match=tmp_path.name):
        load(tmp_path)
