"""Data of the user's own as objects, and by import path."""

import numpy as np
import pandas as pd
import pytest
import torch
from PIL import Image
from scipy import sparse
from torch.utils.data import Dataset, IterableDataset, TensorDataset

import flbench as fl
from flbench.config.schema import DataConfig
from flbench.core.errors import DataError
from flbench.data import npz_files, tables, unlabelled
from flbench.data.folders import Folder
from flbench.data.partition_files import data_hash
from tests.api import own_parts
from tests.api.own_parts import arrays

FEW = fl.Dirichlet(alpha=1.0, clients=3)
X, Y = arrays()


def short(out, data, **keys):
    """A run of one round."""
    keys = {"partition": FEW, "train": {"rounds": 1}, "engine": {"threads": 1}, **keys}
    return fl.run("fedavg", data=data, output={"dir": out}, progress=False, **keys)


class Pairs(Dataset):
    """A map-style data set of given pairs."""

    def __init__(self, pairs):
        self.pairs = pairs

    def __len__(self):
        return len(self.pairs)

    def __getitem__(self, k):
        return self.pairs[k]


class Stream(IterableDataset):
    """A data set without items by number."""

    def __iter__(self):
        return iter([(X[0], 0)])


class Label:
    """As `datasets.ClassLabel`."""

    names = ("zero", "one")


class HuggingFace:
    """As `datasets.Dataset`: columns, features, slices as dicts of lists, and pandas."""

    def __init__(self, columns, **features):
        self.columns = columns
        self.column_names = list(columns)
        self.features = features

    def __len__(self):
        return len(next(iter(self.columns.values())))

    def __getitem__(self, rows):
        return {name: values[rows] for name, values in self.columns.items()}

    def to_pandas(self):
        return pd.DataFrame(self.columns)


@pytest.mark.slow
def test_arrays_are_the_npz_file_of_the_same_arrays(tmp_path):
    path = tmp_path / "data.npz"
    np.savez(path, train_images=X, train_labels=Y, test_images=X[:9], test_labels=Y[:9])
    data = fl.Data(X, Y, test=(X[:9], Y[:9]))

    by_object = short(tmp_path, data)
    by_file = short(tmp_path, path)

    assert by_object.digest == by_file.digest
    assert by_object.partition.hash == by_file.partition.hash
    assert by_object.config.data.source == "object"
    assert by_object.config.data.sha256 == data_hash(npz_files.read(path, DataConfig(path=path)))


def test_forms_of_the_same_samples():
    rows = [torch.from_numpy(row).float().requires_grad_() for row in X[:6, 0]]
    forms = [
        fl.Data(torch.from_numpy(X), torch.from_numpy(Y)),
        fl.Data({"train_images": X, "train_labels": Y}),
        fl.Data(TensorDataset(torch.from_numpy(X)[:, None], torch.from_numpy(Y))),
        fl.Data(Pairs([(Image.fromarray(x), int(y)) for x, y in zip(X, Y, strict=True)])),
        fl.Data(np.ma.masked_less(X, 0), Y),
    ]
    assert {data_hash(form.dataset) for form in forms} == {data_hash(fl.Data(X, Y).dataset)}
    floats = [
        fl.Data(rows, [0, 1] * 3),
        fl.Data(torch.stack(rows), [0, 1] * 3),
        fl.Data(Pairs([(row, k % 2) for k, row in enumerate(rows)])),
    ]
    expected = fl.Data(X[:6, 0].astype(np.float32), [0, 1] * 3).dataset
    assert {data_hash(form.dataset) for form in floats} == {data_hash(expected)}


@pytest.mark.parametrize("shape", [(4, 6, 5, 3), (4, 3, 6, 5), (4, 6, 5, 1)])
def test_a_tensor_is_read_as_the_array_of_its_numbers(shape):
    x, y = np.random.default_rng(0).random(shape).astype(np.float32), [0, 1, 0, 1]
    expected, tensor = fl.Data(x, y).dataset.x, torch.from_numpy(x)

    pairs = TensorDataset(tensor, torch.tensor(y))
    for found in (fl.Data(tensor, y), fl.Data(pairs), fl.Data((tensor, y), test=(tensor, y))):
        assert np.array_equal(found.dataset.x[:4], expected)


