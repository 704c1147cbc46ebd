"""The tables equal what scikit-learn and scipy compute from the predictions that runs saved."""

import csv
import json
import math
import re
from itertools import combinations, pairwise

import numpy as np
import pandas as pd
import pytest
from scipy import stats
from scipy.spatial.distance import cityblock
from sklearn import metrics
from statsmodels.duration.survfunc import SurvfuncRight
from statsmodels.stats.multitest import multipletests

from flbench.analysis import figures
from flbench.analysis.arrangement import arrange
from flbench.analysis.shown import TABLES
from flbench.analysis.tables import analyse
from flbench.comparison.collect import collect
from flbench.core.errors import UserError
from flbench.results import metrics_file, reading
from flbench.results.metrics_file import Row
from tests.comparison.made import matrix, run_folder
from tests.support import run

METHODS, SEEDS = ("fedavg", "local", "fedper"), (1, 2, 3)
SCORES = ("precision", "recall", "f1")
EXACT = {"rel": 1e-9, "abs": 1e-9}


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    """Runs of three methods on three partitions, whose best round is the last one."""
    out = tmp_path_factory.mktemp("runs")
    keys = ("train.rounds=2", "output.predictions=true", "partition.alpha=0.3")
    keys += ("train.optimizer.lr=0.1",)
    return {
        (method, seed): run(out, f"algorithm={method}", f"seed={seed}", *keys)[0]
        for method in METHODS
        for seed in SEEDS
    }


@pytest.fixture(scope="module")
def analysis(folders):
    return analyse(arrange([reading.read(path) for path in folders.values()]))


@pytest.fixture(scope="module")
def seen(folders):
    """Predictions of the test samples of each run, with the columns client, true and predicted."""
    return {key: pd.read_csv(path / "predictions.csv") for key, path in folders.items()}


def rows_of(table, method):
    return table[table["method"] == method].reset_index(drop=True)


def accuracies(seen, method):
    tables = [seen[method, seed] for seed in SEEDS]
    return np.array([metrics.accuracy_score(one["true"], one["predicted"]) for one in tables])


@pytest.mark.slow
def test_leaderboard_is_that_of_scikit_learn(analysis, seen, folders):
    board = analysis.leaderboard.set_index("method")

    for method in METHODS:
        values = accuracies(seen, method)
        interval = stats.t.interval(0.95, 2, loc=values.mean(), scale=stats.sem(values))
        found = board.loc[method]
        assert found["mean"] == pytest.approx(values.mean(), **EXACT)
        assert (found["low"], found["high"]) == pytest.approx(np.clip(interval, 0, 1), **EXACT)
        assert found["std"] == pytest.approx(np.std(values, ddof=1), **EXACT)
        macro, worst = [], []
        for seed in SEEDS:
            table = seen[method, seed]
            macro.append(metrics.f1_score(table["true"], table["predicted"], average="macro"))
            worst.append(
                min((one["true"] == one["predicted"]).mean() for _, one in table.groupby("client"))
            )  # of five clients
        assert found["macro_f1"] == pytest.approx(np.mean(macro), **EXACT)
        assert found["worst10_accuracy"] == pytest.approx(np.mean(worst), **EXACT)
        assert found["n"] == 3
    assert list(board["rank"]) == [1, 2, 3]
    assert board["mean"].is_monotonic_decreasing
    assert board.loc["local", "bytes"] == 0 < board.loc["fedper", "bytes"]
    assert board.loc["fedper", "bytes"] < board.loc["fedavg", "bytes"]


@pytest.mark.slow
def test_rare_classes_are_those_of_scikit_learn(analysis, seen, folders):
    """The mean recall over rare classes that have test samples; NaN if a run has no rare class."""
    board = analysis.leaderboard.set_index("method")

    for method in METHODS:
        values = []
        for seed in SEEDS:
            one = reading.read(folders[method, seed])
            rare = list(one.class_table("last").query("rare")["class"])
            truth, guess = seen[method, seed]["true"], seen[method, seed]["predicted"]
            there = [number for number in rare if (truth == number).any()]
            recall = metrics.recall_score(truth, guess, labels=there, average="macro")
            values.append(recall if one.has_rare_classes else math.nan)
        assert board.loc[method, "rare_recall"] == pytest.approx(
            np.mean(values), nan_ok=True, **EXACT
        )


