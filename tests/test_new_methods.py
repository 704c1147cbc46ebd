"""`benchmarks/new_methods.py`: a search without Ray, and the runs with what it has found."""

import tarfile

import pytest

import flbench as fl
from flbench.results import reading, study_folder
from tests.support import benchmark_script

TINY = {
    "partition.clients": 3,
    "model.name": "logistic",
    "partition.samples": 300,
    "train.rounds": 1,
    "train.local_epochs": 1,
    "evaluation.every": 1,
}


@pytest.fixture(scope="module")
def script():
    """The module of the script."""
    with benchmark_script("new_methods") as module:
        yield module


@pytest.fixture(scope="module")
def trained(script, tmp_path_factory):
    """A folder in which all parts of a setting were trained, for two methods."""
    out = tmp_path_factory.mktemp("new")
    work = script.Work(out, ("local", "feddbe"), TINY, repetitions=1, trials=2)
    names = ("digits-dir05/default", "digits-dir05/tuned", "digits-dir05/study")
    failures = script.train([work.part(name) for name in names], 1, float("inf"))
    script.adopt_defaults(out)
    assert failures == []
    return out, work


@pytest.mark.slow
def test_tuned_runs_have_the_parameters_of_the_best_trial(trained):
    out, _ = trained
    study = study_folder.read(out / "digits-dir05" / "study")

    for method in ("local", "feddbe"):
        trials = study.trials_of(method)
        assert [trial.state for trial in trials] == ["finished", "finished"]
        won = max(trials, key=lambda trial: (trial.score, -trial.index))
        [cell] = (out / "digits-dir05" / "tuned").glob(f"*/cells/{method}-*")
        config = reading.read(cell).config
        assert (config.seed, config.partition_seed) == (0, 0)
        rate = won.params["train.optimizer.lr"]
        assert config.train.optimizer.lr == rate
        searched = reading.read(out / "digits-dir05" / "study" / "trials" / method / "001").config
        assert (searched.seed, searched.partition_seed) == (100, 100)


@pytest.mark.slow
def test_report_shows_tuned_methods_beside_default_ones(trained):
    out, _ = trained

    folders = [out / "digits-dir05" / kind for kind in ("default", "tuned")]
    found = fl.report(folders, force=True)  # the checkout may have moved between two runs

    assert set(found.leaderboard["method"]) == {
        *("local", "feddbe"),
        *("local tuned", "feddbe tuned"),
    }


@pytest.mark.slow
def test_nothing_is_trained_again_and_the_file_has_no_model(trained, script):
    out, work = trained
    names = ("digits-dir05/default", "digits-dir05/study", "digits-dir05/tuned")

    parts = [work.part(name) for name in names]

    assert script._next(parts, set()) is None
    with tarfile.open(script.collect(out)) as archive:
        kept = archive.getnames()
    assert not [name for name in kept if name.endswith((".safetensors", "report.html"))]
    assert len([name for name in kept if name.endswith("trial.json")]) == 4
    assert [name for name in kept if name.endswith("study.json")] == [
        "digits-dir05/study/study.json"
    ]


def test_parts_of_new_clients_have_all_methods_and_any_number_of_repetitions(script, tmp_path):
    work = script.Work(tmp_path, repetitions=5)

    assert "clients/har" in script.every_part()
    part = work.part("clients/har*2")

    methods = {item.job.method for item in part.items()}
    known = script.ALGORITHMS
    assert methods == {name for name in known.names() if not known.find(name).example()}
    assert len(part.items()) == 2 * len(methods)
    assert part.items()[0].job.config.partition.new_clients == 6
