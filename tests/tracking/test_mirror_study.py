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
from tests.tracking.reading import artifacts, campaign, history, parents

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
        self.id = json.loads((path / "study.json").read_text())["id"]

    def sync(self):
        sent, _ = follow.sync(self.path, self.store.address.uri)
        self.read()
        return sent

    def read(self):
        self.by_key = campaign(self.store, tree.identifier(self.id))

    def metrics(self, key):
        return self.by_key[key].data.metrics

    def artifacts(self, key, folder=None):
        return artifacts(self.store, self.by_key[key], folder)


@pytest.fixture
def made(store, runs, tmp_path, request):
    """A study with an id of its own, so that tests do not meet in the store."""

    def make(**options):
        name = request.node.name
        return Mirrored(store, study.make(tmp_path, runs, **({"name": name} | options)))

    return make


@pytest.fixture(scope="module")
def whole(store, runs, tmp_path_factory):
    """A finished study that tests only look at."""
    found = Mirrored(store, study.make(tmp_path_factory.mktemp("studies"), runs))
    found.sync()
    return found


def test_every_part_of_a_study_is_a_run_below_its_own(whole):
    wanted = {"": None}
    for method in METHODS:
        wanted |= {f"methods/{method}": "", f"methods/{method} tuned": ""}
        for index in range(len(study.TRIALS)):
            wanted[f"trials/{method}/{index:03d}"] = f"methods/{method}"
        for seed in range(1, study.SEEDS + 1):
            wanted[f"cells/{method}-digits-seed{seed}"] = f"methods/{method}"
            wanted[f"cells/{method}_tuned-digits-seed{seed}"] = f"methods/{method} tuned"
    assert parents(whole.by_key) == wanted


def test_trials_have_their_states_what_was_searched_scores_and_curves(whole):
    found = [whole.by_key[f"trials/local/{index:03d}"] for index in range(len(study.TRIALS))]

    assert [item.info.status for item in found] == ["FINISHED", "FINISHED", "KILLED", "FAILED"]
    assert [item.data.tags["state"] for item in found] == [state for state, _, _ in study.TRIALS]
    assert found[3].data.tags["reason"] == study.TRIALS[3][2]
    assert found[1].data.params == {"train.optimizer.lr": "0.02"}
    assert found[1].data.metrics["score"] == pytest.approx(0.81)
    assert found[1].data.tags["method"] == "local"
    rows = metrics_file.read(whole.path / "trials" / "local" / "001" / "metrics.csv")
    wanted = [
        (row.round, measures.rounded(row.value))
        for row in rows
        if row[1:4] == ("validation", "personal", "accuracy")
    ]
    curves = history(whole.store, found[1])
    assert sorted(point[1:] for point in curves if point[0] == "validation/accuracy") == wanted
    assert not [name for name, _, _ in curves if name.startswith(("test/", "common/"))]


def test_methods_have_the_scores_of_their_trials(whole):
    for key, score in (("fedavg", 0.6), ("fedavg tuned", 0.8)):  # of the default, of the best
        found = whole.by_key[f"methods/{key}"]
        assert found.info.run_name == found.data.tags["method"] == key
        assert found.data.params["algorithm.name"] == "fedavg"
        assert found.data.metrics["score"] == score
    searched = whole.by_key["methods/fedavg"]
    assert searched.data.tags["best_trial"] == "001"
    points = history(whole.store, searched)
    scores = sorted((step, value) for name, step, value in points if name == "search/score")
    assert scores == [(0, 0.6), (1, 0.8), (2, 0.9)]
    assert whole.by_key[""].info.status == searched.info.status == "FINISHED"


def test_study_and_its_final_trainings_have_their_settings_files_and_figures(whole):
    root, key = whole.by_key[""], "cells/local_tuned-digits-seed2"

    assert root.data.params["trials"] == str(len(study.TRIALS))
    assert root.data.tags["best.fedavg"] == "train.optimizer.lr=0.02"
    assert whole.artifacts("") >= {"report.md", "report.json", "report.html"}
    pictures = {f"pictures/{name}-parallel.png" for name in METHODS}
    assert whole.artifacts("", "pictures") == pictures
    labels = [f"{method}{suffix}" for method in METHODS for suffix in ("", " tuned")]
    assert root.data.metrics == {
        f"accuracy/{label}": whole.metrics(f"methods/{label}")["accuracy"] for label in labels
    }
    assert whole.artifacts(key) >= {"summary.json", "per_class.csv", "checkpoints"}
    tags = whole.by_key[key].data.tags
    own = json.loads((whole.path / key / "partition.json").read_text())
    assert (tags["method"], tags["partition"]) == ("local tuned", own["hash"])
    assert {"accuracy", "test/accuracy"} <= set(whole.metrics(key))


def test_second_sync_of_a_study_or_of_one_of_its_trials_sends_nothing(whole):
    def state():
        whole.read()
        return {k: (str(one.info), one.data.to_dictionary()) for k, one in whole.by_key.items()}

    before = state()

    assert not whole.sync()
    assert not follow.sync(whole.path / "trials" / "local" / "000", whole.store.address.uri)[0]
    assert state() == before


def test_study_of_any_name_without_final_trainings_is_sent_once(made):
    mirrored = made(name="x' OR '1'='1' 50% off", cells=False)

    first, second = mirrored.sync(), mirrored.sync()

    assert first.runs == len(mirrored.by_key) == 1 + len(METHODS) * (1 + len(study.TRIALS))
    assert not second


