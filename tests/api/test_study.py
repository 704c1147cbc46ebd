import os
import pickle

import pytest
from torch import nn

import flbench as fl
from flbench.api import comparing
from flbench.calls import arguments
from flbench.comparison.design import layers_of_each
from flbench.config.resolve import resolve
from flbench.config.sources import merge
from flbench.data.sources import digits
from flbench.losses.similarity import masked_mean
from flbench.tuning.report import TRIALS
from tests.support import run
from tests.tuning import studies as handmade


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    """A study of two methods with three seeds; the defaults of the second one have won."""
    root = tmp_path_factory.mktemp("study")
    folder, _ = run(root / "run")
    study = handmade.begin(root / "study", "hfcd", "fedavg")
    for index, score in enumerate((0.5, 0.8, 0.6)):
        handmade.trial(study, "hfcd", index, score)
    handmade.trial(study, "hfcd", 3, None, state="failed", reason="out of <memory>")
    for index, score in enumerate((0.7, 0.6, 0.5, 0.4)):
        handmade.trial(study, "fedavg", index, score)
    for seed in (1, 2, 3):
        low, high = {"accuracy": 0.5 + seed / 100}, {"accuracy": 0.7 + seed / 50}
        handmade.cell(study, folder, "hfcd tuned", seed, high)
        handmade.cell(study, folder, "hfcd", seed, low)
        handmade.cell(study, folder, "fedavg", seed, {"accuracy": 0.4 + seed**2 / 100})
    return study


@pytest.mark.slow
def test_trials_are_those_of_the_folder(path):
    study = fl.load(path)
    trials = study.trials

    assert isinstance(study, fl.Study)
    assert trials.dtypes.astype(str).to_dict().items() >= TRIALS.items()
    assert trials["method"].tolist() == ["hfcd"] * 4 + ["fedavg"] * 4
    assert trials["score"].tolist()[:3] == [0.5, 0.8, 0.6]
    assert trials["score"].isna().tolist() == [False] * 3 + [True] + [False] * 4
    assert trials["reason"].tolist()[3] == "out of <memory>"


@pytest.mark.slow
def test_best_is_the_winner_and_its_parameters_can_be_run(path):
    study = fl.load(path)
    best = study.best("hfcd")
    real = {key: value for key, value in best.params.items() if key.startswith("train.")}
    config, _ = resolve(arguments.layers("run", None, {"algorithm": "hfcd", **real}))

    assert best.index == 1
    assert config.train.optimizer.lr == best.params["train.optimizer.lr"]
    with pytest.raises(fl.UserError, match="`fedavg`"):
        study.best("fedagv")


@pytest.mark.slow
def test_comparison_is_that_of_the_cells(path):
    comparison = fl.load(path).comparison
    rows = comparison.leaderboard.set_index("method")["mean"].to_dict()
    pairs = comparison.pairs.set_index(["first", "second"])

    assert rows == pytest.approx({"hfcd tuned": 0.74, "hfcd": 0.52, "fedavg": 0.4 + 0.14 / 3})
    assert set(comparison.cells["state"]) == {"finished"}
    assert fl.load(comparison.cells["path"][0]).finished
    gain = pairs.loc["hfcd tuned", "hfcd"]
    assert gain["difference"] == pytest.approx(0.22)  # the mean of 0.21, 0.22, 0.23
    assert gain["low"] < 0.22 < gain["high"]
    assert gain["verdict"] == "better"
    assert fl.report(path).pairs.equals(comparison.pairs)


@pytest.mark.slow
def test_pictures_show_the_numbers_of_the_study(path):
    study = fl.load(path)
    comparison = study.plot("comparison").axes[0]
    means = [line.get_xdata()[0] for line in comparison.lines if line.get_marker() in "os^"]
    parallel = study.plot("parallel", "hfcd").axes[0]

    assert sorted(means) == pytest.approx(sorted(study.comparison.leaderboard["mean"]))
    assert len(parallel.collections[0].get_segments()) == 3  # the failed trial has no score
    with pytest.raises(fl.UserError, match="fedavg-parallel"):
        study.plot("parallel", "fedagv")


@pytest.mark.slow
def test_representations_escape_what_users_wrote(path):
    study = pickle.loads(pickle.dumps(fl.load(path)))
    shown = study._repr_html_()

    assert "<memory>" not in shown
    assert "out of &lt;memory&gt;" in shown
    assert any("out of <memory>" in note for note in study.notes)


def test_study_without_trials(tmp_path):
    study = fl.load(handmade.begin(tmp_path / "study", "hfcd"))

    assert study.trials.empty
    assert study._repr_html_()
    for wanted in (
        lambda: study.comparison,
        lambda: study.best("hfcd"),
        lambda: study.plot("parallel"),
    ):
        with pytest.raises(fl.UserError, match=r"fl\.resume\("):
            wanted()


