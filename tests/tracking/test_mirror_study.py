"""A study in MLflow: study, methods, trials and seeds as nested runs."""

import json
import shlex
import shutil

import pytest
from filelock import FileLock

from flbench.core.errors import DataError, UserError
from flbench.results import metrics_file, study_folder
from flbench.tracking import follow, mlflow_names, mlflow_view
from flbench.tuning.report import StudyReport
from tests.installed import needs
from tests.support import run
from tests.tracking import study
from tests.tracking.reading import entries, history

pytestmark = [pytest.mark.mlflow, pytest.mark.slow, needs("mlflow")]

METHODS = ("fedavg", "local")


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    out = tmp_path_factory.mktemp("runs")
    return {name: run(out, f"algorithm={name}", "train.rounds=2")[0] for name in METHODS}


class Mirrored:
    """A study that was sent, and its runs in MLflow."""

    def __init__(self, store, path):
        self.store, self.path = store, path

    def sync(self):
        sent, _ = follow.sync(self.path, self.store.uri)
        found = entries(self.store, "flbench.study", self.id)
        self.by_key = {
            item.data.tags["flbench.run"].removeprefix(self.id).removeprefix("/"): item
            for item in found
        }
        assert len(self.by_key) == len(found)
        return sent

    @property
    def id(self):
        return json.loads((self.path / "study.json").read_text())["id"]

    def parent(self, key):
        above = self.by_key[key].data.tags.get("mlflow.parentRunId")
        return next((k for k, item in self.by_key.items() if item.info.run_id == above), None)

    def edit(self, trial, **values):
        file = self.path / trial / "trial.json"
        study.write(file, json.loads(file.read_text()) | values)


@pytest.fixture
def made(store, runs, tmp_path, request):
    """A study with an id of its own, so that tests do not meet in the store."""

    def make(**options):
        path = study.make(tmp_path, runs, **options)
        about = json.loads((path / "study.json").read_text())
        study.write(path / "study.json", about | {"id": request.node.name})
        return Mirrored(store, path)

    return make


@pytest.fixture(scope="module")
def whole(store, runs, tmp_path_factory):
    """A finished study that tests only look at."""
    found = Mirrored(store, study.make(tmp_path_factory.mktemp("studies"), runs))
    found.sync()
    return found


def test_every_part_of_a_study_is_a_run_below_its_own(whole):
    parents = {key: whole.parent(key) for key in whole.by_key}

    wanted = {"": None}
    for method in METHODS:
        wanted |= {f"methods/{method}": "", f"methods/{method} tuned": ""}
        for index in range(len(study.TRIALS)):
            wanted[f"trials/{method}/{index:03d}"] = f"methods/{method}"
        for seed in range(1, study.SEEDS + 1):
            wanted[f"finals/{method}/default-seed{seed}"] = f"trials/{method}/000"
            wanted[f"finals/{method}/tuned-seed{seed}"] = f"trials/{method}/001"
    assert parents == wanted


def test_final_trainings_have_their_own_partition(whole):
    key = "finals/local/default-seed1"
    own = json.loads((whole.path / key / "partition.json").read_text())["hash"]

    assert whole.by_key[key].data.tags["partition"] == own
    shared = json.loads((whole.path / "study.json").read_text())["partition_hash"]
    assert whole.by_key["trials/local/001"].data.tags["partition"] == shared != own


def test_states_of_trials_are_sent(whole):
    found = [whole.by_key[f"trials/local/{index:03d}"] for index in range(len(study.TRIALS))]

    assert [item.info.status for item in found] == ["FINISHED", "FINISHED", "KILLED", "FAILED"]
    assert [item.data.tags["state"] for item in found] == [state for state, _, _ in study.TRIALS]
    assert found[3].data.tags["reason"] == "round 2, client 1: loss is not finite"
    assert whole.by_key[""].info.status == "FINISHED"
    assert whole.by_key["methods/local"].info.status == "FINISHED"


def test_trial_has_what_was_searched_and_its_score(whole):
    found = whole.by_key["trials/local/001"]

    assert found.data.params == {"train.optimizer.lr": "0.02"}
    assert found.data.metrics["score"] == pytest.approx(0.81)
    assert found.data.tags["objective"] == "validation/accuracy"
    assert found.data.tags["algorithm"] == "local"