@pytest.mark.slow
def test_classes_are_those_of_scikit_learn(analysis, seen, folders):
    found = rows_of(analysis.classes, "fedper").set_index("class")
    base = rows_of(analysis.classes, "fedavg")

    each = {name: np.full((3, 10), np.nan) for name in ("precision", "recall", "f1", "base")}
    holders, supports = [], []
    for k, seed in enumerate(SEEDS):
        truth, guess = seen["fedper", seed]["true"], seen["fedper", seed]["predicted"]
        scores = metrics.precision_recall_fscore_support(
            truth, guess, labels=range(10), zero_division=0
        )
        occurs = scores[3] > 0
        each["precision"][k] = scores[0]
        each["recall"][k, occurs], each["f1"][k, occurs] = scores[1][occurs], scores[2][occurs]
        other = seen["fedavg", seed]
        recall = metrics.recall_score(
            other["true"], other["predicted"], labels=range(10), average=None, zero_division=0
        )
        each["base"][k, occurs] = recall[occurs]
        counts = np.load(folders["fedper", seed] / "partition.npz")["train_counts"]
        holders.append((counts > 0).sum(axis=0))
        supports.append(counts.sum(axis=0))
    for name in SCORES:
        mean = np.nanmean(each[name], axis=0)
        assert found[name].to_numpy() == pytest.approx(mean, nan_ok=True, **EXACT)
    assert found["holders"].to_numpy() == pytest.approx(np.mean(holders, axis=0))
    assert found["train_support"].to_numpy() == pytest.approx(np.mean(supports, axis=0))
    gaps = each["recall"] - each["base"]
    assert found["difference"].to_numpy() == pytest.approx(gaps.mean(axis=0), **EXACT)
    half = stats.t.ppf(0.975, 2) * gaps.std(axis=0, ddof=1) * math.sqrt(1 / 3)
    high = np.clip(gaps.mean(axis=0) + half, -1, 1)
    spread = gaps.std(axis=0) > 1e-12
    assert found["high"].to_numpy()[spread] == pytest.approx(high[spread], **EXACT)
    assert found["high"][~spread].isna().all()
    assert base["difference"].isna().all()


def test_class_without_test_samples_has_no_recall(tmp_path):
    for k in range(2):
        file = run_folder(tmp_path / str(k), "fedavg", 0.5, repetition=k) / "per_class.csv"
        lines = list(csv.reader(file.read_text().splitlines()))
        empty = {"test_support": 0, "precision": 0, "recall": 0, "f1": 0}
        for name, value in empty.items() if k == 0 else ():
            lines[2][lines[0].index(name)] = str(value)
        file.write_text("\n".join(map(",".join, lines)) + "\n")
        kept = float(lines[2][lines[0].index("recall")])

    row = analyse(arrange(collect([tmp_path]).runs)).classes.set_index("class").loc[1]

    # The recall is that of the repetition with samples; the precision is 0 in the other one.
    assert (row["recall"], row["f1"], row["precision"]) == pytest.approx((kept, kept, kept / 2))
    assert row["test_support"] == 5


@pytest.mark.slow
def test_clients_are_those_of_scikit_learn(analysis, seen, folders):
    clients = analysis.clients.set_index(["method", "repetition", "client"])

    assert len(clients) == 3 * 3 * 5
    for k, seed in enumerate(SEEDS, 1):
        counts = np.load(folders["fedper", seed] / "partition.npz")["train_counts"]
        whole = counts.sum(axis=0) / counts.sum()
        for client in range(5):
            own, alone = (
                one[one["client"] == client] for one in (seen["fedper", seed], seen["local", seed])
            )
            found = clients.loc["fedper", k, client]
            accuracy = metrics.accuracy_score(own["true"], own["predicted"])
            gain = accuracy - metrics.accuracy_score(alone["true"], alone["predicted"])
            assert found["accuracy"] == pytest.approx(accuracy, **EXACT)
            assert found["gain"] == pytest.approx(gain, **EXACT)
            shares = counts[client] / counts[client].sum()
            assert found["skew"] == pytest.approx(cityblock(shares, whole) / 2, **EXACT)
            assert (found["test_size"], found["train_size"]) == (len(own), counts[client].sum())
    assert (analysis.clients.query("method == 'local'")["gain"] == 0).all()


