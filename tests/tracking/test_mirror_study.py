"""A study in MLflow: study, methods, trials and seeds as nested runs."""

import json
import shutil

import pytest

from flbench.core.errors import DataError
from flbench.results import metrics_file
from flbench.tracking import follow, measures, tree, ui, view
from flbench.tracking import store as stores
from flbench.tracking.send import RUN_TAG
from tests.installed import needs
from tests.support import run
from tests.tracking import study
from tests.tracking.reading import campaign, history

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
        sent, _ = follow.sync(self.path, self.store.address.uri)
        found = campaign(self.store, self.id)
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


def artifacts(mirrored, key, folder=None):
    run = mirrored.by_key[key].info.run_id
    return {item.path for item in mirrored.store.client.list_artifacts(run, folder)}


def test_every_part_of_a_study_is_a_run_below_its_own(whole):
    parents = {key: whole.parent(key) for key in whole.by_key}

    wanted = {"": None}
    for method in METHODS:
        wanted |= {f"methods/{method}": "", f"methods/{method} tuned": ""}
        for index in range(len(study.TRIALS)):
            wanted[f"trials/{method}/{index:03d}"] = f"methods/{method}"
        for seed in range(1, study.SEEDS + 1):
            wanted[f"cells/{method}-digits-seed{seed}"] = f"methods/{method}"
            wanted[f"cells/{method}_tuned-digits-seed{seed}"] = f"methods/{method} tuned"
    assert parents == wanted


def test_trials_have_their_states_what_was_searched_scores_and_curves(whole):
    found = [whole.by_key[f"trials/local/{index:03d}"] for index in range(len(study.TRIALS))]

    assert [item.info.status for item in found] == ["FINISHED", "FINISHED", "KILLED", "FAILED"]
    assert [item.data.tags["state"] for item in found] == [state for state, _, _ in study.TRIALS]
    assert found[3].data.tags["reason"] == "round 2, client 1: loss is not finite"
    assert whole.by_key[""].info.status == "FINISHED"
    assert whole.by_key["methods/local"].info.status == "FINISHED"
    found = whole.by_key["trials/local/001"]
    assert found.data.params == {"train.optimizer.lr": "0.02"}
    assert found.data.metrics["score"] == pytest.approx(0.81)
    assert found.data.tags["method"] == "local"
    rows = metrics_file.read(whole.path / "trials" / "local" / "001" / "metrics.csv")

    curves = history(whole.store, found)

    assert not [name for name, _, _ in curves if name.startswith(("test/", "common/"))]
    wanted = [
        (row.round, measures.rounded(row.value))
        for row in rows
        if row[1:4] == ("validation", "personal", "accuracy")
    ]
    assert sorted(point[1:] for point in curves if point[0] == "validation/accuracy") == wanted


@pytest.mark.parametrize(("key", "score"), [("fedavg", 0.6), ("fedavg tuned", 0.8)])
def test_methods_have_the_score_of_the_default_and_of_the_best_trial(whole, key, score):
    found = whole.by_key[f"methods/{key}"]

    assert found.info.run_name == found.data.tags["method"] == key
    assert found.data.params["algorithm.name"] == "fedavg"
    assert found.data.metrics["score"] == score


def test_method_has_the_scores_of_its_trials(whole):
    found = whole.by_key["methods/fedavg"]

    assert found.data.tags["best_trial"] == "001"
    points = history(whole.store, found)
    scores = sorted((step, value) for name, step, value in points if name == "search/score")
    assert scores == [(0, 0.6), (1, 0.8), (2, 0.9)]


def test_study_has_its_settings_its_files_and_a_figure_for_each_method(whole):
    found = whole.by_key[""]

    assert found.data.params["trials"] == str(len(study.TRIALS))
    assert found.data.tags["best.fedavg"] == "train.optimizer.lr=0.02"
    assert artifacts(whole, "") >= {"report.md", "report.json", "report.html"}
    assert artifacts(whole, "", "pictures") == {f"pictures/{name}-parallel.png" for name in METHODS}
    labels = [f"{method}{suffix}" for method in METHODS for suffix in ("", " tuned")]
    assert found.data.metrics == {
        f"accuracy/{label}": whole.by_key[f"methods/{label}"].data.metrics["accuracy"]
        for label in labels
    }


