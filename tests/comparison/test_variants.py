"""Variants of methods with names that the user gives, in the design and in the report."""

import json
import tarfile
from pathlib import Path

import pytest

import flbench as fl
from flbench.api.comparing import methods_of
from flbench.comparison.design import Design
from flbench.comparison.folder import ComparisonFolder, read_cells, read_design
from flbench.config.resolve import resolve
from flbench.config.sources import from_values
from flbench.core.errors import ConfigError
from tests.comparison.made import run_folder

DICTS = [
    {"label": "short", "name": "hfcd", "tau": 0.1, "train.optimizer.lr": 0.02},
    {"name": "hfcd", "tau": 2},
    "fedavg",
]
TEXTS = ["short: hfcd tau=0.1 train.optimizer.lr=0.02", "hfcd tau=2", "fedavg"]
SCORES = {"short": (0.8, 0.81, 0.83), "hfcd tau=2": (0.7, 0.71, 0.72), "fedavg": (0.6, 0.62, 0.61)}


def design_of(methods) -> Design:
    shared = from_values({"algorithm.contrast": False, "train.rounds": 3}, "test")
    return Design.of(methods_of(methods, "test"), [shared], seeds=3)


@pytest.mark.parametrize("methods", [DICTS, TEXTS, ", ".join(TEXTS)], ids=["dicts", "list", "text"])
def test_texts_and_dicts_name_the_same_variants(methods):
    design = design_of(methods)
    assert [(one.label, one.own) for one in design.methods] == [
        ("short", True),
        ("hfcd tau=2", False),
        ("fedavg", False),
    ]
    cells = {cell.method: cell.config for cell in design.cells() if not cell.repetition}
    assert [cells[label].algorithm.tau for label in ("short", "hfcd tau=2")] == [0.1, 2]
    assert [cells[label].train.optimizer.lr for label in cells] == [0.02, 0.01, 0.01]
    assert not cells["short"].algorithm.contrast  # of the methods that have the key
    assert {config.train.rounds for config in cells.values()} == {3}


def test_what_names_no_method_is_refused():
    for method in ("hfcd tau", "hfcd =1", {"tau": 1}, 3, "a\x1b: hfcd", "nothing: nosuch tau=1"):
        with pytest.raises(ConfigError):
            design_of([method]).cells()


@pytest.fixture(scope="module")
def planned(tmp_path_factory) -> Path:
    """A comparison of these methods without any training."""
    design = design_of(TEXTS)
    folder = ComparisonFolder.create(tmp_path_factory.mktemp("comparisons"), "variants")
    cells = design.cells()
    folder.save(design, cells, command=["flbench"])
    folder.close()
    for cell in cells:
        given = cell.config.algorithm.model_dump()
        own = [f"algorithm.{key}={given[key]}" for key in ("tau", "contrast") if key in given]
        own.append(f"train.optimizer.lr={cell.config.train.optimizer.lr}")
        score = SCORES[cell.method][cell.repetition]
        path, name = folder.run_folder(cell), cell.config.algorithm.name
        run_folder(path, name, score, repetition=cell.repetition, keys=tuple(own))
    return folder.path


def test_beside_other_runs_only_chosen_labels_stand(planned, tmp_path):
    assert list(fl.report(planned).leaderboard["method"]) == list(SCORES)
    run_folder(tmp_path / "other", "hfcd", 0.5, keys=("algorithm.tau=1",))
    methods = set(fl.report([planned, tmp_path / "other"], force=True).leaderboard["method"])
    assert {"short", "fedavg"} < methods
    assert "hfcd tau=2" not in methods  # it differs in another key, too


def test_comparison_json_of_an_archive_is_read():
    """What a first version has written: neither `reference` nor `untuned` nor `own`."""
    file = Path(__file__).parents[2] / "docs" / "board" / "digits-path.tar.xz"
    with tarfile.open(file) as archive:
        markers = [name for name in archive.getnames() if name.endswith("comparison.json")]
        trees = [json.load(archive.extractfile(name)) for name in markers]
    for tree in trees:
        design = Design.model_validate(tree)
        assert [one.label for one in design.methods] == [one["label"] for one in tree["methods"]]
        assert (design.seeds, design.vary, design.reference) == (5, "both", None)
        assert design.base.tree == tree["base"]["tree"]


def test_what_is_written_is_read(planned):
    design, about = read_design(planned)
    assert design == design_of(TEXTS)
    assert about["id"] == planned.name
    assert [cell.own for cell in read_cells(planned)] == [True, False, False] * 3
    config, _ = resolve([design.base, design.methods[0].layer])
    assert config.algorithm.tau == 0.1
