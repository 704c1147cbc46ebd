import sys

import numpy as np
import pytest

from flbench.config.schema import DataConfig
from flbench.core.errors import DataError
from flbench.data import sources


def test_saved_data_set_is_read_with_its_columns(tmp_path):
    datasets = pytest.importorskip("datasets")
    rows = {
        "input_ids": [[1, 2], [3], [4, 5, 6], [1]],
        "label": [0, 1, 0, 1],
        "who": ["a", "a", "b", "b"],
    }
    datasets.Dataset.from_dict(rows).save_to_disk(tmp_path / "mine")
    config = DataConfig(name=f"hf:{tmp_path / 'mine'}", client="who", padding=0)

    data = sources.load(config)

    assert config.title == data.name == "mine"
    assert data.x.tolist() == [[1, 2, 0], [3, 0, 0], [4, 5, 6], [1, 0, 0]]
    assert data.group_names == ("a", "b")
    assert np.array_equal(data.y, rows["label"])
    with pytest.raises(DataError, match=r"cannot be loaded by `datasets`"):
        sources.load(DataConfig(name=f"hf:{tmp_path / 'missing'}"))


def test_missing_package_is_named_with_the_extra(monkeypatch):
    monkeypatch.setitem(sys.modules, "datasets", None)

    with pytest.raises(DataError, match=r"flbench\[hf\]"):
        sources.load(DataConfig(name="hf:imdb"))


def test_column_of_clients_is_for_hugging_face():
    with pytest.raises(DataError, match="Did you mean `folder`"):
        sources.load(DataConfig(client="foldr"))
