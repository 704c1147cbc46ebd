"""Series and sequences of tokens: what is read as such, from NPZ files and objects."""

import pickle
from types import MappingProxyType, SimpleNamespace

import numpy as np
import pandas as pd
import pytest
import torch

import flbench as fl
from flbench.config.schema import ArraysConfig, DataConfig, PartitionConfig
from flbench.core.errors import DataError
from flbench.core.shapes import TokenShape
from flbench.data import sources
from flbench.data.federation import build
from flbench.data.partition_files import data_hash

LABELS = np.arange(40) % 2
TOKENS = np.random.default_rng(0).integers(0, 9, size=(40, 6))
SERIES = np.random.default_rng(0).normal(size=(40, 3, 10)) * [[[1], [5], [9]]] + [[[2], [0], [7]]]
IID = PartitionConfig(scheme="iid", clients=2)


def npz(tmp_path, **arrays):
    path = tmp_path / "x.npz"
    np.savez(path, **{"train_images": TOKENS, "train_labels": LABELS, **arrays})
    return path


def load(path, **keys):
    return sources.load(DataConfig(path=path, **keys))


def test_integers_reach_the_net_as_int64_and_are_not_normalized(tmp_path):
    made = build(load(npz(tmp_path), padding=8), DataConfig(), IID, 0)

    x = made.inputs(np.arange(40), torch.float32)

    assert x.dtype == torch.int64
    assert torch.equal(x, torch.from_numpy(TOKENS))
    assert (made.shape, made.shape.vocabulary, made.shape.padding) == ((6,), 9, 8)
    assert made.x.dtype == torch.uint8  # a byte for each token


def test_series_are_normalized_per_channel(tmp_path):
    path = npz(tmp_path, train_images=SERIES)
    made = build(load(path, kind="series"), DataConfig(), IID, 0)
    train = np.sort(np.concatenate(made.partition.parts["train"]))

    x = made.inputs(train, torch.float64)

    assert x.shape == (len(train), 3, 10)
    torch.testing.assert_close(x.mean((0, 2)), torch.zeros(3, dtype=x.dtype), atol=1e-5, rtol=0)
    ones = torch.ones(3, dtype=x.dtype)
    torch.testing.assert_close(x.std((0, 2), correction=0), ones, atol=1e-5, rtol=0)


def test_layout_says_where_the_channels_of_series_are(tmp_path):
    first = load(npz(tmp_path, train_images=SERIES), layout="channels_first")
    last = load(npz(tmp_path, train_images=np.swapaxes(SERIES, 1, 2)), layout="channels_last")

    assert first.kind == last.kind == "series"
    assert np.array_equal(first.x, last.x)
    assert load(npz(tmp_path, train_images=SERIES)).kind == "images"  # as before the key


def test_arrays_have_the_names_that_the_file_gives_them(tmp_path):
    path = tmp_path / "har.npz"
    who = np.repeat(["a", "b"], 20)
    np.savez(path, windows=SERIES.astype(np.float16), labels=LABELS, subject=who, other=LABELS)
    names = ArraysConfig(samples="windows", labels="labels", clients="subject")

    data = load(path, kind="series", arrays=names)

    assert (data.kind, data.x.dtype, data.group_names) == ("series", np.float32, ("a", "b"))
    wrong = names.altered(clients="subjekt")
    with pytest.raises(DataError, match=r"no array `subjekt`.*data\.arrays.*`subject`"):
        load(path, kind="series", arrays=wrong)