@pytest.mark.parametrize("factor", [255, 1 / 255])
def test_a_test_part_in_other_units_is_refused(factor):
    x, y = np.random.default_rng(0).random((6, 4, 4)), [0, 1] * 3
    assert len(fl.Data(x, y, test=(1.2 * x - 0.1, y)).dataset.x) == 12
    with pytest.raises(fl.DataError, match="`test_images`"):
        fl.Data(x, y, test=(factor * x, y))


def test_tensors_and_layout_say_where_channels_are():
    x = np.arange(2 * 3 * 5 * 3, dtype=np.float32).reshape(2, 3, 5, 3)

    assert fl.Data(torch.from_numpy(x), [0, 1]).dataset.x.shape == (2, 3, 5, 3)
    assert fl.Data(x, [0, 1], layout="channels_last").dataset.x.shape == (2, 3, 3, 5)
    with pytest.raises(fl.DataError, match=r"data\.layout"):
        fl.Data(x, [0, 1])


def test_names_of_clients_and_classes():
    data = fl.Data(X[:4], ["b", "a", "b", "a"], clients=["north", "south", "north", "south"])

    assert data.dataset.classes == ("a", "b")
    assert data.dataset.y.tolist() == [1, 0, 1, 0]
    assert data.dataset.group_names == ("north", "south")
    assert data.dataset.groups.tolist() == [0, 1, 0, 1]
    for names in (["cat", "dog"], {1: "dog", 0: "cat"}, {"dog": 1, "cat": 0}):
        assert fl.Data(X[:2], [0, 1], classes=names).dataset.classes == ("cat", "dog")


def test_frame_is_the_csv_files_of_the_same_tables(tmp_path):
    frame = pd.DataFrame(
        {
            "age": [31.5, None, 40, 52, 8, 9],
            "sick": ["no", "yes", "no", "yes", "yes", "no"],
            "site": ["x", "x", "y", "y", "y", "x"],
            "sex": ["f", "m", "f", "f", "m", "f"],
        }
    )
    for site, part in frame.groupby("site"):
        part.drop(columns="site").to_csv(tmp_path / f"{site}.csv", index=False)
    expected = tables.read(Folder(tmp_path), DataConfig(label="sick"))
    found = fl.Data(frame, label="sick", client="site").dataset

    assert data_hash(found) == data_hash(expected)
    assert found.groups.tolist() == expected.groups.tolist()
    assert (found.group_names, found.classes) == (expected.group_names, expected.classes)
    assert fl.Data(frame, label="sick").dataset.groups is None


def test_hugging_face():
    images = [Image.fromarray(x) for x in X[:6]]
    train = HuggingFace(
        {"image": images, "label": [0, 1] * 3, "who": list("aabbcc")}, label=Label()
    )
    found = fl.Data({"train": train, "test": train}, client="who").dataset

    assert (found.train, len(found.y), found.classes) == (6, 12, ("zero", "one"))
    assert np.array_equal(found.x[:6, 0], X[:6])
    assert found.group_names == ("a", "b", "c")
    assert found.groups.tolist() == [0, 0, 1, 1, 2, 2] + [-1] * 6
    table = HuggingFace({"y": [0, 1, 1], "a": [1.0, 2.0, 3.0], "b": [0.5, 0.25, 0.0]})
    assert fl.Data(table).dataset.columns == ("a", "b")


