import pytest
from scipy import stats

from flbench.reports.statistics import holm
from flbench.results import study_folder
from flbench.tuning.comparison import pairs, tunings
from tests.tuning.studies import begin, final, trial

TEST = {
    "hfcd": {"default": [0.70, 0.72, 0.75], "tuned": [0.80, 0.81, 0.86]},
    "fedavg": {"default": [0.60, 0.62, 0.66], "tuned": [0.61, 0.60, 0.68]},
    "fedprox": {"default": [0.50, 0.52, 0.53], "tuned": [0.79, 0.83, 0.84]},
}


@pytest.fixture
def study(tmp_path, finished_run):
    folder = begin(tmp_path / "study", *TEST)
    for method, variants in TEST.items():
        trial(folder, method, 0, 0.65)
        trial(folder, method, 1, 0.75)
        for variant, values in variants.items():
            for seed, value in enumerate(values, start=1):
                final(folder, finished_run, method, variant, seed, {"accuracy": value})
    return folder


def test_gain_is_compared_seed_by_seed(study):
    found = {tuning.method: tuning for tuning in tunings(study_folder.read(study))}

    for method, values in TEST.items():
        expected = stats.ttest_rel(values["tuned"], values["default"])
        assert found[method].gain.p == pytest.approx(expected.pvalue)
        assert found[method].verdict == (
            "better" if expected.pvalue < 0.05 else "no significant difference"
        )
        assert found[method].sides["tuned"].search == 0.75
        assert found[method].sides["default"].search == 0.65
        assert found[method].sides["default"].seeds == (1, 2, 3)
    assert {found[method].verdict for method in TEST} == {"better", "no significant difference"}


def test_pairs_are_corrected_together(study):
    found = pairs(study_folder.read(study))

    tuned = {method: values["tuned"] for method, values in TEST.items()}
    expected = [stats.ttest_rel(tuned[pair.first], tuned[pair.second]).pvalue for pair in found]
    assert [(pair.first, pair.second) for pair in found] == [
        ("hfcd", "fedavg"),
        ("hfcd", "fedprox"),
        ("fedavg", "fedprox"),
    ]
    assert [pair.gap.p for pair in found] == pytest.approx(expected)
    assert [pair.p for pair in found] == pytest.approx(holm(expected))
    assert found[0].gap.sample.mean == pytest.approx((0.19 + 0.21 + 0.18) / 3)


def test_cost_is_the_mean_of_the_final_trainings(study):
    [tuning, *_] = tunings(study_folder.read(study))

    runs = [
        final.run.summary for final in study_folder.read(study).finals_of("hfcd", "tuned").values()
    ]
    price = tuning.sides["tuned"].costs
    assert price["up_bytes"] == pytest.approx(
        sum(run["communication"]["up_bytes"] for run in runs) / 3
    )
    assert price["trainings"] == runs[0]["client_trainings"]


def test_defaults_that_won_are_not_compared_with_themselves(tmp_path, finished_run):
    folder = begin(tmp_path / "study", "hfcd", trials=2)
    trial(folder, "hfcd", 0, 0.9)
    trial(folder, "hfcd", 1, 0.8)
    for seed in (1, 2, 3):
        final(folder, finished_run, "hfcd", "default", seed, {"accuracy": seed / 10})

    [tuning] = tunings(study_folder.read(folder))

    assert (tuning.won, tuning.gain, tuning.verdict) == (0, None, None)
    assert tuning.sides["tuned"].test["accuracy"].mean == pytest.approx(0.2)


def test_score_of_a_stopped_default_trial_is_not_compared(tmp_path):
    """Its score is that of an earlier round."""
    folder = begin(tmp_path / "study", "hfcd")
    trial(folder, "hfcd", 0, 0.4, state="stopped", round=1)

    [tuning] = tunings(study_folder.read(folder))

    assert tuning.sides["default"].search is None
    assert tuning.won is None