@pytest.mark.parametrize(
    ("methods", "keys", "named"),
    [
        ("fedagv", {}, "`fedavg`"),
        ([], {}, "methods"),
        ("fedavg,fedavg", {}, "`fedavg`"),
        ("fedavg", {"sead": 3}, "`seed`"),
        ("fedavg", {"trails": 1}, "`trials`"),
        ("fedavg", {"trials": 0}, "`trials`"),
        ("fedavg", {"jobs": 0}, "`jobs`"),
        ("fedavg", {"gpus_per_trial": float("nan")}, "`gpus_per_trial`"),
        ("fedavg", {"search": "best"}, "`search`"),
        ("fedavg", {"algorithm": "fedprox"}, "`algorithm.name`"),
        (["fedavg", "fedprox"], {"algorithm": {"mo": 1}}, "`algorithm.mo`"),
    ],
)
def test_wrong_requests_are_named(methods, keys, named, tmp_path):
    with pytest.raises(fl.UserError, match=named):
        fl.tune(methods, out=tmp_path, progress=False, **keys)

    assert not list(tmp_path.iterdir())


def test_cards_of_methods():
    table, card = fl.methods(), fl.method("fedproto")

    assert table["name"].tolist() == sorted(table["name"])
    assert table.set_index("name").loc["fedproto", "title"] == card.paper["title"]
    keys = card.keys.set_index("key")
    config, _ = resolve(arguments.layers("run", None, {"algorithm": "fedproto"}))
    for key, default in keys["default"].items():
        assert getattr(config.algorithm, key) == default
    assert keys.loc["agg_weights", "range"] == "samples | uniform"
    with pytest.raises(fl.ConfigError, match="`fedproto`"):
        fl.method("fedprot0")


@pytest.mark.slow
@pytest.mark.processes
def test_study_in_this_process(tmp_path, capfd):
    """Data, net and loss term are objects without an import path."""
    found, size = digits(), 0.5

    def small(context):
        return size * masked_mean(context.out.logits.square().mean(dim=1), context.batch.mask)

    given = {
        "data": (found.x[:400, 0], found.y[:400]),
        "model": nn.Sequential(nn.Flatten(), nn.Linear(64, 8), nn.ReLU(), nn.Linear(8, 10)),
        "train": {"terms": [small]},
    }
    train = {"rounds": 2, "local_epochs": 1, **given["train"]}
    partition = fl.Dirichlet(alpha=0.5, clients=4)
    study = fl.tune(
        ["fedavg"],
        trials=1,
        seeds=1,
        jobs=1,
        scheduler="none",
        partition=partition,
        output={"dir": tmp_path},  # for `out`
        progress=False,
        **given | {"train": train},
    )

    assert capfd.readouterr().err.count("trials/fedavg") == 0
    assert study.path.parent == tmp_path
    assert "TUNE_DISABLE_AUTO_CALLBACK_LOGGERS" not in os.environ  # a Tuner of one's own has them
    assert study.trials["state"].tolist() == ["finished"]
    assert study.comparison.cells["seed"].tolist() == [1]
    [row] = study.trials.to_dict("records")
    assert (row["method"], row["trial"], row["round"], row["rounds"]) == ("fedavg", 0, 2, 2)
    assert row["seconds"] > 0
    assert row["train.optimizer.lr"] == study.best("fedavg").params["train.optimizer.lr"]
    assert not any(name.startswith("test") for name in row)
    again = fl.resume(study.path, **given)
    assert again.trials.equals(study.trials)
    # A cell is a run, with the weights of the same run by itself.
    alone = fl.run(
        config=f"{study.comparison.cells['path'][0]}/config.yaml",
        output={"dir": tmp_path / "alone"},
        progress=False,
        **given,
    )
    assert alone.digest == fl.load(study.comparison.cells["path"][0]).digest
    # A resumed study asks for the objects, and for the same ones.
    for wrong, named in (
        ({}, "data="),
        ({"data": given["data"]}, "model="),
        (given | {"model": nn.Sequential(nn.Flatten(), nn.Linear(64, 10))}, "model"),
    ):
        with pytest.raises(fl.UserError, match=named):
            fl.resume(study.path, **wrong)


def test_each_method_gets_its_own_keys():
    given = {"algorithm": {"mu": 0.5, "agg_weights": "uniform"}}
    methods = comparing.methods_of(["fedavg", "fedprox"], "here")
    found = layers_of_each(methods, arguments.layers("tune", None, given))
    trees = [merge(layers).tree for layers in found.values()]

    assert trees[0]["algorithm"] == {"agg_weights": "uniform", "name": "fedavg"}
    assert trees[1]["algorithm"] == {"mu": 0.5, "agg_weights": "uniform", "name": "fedprox"}
