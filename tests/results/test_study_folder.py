import pytest

from flbench.core.errors import DataError, UserError
from flbench.results import study_folder
from tests.tuning.studies import begin, trial, write


def test_winner_is_the_best_finished_trial(tmp_path):
    study = begin(tmp_path / "study", "hfcd", "fedavg")
    trial(study, "hfcd", 0, 0.7)
    trial(study, "hfcd", 1, 0.8)
    trial(study, "hfcd", 2, 0.8)  # a tie: the first wins
    trial(study, "hfcd", 3, 0.9, state="stopped")
    trial(study, "hfcd", 4, 0.9, state="failed")
    trial(study, "hfcd", 5, 0.9, state="diverged")
    trial(study, "hfcd", 6, 0.9, state="running", ended=None)
    trial(study, "fedavg", 0, 0.95)

    found = study_folder.read(study)

    assert found.winner("hfcd").index == 1
    assert found.winner("fedavg").index == 0


@pytest.mark.parametrize(
    ("losses", "wanted"),
    [
        ((0.4, 0.3, 0.35, 0.1), 1),
        ((0.4, 0.3, 0.3, 0.1), 1),
        ((None, None, 0.9, 0.1), 2),
        ((None, float("nan"), None, 0.1), 0),
    ],
)
def test_the_loss_and_then_the_number_decide_between_equal_scores(tmp_path, losses, wanted):
    study = begin(tmp_path / "study", "hfcd")
    scores = (0.7, 0.1 + 0.2 + 0.4, 0.7, 0.69)  # two sums that are equal but for rounding
    for index, (score, loss) in enumerate(zip(scores, losses, strict=True)):
        trial(study, "hfcd", index, score, loss=loss)

    found = study_folder.read(study)

    assert found.winner("hfcd").index == wanted


@pytest.mark.parametrize("score", [None, float("nan"), float("-inf"), float("inf")])
def test_trial_without_a_finite_score_never_wins(tmp_path, score):
    study = begin(tmp_path / "study", "hfcd")
    trial(study, "hfcd", 0, score)

    assert study_folder.read(study).trials[0].score is None
    assert study_folder.read(study).winner("hfcd") is None

    trial(study, "hfcd", 1, -3.0)
    assert study_folder.read(study).winner("hfcd").index == 1


def test_study_that_has_just_begun_is_read(tmp_path):
    study = begin(tmp_path / "study", "hfcd", "fedavg")

    found = study_folder.read(study)

    assert found.methods == ("hfcd", "fedavg")
    assert found.trials == ()
    assert not found.is_searched
    assert found.winner("hfcd") is None


def test_trials_stand_by_method_and_number(tmp_path):
    study = begin(tmp_path / "study", "hfcd", "fedavg")
    for method, index in [("fedavg", 1), ("hfcd", 10), ("fedavg", 0), ("hfcd", 9)]:
        trial(study, method, index, 0.5)

    order = [(found.method, found.index) for found in study_folder.read(study).trials]

    assert order == [("hfcd", 9), ("hfcd", 10), ("fedavg", 0), ("fedavg", 1)]


def test_trial_that_is_being_written_is_left_out(tmp_path):
    study = begin(tmp_path / "study", "hfcd")
    trial(study, "hfcd", 0, 0.5)
    (study / "trials" / "hfcd" / "001").mkdir()
    (study / "trials" / "hfcd" / "001" / "trial.json.part").write_text("{")

    assert [found.index for found in study_folder.read(study).trials] == [0]


def test_folder_that_is_not_a_study_is_refused(tmp_path):
    with pytest.raises(UserError, match=r"no study\.json"):
        study_folder.read(tmp_path)
    with pytest.raises(UserError, match="does not exist"):
        study_folder.read(tmp_path / "none")


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"state": "asleep"}, "`state`"),
        ({"score": "good"}, "`score`"),
        ({"method": "fedprox"}, "'fedprox'"),
    ],
)
def test_damaged_trial_is_named(tmp_path, change, said):
    study = begin(tmp_path / "study", "hfcd")
    folder = study / "trials" / "hfcd" / "000"
    write(folder / "trial.json", trial(study, "hfcd", 0, 0.5) | change)

    with pytest.raises(DataError, match=said) as caught:
        study_folder.read(study)

    assert str(folder) in str(caught.value)


def test_damaged_files_are_named(tmp_path):
    study = begin(tmp_path / "study", "hfcd")
    file = study / "trials" / "hfcd" / "000" / "trial.json"
    write(file, [])
    with pytest.raises(DataError, match=str(file)):
        study_folder.read(study)
    file.write_text("{")
    with pytest.raises(DataError, match=str(file)):
        study_folder.read(study)
    (study / "study.json").write_text('{"id": "x"}')
    with pytest.raises(DataError, match=r"study\.json"):
        study_folder.read(study)
