"""Series and sequences of tokens: what is read as such, from NPZ files and objects."""

import pickle

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
from tests.api.test_own_data import HuggingFace

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
    with pytest.raises(DataError, match="subjekt"):
        load(path, kind="series", arrays=wrong)


@pytest.mark.parametrize(
    ("arrays", "keys", "named"),
    [
        ({"vocabulary": 5}, {}, r"row \d+ "),
        ({"train_images": TOKENS - 3}, {}, r"row \d+ "),
        ({"vocabulary": 9}, {"padding": 20}, r"data\.padding"),
        ({"vocabulary": np.zeros((2, 2))}, {}, "vocabulary"),
        ({"train_images": SERIES, "vocabulary": 9}, {}, "vocabulary"),
        ({"train_images": SERIES}, {"padding": 0}, r"data\.padding"),
        ({"train_images": SERIES}, {"kind": "tokens"}, "train_images"),
        ({}, {"augment": ("flip",)}, r"data\.augment"),
        ({}, {"layout": "channels_last"}, r"data\.layout"),
    ],
)
def test_wrong_tokens_and_kinds_are_refused_by_key(tmp_path, arrays, keys, named):
    with pytest.raises(DataError, match=named):
        load(npz(tmp_path, **arrays), **keys)


def test_the_kind_of_integers_can_be_given(tmp_path):
    assert load(npz(tmp_path), padding=20, kind="tokens").kind == "tokens"
    assert load(npz(tmp_path), kind="series").kind == "series"
    with pytest.raises(DataError, match=r"data\.normalize"):
        build(load(npz(tmp_path)), DataConfig(normalize={"mean": (0,), "std": (1,)}), IID, 0)


def test_objects_of_python_give_the_same_tokens_and_a_table_on_request():
    ragged = [row[: 1 + k % 6].tolist() for k, row in enumerate(TOKENS)]
    wanted = fl.Data(ragged, LABELS, padding=9)
    frame = pd.DataFrame({"tokens": ragged, "who": np.repeat(["a", "b"], 20), "label": LABELS})
    pairs = [(torch.tensor(row), int(k)) for row, k in zip(ragged, LABELS, strict=True)]

    found = [
        fl.Data(frame, client="who", padding=9),
        fl.Data(SimpleDataset(pairs), padding=9),
        fl.Data(HuggingFace({"input_ids": ragged, "label": LABELS.tolist()}), padding=9),
    ]

    for data in found:
        assert np.array_equal(data.dataset.x, wanted.dataset.x)
        assert (data.dataset.vocabulary, data.dataset.padding) == (10, 9)
        assert np.array_equal(data.dataset.y, LABELS)
    assert found[0].dataset.group_names == ("a", "b")
    assert wanted.section()["padding"] == 9
    assert fl.Data(TOKENS, LABELS, kind="table").dataset.is_table
    with pytest.raises(DataError, match="`padding`"):
        fl.Data(SimpleDataset(pairs))
    with pytest.raises(DataError, match="`kind`"):
        fl.Data(SERIES, LABELS, kind="Series")


def test_vocabulary_counts_for_the_hash_of_the_data_and_copies_keep_it():
    hashes = {
        data_hash(fl.Data(TOKENS, LABELS, vocabulary=size, padding=padding).dataset)
        for size, padding in ((9, None), (10, None), (9, 0))
    }
    other = pickle.loads(pickle.dumps(TokenShape(7, 20, 3)))

    assert len(hashes) == 3
    assert (other, other.vocabulary, other.padding) == ((7,), 20, 3)


class SimpleDataset(torch.utils.data.Dataset):
    def __init__(self, pairs):
        self.pairs = pairs

    def __len__(self):
        return len(self.pairs)

    def __getitem__(self, k):
        return self.pairs[k]
