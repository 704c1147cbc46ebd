"""The tables equal what scikit-learn and scipy compute from the predictions that runs saved."""

import csv
import json
import math
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
from flbench.analysis.tables import Analysis
from flbench.comparison.collect import collect
from flbench.results import metrics_file, reading
from flbench.results.metrics_file import Row
from tests.comparison.made import matrix, run_folder
from tests.support import run

METHODS, SEEDS = ("fedavg", "local", "fedper"), (1, 2, 3)
SCORES = ("precision", "recall", "f1")
EXACT = {"rel": 1e-9, "abs": 1e-9, "nan_ok": True}
PAIR = {"fedavg": [0.5, 0.6, 0.65], "hfcd": [0.8, 0.85, 0.8]}


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
    return Analysis(arrange([reading.read(path) for path in folders.values()]))


@pytest.fixture(scope="module")
def seen(folders):
    """Predictions of the test samples of each run, with the columns client, true and predicted."""
    return {key: pd.read_csv(path / "predictions.csv") for key, path in folders.items()}


@pytest.fixture(scope="module")
def counts(folders):
    """Training samples by client and class of each partition."""
    return [np.load(folders["fedavg", seed] / "partition.npz")["train_counts"] for seed in SEEDS]


def analysed(folder, **options):
    return Analysis(arrange(collect([folder]).runs, **options))


def accuracies(seen, method):
    tables = [seen[method, seed] for seed in SEEDS]
    return np.array([metrics.accuracy_score(one["true"], one["predicted"]) for one in tables])


def of_clients(table):
    """The accuracy of each client."""
    return (table["true"] == table["predicted"]).groupby(table["client"]).mean()


def over_repetitions(values, low=0.0, high=1.0):
    """Number, mean, standard deviation and interval of the mean within limits, by scipy."""
    values = np.asarray(values, dtype=float)
    known = values[~np.isnan(values)]
    ends = stats.t.interval(0.95, len(known) - 1, loc=known.mean(), scale=stats.sem(known))
    return len(known), known.mean(), known.std(ddof=1), *np.clip(ends, low, high)


NAMES = ["n", "mean", "std", "low", "high"]


@pytest.mark.slow
def test_leaderboard_and_scores_are_those_of_scikit_learn(analysis, seen, folders):
    board = analysis.leaderboard.set_index("method")
    scores = analysis.scores.set_index(["method", "metric"])[NAMES]

    for method in METHODS:
        tables = [seen[method, seed] for seed in SEEDS]
        expected = {
            "accuracy": accuracies(seen, method),
            "macro_f1": [
                metrics.f1_score(one["true"], one["predicted"], average="macro") for one in tables
            ],
            "worst10_accuracy": [of_clients(one).min() for one in tables],  # of five clients
        }
        for metric, values in expected.items():
            found = scores.loc[method, metric].tolist()
            assert found == pytest.approx(over_repetitions(values), **EXACT)
            own = board.loc[method, NAMES if metric == "accuracy" else [metric]].tolist()
            assert own == pytest.approx(found if metric == "accuracy" else [found[1]], **EXACT)
        summaries = [reading.read(folders[method, seed]).summary for seed in SEEDS]
        sent = [sum(one["communication"].values()) for one in summaries]
        assert scores.loc[method, "bytes"]["mean"] == board.loc[method, "bytes"] == np.mean(sent)
    assert not (analysis.scores.query("metric in ('bytes', 'seconds')")["low"] < 0).any()
    assert list(board["rank"]) == [1, 2, 3]
    assert board["mean"].is_monotonic_decreasing
    assert board.loc["local", "bytes"] == 0 < board.loc["fedper", "bytes"]
    assert board.loc["fedper", "bytes"] < board.loc["fedavg", "bytes"]


def test_rare_recall_of_runs_without_rare_classes_is_left_out(tmp_path):
    file = matrix(tmp_path, PAIR, is_rare=True)["hfcd", 1] / "per_class.csv"
    before = analysed(tmp_path).leaderboard["rare_recall"].tolist()
    pd.read_csv(file).assign(rare=0).to_csv(file, index=False)

    found = analysed(tmp_path).leaderboard.set_index("method")["rare_recall"]

    means = [np.mean(PAIR[name]) / 2 for name in ("hfcd", "fedavg")]
    assert before == pytest.approx(means)
    assert found.tolist() == pytest.approx([math.nan, means[1]], nan_ok=True)


