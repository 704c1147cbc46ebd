"""Studies as they are read, also while they are written."""

import json

import pytest

from flbench.core.errors import DataError, UserError
from flbench.results import study_folder
from tests.tuning.studies import begin, trial, write

NAN, INF = float("nan"), float("inf")


def test_winner_is_the_best_finished_trial(tmp_path):
    study = begin(tmp_path / "study", "hfcd", "fedavg")
    for index, score in enumerate((0.7, 0.8, 0.8)):  # a tie: the first wins
        trial(study, "hfcd", index, score)
    for index, state in enumerate(("stopped", "failed", "diverged", "running"), 3):
        trial(study, "hfcd", index, 0.9, state=state, ended=None)
    trial(study, "fedavg", 10, 0.95)
    trial(study, "fedavg", 9, 0.5)

    found = study_folder.read(study)

    assert found.winner("hfcd").index == 1
    assert found.winner("fedavg").index == 10
    order = [(one.method, one.index) for one in found.trials]
    assert order == [*(("hfcd", k) for k in range(7)), ("fedavg", 9), ("fedavg", 10)]


@pytest.mark.parametrize(
    ("losses", "wanted"),
    [
        ((0.4, 0.3, 0.3, 0.1), 1),
        ((None, None, 0.9, 0.1), 2),
        ((None, NAN, None, 0.1), 0),
    ],
)
def test_the_loss_and_then_the_number_decide_between_equal_scores(tmp_path, losses, wanted):
    study = begin(tmp_path / "study", "hfcd")
    scores = (0.7, 0.1 + 0.2 + 0.4, 0.7, 0.69)  # two sums that are equal but for rounding
    for index, (score, loss) in enumerate(zip(scores, losses, strict=True)):
        trial(study, "hfcd", index, score, loss=loss)

    found = study_folder.read(study)

    assert found.winner("hfcd").index == wanted


@pytest.mark.parametrize("score", [None, NAN, -INF, INF])
def test_trial_without_a_finite_score_never_wins(tmp_path, score):
    study = begin(tmp_path / "study", "hfcd")
    trial(study, "hfcd", 0, score)

    assert study_folder.read(study).trials[0].score is None
    assert study_folder.read(study).winner("hfcd") is None

    trial(study, "hfcd", 1, -3.0)
    assert study_folder.read(study).winner("hfcd").index == 1


def test_study_that_has_just_begun_is_read_without_the_trial_that_is_being_written(tmp_path):
    study = begin(tmp_path / "study", "hfcd", "fedavg")
    (study / "trials" / "hfcd" / "001").mkdir(parents=True)
    (study / "trials" / "hfcd" / "001" / "trial.json.part").write_text("{")

    found = study_folder.read(study)

    assert (found.methods, found.trials, found.is_searched) == (("hfcd", "fedavg"), (), False)
    assert found.winner("hfcd") is None


@pytest.mark.parametrize("name", ["", "none"])
def test_folder_that_is_not_a_study_is_refused(name, tmp_path):
    with pytest.raises(UserError, match=str(tmp_path / name)):
        study_folder.read(tmp_path / name)


@pytest.mark.parametrize(
    ("change", "key"),
    [
        *(({name: None}, name) for name in ("method", "state", "params", "round")),
        *(({name: "good"}, name) for name in ("index", "params", "score", "state")),
        ({"method": "fedprox"}, "fedprox"),
        ({"index": 1}, "001"),
        ("[]", "trial.json"),
        ("{", "trial.json"),
    ],
    ids=str,
)
def test_damaged_trial_is_named(tmp_path, change, key):
    study = begin(tmp_path / "study", "hfcd")
    tree = trial(study, "hfcd", 0, 0.5)
    file = study / "trials" / "hfcd" / "000" / "trial.json"
    if isinstance(change, dict):  # None removes a key
        changed = tree | change
        change = json.dumps({k: v for k, v in changed.items() if v is not None or k not in change})
    file.write_text(change)

    with pytest.raises(DataError, match=key) as caught:
        study_folder.read(study)

    assert str(file) in str(caught.value)


@pytest.mark.parametrize("key", ["id", "created", "metric", "trials", "seeds", "methods"])
def test_header_without_a_key_is_an_error(tmp_path, key):
    file = begin(tmp_path / "study", "hfcd") / "study.json"
    about = json.loads(file.read_text())
    assert tuple(study_folder.read_header(file.parent).methods) == ("hfcd",)
    del about[key]
    write(file, about)

    with pytest.raises(DataError, match=rf"study\.json.*`{key}`"):
        study_folder.read_header(file.parent)
