import sys
from types import SimpleNamespace

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
    with pytest.raises(DataError, match=r"data\.name=hf:"):
        sources.load(DataConfig(name=f"hf:{tmp_path / 'missing'}"))


def test_missing_package_is_named_with_the_extra(monkeypatch):
    monkeypatch.setitem(sys.modules, "datasets", None)

    with pytest.raises(DataError, match=r"flbench\[hf\]"):
        sources.load(DataConfig(name="hf:stanfordnlp/imdb"))


@pytest.fixture
def asked(monkeypatch):
    """What the package `datasets` is asked for; a stand-in refuses all of it."""
    names = []

    def refuse(name):
        names.append(name)
        raise ValueError("no such data set")

    fake = SimpleNamespace(load_dataset=refuse, load_from_disk=refuse)
    monkeypatch.setitem(sys.modules, "datasets", fake)
    return names


@pytest.mark.parametrize("name", ["pandas", "csv", "", "../pandas", "./pandas", "a/b/c", "/a"])
def test_readers_of_the_package_are_no_data_sets(name, asked, tmp_path, monkeypatch):
    """`datasets.load_dataset("pandas")` unpickles the files of the current folder."""
    monkeypatch.chdir(tmp_path)

    with pytest.raises(DataError, match=r"data\.name"):
        sources.load(DataConfig(name=f"hf:{name}"))
    assert asked == []


def test_names_of_the_hub_and_folders_are_data_sets(asked, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "pandas").mkdir()
    (tmp_path / "saved").mkdir()
    (tmp_path / "saved" / "state.json").touch()

    for name in ("ylecun/mnist", "pandas", "saved"):
        with pytest.raises(DataError, match="no such data set"):
            sources.load(DataConfig(name=f"hf:{name}"))
    assert asked == ["ylecun/mnist", str(tmp_path / "pandas"), "saved"]