@pytest.mark.slow
def test_classes_are_those_of_scikit_learn(analysis, seen, counts):
    found = analysis.classes.query("method == 'fedper'").set_index("class")
    base = analysis.classes.query("method == 'fedavg'")
    each = {name: np.full((3, 10), np.nan) for name in (*SCORES, "base")}
    for k, seed in enumerate(SEEDS):
        for method, names in (("fedper", SCORES), ("fedavg", ("", "base", ""))):
            truth, guess = seen[method, seed]["true"], seen[method, seed]["predicted"]
            *scores, support = metrics.precision_recall_fscore_support(
                truth, guess, labels=range(10), zero_division=0
            )
            for name, values in zip(names, scores, strict=True):
                if name:
                    occurs = support > 0 if name != "precision" else slice(None)
                    each[name][k, occurs] = values[occurs]

    for name in SCORES:
        assert found[name].tolist() == pytest.approx(np.nanmean(each[name], axis=0), **EXACT)
        columns = [name, *(f"{name}_{what}" for what in ("std", "low", "high"))]
        for number in range(10):
            values = each[name][:, number]
            if np.std(values) > 1e-9:  # others have no interval
                _, *expected = over_repetitions(values)
                assert found.loc[number, columns].tolist() == pytest.approx(expected, **EXACT)
    holders = np.mean([(one > 0).sum(axis=0) for one in counts], axis=0)
    assert found["holders"].tolist() == pytest.approx(holders)
    supports = np.mean([one.sum(axis=0) for one in counts], axis=0)
    assert found["train_support"].tolist() == pytest.approx(supports)
    gaps = each["recall"] - each["base"]
    assert found["difference"].tolist() == pytest.approx(gaps.mean(axis=0), **EXACT)
    spread = gaps.std(axis=0) > 1e-12
    high = [over_repetitions(gap, -1)[4] for gap in gaps.T[spread]]
    assert found["high"][spread].tolist() == pytest.approx(high, **EXACT)
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

    row = analysed(tmp_path).classes.set_index("class").loc[1]

    # The recall is that of the repetition with samples; the precision is 0 in the other one.
    assert (row["recall"], row["f1"], row["precision"]) == pytest.approx((kept, kept, kept / 2))
    assert row["test_support"] == 5


@pytest.mark.slow
def test_clients_are_those_of_scikit_learn(analysis, seen, counts):
    clients = analysis.clients.set_index(["method", "repetition", "client"])

    assert len(clients) == 3 * 3 * 5
    for k, seed in enumerate(SEEDS, 1):
        own, alone = (of_clients(seen[name, seed]) for name in ("fedper", "local"))
        table, whole = counts[k - 1], counts[k - 1].sum(axis=0) / counts[k - 1].sum()
        for client in range(5):
            found = clients.loc["fedper", k, client]
            assert found["accuracy"] == pytest.approx(own[client], **EXACT)
            assert found["gain"] == pytest.approx(own[client] - alone[client], **EXACT)
            shares = table[client] / table[client].sum()
            assert found["skew"] == pytest.approx(cityblock(shares, whole) / 2, **EXACT)
            samples = (seen["fedper", seed]["client"] == client).sum()
            assert (found["test_size"], found["train_size"]) == (samples, table[client].sum())
    assert (analysis.clients.query("method == 'local'")["gain"] == 0).all()


@pytest.mark.slow
def test_spread_of_clients_is_that_of_numpy(analysis, seen):
    measures = {
        "mean": np.mean,
        "std": np.std,
        "worst": np.min,
        "q10": lambda one: np.quantile(one, 0.1),
        "median": np.median,
    }
    for method in METHODS:
        spread = analysis.client_spread.query("method == @method").set_index("measure")
        each, alone = (
            [of_clients(seen[name, seed]) for seed in SEEDS] for name in (method, "local")
        )
        for measure, function in measures.items():
            expected = over_repetitions([function(one.to_numpy()) for one in each])
            assert spread.loc[measure, NAMES[:3]].tolist() == pytest.approx(expected[:3], **EXACT)
        pairs = [*zip(each, alone, strict=True)]
        gaining = np.mean([(one > other).mean() for one, other in pairs])
        losing = np.mean([(one < other).mean() for one, other in pairs])
        found = spread.loc[["gaining", "losing"], "mean"].tolist()
        assert found == pytest.approx([gaining, losing])
    # Each repetition draws its clients anew, so no client has several repetitions.
    assert analysis.client_scores.empty


