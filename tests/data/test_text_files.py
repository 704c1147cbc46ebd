"""Texts, one for each client, for the prediction of the next character."""

import numpy as np
import pytest

from flbench.config.schema import DataConfig, PartitionConfig, TextConfig
from flbench.core.errors import ConfigError, DataError
from flbench.data import sources
from flbench.data.dataset import PARTS
from flbench.data.partitioning import make_partition
from flbench.data.text_files import numbers_of

LINES = {"anna": "to be or not to be, that is the question.\n" * 4, "bo": "a\tb c" * 20, "c": "hi"}


def folder(tmp_path, texts=LINES):
    for name, text in texts.items():
        (tmp_path / f"{name}.txt").write_bytes(text.encode())
    return tmp_path


def load(path, **keys):
    return sources.load(DataConfig(path=path, text=TextConfig(**{"window": 6, **keys})))


@pytest.mark.parametrize("stride", [1, 3])
def test_samples_are_windows_and_the_character_after_each(tmp_path, stride):
    data = load(folder(tmp_path), stride=stride)

    found = [
        ("".join(data.tokens[k] for k in row), data.tokens[label])
        for row, label in zip(data.x.tolist(), data.y.tolist(), strict=True)
    ]
    wanted = [
        (text[k : k + 6], text[k + 6])
        for text in (LINES["anna"], LINES["bo"])
        for k in range(0, len(text) - 6, stride)
    ]

    assert found == wanted
    assert data.x.dtype == np.uint8
    assert data.group_names == ("anna", "bo")
    assert {"newline", "space", "tab"} <= set(data.classes)
    assert len(data.notes) == 1  # of a text that is too short


def test_parts_of_a_client_have_no_character_in_common(tmp_path):
    data = load(folder(tmp_path))
    parts = make_partition(data, PartitionConfig(scheme="natural"), seed=0).parts

    for client in range(2):
        covered = []
        for part in PARTS:
            starts = data.starts[parts[part][client]]
            covered.append({k for start in starts for k in range(start, start + 7)})
        assert all(covered)
        assert sum(map(len, covered)) == len(set().union(*covered))
        length = len(LINES[("anna", "bo")[client]])
        assert len(covered[0]) == pytest.approx(0.6 * length, abs=1)


def test_windows_that_overlap_are_not_distributed_to_several_clients(tmp_path):
    config = PartitionConfig(scheme="iid", clients=2, min_samples=1)

    with pytest.raises(ConfigError, match=r"data\.text\.stride=7"):
        make_partition(load(folder(tmp_path)), config, seed=0)
    assert make_partition(load(folder(tmp_path), stride=7), config, seed=0).clients == 2


def test_texts_that_cannot_be_used_are_refused(tmp_path):
    with pytest.raises(DataError, match=r"bo\.txt: .*'z'"):
        numbers_of("ab\nzb", "\nab", "bo.txt")
    with pytest.raises(DataError, match=r"data\.text\.shortest"):
        load(folder(tmp_path), shortest=500)
    (tmp_path / "a.txt").write_bytes(b"abc\xff")
    with pytest.raises(DataError, match=r"a\.txt"):
        load(tmp_path)
    np.savez(tmp_path / "x.npz", train_images=np.eye(4), train_labels=[0, 1, 0, 1])
    with pytest.raises(DataError, match=r"data\.text"):
        load(tmp_path / "x.npz")
