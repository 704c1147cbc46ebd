"""Each number of a report means the same in all of its forms, and says what it is a number of."""

import json
import math
import re

import numpy as np
import pandas as pd
import pytest
from scipy import stats

import flbench as fl
from flbench.analysis import page, statistics, text
from flbench.analysis.arrangement import arrange
from flbench.analysis.tables import analyse
from flbench.cli import app
from flbench.comparison.collect import collect
from tests.comparison.made import matrix, run_folder
from tests.support import pictures_in_pages
from tests.tuning import studies

ACCURACIES = {
    "fedavg": [0.50, 0.55, 0.48, 0.60, 0.51],
    "hfcd": [0.52, 0.53, 0.52, 0.61, 0.50],
    "ditto": [0.79, 0.82, 0.82, 0.78, 0.80],
}


def analysed(folder, **options):
    found = collect([folder])
    return analyse(arrange(found.runs, notes=found.notes, **options))


def cells_of(source, first):
    """The cells of the row of a table of Markdown that begins with a text."""
    [row] = [line for line in source.splitlines() if line.startswith(f"| {first} |")]
    return [cell.strip() for cell in row.strip("|").split("|")]


@pytest.fixture(scope="module")
def analysis(tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs")
    matrix(folder, ACCURACIES)
    return analysed(folder)


@pytest.fixture(scope="module")
def html(analysis):
    with pictures_in_pages():
        source = page.render(analysis)
    return re.sub(r"<svg.*?</svg>", "", source, flags=re.DOTALL)


def test_p_is_one_number_in_texts_page_and_files(analysis, html):
    first = analysis.clients.query("repetition == 0 and method == 'ditto'")
    overlap = first["test_size"].sum() / first["train_size"].sum()
    markdown = text.markdown_of(analysis)
    in_json = pd.DataFrame(text.tree_of(analysis)["pairs"])
    for k, row in analysis.pairs.iterrows():
        gaps = np.subtract(ACCURACIES[row["first"]], ACCURACIES[row["second"]])
        error = gaps.std(ddof=1) * math.sqrt(1 / 5 + overlap)
        p = 2 * stats.t.sf(abs(gaps.mean()) / error, 4)
        assert row["p"] == in_json["p"][k] == pytest.approx(p)
        assert row["paired_t"] == pytest.approx(stats.ttest_1samp(gaps, 0).pvalue)
        assert row["paired_t"] < row["p"]
        cells = cells_of(markdown, f"{row['first']} - {row['second']}")
        assert cells[3:5] == [text.p_value(row["p"]), text.p_value(row["p_holm"])]
        after = html.partition(f">{row['first']} - {row['second']}</td>")[2].partition("</tr>")[0]
        assert re.findall("<td[^>]*>(.*?)</td>", after)[2] == text.p_value(p).replace("<", "&lt;")


def test_markdown_and_page_say_the_same_about_all_figures(analysis, html):
    about = text.about(analysis.comparison)

    assert about in text.markdown_of(analysis)
    assert about in html
    assert "best round by validation accuracy" in about
    assert "the seed of the training and the partition differ" in about


def test_differences_that_no_number_of_repetitions_shows_are_told_apart(analysis):
    rows = analysis.pairs.set_index(["first", "second"])

    row = rows.loc["fedavg", "hfcd"]
    assert row["limited"]
    assert math.isnan(row["needed"])
    assert not rows.loc["ditto", "fedavg"]["limited"]
    block = text.pairs_block(analysis, "digits")
    assert [line[-1] for line in block.rows] == ["-", "-", "no number"]
    assert "floor" in block.about
    assert "--vary training" in block.about
    assert "more samples" in block.about.lower()


@pytest.mark.parametrize("effect", [0.5, 1.0, 1.5, 2.0])
@pytest.mark.parametrize("tests", [1, 10])
def test_limit_is_that_of_very_many_repetitions(effect, tests):
    shift, n = effect / math.sqrt(1e-6 + 0.3), 10**6
    power = stats.nct.sf(stats.t.ppf(1 - 0.025 / tests, n - 1), n - 1, shift)

    assert statistics.is_beyond_repetitions(effect, 0.3, tests) == (power < 0.8)


@pytest.mark.parametrize(
    ("keys", "hashed", "vary", "words"),
    [
        (("partition.seed=0",), "a" * 64, "training", "on this one partition"),
        (("seed=0",), None, "partition", "for this one seed of the training"),
        ((), None, "both", ""),
    ],
)
def test_claims_name_their_population(tmp_path, keys, hashed, vary, words):
    for method, values in ACCURACIES.items():
        for k, value in enumerate(values):
            own = (*keys, f"partition.seed={k}") if vary == "partition" else keys
            folder = tmp_path / f"{method}-{k}"
            run_folder(folder, method, value, repetition=k, keys=own, partition_hash=hashed)

    found = analysed(tmp_path, baseline="fedavg")

    assert found.comparison.vary == vary
    first, _, beside = found.answer
    for sentence in (first, beside):
        assert (words or "this one") in sentence or not words
        assert ("this one" in sentence) == bool(words)
    assert ("this one" in text.leaderboard_block(found, "digits").about) == bool(words)
    assert "limited" in found.pairs
    assert found.pairs["corrected"].isna().all() == (vary == "training")


def test_each_place_has_what_differs_between_its_own_repetitions(tmp_path):
    matrix(tmp_path / "a", ACCURACIES, keys=("partition.alpha=0.1",))
    fixed = ("partition.alpha=1", "partition.seed=0")
    matrix(tmp_path / "b", ACCURACIES, keys=fixed, partition_hash="a" * 64)

    found = analysed(tmp_path)

    each = {one.split(" with ")[0]: one for one in found.answer if one.startswith("On ")}
    assert "on this one partition" in each["On digits, alpha=1"]
    assert "this one" not in each["On digits, alpha=0.1"]
    captions = re.findall(r"\\caption\{(.*)\}", text.latex_of(found))
    assert [caption.count("the partition is the same") for caption in captions] == [0, 1]


def test_costs_of_a_target_that_not_all_runs_reach_are_never_the_smaller_ones(tmp_path):
    """Of ditto two of five runs reach the target, and those early; of hfcd three do, and late."""
    accuracies = {
        "fedavg": [0.6] * 5,
        "ditto": [0.9, 0.9, 0.1, 0.1, 0.1],
        "hfcd": [0.7, 0.7, 0.7, 0.1, 0.1],
    }
    matrix(tmp_path, accuracies, rounds=3, sent=1000, seconds=3.0)

    found = analysed(tmp_path)

    table = found.targets.set_index("method")
    assert table["reached"].to_dict() == {"fedavg": 5, "ditto": 2, "hfcd": 3}
    assert table.loc["ditto", ["rounds", "bytes", "seconds"]].isna().all()
    assert table.loc["ditto", "least_rounds":"least_seconds"].tolist() == [3, 3000, 3.0]
    assert table.loc["hfcd", ["rounds", "bytes", "seconds"]].tolist() == [3, 3000, 3.0]
    assert table.sort_values("bytes").index[-1] == "ditto"
    block = text.targets_block(found, "digits")
    shown = {row[0]: row[1:] for row in block.rows}
    assert shown["ditto"] == ("2 of 5", "> 3", "> 3.0 kB", "> 3.0")
    assert shown["hfcd"] == ("3 of 5", "3", "3.0 kB", "3.0")
    assert "fedavg has at the end of its 5 runs" in block.about


def test_runs_that_ended_early_do_not_leave_the_mean_to_the_others(tmp_path):
    for k, rounds in enumerate((2, 4)):
        folder = run_folder(tmp_path / f"a{k}", "fedavg", 0.8, repetition=k, rounds=rounds)
        config = (folder / "config.yaml").read_text()
        config = re.sub(r"rounds: \d+", "rounds: 4", config)
        (folder / "config.yaml").write_text(config)

    [panel, *_] = fl.report(tmp_path).plot.convergence().axes

    assert panel.lines[0].get_xdata().tolist() == [1, 2]


def test_methods_that_lack_repetitions_have_no_rank(tmp_path):
    for alpha in ("0.1", "1"):
        runs = matrix(tmp_path / alpha, ACCURACIES, keys=(f"partition.alpha={alpha}",))
        for k in (3, 4) if alpha == "1" else ():
            (runs["ditto", k] / "summary.json").unlink()  # it was not finished

    found = analysed(tmp_path)

    board = found.leaderboard.set_index(["place", "method"])
    assert board.loc["digits, alpha=0.1"]["rank"].to_dict() == {"ditto": 1, "hfcd": 2, "fedavg": 3}
    rows = board.loc["digits, alpha=1"]
    assert rows["rank"].drop("ditto").to_dict() == {"hfcd": 1, "fedavg": 2}
    assert math.isnan(rows.loc["ditto", "rank"])
    assert rows.index[-1] == "ditto"
    assert rows["n"].to_dict() == {"hfcd": 5, "fedavg": 5, "ditto": 3}
    assert set(found.across.ranks.index) == {"hfcd", "fedavg"}
    said = " ".join(found.answer)
    assert said.count("ditto is not ranked, because it lacks repetitions") == 2
    [line] = [
        row for row in text.leaderboard_block(found, "digits, alpha=1").rows if "ditto" in row
    ]
    assert line[0] == "-"
    assert json.loads(text.json_of(found))["leaderboard"][-1]["rank"] is None
    assert "hfcd" in re.findall(r"(\w+) & \\textbf", text.latex_of(found))
    assert "mean over 3 to 5 repetitions" in text.latex_of(found)


def test_baseline_is_what_all_others_are_compared_with(tmp_path):
    matrix(tmp_path, ACCURACIES)

    found = fl.report(tmp_path, baseline="hfcd")

    pairs = found.pairs
    assert pairs["second"].tolist() == ["hfcd", "hfcd", "fedavg"]
    gap = np.mean(ACCURACIES["ditto"]) - np.mean(ACCURACIES["hfcd"])
    row = pairs.set_index(["first", "second"]).loc["ditto", "hfcd"]
    assert row["difference"] == pytest.approx(gap)
    assert found.answer[-1] == (
        "Beside the baseline hfcd on digits: ditto is better; fedavg shows no significant"
        " difference."
    )
    assert found.targets["target"].iloc[0] == pytest.approx(np.mean(ACCURACIES["hfcd"]))
    assert found.classes.query("method == 'hfcd'")["difference"].isna().all()
    # Without the option the pairs have the order of the methods, and the same p-values.
    plain = fl.report(tmp_path)
    assert len(plain.answer) == len(found.answer) - 1
    assert sorted(plain.pairs["p_holm"]) == pytest.approx(sorted(pairs["p_holm"]))


def test_classes_have_the_number_of_repetitions_beside_their_means(tmp_path):
    for k in range(2):
        folder = run_folder(tmp_path / str(k), "fedavg", 0.5, repetition=k)
        table = pd.read_csv(folder / "per_class.csv")
        if k == 0:
            table.loc[1, ["test_support", "precision", "recall", "f1"]] = 0
        table.to_csv(folder / "per_class.csv", index=False)

    found = analysed(tmp_path)

    assert found.classes.set_index("class")["n"].to_dict() == {0: 2, 1: 1, 2: 2, 3: 2}
    assert "repetitions with test samples" in text.classes_block(found, "digits").about
    assert "repetitions with test" not in text.classes_block(found, "digits", "precision").about


def test_bytes_between_clients_are_no_upload_in_show(tmp_path, capsys):
    folder = run_folder(tmp_path / "a", "fedavg", 0.5, sent=1000, rounds=3)
    summary = json.loads((folder / "summary.json").read_text())
    summary["communication"] |= {"up_bytes": 0, "peer_bytes": 3000}
    (folder / "summary.json").write_text(json.dumps(summary))

    assert app.main(["show", str(folder)]) == 0

    line = next(line for line in capsys.readouterr().out.splitlines() if "3.0 kB" in line)
    assert re.search(r"0 B +0 B +3\.0 kB", line)


def test_report_of_a_study_says_how_it_differs_from_the_page_of_the_study(tmp_path):
    source = run_folder(tmp_path / "run", "fedavg", 0.5, partition_hash="a" * 64)
    study = studies.begin(tmp_path / "study", "fedavg", metric="macro_f1", deployment="head")
    for seed in (1, 2, 3):
        folder = studies.final(study, source, "fedavg", "default", seed, {})
        config = (folder / "config.yaml").read_text()
        config = re.sub(r"^seed: \d+", f"seed: {seed}", config, flags=re.MULTILINE)
        config = re.sub(r"^  seed: null", "  seed: 0", config, flags=re.MULTILINE)
        (folder / "config.yaml").write_text(config)

    found = fl.report(study)

    [warning] = [one for one in found.warnings if "share one partition" in one]
    assert "macro_f1 of the deployment `head` after the last round" in warning
    assert "on this one partition" in found.answer[0]


def test_a_metric_of_ones_own_has_a_warning_about_its_direction(tmp_path):
    folder = run_folder(tmp_path / "a", "fedavg", 0.5, keys=("evaluation.metrics.loss=mine:loss",))
    summary = json.loads((folder / "summary.json").read_text())
    summary["best"]["test"]["loss_mean"] = 0.3
    (folder / "summary.json").write_text(json.dumps(summary))

    assert any("larger values" in one for one in fl.report(tmp_path, metric="loss_mean").warnings)
    assert not any("larger values" in one for one in fl.report(tmp_path).warnings)