def test_study_of_any_name_is_found_again(store, runs, tmp_path):
    path, name = study.make(tmp_path, runs, cells=False), "x' OR '1'='1' 50% off"
    about = json.loads((path / "study.json").read_text())
    study.write(path / "study.json", about | {"id": name})

    first, _ = follow.sync(path, store.address.uri)
    second, _ = follow.sync(path, store.address.uri)

    found = campaign(store, tree.identifier(name))
    assert first.runs == len(found) == 1 + len(METHODS) * (1 + len(study.TRIALS))
    assert not second


def test_method_has_the_mean_over_its_seeds(made):
    mirrored = made()
    for label, values in (("local", (0.125, 0.375)), ("local_tuned", (0.5, 0.75))):
        for seed, value in enumerate(values, start=1):
            file = mirrored.path / "cells" / f"{label}-digits-seed{seed}" / "summary.json"
            summary = json.loads(file.read_text())
            for moment in ("best", "last"):
                summary[moment]["test"]["accuracy"] = value
            study.write(file, summary)

    mirrored.sync()

    for label, mean in (("local", 0.25), ("local tuned", 0.625)):
        found = mirrored.by_key[f"methods/{label}"]
        assert found.info.run_name == label
        assert found.data.metrics["accuracy"] == mean


def test_final_training_is_a_whole_run(whole):
    key = "cells/local_tuned-digits-seed2"
    found = whole.by_key[key]

    assert artifacts(whole, key) >= {"summary.json", "per_class.csv", "checkpoints"}
    assert found.data.tags["method"] == "local tuned"
    assert {"accuracy", "test/accuracy"} <= set(found.data.metrics)
    own = json.loads((whole.path / key / "partition.json").read_text())
    assert found.data.tags["partition"] == own["hash"]


def test_second_sync_of_a_study_sends_nothing(whole):
    def state():
        return {key: (item.info, item.data) for key, item in whole.by_key.items()}

    before = {key: (str(info), data.to_dictionary()) for key, (info, data) in state().items()}

    again = whole.sync()

    assert not again
    after = {key: (str(info), data.to_dictionary()) for key, (info, data) in state().items()}
    assert after == before


def test_unfinished_search_has_no_winner_and_is_resumed_later(made):
    mirrored = made(cells=False)
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


def views(store):
    """The views of an experiment by their names, after `flbench ui` has printed its links."""
    links = dict(ui.links(store))
    [experiment] = store.client.search_experiments(filter_string="name = 'digits-dirichlet'")
    prefix = view.TAG_PREFIX
    tags = {key: value for key, value in experiment.tags.items() if key.startswith(prefix)}
    return (
        experiment.experiment_id,
        links,
        {key.removeprefix(prefix): json.loads(value) for key, value in tags.items()},
    )


