"""Which space a method gets: its own file, a folder's, the built-in one."""

import tomllib
from pathlib import Path

import pytest

from flbench.config.sources import read_file
from flbench.core.errors import ConfigError
from flbench.tuning import library
from flbench.tuning.reading import parse
from tests.tuning.support import space_file

ROOT = Path(__file__).resolve().parents[2]
LR = "train.optimizer.lr: {loguniform: [0.01, 0.2]}"


def test_file_is_for_the_method_that_it_names_and_others_take_the_built_in_one(tmp_path):
    path = space_file(tmp_path, LR)

    spaces = library.load(["fedavg", "hfcd"], path, rounds=10)

    assert list(spaces) == ["fedavg", "hfcd"]
    assert (spaces["fedavg"].source, spaces["hfcd"].source) == ("built in", str(path))
    assert spaces["hfcd"].parameters["train.optimizer.lr"].place == f"{path}:3"


def test_file_for_a_method_that_is_not_searched_is_refused(tmp_path):
    with pytest.raises(
        ConfigError,
        match=r"s.yaml` has a search space for hfcd, and the study searches fedavg",
    ):
        library.load(["fedavg"], space_file(tmp_path, LR), rounds=10)


def test_folder_may_hold_some_of_the_methods(tmp_path):
    space_file(tmp_path, LR, name="hfcd.yaml")

    spaces = library.load(["hfcd", "fedavg"], tmp_path, rounds=10)

    assert spaces["hfcd"].source == str(tmp_path / "hfcd.yaml")
    assert spaces["fedavg"] == library.built_in("fedavg", rounds=10)


def test_file_of_a_folder_must_be_of_its_method(tmp_path):
    space_file(tmp_path, LR, method="fedavg", name="hfcd.yaml")

    with pytest.raises(ConfigError, match="is for the method `fedavg`, not for `hfcd`"):
        library.load(["hfcd"], tmp_path, rounds=10)


def test_tune_is_the_folder_of_the_package_and_is_installed():
    patterns = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]
    package = ROOT / "flbench"
    packed = {file for p in patterns["package-data"]["flbench"] for file in package.glob(p)}

    assert (ROOT / "tune").samefile(library.FOLDER)
    assert set(library.FOLDER.iterdir()) <= packed


def test_example_of_the_how_to_is_a_space(tmp_path):
    text = (library.FOLDER / "README.md").read_text()
    path = tmp_path / "example.yaml"
    path.write_text(text.split("```yaml\n")[1].split("```")[0])

    space = parse(*read_file(path), str(path))

    assert "algorithm.agg_weights" in space.parameters