def test_trial_and_method_have_no_curve_of_a_test(whole):
    for key in ("trials/local/001", "methods/local", "methods/local tuned", ""):
        curves = {name for name, step, _ in history(whole.store, whole.by_key[key]) if step}
        assert curves
        assert not [name for name in curves if name.startswith(("test/", "common/"))]


@pytest.mark.parametrize(("key", "trial"), [("fedavg", "000"), ("fedavg tuned", "001")])
def test_methods_have_parameters_and_curve_of_the_default_and_of_the_best_trial(whole, key, trial):
    found = whole.by_key[f"methods/{key}"]
    rows = metrics_file.read(whole.path / "trials" / "fedavg" / trial / "metrics.csv")

    assert found.info.run_name == key
    assert found.data.params["train.optimizer.lr"] == {"000": "0.01", "001": "0.02"}[trial]
    assert found.data.params["algorithm.name"] == "fedavg"
    assert found.data.metrics["score"] == {"000": 0.6, "001": 0.8}[trial]
    points = history(whole.store, found)
    wanted = {
        (mlflow_names.metric_name(row), row.round, mlflow_names.rounded(row.value)) for row in rows
    }
    assert wanted <= set(points)


def test_method_has_the_scores_of_its_trials(whole):
    found = whole.by_key["methods/fedavg"]

    assert found.data.tags["best_trial"] == "001"
    points = history(whole.store, found)
    scores = sorted((step, value) for name, step, value in points if name == "search/score")
    assert scores == [(0, 0.6), (1, 0.8), (2, 0.9)]


def test_study_has_those_of_the_best_method(whole):
    found = whole.by_key[""]

    assert found.data.tags["best_method"] == "local tuned"
    assert found.data.params["algorithm.name"] == "local"
    assert found.data.params["trials"] == str(len(study.TRIALS))
    there = {item.path for item in whole.store.client.list_artifacts(found.info.run_id)}
    assert there >= {"study.md", "trials.csv", "results.json", "report.html", "partition.png"}


def test_study_has_the_test_metrics_of_the_best_method(whole):
    found, best = whole.by_key[""].data.metrics, whole.by_key["methods/local tuned"].data.metrics

    names = {name for name in best if name.startswith(("final/", "best/", "cost/"))}
    assert "final/test/accuracy" in names
    assert {name: found[name] for name in names} == {name: best[name] for name in names}


def test_study_has_no_test_metrics_before_all_methods_are_searched(made):
    mirrored = made()
    shutil.rmtree(mirrored.path / "finals" / "fedavg")
    mirrored.edit("trials/fedavg/003", state="running", ended=None)
    with FileLock(mirrored.path / ".lock"):
        mirrored.sync()

    assert "final/test/accuracy" in mirrored.by_key["methods/local"].data.metrics
    assert "final/test/accuracy" not in mirrored.by_key[""].data.metrics


@pytest.mark.parametrize("name", ["it's", "x' OR '1'='1", "50% off"])
def test_study_of_any_name_is_found_again(store, runs, tmp_path, name):
    path = study.make(tmp_path, runs, finals=False)
    about = json.loads((path / "study.json").read_text())
    study.write(path / "study.json", about | {"id": name})

    first, _ = follow.sync(path, store.uri)
    second, _ = follow.sync(path, store.uri)

    found = entries(store, "flbench.study", mlflow_names.identifier(name))
    assert first.runs == len(found) == 1 + len(METHODS) * (2 + len(study.TRIALS))
    assert not second
    tags = store.client.get_experiment(found[0].info.experiment_id).tags
    key = mlflow_view.view_name(mlflow_names.identifier(name), "methods")
    query = json.loads(tags[mlflow_view.VIEW_TAG_PREFIX + key])["searchFilter"]
    shown = store.client.search_runs([found[0].info.experiment_id], query)
    assert sorted(run.data.tags["algorithm"] for run in shown) == sorted(2 * METHODS)


def test_method_has_the_mean_over_its_seeds(store, made):
    """The runs of a method have the names and the means of the rows of the study's report."""
    mirrored = made()
    for variant, values in (("default", (0.125, 0.375)), ("tuned", (0.5, 0.75))):
        for seed, value in enumerate(values, start=1):
            file = mirrored.path / "finals" / "local" / f"{variant}-seed{seed}" / "summary.json"
            summary = json.loads(file.read_text())
            for moment in ("best", "last"):
                summary[moment]["test"]["accuracy"] = value
            study.write(file, summary)

    mirrored.sync()

    board = StudyReport(study_folder.read(mirrored.path)).analysis.leaderboard
    means = dict(zip(board["method"], board["mean"], strict=True))
    assert (means["local"], means["local tuned"]) == (0.25, 0.625)
    for label, mean in means.items():
        [found] = [
            run.data.metrics
            for key, run in mirrored.by_key.items()
            if key.startswith("methods/") and run.info.run_name == label
        ]
        assert found["best/test/accuracy"] == found["final/test/accuracy"]
        assert found["best/test/accuracy"] == pytest.approx(mean)