def over_repetitions(values):
    """Number, mean, standard deviation and interval of the mean, by scipy."""
    values = np.asarray(values, dtype=float)
    known = values[~np.isnan(values)]
    low, high = stats.t.interval(0.95, len(known) - 1, loc=known.mean(), scale=stats.sem(known))
    return len(known), known.mean(), known.std(ddof=1), low, high


@pytest.mark.slow
def test_scores_of_methods_classes_and_clients_are_those_of_scipy(analysis, seen, folders):
    for method in METHODS:
        scores = analysis.scores.query("method == @method").set_index("metric")
        summaries = [reading.read(folders[method, seed]).summary for seed in SEEDS]
        assert {"accuracy", "macro_f1", "client_std", "bytes", "seconds"} <= {*scores.index}
        for metric in ("accuracy", "macro_f1", "balanced_accuracy"):
            n, mean, std, low, high = over_repetitions(
                [one["best"]["test"][metric] for one in summaries]
            )
            found = scores.loc[metric]
            expected = (n, mean, std, *np.clip([low, high], 0, 1))
            assert found[["n", "mean", "std", "low", "high"]].tolist() == pytest.approx(expected)
        traffic = [
            sum(one["communication"][kind] for kind in ("up_bytes", "down_bytes", "setup_bytes"))
            for one in summaries
        ]
        assert scores.loc["bytes", "mean"] == pytest.approx(np.mean(traffic))
        assert not (scores.loc[["bytes", "seconds"], "low"] < 0).any()

        tables = [seen[method, seed] for seed in SEEDS]
        classes = rows_of(analysis.classes, method).set_index("class")
        f1 = np.stack(
            [
                np.where(
                    np.bincount(one["true"], minlength=10) > 0,
                    metrics.f1_score(
                        one["true"], one["predicted"], labels=range(10), average=None,
                        zero_division=0,
                    ),
                    np.nan,
                )
                for one in tables
            ]
        )  # fmt: skip
        for number in classes.index[classes["n"] == 3]:
            _, mean, std, low, high = over_repetitions(f1[:, number])
            found = classes.loc[number]
            assert (found["f1"], found["f1_std"]) == pytest.approx((mean, std), **EXACT)
            if std > 1e-9:
                expected = np.clip([low, high], 0, 1)
                assert found[["f1_low", "f1_high"]].tolist() == pytest.approx(expected, **EXACT)

        spread = analysis.client_spread.query("method == @method").set_index("measure")
        each, alone = (
            [
                (one["true"] == one["predicted"]).groupby(one["client"]).mean()
                for one in (seen[name, seed] for seed in SEEDS)
            ]
            for name in (method, "local")
        )
        measures = {
            "mean": np.mean,
            "std": np.std,
            "worst": np.min,
            "q10": lambda one: np.quantile(one, 0.1),
            "median": np.median,
        }
        for measure, function in measures.items():
            n, mean, std, *_ = over_repetitions([function(one.to_numpy()) for one in each])
            found = spread.loc[measure, ["n", "mean", "std"]].tolist()
            assert found == pytest.approx((n, mean, std), **EXACT)
        gaining = np.mean([(one > other).mean() for one, other in zip(each, alone, strict=True)])
        losing = np.mean([(one < other).mean() for one, other in zip(each, alone, strict=True)])
        assert spread.loc[["gaining", "losing"], "mean"].tolist() == pytest.approx(
            [gaining, losing]
        )
    # Each repetition draws its clients anew, so no client has several repetitions.
    assert analysis.client_scores.empty