def test_method_has_the_mean_over_its_seeds(made):
    mirrored = made()
    for label, values in (("local", (0.125, 0.375)), ("local_tuned", (0.5, 0.75))):
        for seed, value in enumerate(values, start=1):
            file = mirrored.path / "cells" / f"{label}-digits-seed{seed}" / "summary.json"
            summary = json.loads(file.read_text())
            for moment in ("best", "last"):
                summary[moment]["test"]["accuracy"] = value
            file.write_text(json.dumps(summary))

    mirrored.sync()

    assert mirrored.metrics("methods/local")["accuracy"] == 0.25
    assert mirrored.metrics("methods/local tuned")["accuracy"] == 0.625


def test_unfinished_search_has_no_winner_and_is_resumed_later(made):
    mirrored = made(cells=False)
    trials = mirrored.path / "trials" / "local"
    study.edit(trials / "001" / "trial.json", state="running", score=0.3, round=1, ended=None)

    mirrored.sync()
    before = mirrored.by_key
    study.edit(trials / "001" / "trial.json", state="finished", score=0.25, round=3)
    study.edit(trials / "002" / "trial.json", state="failed")
    mirrored.sync()

    assert before["trials/local/001"].info.status == "KILLED"
    assert before["methods/local"].info.status == "KILLED"
    assert "best_trial" not in before["methods/local"].data.tags
    assert mirrored.by_key["trials/local/001"].info.status == "FINISHED"
    assert mirrored.metrics("trials/local/001")["score"] == 0.25  # the latest one
    assert mirrored.by_key["methods/local"].data.tags["best_trial"] == "000"
    ids = [{k: one.info.run_id for k, one in of.items()} for of in (before, mirrored.by_key)]
    assert ids[0] == ids[1]


def test_study_without_trials_and_trial_without_a_run_folder_are_sent(made):
    mirrored = made(cells=False)
    shutil.rmtree(mirrored.path / "trials" / "fedavg")
    refused = mirrored.path / "trials" / "local" / "003"
    (refused / "config.yaml").unlink()
    study.edit(refused / "trial.json", reason="refused")

    mirrored.sync()

    found = mirrored.by_key["trials/local/003"]
    assert (found.info.status, found.data.tags["reason"]) == ("FAILED", "refused")
    assert found.data.params == {"train.optimizer.lr": "0.04"}
    assert not [key for key in mirrored.by_key if key.startswith("trials/fedavg")]


@pytest.mark.parametrize(
    "name", ["trials/local/002/trial.json", "cells/fedavg_tuned-digits-seed1/summary.json"]
)
def test_everything_but_what_is_damaged_is_sent_and_that_when_repaired(name, made):
    mirrored = made()
    file = mirrored.path / name
    text = file.read_text()
    file.write_text(text[:20])

    with pytest.raises(DataError, match=name):
        mirrored.sync()
    mirrored.read()
    before = {key: dict(one.data.tags) for key, one in mirrored.by_key.items()}
    file.write_text(text)
    mirrored.sync()

    assert {"trials/local/003", "cells/local_tuned-digits-seed2"} <= before.keys()
    assert "trials/local/002" in mirrored.by_key
    if name.startswith("trials"):
        assert "trials/local/002" not in before
        # A winner stays for ever: none before all that could win is known.
        assert "best_trial" not in before["methods/local"]
        assert before["methods/fedavg"]["best_trial"] == "001"
    assert mirrored.by_key["methods/local"].data.tags["best_trial"] == "001"
    assert "accuracy" in mirrored.metrics("methods/fedavg tuned")


def views(store):
    """Id of the experiment, links of `flbench ui`, and the views that it has set by their names."""
    links = dict(ui.links(store))
    [experiment] = store.client.search_experiments(filter_string="name = 'digits-dirichlet'")
    prefix = view.TAG_PREFIX
    tags = {key: value for key, value in experiment.tags.items() if key.startswith(prefix)}
    found = {key.removeprefix(prefix): json.loads(value) for key, value in tags.items()}
    return experiment.experiment_id, links, found


def test_study_has_two_views_however_many_studies_there_are(runs, tmp_path, uri):
    store = stores.open_store(uri)
    for name in ("first", "it's"):
        (tmp_path / name).mkdir()
        follow.sync(study.make(tmp_path / name, runs, name=name), uri)
    number = store.client.get_experiment_by_name("digits-dirichlet").experiment_id
    store.client.create_run(number, tags={"kind": "study"})  # the user's own
    experiment, links, found = views(store)

    assert set(found) == {view.METHODS, view.TRIALS}
    assert len(links) == 3
    assert all(view.TRAINING_PAGE in page for page in links.values())
    methods, trials = found[view.METHODS], found[view.TRIALS]
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
    titles = {one["uuid"]: one["name"] for one in trials["compareRunSections"]}
    of_charts = [titles[chart["metricSectionId"]] for chart in charts]
    assert [title.split()[-1] for title in of_charts] == sorted(METHODS)
    assert charts[0]["selectedParams"][0] == "train.optimizer.lr"
    assert charts[0]["selectedMetrics"] == ["score"]
    # The methods are those of the latest campaign.
    store.client.create_run(number, tags={"kind": "comparison", RUN_TAG: "later"})
    assert "'later/%'" in views(store)[2][view.METHODS]["searchFilter"]
