"""A study whose files are damaged, or that has other numbers of trials, as the mirror reads it."""

import json
import shutil

import pytest

from flbench.tracking.tree import tree
from tests.support import run
from tests.tracking import study as made

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    runs = {"fedavg": run(tmp_path_factory.mktemp("runs"), "algorithm=fedavg", "train.rounds=1")[0]}
    return made.make(tmp_path_factory.mktemp("studies"), runs)


def test_invalid_trial_json_is_an_error_and_the_other_trials_are_read(path):
    file = path / "trials" / "fedavg" / "001" / "trial.json"
    text = file.read_text()
    for change in ({"params": 3}, {"state": None}, {"started": "yesterday"}, {"ended": "now"}):
        made.edit(file, **change)

        nodes, [error], _ = tree(path, "unknown")

        file.write_text(text)
        names = [node.name for node in nodes if node.kind == "trial"]
        assert names == ["fedavg 000", "fedavg 002", "fedavg 003"]
        assert str(file) in str(error)


def test_method_with_fewer_trials_than_the_study_is_finished_when_these_have_ended(path, tmp_path):
    """Searches of equal steps have different numbers of trials; the tuned one has its method's."""
    path = shutil.copytree(path, tmp_path / "study")
    about = json.loads((path / "study.json").read_text())
    about["methods"]["fedavg"]["trials"] = len(made.TRIALS)
    made.edit(path / "study.json", methods=about["methods"], trials=2 * len(made.TRIALS))

    nodes, errors, _ = tree(path, "RUNNING")

    assert not errors
    found = {node.name: node for node in nodes if node.kind == "method"}
    assert {name: node.status for name, node in found.items()} == dict.fromkeys(
        ("fedavg", "fedavg tuned"), "FINISHED"
    )
    scores = [point.value for point in found["fedavg tuned"].points if point.name == "score"]
    assert scores == [0.8]