@pytest.mark.slow
@pytest.mark.parametrize("names", [True, False])
def test_scores_of_a_client_are_over_repetitions_with_the_same_clients(names, tmp_path):
    fixed = {"keys": ("partition.seed=0",), "partition_hash": "a" * 64, "names": names}
    matrix(tmp_path, {"fedavg": [0.5, 0.6, 0.7], "local": [0.4, 0.5, 0.4]}, **fixed)

    found = analyse(arrange(collect([tmp_path]).runs))

    assert len(found.client_scores) == 2 * 6
    raw = found.clients.query("method == 'fedavg' and client == 3")
    row = found.client_scores.query("method == 'fedavg' and client == 3").iloc[0]
    for score in ("accuracy", "gain"):
        n, mean, std, low, high = over_repetitions(raw[score])
        columns = [score, *(f"{score}_{end}" for end in ("std", "low", "high"))]
        limits = (0 if score == "accuracy" else -1, 1)
        expected = (mean, std, *np.clip([low, high], *limits))
        assert row["n"] == n == 3
        assert row[columns].tolist() == pytest.approx(expected, nan_ok=True)
    assert (row["name"] != "") == names
    table = list(TABLES["clients"](found, "digits"))[-1]
    assert list(table.used)[-2:] == ["of fedavg", "of local"]
    assert table.cells()[3]["label"] == (row["name"] if names else "3")


@pytest.mark.slow
def test_costs_of_a_target_are_medians_of_survival_times(tmp_path):
    """The table of targets beside Kaplan and Meier's estimate of statsmodels."""
    ends = {"fedavg": [0.9, 0.6, 0.7, 0.5, 0.8], "hfcd": [0.2, 0.9, 0.3, 0.1, 0.8]}
    matrix(tmp_path, ends, rounds=9, sent=10, seconds=9.0)

    found = analyse(arrange(collect([tmp_path]).runs, targets=(0.4, 0.55))).targets

    assert set(zip(found["split"], found["target"], strict=True)) == {
        (split, target) for split in ("validation", "test") for target in (0.4, 0.55)
    }
    for row in found.query("split == 'test'").to_dict("records"):
        # The accuracy grows linearly over the nine rounds.
        values = [np.linspace(end / 9, end, 9) for end in ends[row["method"]]]
        reached = np.array([one[-1] >= row["target"] for one in values])
        rounds = [
            1 + int(np.argmax(one >= row["target"])) if is_there else 9
            for one, is_there in zip(values, reached, strict=True)
        ]
        assert (row["reached"], row["n"], row["share"]) == (sum(reached), 5, np.mean(reached))
        median = SurvfuncRight(rounds, reached).quantile(0.5)
        assert row["rounds"] == pytest.approx(median, nan_ok=True)
        assert row["bytes"] == pytest.approx(10 * median, nan_ok=True)
        first = [one for one, is_there in zip(rounds, reached, strict=True) if is_there]
        assert (row["rounds_min"], row["rounds_max"]) == (min(first), max(first))


@pytest.mark.slow
def test_costs_on_test_parts_need_all_evaluations(tmp_path):
    """Final trainings of a study are evaluated on test parts in the last and the best round."""
    matrix(tmp_path, {"fedavg": [0.5, 0.6, 0.65], "hfcd": [0.8, 0.85, 0.8]}, rounds=4)
    for one in collect([tmp_path]).runs:
        rows = [row for row in one.rows if row.split != "test" or row.round == 4]
        text = metrics_file.header_line() + metrics_file.to_text(rows)
        (one.path / "metrics.csv").write_text(text)

    found = analyse(arrange(collect([tmp_path]).runs, targets=0.5)).targets

    assert set(found["split"]) == {"validation"}