ROWS = pd.DataFrame({"c": [*"rrss"], "b": [0.5, 1.5, 2.5, 3.5], "a": [0, 1, 0, 1]})
FRAME = pd.DataFrame({0: list("aabb") * 3, 1: np.linspace(0, 1, 12), 2: [0, 1, 2] * 4})
WRONG = [
    ("labels", lambda: fl.Data(X)),
    ("300 .* 5", lambda: fl.Data(X, Y[:5])),
    ("'images'", lambda: fl.Data({"images": X})),
    ("item 0", lambda: fl.Data(Pairs([X[0], X[1]]))),
    ("labels", lambda: fl.Data(Stream())),
    ("`layout`", lambda: fl.Data(X, Y, layout="nchw")),
    ("'label'", lambda: fl.Data(X, Y, label="a")),
    ("'c'.*`classes`", lambda: fl.Data(X[:2], ["a", "c"], classes=["a", "b"])),
    ("`classes`", lambda: fl.Data(X[:2], [0, 1], classes={"a", "b"})),
    ("`classes`", lambda: fl.Data(X[:2], [0, 1], classes="ab")),
    ("label.*`c`", lambda: fl.Data(ROWS, label="c", client="c")),
    ("`c`", lambda: fl.Data(pd.DataFrame({"a": [1], "b": [0]}), client="c")),
    ("`train`", lambda: fl.Data({"other": HuggingFace({"x": [1]})})),
    ("'y', 'y'", lambda: fl.Data(FRAME.set_axis(["a", "y", "y"], axis=1), label="y")),
    ("row 2 .*`2`", lambda: fl.Data(FRAME.replace({2: {1: None}}), label=2)),
    ("sample 2", lambda: fl.Data(FRAME.replace({0: {"b": None}}), client=0)),
    ("groups.*sample 0", lambda: fl.Data(X, Y, clients=[None, *Y[1:]])),
    ("sample 2", lambda: fl.Data(X[:4], pd.Series(["a", "b", pd.NA, "b"]))),
    ("labels.*masked", lambda: fl.Data(X, np.ma.masked_equal(Y, Y[1]))),
    ("images.*masked", lambda: fl.Data(np.ma.masked_equal(X, X[0, 0, 0]), Y)),
    ("dense", lambda: fl.Data(torch.rand(4, 3).to_sparse(), [0, 1] * 2)),
    ("object", lambda: fl.Data(sparse.csr_matrix(np.eye(4)), [0, 1] * 2)),
    ("`y`.*index", lambda: fl.Data((ROWS.iloc[::-1], ROWS["a"]))),
    ("`clients`", lambda: fl.Data(ROWS, [0, 1] * 2, clients=ROWS["a"].iloc[[0, 2, 1, 3]])),
    ("row 2 .*`b`", lambda: fl.Data(ROWS.assign(b=[1, np.inf, 3, 4])[["b", "a"]])),
    ("`r`.*`b`", lambda: fl.Data(ROWS.assign(b=[*"xyx", 3]), label="a", client="c")),
]


@pytest.mark.parametrize(("key", "make"), WRONG)
def test_wrong_data_are_refused_by_key_and_place(key, make):
    with pytest.raises(fl.DataError, match=key):
        make()


def test_data_that_come_by_client():
    found = fl.Data.from_clients({"south": (X[:90], Y[:90]), "north": (X[90:], Y[90:])})
    expected = fl.Data(X, Y, clients=["south"] * 90 + ["north"] * 210).dataset

    assert data_hash(found.dataset) == data_hash(expected)
    assert found.dataset.groups.tolist() == expected.groups.tolist()
    assert found.by_client
    assert fl.partition(found, "natural").names == ("north", "south")


FLOATS, FOUR = X[:4] / 255, [0, 1, 0, 1]


@pytest.mark.parametrize(
    ("key", "clients"),
    [
        ("client `a`", {"a": (X[:3], FOUR), "b": (X[:4], FOUR[:3])}),
        ("client `b`", {"a": (X[:4], FOUR), "b": (X[:0], [])}),
        ("shapes", {"a": (X[:4], FOUR), "b": (X[:4, :2], FOUR)}),
        ("client `b`", {"a": (FLOATS, FOUR), "b": (255 * FLOATS, FOUR)}),
        ("pair", {"a": (X[:4], FOUR), "b": X[:4]}),
        ("`y`", {"a": (ROWS[["b"]], ROWS["a"]), "b": (ROWS[["b"]], ROWS["a"][::-1])}),
        ("dict", [(X, Y)]),
        ("dict", {1: (X[:4], FOUR), "1": (X[:4], FOUR)}),
    ],
)
def test_clients_whose_samples_and_labels_do_not_fit_together_are_refused(key, clients):
    with pytest.raises(fl.DataError, match=key):
        fl.Data.from_clients(clients)


def test_clients_may_have_columns_of_whole_numbers_and_other_ranges():
    clients = {"a": ([[1, 2], [3, 4]], [0, 1]), "b": ([[0.5, 2e4], [1.5, 4e4]], [1, 0])}

    assert fl.Data.from_clients(clients).dataset.groups.tolist() == [0, 0, 1, 1]