@pytest.mark.slow
@pytest.mark.parametrize("names", [True, False])
def test_scores_of_a_client_are_over_repetitions_with_the_same_clients(names, tmp_path):
    fixed = {"keys": ("partition.seed=0",), "partition_hash": "a" * 64, "names": names}
    matrix(tmp_path, {"fedavg": [0.5, 0.6, 0.7], "local": [0.4, 0.5, 0.4]}, **fixed)

    found = analysed(tmp_path)

    assert len(found.client_scores) == 2 * 6
    raw = found.clients.query("method == 'fedavg' and client == 3")
    row = found.client_scores.query("method == 'fedavg' and client == 3").iloc[0]
    for score in ("accuracy", "gain"):
        n, *expected = over_repetitions(raw[score], -1 if score == "gain" else 0)
        columns = [score, *(f"{score}_{end}" for end in ("std", "low", "high"))]
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

    found = analysed(tmp_path, targets=(0.4, 0.55)).targets

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
@pytest.mark.parametrize("evaluated", ["test", "validation", "both"])
def test_costs_of_a_target_that_few_runs_reach_are_not_known(evaluated, tmp_path):
    # The accuracies grow linearly over four rounds.
    accuracies = {"fedavg": [0.39, 0.41], "hfcd": [0.8, 0.9], "local": [0.1, 0.1]}
    is_validated = evaluated != "test"
    matrix(tmp_path, accuracies, rounds=4, sent=10, seconds=8.0, validation=is_validated)
    for one in collect([tmp_path]).runs if evaluated == "validation" else ():
        # Final trainings of a study are evaluated on test parts in their last round.
        rows = [row for row in one.rows if row.split != "test" or row.round == 4]
        text = metrics_file.header_line() + metrics_file.to_text(rows)
        (one.path / "metrics.csv").write_text(text)

    found = analysed(tmp_path, targets=0.4).targets

    assert analysed(tmp_path).targets.empty  # nobody asked for a target
    assert {*found["split"]} == ({"test", "validation"} if evaluated == "both" else {evaluated})
    table = found[found["split"] == found["split"].iloc[0]].set_index("method")
    costs = ["rounds", "bytes", "seconds"]
    assert table.loc["hfcd", ["reached", "n", *costs]].tolist() == [2, 2, 2, 20, 4]
    assert table.loc["fedavg", ["reached", "n"]].tolist() == [1, 2]
    # A median of one run that reaches the target and one that does not is not known.
    assert table.loc["fedavg", costs].isna().all()
    assert table.loc["local", ["reached", "n"]].tolist() == [0, 2]
    assert table.loc["local", costs].isna().all()


@pytest.mark.slow
def test_columns_of_the_leaderboard_can_be_chosen(tmp_path):
    matrix(tmp_path, PAIR)

    found = analysed(tmp_path, metric="macro_f1, accuracy,bytes,macro_f1", targets="0.8, 0.9,")

    assert found.comparison.columns == ("macro_f1", "accuracy", "bytes")
    assert found.comparison.targets == (0.8, 0.9)
    assert len({*found.leaderboard.columns}) == len(found.leaderboard.columns)
    [board] = TABLES["leaderboard"](found, "digits")
    keys = [key for key in board.used if key not in ("rank", "method", "std", "n", "last")]
    assert keys == ["mean", "groups", "mean accuracy", "mean bytes", "better_than"]


def edited(path, **values):
    """Set test metrics of the best round, None for none."""
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


@pytest.mark.slow
def test_a_score_that_a_repetition_lacks_is_left_out_everywhere(tmp_path):
    edited(matrix(tmp_path, PAIR)["hfcd", 1], macro_f1=None)

    found = analysed(tmp_path, metric="accuracy,macro_f1")

    row = found.scores.query("method == 'hfcd' and metric == 'macro_f1'").iloc[0]
    assert row["n"] == 2
    assert not math.isnan(row["mean"])
    is_left_out = found.leaderboard.set_index("method")["macro_f1"].isna()
    assert is_left_out.to_dict() == {"hfcd": True, "fedavg": False}
    [board] = TABLES["leaderboard"](found, "digits")
    shown = {line["method"]: line["mean macro_f1"] for line in board.cells()}
    assert shown["hfcd"] == "-" != shown["fedavg"]


def test_last_is_a_mean_over_all_repetitions_or_none(tmp_path):
    one = matrix(tmp_path, PAIR)["hfcd", 1]
    summary = json.loads((one / "summary.json").read_text())
    summary["best"]["round"] = 2
    (one / "summary.json").write_text(json.dumps(summary))
    rows = metrics_file.read(one / "metrics.csv")
    rows = [
        row._replace(value=math.nan) if (row.round, row.split) == (3, "test") else row
        for row in rows
    ]
    (one / "metrics.csv").write_text(metrics_file.header_line() + metrics_file.to_text(rows))

    board = analysed(tmp_path).leaderboard.set_index("method")

    assert board["n"].to_dict() == {"hfcd": 3, "fedavg": 3}
    assert board.loc["fedavg", "last"] == pytest.approx(1.75 / 3)
    assert math.isnan(board.loc["hfcd", "last"])