def test_study_has_two_views_however_many_studies_there_are(runs, tmp_path, uri):
    store = stores.open_store(uri)
    for name in ("first", "it's"):
        (tmp_path / name).mkdir()
        path = study.make(tmp_path / name, runs)
        about = json.loads((path / "study.json").read_text())
        study.write(path / "study.json", about | {"id": name})
        follow.sync(path, uri)
    number = store.client.get_experiment_by_name("digits-dirichlet").experiment_id
    store.client.create_run(number, tags={"kind": "study"})  # the user's own
    experiment, links, found = views(store)

    assert set(found) == {view.METHODS["study"], view.TRIALS}
    assert len(links) == 3
    assert all(view.TRAINING_PAGE in page for page in links.values())
    methods, trials = found[view.METHODS["study"]], found[view.TRIALS]
    shown = [
        store.client.search_runs([experiment], one["searchFilter"]) for one in (methods, trials)
    ]
    labels = sorted(run.data.tags["method"] for run in shown[0])
    assert labels == sorted([*METHODS, *(f"{method} tuned" for method in METHODS)])
    assert len(shown[1]) == len(METHODS) * len(study.TRIALS)
    assert methods["orderByKey"] == "metrics.`accuracy`"
    # A metric that no run has is a column without values.
    for one, of_view in zip((methods, trials), shown, strict=True):
        known = {name for run in of_view for name in run.data.metrics}
        names = [name for name in one["selectedColumns"] if name.startswith("metrics.")]
        assert names
        assert {name.removeprefix("metrics.").strip("`") for name in names} <= known
    f1 = next(chart for chart in methods["compareRunCharts"] if chart["type"] == "PARALLEL")
    assert f1["selectedMetrics"] == [f"f1/{number}" for number in range(10)]
    [axis] = f1["selectedParams"]
    assert sorted(run.data.params[axis] for run in shown[0]) == labels
    charts = trials["compareRunCharts"]
    assert [chart["displayName"] for chart in charts] == sorted(METHODS)
    assert charts[0]["selectedParams"][0] == "train.optimizer.lr"
    assert charts[0]["selectedMetrics"] == ["score"]
    # A later comparison has a view of its own.
    store.client.create_run(number, tags={"kind": "comparison", RUN_TAG: "later"})
    assert views(store)[2][view.METHODS["study"]] == methods


def test_a_trial_is_sent_with_its_study(whole):
    trial = whole.path / "trials" / "local" / "000"

    assert not follow.sync(trial, whole.store.address.uri)[0]


def test_a_study_without_its_trials_is_sent(made):
    mirrored = made(cells=False)
    for method in METHODS:
        shutil.rmtree(mirrored.path / "trials" / method)

    mirrored.sync()

    assert set(mirrored.by_key) == {"", *(f"methods/{method}" for method in METHODS)}


def test_trial_that_was_refused_before_it_had_a_run_folder_is_sent(made):
    mirrored = made(cells=False)
    (mirrored.path / "trials" / "local" / "003" / "config.yaml").unlink()
    mirrored.edit("trials/local/003", reason="`train.optimizer.lr` must be positive")

    mirrored.sync()

    found = mirrored.by_key["trials/local/003"]
    assert found.info.status == "FAILED"
    assert found.data.tags["reason"] == "`train.optimizer.lr` must be positive"
    assert found.data.params == {"train.optimizer.lr": "0.04"}


def test_study_without_final_trainings_has_its_partition(made):
    mirrored = made(cells=False)
    about = json.loads((mirrored.path / "partition.json").read_text())

    mirrored.sync()

    root = mirrored.store.client.get_run(mirrored.by_key[""].info.run_id)
    assert [data.dataset.digest for data in root.inputs.dataset_inputs] == [about["data"][:32]]


def test_everything_but_an_unreadable_trial_is_sent_and_the_trial_when_repaired(made):
    mirrored = made(cells=False)
    file = mirrored.path / "trials" / "local" / "002" / "trial.json"
    text = file.read_text()
    file.write_text(text[:20])
    with pytest.raises(DataError, match=r"local/002/trial.json is damaged.*Repair it"):
        mirrored.sync()
    found = campaign(mirrored.store, mirrored.id)
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
    file = mirrored.path / "cells" / "fedavg_tuned-digits-seed1" / "summary.json"
    text = file.read_text()
    file.write_text('{"last": 1}')

    with pytest.raises(DataError, match=r"seed1/summary.json is damaged"):
        mirrored.sync()

    keys = {item.data.tags["flbench.run"] for item in campaign(mirrored.store, mirrored.id)}
    assert f"{mirrored.id}/cells/local_tuned-digits-seed2" in keys
    file.write_text(text)
    mirrored.sync()
    assert "accuracy" in mirrored.by_key["methods/fedavg tuned"].data.metrics