@pytest.mark.slow
def test_columns_of_the_leaderboard_can_be_chosen(tmp_path):
    matrix(tmp_path, {"fedavg": [0.5, 0.6, 0.65], "hfcd": [0.8, 0.85, 0.8]})
    runs = collect([tmp_path]).runs

    found = analyse(arrange(runs, metric="macro_f1, accuracy,bytes,macro_f1"))

    assert found.comparison.metric == "macro_f1"
    assert found.comparison.columns == ("macro_f1", "accuracy", "bytes")
    assert len({*found.leaderboard.columns}) == len(found.leaderboard.columns)
    [board] = TABLES["leaderboard"](found, "digits")
    keys = [key for key in board.used if key not in ("rank", "method", "std", "n", "last")]
    assert keys == ["mean", "groups", "mean accuracy", "mean bytes", "better_than"]
    for wrong, words in {
        "acuracy": "Did you mean `accuracy`?",
        "accuracy,macro_f2": "Did you mean `macro_f1`?",
        "bytes": "`bytes` ranks no methods",
        " , ": "names no metric",
        None: "names no metric",
        5: "names no metric",
    }.items():
        with pytest.raises(UserError, match=re.escape(words)):
            arrange(runs, metric=wrong)
    for wrong in (True, [{}], [1j], "0.5,x", 90, -1, (0.5, math.nan), ("a", 0.5), math.inf):
        with pytest.raises(UserError, match=re.escape(f"targets={wrong!r}")):
            arrange(runs, targets=wrong)
    assert arrange(runs, targets="0.8, 0.9,").targets == (0.8, 0.9)
    assert arrange(runs, targets=np.array([0.5, 0.6])).targets == (0.5, 0.6)
    with pytest.raises(UserError, match="Did you mean `fedavg`"):
        arrange(runs, baseline="FedAvg")


def edited(path, **values):
    """Set test metrics of the best round, None for none, and return the folder."""
    summary = json.loads((path / "summary.json").read_text())
    number = summary["best"]["round"]
    rows = [
        row
        for row in metrics_file.read(path / "metrics.csv")
        if row.split != "test" or row.metric not in values
    ]
    for name, value in values.items():
        for test in (summary["best"]["test"], summary["last"]["test"]):
            test.pop(name, None)
            test |= {} if value is None else {name: value}
        if value is not None:
            of = ("common", name, "accuracy") if name == "gm" else ("test", "personal", name)
            rows.append(Row(number, *of, value))
    (path / "summary.json").write_text(json.dumps(summary))
    text = metrics_file.header_line() + metrics_file.to_text(rows)
    (path / "metrics.csv").write_text(text)
    return path


@pytest.mark.slow
def test_a_score_that_a_repetition_lacks_is_left_out_everywhere(tmp_path):
    matrix(tmp_path, {"fedavg": [0.5, 0.6, 0.65], "hfcd": [0.8, 0.85, 0.8]})
    one = next(run for run in collect([tmp_path]).runs if run.config.algorithm.name == "hfcd")
    edited(one.path, macro_f1=None)

    found = analyse(arrange(collect([tmp_path]).runs, metric="accuracy,macro_f1"))

    row = found.scores.query("method == 'hfcd' and metric == 'macro_f1'").iloc[0]
    assert row["n"] == 2
    assert not math.isnan(row["mean"])
    assert found.leaderboard.set_index("method")["macro_f1"].isna().to_dict() == {
        "hfcd": True,
        "fedavg": False,
    }
    [board] = TABLES["leaderboard"](found, "digits")
    shown = {line["method"]: line["mean macro_f1"] for line in board.cells()}
    assert shown["hfcd"] == "-" != shown["fedavg"]


def test_last_is_a_mean_over_all_repetitions_or_none(tmp_path):
    folders = matrix(tmp_path, {"fedavg": [0.5, 0.6, 0.65], "hfcd": [0.8, 0.85, 0.8]})
    one = folders["hfcd", 1]
    summary = json.loads((one / "summary.json").read_text())
    summary["best"]["round"] = 2
    (one / "summary.json").write_text(json.dumps(summary))
    rows = metrics_file.read(one / "metrics.csv")
    rows = [
        row._replace(value=math.nan) if (row.round, row.split) == (3, "test") else row
        for row in rows
    ]
    (one / "metrics.csv").write_text(metrics_file.header_line() + metrics_file.to_text(rows))

    board = analyse(arrange(collect([tmp_path]).runs)).leaderboard.set_index("method")

    assert board["n"].to_dict() == {"hfcd": 3, "fedavg": 3}
    assert board.loc["fedavg", "last"] == pytest.approx(1.75 / 3)
    assert math.isnan(board.loc["hfcd", "last"])