@pytest.mark.slow
def test_a_crossbar_of_ranks_is_drawn_from_left_to_right(tmp_path):
    """The bytes of a picture do not depend on the order of a set of texts in this process."""
    names = ("fedavg", "ft", "local", "hfcd", "ditto", "fedper")
    values = {name: [0.5 + k / 100, 0.6 + k / 100] * 3 for k, name in enumerate(names)}
    for alpha in ("0.1", "1"):
        matrix(tmp_path / alpha, values, keys=(f"partition.alpha={alpha}",))

    figure = figures.draw(analysed(tmp_path), "ranks", "")

    [bar] = [line for line in figure.axes[0].lines if len(line.get_xdata()) > 3]
    assert list(bar.get_xdata()) == sorted(bar.get_xdata())


@pytest.mark.slow
def test_a_metric_without_rounds_or_named_like_a_column_is_shown(tmp_path):
    for path in matrix(tmp_path, PAIR).values():
        edited(path, gm=0.5, std=0.25)

    found = analysed(tmp_path, metric="gm,std", targets=0.5)

    assert found.curves.empty
    assert found.targets.empty
    assert "target" in found.answer[-1]
    assert figures.draw(found, "convergence", "digits") is None
    [board] = TABLES["leaderboard"](found, "digits")
    assert {line["mean std"] for line in board.cells()} == {"0.2500"}


def test_runs_far_below_the_other_repetitions_are_named(tmp_path):
    accuracies = {
        "fedavg": [0.50, 0.40, 0.52, 0.51, 0.49],
        "hfcd": [0.80, 0.70, 0.82, 0.11, 0.81],
        "local": [0.70, 0.61, 0.72, 0.71, 0.73],
    }
    folders = matrix(tmp_path, accuracies)

    # The second repetition is more difficult for all methods, which is no collapse.
    [sentence] = arrange(collect([tmp_path]).runs).warnings
    assert str(folders["hfcd", 3]) in sentence
    assert sentence.count(str(tmp_path)) == 1


@pytest.mark.slow
def test_pairs_are_those_of_scipy(analysis, seen, folders, counts):
    overlap = len(seen["fedavg", 1]) / counts[0].sum()
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
    corrected = multipletests(p, method="holm")[1]
    assert analysis.pairs["p_holm"].tolist() == pytest.approx(corrected, **EXACT)


@pytest.mark.slow
def test_each_named_metric_is_tested_as_if_it_were_the_first(analysis, folders):
    runs = [reading.read(path) for path in folders.values()]

    found = Analysis(arrange(runs, metric="accuracy,macro_f1,bytes")).pairs
    alone = Analysis(arrange(runs, metric="macro_f1")).pairs

    pd.testing.assert_frame_equal(found, pd.concat([analysis.pairs, alone], ignore_index=True))


def test_less_of_a_loss_is_better(tmp_path):
    matrix(tmp_path, {"fedavg": [0.1, 0.12, 0.11], "hfcd": [0.8, 0.9, 0.85]})
    for one in collect([tmp_path]).runs:
        edited(one.path, nll=1 - one.summary["best"]["test"]["accuracy"])

    pairs = analysed(tmp_path, metric="accuracy,nll").pairs.set_index("metric")

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
def test_only_places_whose_partition_differs_get_the_corrected_test(tmp_path):
    matrix(tmp_path / "a", PAIR, keys=("partition.alpha=0.1",))
    fixed = ("partition.alpha=1", "partition.seed=0")
    matrix(tmp_path / "b", PAIR, keys=fixed, partition_hash="a" * 64)

    found = analysed(tmp_path)

    first, second = found.comparison.places
    pairs = found.pairs.set_index("place")
    assert pairs["corrected"].notna().to_dict() == {first: True, second: False}
    populations = [found.comparison.sampling_at(place).vary for place in (first, second)]
    assert (found.comparison.vary, populations) == ("both", ["both", "training"])


def test_two_repetitions_support_no_claim(tmp_path):
    matrix(tmp_path, {"fedavg": [0.1, 0.11], "hfcd": [0.9, 0.91]})

    found = analysed(tmp_path)

    assert set(found.pairs["verdict"]) == {"no claim"}
    assert set(found.leaderboard["groups"]) == {""}
    assert found.leaderboard["low"].isna().all()
    assert set(found.leaderboard["better_than"]) == {()}
    assert found.classes["low"].isna().all()
    [board] = TABLES["leaderboard"](found, "digits")
    assert [*board.mark(0, "mean"), *board.mark(1, "mean")] == ["best"]