@pytest.mark.parametrize(
    ("arrays", "keys", "said"),
    [
        ({"vocabulary": 5}, {}, r"row \d+ .* token [5-8] at position \d.*ids 0 to 4"),
        ({"train_images": TOKENS - 3}, {}, r"row \d+ .* token -\d"),
        ({}, {"padding": 20, "kind": "tokens"}, None),
        ({"vocabulary": 9}, {"padding": 20}, "`data.padding=20` is not a token id"),
        ({"vocabulary": np.zeros((2, 2))}, {}, "`vocabulary` must be"),
        ({"train_images": SERIES, "vocabulary": 9}, {}, "`vocabulary`"),
        ({"train_images": SERIES}, {"padding": 0}, "`data.padding` is for"),
        ({"train_images": SERIES}, {"kind": "tokens"}, r"train_images.*\[n, length\] in integers"),
        ({}, {"kind": "series"}, None),
        ({}, {"augment": ("flip",)}, "`data.augment` is for .* tokens"),
        ({}, {"layout": "channels_last"}, "`data.layout`=channels_last"),
        (
            {"train_images": np.zeros((40, 8, 8), np.uint8)},
            {"layout": "channels_first"},
            "without an axis of channels.*data.kind=series",
        ),
    ],
)
def test_wrong_tokens_and_kinds_are_refused_with_place_and_cure(tmp_path, arrays, keys, said):
    path = npz(tmp_path, **arrays)
    if said is None:
        assert load(path, **keys).kind == keys["kind"]
        return
    with pytest.raises(DataError, match=said):
        load(path, **keys)


def test_tokens_are_never_normalized_by_numbers(tmp_path):
    with pytest.raises(DataError, match=r"`data\.normalize` is for numbers"):
        build(load(npz(tmp_path)), DataConfig(normalize={"mean": (0,), "std": (1,)}), IID, 0)


def test_objects_of_python_give_the_same_tokens_and_a_table_on_request():
    ragged = [row[: 1 + k % 6].tolist() for k, row in enumerate(TOKENS)]
    wanted = fl.Data(ragged, LABELS, padding=9)
    frame = pd.DataFrame({"tokens": ragged, "who": np.repeat(["a", "b"], 20), "label": LABELS})
    pairs = [(torch.tensor(row), int(k)) for row, k in zip(ragged, LABELS, strict=True)]

    found = [
        fl.Data(frame, client="who", padding=9),
        fl.Data(list_dataset(pairs), padding=9),
        fl.Data(fake_hugging_face(frame), client="who", padding=9),
    ]

    for data in found:
        assert np.array_equal(data.dataset.x, wanted.dataset.x)
        assert (data.dataset.vocabulary, data.dataset.padding) == (10, 9)
        assert np.array_equal(data.dataset.y, LABELS)
    assert found[0].dataset.group_names == found[2].dataset.group_names == ("a", "b")
    assert wanted.section()["padding"] == 9
    assert fl.Data(TOKENS, LABELS, kind="table").dataset.is_table
    with pytest.raises(DataError, match="`padding`"):
        fl.Data(list_dataset(pairs))
    with pytest.raises(DataError, match="`kind`"):
        fl.Data(SERIES, LABELS, kind="Series")


def test_vocabulary_counts_for_the_hash_of_the_data():
    hashes = {
        data_hash(fl.Data(TOKENS, LABELS, vocabulary=size, padding=padding).dataset)
        for size, padding in ((9, None), (10, None), (9, 0))
    }

    assert len(hashes) == 3


def test_shape_of_tokens_is_a_tuple_that_copies_keep():
    shape = TokenShape(7, 20, 3)
    other = pickle.loads(pickle.dumps(shape))

    assert shape == other == (7,)
    assert (other.vocabulary, other.padding) == (20, 3)


def list_dataset(pairs):
    return SimpleDataset(pairs)


class SimpleDataset(torch.utils.data.Dataset):
    def __init__(self, pairs):
        self.pairs = pairs

    def __len__(self):
        return len(self.pairs)

    def __getitem__(self, k):
        return self.pairs[k]


def fake_hugging_face(frame):
    """Return an object with the part of `datasets.Dataset` that is read."""

    class Columns:
        column_names = ("who", "input_ids", "label")
        features = MappingProxyType({"label": SimpleNamespace(names=None)})

        def __len__(self):
            return len(frame)

        def __getitem__(self, rows):
            part = frame.rename(columns={"tokens": "input_ids"})[rows]
            return {name: part[name].tolist() for name in self.column_names}

    return Columns()