@pytest.mark.slow
def test_a_metric_without_rounds_or_named_like_a_column_is_shown(tmp_path):
    matrix(tmp_path, {"fedavg": [0.5, 0.6, 0.65], "hfcd": [0.8, 0.85, 0.8]})
    for one in collect([tmp_path]).runs:
        edited(one.path, gm=0.5, std=0.25)

    found = analyse(arrange(collect([tmp_path]).runs, metric="gm,std", targets=0.5))

    assert found.curves.empty
    assert found.targets.empty
    assert "what a target costs is not known" in found.answer[-1]
    assert figures.draw(found, "convergence", "digits") is None
    [board] = TABLES["leaderboard"](found, "digits")
    assert {line["mean std"] for line in board.cells()} == {"0.2500"}


def test_runs_far_below_the_other_repetitions_are_named(tmp_path):
    accuracies = {
        "fedavg": [0.50, 0.40, 0.52, 0.51, 0.49],
        "hfcd": [0.80, 0.70, 0.82, 0.11, 0.81],
        "local": [0.70, 0.61, 0.72, 0.71, 0.73],
    }
    matrix(tmp_path, accuracies)

    warnings = arrange(collect([tmp_path]).runs).warnings

    # The second repetition is more difficult for all methods, which is no collapse.
    [sentence] = [one for one in warnings if "far below" in one]
    assert "1 run lies" in sentence
    assert "hfcd in repetition 4 (0.11 beside a median of 0.8; seed 3," in sentence


@pytest.mark.slow
def test_pairs_are_those_of_scipy(analysis, seen, folders):
    counts = np.load(folders["fedavg", 1] / "partition.npz")["train_counts"]
    overlap = len(seen["fedavg", 1]) / counts.sum()
    rows = [{*np.load(folders["fedavg", seed] / "partition.npz")["index"]} for seed in SEEDS]
    shared = np.mean([len(a & b) / len(a) for a, b in pairwise(rows)])
    assert 0 < shared < 1
    p = []

    for (first, second), (_, row) in zip(
        combinations(METHODS, 2), analysis.pairs.iterrows(), strict=True
    ):
        assert (row["first"], row["second"], row["n"]) == (first, second, 3)
        x, y = accuracies(seen, first), accuracies(seen, second)
        gaps = x - y
        p.append(stats.ttest_rel(x, y).pvalue)
        assert row["p"] == row["paired_t"] == pytest.approx(p[-1], **EXACT)
        t = gaps.mean() / math.sqrt((1 / 3 + overlap * shared) * gaps.var(ddof=1))
        assert row["corrected"] == pytest.approx(2 * stats.t.sf(abs(t), 2), **EXACT)
        assert row["probability"] == pytest.approx(np.mean(gaps > 0) + np.mean(gaps == 0) / 2)
    assert analysis.pairs["p_holm"].to_numpy() == pytest.approx(
        multipletests(p, method="holm")[1], **EXACT
    )


@pytest.mark.slow
def test_each_named_metric_is_tested_as_if_it_were_the_first(analysis, folders):
    runs = [reading.read(path) for path in folders.values()]

    found = analyse(arrange(runs, metric="accuracy,macro_f1,bytes")).pairs
    alone = analyse(arrange(runs, metric="macro_f1")).pairs

    pd.testing.assert_frame_equal(found, pd.concat([analysis.pairs, alone], ignore_index=True))