def test_final_training_is_a_whole_run(whole):
    found = whole.by_key["finals/local/tuned-seed2"]

    there = {item.path for item in whole.store.client.list_artifacts(found.info.run_id)}
    assert there >= {"summary.json", "per_class.json", "checkpoints", "trial.json"}
    assert found.data.tags["seed"] == "2"
    assert found.data.tags["variant"] == "tuned"
    assert "test/accuracy" in found.data.metrics


def test_second_sync_of_a_study_sends_nothing(whole):
    def state():
        return {key: (item.info, item.data) for key, item in whole.by_key.items()}

    before = {key: (str(info), data.to_dictionary()) for key, (info, data) in state().items()}

    again = whole.sync()

    assert not again
    after = {key: (str(info), data.to_dictionary()) for key, (info, data) in state().items()}
    assert after == before


def test_unfinished_search_has_no_winner_and_is_resumed_later(made):
    mirrored = made(finals=False)
    mirrored.edit("trials/local/001", state="running", score=0.3, round=1, ended=None)

    mirrored.sync()
    before = mirrored.by_key
    mirrored.edit("trials/local/001", state="finished", score=0.25, round=3)
    mirrored.edit("trials/local/002", state="failed")
    mirrored.sync()

    assert before["trials/local/001"].info.status == "KILLED"
    assert before["methods/local"].info.status == "KILLED"
    assert "best_trial" not in before["methods/local"].data.tags
    assert mirrored.by_key["trials/local/001"].info.status == "FINISHED"
    assert mirrored.by_key["trials/local/001"].data.metrics["score"] == 0.25  # the latest one
    assert mirrored.by_key["methods/local"].data.tags["best_trial"] == "000"
    assert {key: item.info.run_id for key, item in before.items()} == {
        key: item.info.run_id for key, item in mirrored.by_key.items()
    }


def test_no_best_trial_is_sent_while_default_finals_are_trained_beside_the_last_trial(made):
    mirrored = made()
    for method in METHODS:
        for seed in range(1, study.SEEDS + 1):
            shutil.rmtree(mirrored.path / "finals" / method / f"tuned-seed{seed}")
    mirrored.edit("trials/local/001", state="running", score=0.3, round=1, ended=None)

    mirrored.sync()
    before = mirrored.by_key
    mirrored.edit("trials/local/001", state="finished", score=0.95, round=3)
    mirrored.sync()

    assert "finals/local/default-seed1" in before
    assert "best_trial" not in before["methods/local"].data.tags
    assert before["methods/local"].info.status != "FINISHED"
    assert mirrored.by_key["methods/local"].data.tags["best_trial"] == "001"


def test_parameters_that_a_scheduler_changed_stand_in_a_tag(made):
    mirrored = made(finals=False)
    mirrored.sync()
    mirrored.edit("trials/local/000", params={"train.optimizer.lr": 0.5})

    mirrored.sync()

    found = mirrored.by_key["trials/local/000"].data
    assert found.params["train.optimizer.lr"] == "0.01"
    assert found.tags["latest.train.optimizer.lr"] == "0.5"


def views(whole):
    """The study's view of all its runs, of its methods, and of the trials of `local`."""
    experiment = whole.store.client.get_experiment(whole.by_key[""].info.experiment_id)
    names = [mlflow_view.view_name(whole.id, part) for part in ("", "methods", "local")]
    return [json.loads(experiment.tags[mlflow_view.VIEW_TAG_PREFIX + name]) for name in names]


def test_study_has_a_view_with_its_search(whole):
    view, methods, _ = views(whole)

    assert "params.`train.optimizer.lr`" in view["selectedColumns"]
    assert whole.id in view["searchFilter"]
    # A metric that no run has is a column without values.
    known = set(whole.by_key["methods/local"].data.metrics)
    for column in view["selectedColumns"] + methods["selectedColumns"]:
        if column.startswith("metrics."):
            assert column.removeprefix("metrics.").strip("`") in known