def test_data_with_another_hash_or_a_function_that_fails_are_refused(tmp_path):
    with pytest.raises(fl.DataError, match="SHA-256"):
        short(tmp_path, fl.Data(X, Y), **{"data.sha256": "0" * 64})
    for failing in ({"source": "tests.api.own_parts:failing"}, lambda: own_parts.failing()):
        with pytest.raises(fl.DataError, match=r"OSError.*own_parts.py"):
            short(tmp_path, failing)


@pytest.mark.slow
def test_columns_of_a_frame_are_predicted_by_their_names(tmp_path):
    names = ["a", "colour", "b"]
    frame = pd.DataFrame({"a": X[:, 2, 2] / 9, "colour": np.array(["red", "blue", None])[Y % 3]})
    frame = frame.assign(id=[f"p{k}" for k in range(len(Y))], b=X[:, 4, 5] / 9, y=Y)
    given = fl.Data(frame, label="y", drop=["id"])
    run = short(tmp_path, given)
    card = run.trained(0).card
    assert (card["input"]["columns"], card["input"]["dropped"]) == (names, ["id"])
    assert card["data_hash"] == data_hash(fl.Data(frame.drop(columns="id"), label="y").dataset)
    wanted = run.predict(given.dataset.x, 0)  # words by their positions

    for columns in (names, names[::-1], ["y", "b", "more", "colour", "a"]):
        other = frame.assign(more="some words").rename(columns={"b": " b "})
        found = run.predict(other[[" b " if one == "b" else one for one in columns]][::-1], 0)
        assert torch.equal(found, wanted.flip(0))
    frame[["b", "y", "colour", "a"]].to_csv(tmp_path / "x.csv", index=False)
    [file] = unlabelled.read(tmp_path / "x.csv", run.trained(0).layout)  # as `flbench predict`
    assert torch.equal(run.predict(file.x, 0), wanted)
    with pytest.warns(UserWarning, match="`colour`"):
        found = run.predict(frame[:1].assign(colour="violet"), 0)
    row = given.dataset.x[:1].copy()
    row[0, 1] = -1
    assert torch.equal(found, run.trained(0).predict(row))
    for wrong in (frame.drop(columns="b"), frame.assign(b="low")):
        with pytest.raises(DataError, match="`b`"):
            run.predict(wrong, 0)


@pytest.mark.slow
def test_columns_of_a_model_of_arrays_are_predicted_by_their_positions(tmp_path):
    x = X[:, 2, :3] / 9
    frame = pd.DataFrame(x, columns=["a", "b", "c"])
    run = short(tmp_path, fl.Data(frame, Y))

    for columns in (["a", "b", "c"], [0, 1, 2]):
        found = run.predict(frame.set_axis(columns, axis="columns"), 0)
        assert torch.equal(found, run.predict(x, 0))
    by_name = frame.set_axis([0, 1, 2], axis="columns")[[2, 0, 1]]
    assert torch.equal(run.predict(by_name, 0), run.predict(x, 0))
    with pytest.raises(DataError, match="`0`"):
        run.predict(frame[["a", "b"]], 0)


def test_columns_with_numbers_as_names():
    data = fl.Data(FRAME, label=2, client=0).dataset

    assert (data.columns, data.classes) == (("1",), ("0", "1", "2"))
    assert data.group_names == ("a", "b")
    named = FRAME.rename(columns=str)
    assert data_hash(fl.Data(named, label="2", client="0").dataset) == data_hash(data)
    blank = fl.Data.from_frame(named.rename(columns={"1": " 1 "}), label="2", client="0")
    assert blank.dataset.columns == ("1",)  # names have no blanks around them
    by_rule = fl.Data(FRAME, label="2 > 0", client=0).dataset
    assert by_rule.y.tolist() == [0, 1, 1, 1, 1, 0, 1, 0, 0, 1, 1, 1]


def test_rows_of_pandas_belong_together_by_position_where_their_indices_differ():
    x, y = ROWS[["b"]].iloc[::-1], ROWS["a"].iloc[::-1]
    expected = fl.Data(x.to_numpy(), y.to_numpy()).dataset

    for labels in (y, y.reset_index(drop=True).set_axis([*"abcd"])):
        assert data_hash(fl.Data(x, labels).dataset) == data_hash(expected)
