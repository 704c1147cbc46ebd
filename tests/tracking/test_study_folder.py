"""A study whose files are damaged, as the mirror reads it."""

import json

import pytest

from flbench.tracking.tree import tree
from tests.support import run
from tests.tracking import study as made
from tests.tuning.studies import write

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    runs = {"fedavg": run(tmp_path_factory.mktemp("runs"), "algorithm=fedavg", "train.rounds=1")[0]}
    return made.make(tmp_path_factory.mktemp("studies"), runs, cells=False)


@pytest.mark.parametrize(
    ("key", "value"),
    [
        *[("state", None), ("params", 3), ("started", "yesterday"), ("ended", "now")],
    ],
)
def test_invalid_trial_json_is_an_error_and_the_other_trials_are_read(path, key, value):
    file = path / "trials" / "fedavg" / "001" / "trial.json"
    text = file.read_text()
    kept = {name: one for name, one in json.loads(text).items() if name != key}
    write(file, kept | ({key: value} if value else {}))

    nodes, [error], _ = tree(path, "unknown")

    file.write_text(text)
    names = [node.name for node in nodes if node.kind == "trial"]
    assert names == ["fedavg 000", "fedavg 002", "fedavg 003"]
    assert str(error).startswith(f"{file} is damaged (")


def test_method_with_fewer_trials_than_the_study_is_finished_when_these_have_ended(tmp_path):
    """Searches of equal steps have different numbers of trials; the tuned one has its method's."""
    runs = {"fedavg": run(tmp_path, "algorithm=fedavg", "train.rounds=1")[0]}
    study = made.make(tmp_path, runs)
    about = json.loads((study / "study.json").read_text())
    about["methods"]["fedavg"]["trials"] = len(made.TRIALS)
    write(study / "study.json", about | {"trials": 2 * len(made.TRIALS)})

    nodes, errors, _ = tree(study, "RUNNING")

    assert not errors
    found = {node.name: node for node in nodes if node.kind == "method"}
    assert {name: node.status for name, node in found.items()} == dict.fromkeys(
        ("fedavg", "fedavg tuned"), "FINISHED"
    )
    scores = [point.value for point in found["fedavg tuned"].points if point.name == "score"]
    assert scores == [0.8]