def test_trials_are_drawn_over_their_learning_rate_and_score(whole):
    *_, trials = views(whole)

    chart = trials["compareRunCharts"][0]
    assert chart["type"] == "PARALLEL"
    assert chart["selectedParams"][0] == "train.optimizer.lr"
    assert chart["selectedMetrics"] == ["score"]
    assert chart["showAllRuns"]
    experiment = whole.by_key[""].info.experiment_id
    shown = whole.store.client.search_runs([experiment], trials["searchFilter"])
    assert len(shown) == len(study.TRIALS)
    assert all("train.optimizer.lr" in run.data.params for run in shown)


def test_a_trial_alone_is_refused_with_the_study_to_send(whole):
    with pytest.raises(UserError, match=f"flbench sync {whole.path}"):
        follow.sync(whole.path / "trials" / "local" / "000", whole.store.uri)


@pytest.mark.parametrize("name", ["plain", "two words", "it's mine"])
def test_folder_in_a_command_is_quoted_for_the_shell(tmp_path, name):
    study, trial = tmp_path / name, tmp_path / name / "trials" / "local" / "000"
    trial.mkdir(parents=True)
    (trial / "trial.json").touch()

    with pytest.raises(UserError) as refused:
        follow.kind_of(trial)
    _, _, command = str(refused.value).partition("whole study: ")
    assert shlex.split(command) == ["flbench", "sync", str(study)]


def test_a_study_without_its_trials_is_sent(made):
    mirrored = made(finals=False)
    for method in METHODS:
        shutil.rmtree(mirrored.path / "trials" / method)

    mirrored.sync()

    assert set(mirrored.by_key) == {"", *(f"methods/{method}" for method in METHODS)}


def artifacts(mirrored, key, folder=None):
    run = mirrored.by_key[key].info.run_id
    return {item.path for item in mirrored.store.client.list_artifacts(run, folder)}


def test_pictures_of_the_search_are_files_of_the_study_and_of_its_methods(whole):
    pictures = {name: f"pictures/{name}-parallel.png" for name in METHODS}

    assert artifacts(whole, "", "pictures") == set(pictures.values())
    for name, picture in pictures.items():
        assert artifacts(whole, f"methods/{name}", "pictures") == {picture}


def test_study_without_final_trainings_has_its_partition(made):
    mirrored = made(finals=False)
    about = json.loads((mirrored.path / "partition.json").read_text())

    mirrored.sync()

    root = mirrored.store.client.get_run(mirrored.by_key[""].info.run_id)
    assert "partition.png" in artifacts(mirrored, "")
    assert [data.dataset.digest for data in root.inputs.dataset_inputs] == [about["data"][:32]]


def test_everything_but_an_unreadable_trial_is_sent_and_the_trial_when_repaired(made):
    mirrored = made(finals=False)
    file = mirrored.path / "trials" / "local" / "002" / "trial.json"
    text = file.read_text()
    file.write_text(text[:20])
    with pytest.raises(DataError, match=r"local/002/trial.json is damaged.*Repair it"):
        mirrored.sync()
    found = entries(mirrored.store, "flbench.study", mirrored.id)
    keys = {item.data.tags["flbench.run"].split("/", 1)[-1]: item for item in found}
    file.write_text(text)

    mirrored.sync()

    assert "trials/local/003" in keys
    assert "trials/local/002" not in keys
    # A winner stays for ever: none before all that could win is known.
    assert "best_trial" not in keys["methods/local"].data.tags
    assert keys["methods/fedavg"].data.tags["best_trial"] == "001"
    assert mirrored.by_key["trials/local/002"].data.tags["state"] == "stopped"
    assert mirrored.by_key["methods/local"].data.tags["best_trial"] == "001"


def test_everything_but_a_final_training_with_a_damaged_summary_is_sent(made):
    mirrored = made()
    file = mirrored.path / "finals" / "fedavg" / "tuned-seed1" / "summary.json"
    text = file.read_text()
    file.write_text('{"last": 1}')

    with pytest.raises(DataError, match=r"tuned-seed1/summary.json is damaged"):
        mirrored.sync()

    keys = {item.data.tags["flbench.run"] for item in entries(mirrored.store, "kind", "final")}
    assert f"{mirrored.id}/finals/local/tuned-seed2" in keys
    file.write_text(text)
    mirrored.sync()
    assert "final/test/accuracy" in mirrored.by_key["methods/fedavg"].data.metrics