def test_less_of_a_loss_is_better(tmp_path):
    matrix(tmp_path, {"fedavg": [0.1, 0.12, 0.11], "hfcd": [0.8, 0.9, 0.85]})
    for one in collect([tmp_path]).runs:
        edited(one.path, nll=1 - one.summary["best"]["test"]["accuracy"])

    pairs = analyse(arrange(collect([tmp_path]).runs, metric="accuracy,nll")).pairs.set_index(
        "metric"
    )

    same = ["verdict", "probability"]
    assert pairs.loc["accuracy", same].tolist() == pairs.loc["nll", same].tolist() == ["worse", 0]
    columns = ["difference", "p_holm"]
    assert (pairs[columns].product(axis=1) < 0).to_dict() == {"accuracy": True, "nll": False}


@pytest.mark.slow
def test_curves_end_with_the_costs_of_the_run(analysis):
    last = analysis.curves.query("split == 'test' and round == 2")

    costs = last.groupby("method")[["bytes", "seconds", "value"]].mean()
    board = analysis.leaderboard.set_index("method")
    for method in METHODS:
        found = [board.loc[method, name] for name in ("bytes", "seconds", "mean")]
        assert costs.loc[method].tolist() == pytest.approx(found)
    grows = analysis.curves.query("split == 'test'").groupby(["method", "repetition"])
    assert grows["bytes"].apply(lambda one: one.is_monotonic_increasing).all()


@pytest.mark.slow
@pytest.mark.parametrize("validation", [True, False])
def test_costs_to_a_target_are_those_of_the_first_round_that_reaches_it(validation, tmp_path):
    # The accuracies grow linearly over four rounds.
    accuracies = {"fedavg": [0.39, 0.41], "hfcd": [0.8, 0.9], "local": [0.1, 0.1]}
    matrix(tmp_path, accuracies, rounds=4, sent=10, seconds=8.0, validation=validation)

    runs = collect([tmp_path]).runs
    assert analyse(arrange(runs)).targets.empty  # nobody asked for a target
    found = analyse(arrange(runs, targets=0.4)).targets

    assert set(found["split"]) == ({"validation", "test"} if validation else {"test"})
    split = "validation" if validation else "test"
    table = found[found["split"] == split].set_index("method")
    assert table["target"].tolist() == pytest.approx([0.4] * 3)
    columns = ["reached", "n", "rounds", "bytes", "seconds"]
    assert table.loc["hfcd", columns].tolist() == [2, 2, 2, 20, 4]
    assert table.loc["fedavg", ["reached", "n"]].tolist() == [1, 2]
    # A median of one run that reaches the target and one that does not is not known.
    assert table.loc["fedavg", ["rounds", "bytes", "seconds"]].isna().all()
    assert table.loc["fedavg", "least_rounds":"least_seconds"].tolist() == [4, 40, 8]
    assert table.loc["hfcd", "least_rounds":"least_seconds"].isna().all()
    assert table.loc["local", ["reached", "n"]].tolist() == [0, 2]
    assert table.loc["local", ["rounds", "bytes", "seconds"]].isna().all()


@pytest.mark.slow
def test_only_places_whose_partition_differs_get_the_corrected_test(tmp_path):
    accuracies = {"fedavg": [0.5, 0.6, 0.65], "hfcd": [0.8, 0.85, 0.8]}
    matrix(tmp_path / "a", accuracies, keys=("partition.alpha=0.1",))
    fixed = ("partition.alpha=1", "partition.seed=0")
    matrix(tmp_path / "b", accuracies, keys=fixed, partition_hash="a" * 64)

    found = analyse(arrange(collect([tmp_path]).runs))

    pairs = found.pairs.set_index("place")
    assert pairs["corrected"].notna().to_dict() == {
        "digits, alpha=0.1": True,
        "digits, alpha=1": False,
    }
    assert found.comparison.vary == "both"


def test_two_repetitions_support_no_claim(tmp_path):
    matrix(tmp_path, {"fedavg": [0.1, 0.11], "hfcd": [0.9, 0.91]})

    found = analyse(arrange(collect([tmp_path]).runs))

    assert set(found.pairs["verdict"]) == {"no claim"}
    assert set(found.leaderboard["groups"]) == {""}
    assert found.leaderboard["low"].isna().all()
    assert set(found.leaderboard["better_than"]) == {()}
    assert found.classes["low"].isna().all()
    assert "no claim" in found.answer[0]
