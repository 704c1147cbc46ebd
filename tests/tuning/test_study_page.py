import csv
import json
import re
import shlex
import shutil

import numpy as np
import pytest

import flbench as fl
from flbench.api import studies
from flbench.cli.app import main
from flbench.config.resolve import resolve
from flbench.config.sources import from_overrides, leaves
from flbench.reports import render, terminal
from flbench.tuning.request import LONG_TAIL
from flbench.tuning.study import winner
from tests.support import pictures_in_pages
from tests.tuning.studies import DEFAULTS, begin, cell, evaluated, trial, write

pytestmark = pytest.mark.slow  # they write reports with pictures

FILES = ("tables/trials.csv", "report.json", "report.md", "report.html")


@pytest.fixture(scope="module")
def written(tmp_path_factory, finished_run):
    """A finished study of two methods, with its results."""
    path = tmp_path_factory.mktemp("studies") / "study"
    folder = begin(path, "hfcd", "fedavg", trials=10, vary="training")
    for offset, method in ((0.0, "hfcd"), (0.1, "fedavg")):
        for k in range(9):
            params = DEFAULTS | {"algorithm.tau": 0.01 * 2**k, "algorithm.groups": 2 + k % 7}
            trial(folder, method, k, 0.5 + offset + k / 100, params=params)
            evaluated(folder, method, k, {1: 0.3 + k / 100, 3: 0.5 + offset + k / 100})
        del params["algorithm.distance"]
        trial(folder, method, 9, 0.4, params=params, state="stopped", round=1)
        for seed in (1, 2, 3):
            for label, gain in ((f"{method} tuned", 0.05 + seed / 1000), (method, 0.0)):
                score = {"accuracy": 0.6 + offset + seed / 50 + gain, "macro_f1": 0.3}
                cell(folder, finished_run, label, seed, score)
    with pictures_in_pages():
        write_page(folder)
    return folder


def texts(folder):
    return {name: (folder / name).read_text() for name in FILES}


def report_of(folder):
    return studies.report_of(folder)


def write_page(folder):
    report_of(folder).write(folder)


def rows(table, **wanted):
    """Return the rows of a table as dicts of texts by heading, those with these cells."""
    headings = {key: column.heading.replace("\n", " ") for key, column in table.used.items()}
    lines = [{headings[key]: text for key, text in row.items()} for row in table.cells()]
    return [line for line in lines if wanted.items() <= line.items()]


@pytest.mark.slow
def test_report_of_a_study_is_its_page_and_writes_its_runs(tmp_path, finished_run):
    folder = begin(tmp_path / "study", "ft")
    for k in range(2):
        trial(folder, "ft", k, 0.5 + k / 10)
        for seed in (1, 2, 3):
            score = {"accuracy": 0.5 + k / 10 + seed / 100}
            cell(folder, finished_run, ("ft", "ft tuned")[k], seed, score)
    write_page(folder)

    [tuned] = rows(report_of(folder).tables[0], method="ft tuned")
    assert tuned["accuracy (95 % interval)"].startswith("0.6200")
    board = fl.report(folder).leaderboard.set_index("method")
    assert board.loc["ft tuned", "mean"] == pytest.approx(0.62)
    for name in FILES:
        (folder / name).unlink()
    long = tmp_path / "long.csv"
    assert main(["report", str(folder), "--long", str(long)]) == 0
    assert long.is_file()
    assert "search" in json.loads(texts(folder)["report.json"])


@pytest.mark.slow
def test_page_is_whole_and_has_no_outer_links(written):
    page = texts(written)["report.html"]

    links = re.findall(r'(?:src|href)="([^"]*)"', page)
    assert not [link for link in links if not link.startswith(("#", "data:image/"))]
    assert not re.search(r"url\(\s*['\"]?(?!#)", page)
    pictures = {file.stem for file in written.glob("pictures/*.svg")}
    kinds = ("parallel", "importance", "scatter")
    searched = {f"{method}-{kind}" for method in ("hfcd", "fedavg") for kind in kinds}
    assert {"leaders", "recall", *searched} <= pictures
    assert page.count('<svg role="img"') == len(pictures)
    for method in ("hfcd", "fedavg"):
        assert f">{method}</h2>" in page


def test_tables_have_default_and_tuned_with_their_difference(written):
    """Tuned minus default is 0.051, 0.052, 0.053: mean 0.052, 2.484 deviations of 0.001."""
    report = report_of(written)
    board, pairs = report.tables

    [default] = rows(board, method="hfcd")
    assert default["accuracy (95 % interval)"].startswith("0.6400 [")
    [gain] = rows(pairs, difference="hfcd tuned - hfcd")
    assert gain["mean (95 % interval)"] == "+0.0520 [+0.0495, +0.0545]"
    assert gain["verdict"] == "better"
    [search] = rows(report.table, method="hfcd")
    assert (search["default"], search["best"]) == ("0.5000", "0.5800")
    said = "On this one partition: tuning helped hfcd (test accuracy +0.0520 [+0.0495, +0.0545])"
    assert report.answer[0].startswith(said)
    gains = {row["test metric"]: row for row in rows(report.gain("hfcd"))}
    assert gains["accuracy"] == {
        "test metric": "accuracy",
        "default": "0.6400",
        "tuned": "0.6920",
        "gain (95 % interval)": gain["mean (95 % interval)"],
        "runs": "3",
    }
    assert float(gains["macro F1"]["gain (95 % interval)"].split()[0]) == 0


def test_claims_about_partitions_of_their_own_speak_of_new_ones(tmp_path, written):
    study = tmp_path / "study"
    shutil.copytree(written, study)
    tree = json.loads((study / "study.json").read_text())
    write(study / "study.json", tree | {"vary": "both"})
    for folder in study.glob("cells/*"):
        seed = folder.name[-1]
        summary = json.loads((folder / "summary.json").read_text())
        write(folder / "summary.json", summary | {"partition_hash": seed * 64})
        # All samples, at clients that are drawn anew.
        rng = np.random.default_rng(int(seed))
        parts = {"client": rng.integers(0, 5, 300), "part": rng.integers(0, 3, 300, np.uint8)}
        np.savez(folder / "partition.npz", index=np.arange(300), **parts)

    report = report_of(study)

    said = "Over new partitions of these samples: tuning helped hfcd (test accuracy +0.0520 ["
    assert report.answer[0].startswith(said)
    assert "and partition" in report.facts["budget"]
    assert "on the partition of the search" in report_of(written).facts["budget"]


def test_study_and_its_report_judge_the_best_round(tmp_path, finished_run):
    folder = begin(tmp_path / "study", "hfcd", "fedavg")
    for method, best in (("hfcd", 0.8), ("fedavg", 0.7)):
        for seed in (1, 2, 3):
            cell(folder, finished_run, method, seed, {"accuracy": best}, {"accuracy": best / 2})

    boards = (report_of(folder).analysis, fl.report(folder), fl.load(folder).comparison)
    for board in boards:
        columns = board.leaderboard.set_index("method")[["mean", "last"]]
        assert columns.loc["hfcd"].tolist() == pytest.approx([0.8, 0.4])
        assert columns.loc["fedavg"].tolist() == pytest.approx([0.7, 0.35])


def test_defaults_that_won_are_the_tuned_parameters_too(tmp_path, finished_run):
    folder = begin(tmp_path / "study", "hfcd", "fedavg", trials=2)
    for method, score in (("hfcd", 0.8), ("fedavg", 0.95)):
        trial(folder, method, 0, 0.9)
        trial(folder, method, 1, score)
        for seed in (1, 2, 3):
            cell(folder, finished_run, method, seed, {"accuracy": seed / 10})
    for seed in (1, 2, 3):
        cell(folder, finished_run, "fedavg tuned", seed, {"accuracy": seed / 9})

    report = report_of(folder)

    assert set(report.analysis.leaderboard["method"]) == {"hfcd", "fedavg", "fedavg tuned"}
    assert "no trial was better than the default parameters of hfcd" in report.answer[0]


def test_score_of_a_stopped_default_trial_is_not_compared(tmp_path):
    """Its score is that of an earlier round."""
    folder = begin(tmp_path / "study", "hfcd")
    trial(folder, "hfcd", 0, 0.4, state="stopped", round=1)

    table = report_of(folder).table

    [line] = rows(table)
    assert not {"default", "best"} & line.keys()
    assert "best" not in table.about


def test_cells_that_are_damaged_are_left_out(tmp_path, finished_run):
    folder = begin(tmp_path / "study", "hfcd", metric="gain")
    trial(folder, "hfcd", 1, 0.5)
    for seed, test in ((2, {"gain": 0.5}), (3, {"gain": 0.6})):
        path = cell(folder, finished_run, "hfcd", seed, test)
    (path / "clients.csv").write_text("moment,client\n")

    report = report_of(folder)

    assert report.analysis.leaderboard[["n", "mean"]].to_numpy().tolist() == [[1, 0.5]]
    assert any("clients.csv" in note for note in report.said)


def test_json_holds_the_numbers_of_the_tables(written):
    tree = json.loads(texts(written)["report.json"], parse_constant=pytest.fail)

    method = tree["search"]["methods"]["fedavg"]
    assert method["winner"]["index"] == 8
    assert {"notes", "failures"} <= tree["search"].keys()
    assert set(method["importance"]) < set(DEFAULTS)
    board = {row["method"]: row for row in tree["leaderboard"]}
    assert board["fedavg tuned"]["mean"] == pytest.approx((0.771 + 0.792 + 0.813) / 3)
    assert board["fedavg tuned"]["macro_f1"] == pytest.approx(0.3)
    pairs = {(row["first"], row["second"]): row for row in tree["pairs"]}
    assert pairs["fedavg tuned", "fedavg"]["difference"] == pytest.approx(0.052)
    pair = pairs["hfcd tuned", "fedavg tuned"]
    assert pair["difference"] == pytest.approx(-0.1)
    assert pair["verdict"] == "no claim"  # the same in every seed


def test_csv_has_a_line_for_each_trial(written):
    with (written / "tables/trials.csv").open() as file:
        lines = list(csv.DictReader(file))

    assert len(lines) == 20
    assert [line["trial"] for line in lines if line["winner"] == "1"] == [
        "8",
        "8",
    ]
    assert float(lines[1]["algorithm.tau"]) == 0.02
    assert lines[1]["algorithm.distance"] == "cosine"
    assert lines[9]["state"] == "stopped"
    assert lines[9]["algorithm.distance"] == ""


@pytest.mark.slow
def test_report_written_again_is_the_same_and_reads_no_test_figure_of_a_trial(
    tmp_path, written, finished_run
):
    """Figures that a trial's folder should not have do not come through, were they there."""
    folder = tmp_path / "study"
    shutil.copytree(written, folder)
    poison = 0.87654321
    place = folder / "trials" / "hfcd" / "003"
    tree = json.loads((place / "trial.json").read_text())
    write(place / "trial.json", tree | {"test": {"accuracy": poison}})
    for name in ("config.yaml", "per_class.csv"):
        shutil.copy(finished_run / name, place)
    summary = json.loads((finished_run / "summary.json").read_text())
    for moment in ("last", "best"):
        summary[moment]["test"] = dict.fromkeys(summary[moment]["test"], poison)
    write(place / "summary.json", summary)
    with (place / "metrics.csv").open("a") as file:
        file.write(f"3,test,personal,accuracy,{poison}\n")

    with pictures_in_pages():
        write_page(folder)

    for name, text in texts(folder).items():
        assert "0.8765" not in text, name
        assert text.replace(str(folder), str(written)) == (written / name).read_text()
    assert not list(folder.rglob("*.part"))


def test_study_without_any_trial_has_a_report(tmp_path):
    folder = begin(tmp_path / "study", "hfcd", "fedavg")

    write_page(folder)

    page, tree = texts(folder)["report.html"], json.loads(texts(folder)["report.json"])
    assert tree["search"]["methods"]["hfcd"]["winner"] is None
    assert "0 of hfcd, 0 of fedavg have begun" in page
    assert not [*folder.glob("pictures/*")]


def test_unfinished_study_notes_what_is_missing(tmp_path, finished_run):
    folder = begin(tmp_path / "study", "hfcd", trials=3)
    trial(folder, "hfcd", 0, 0.5)
    trial(folder, "hfcd", 1, None, state="running", round=0, ended=None)
    trial(folder, "hfcd", 2, None, state="failed", reason="killed <b>twice</b> | gone.", attempts=3)

    write_page(folder)

    report = report_of(folder)
    [note] = report.notes
    assert "2 of 3 trials" in note
    assert f"`flbench tune --resume {folder}`" in note
    assert report.failures == [
        "hfcd, trial 2: failed after 3 rounds (3 attempts): killed <b>twice</b> | gone.",
    ]
    assert "<b>twice" not in texts(folder)["report.html"]
    [line] = rows(report.table)
    assert (line["finished"], line["running"], line["failed"], line["retried"]) == tuple("1111")


def test_unfinished_cells_are_counted_with_the_command_that_resumes(tmp_path, finished_run):
    folder = begin(tmp_path / "study", "hfcd", trials=2)
    for k in range(2):
        trial(folder, "hfcd", k, 0.5 + k / 10)
    for label in ("hfcd", "hfcd tuned"):
        for seed in (1, 2, 3):
            path = cell(folder, finished_run, label, seed, {"accuracy": 0.5 + seed / 10})
    assert not report_of(folder).notes
    (path / "summary.json").unlink()

    [note] = report_of(folder).notes

    assert "5 of 6 cells" in note
    assert f"`flbench tune --resume {folder}`" in note


def test_answer_has_the_best_parameters_to_paste_and_the_gain_in_rare_recall(
    tmp_path, finished_run
):
    """Tuned minus default is 0.1, 0.2, 0.3: mean 0.2, 2.484 deviations of 0.1 on either side."""
    about = {"imbalance": LONG_TAIL["data.imbalance"], "setting": LONG_TAIL}
    folder = begin(tmp_path / "study", "hfcd", "fedavg", trials=2, **about)
    best = {"algorithm.tau": 0.0993273, "algorithm.loss_form": "separate", "train.clip": None}
    for method, score in (("hfcd", 0.9), ("fedavg", 0.1)):
        trial(folder, method, 0, 0.5)
        trial(folder, method, 1, score, params=DEFAULTS | best)
        for seed in (1, 2, 3):
            found = {"accuracy": seed / 10, "rare_recall": 0.1}
            cell(folder, finished_run, method, seed, found)
    for seed in (1, 2, 3):
        found = {"accuracy": 0.2 + seed / 10, "rare_recall": 0.1 + seed / 10}
        cell(folder, finished_run, "hfcd tuned", seed, found)

    report = report_of(folder)

    gain, hfcd, fedavg, command, *_ = report.answer
    assert "rare recall +0.2000 [-0.0484, +0.4484]" in gain
    words = shlex.split(hfcd.partition(": ")[2])
    assert [word.partition("=")[0] for word in words] == [*best]
    values = leaves(resolve([from_overrides(["algorithm.name=hfcd", *words])])[0].tree())
    assert {key: values[key] for key in best} == best
    assert "=" not in fedavg  # its default parameters are the best
    told = shlex.split(command.partition(": ")[2])
    assert told == ["flbench", "compare", "hfcd", "fedavg", "local", "--tuned", str(folder)]
    for key in ("data.imbalance", "partition.alpha"):
        assert f"{key}={LONG_TAIL[key]}" in report.facts["data"]


def test_scores_that_are_not_numbers_are_left_out(tmp_path):
    folder = begin(tmp_path / "study", "hfcd")
    trial(folder, "hfcd", 0, float("nan"))
    trial(folder, "hfcd", 1, None, state="diverged", reason="no client finished.")
    trial(folder, "hfcd", 2, float("inf"), state="stopped")

    write_page(folder)

    json.loads(texts(folder)["report.json"], parse_constant=pytest.fail)
    found = report_of(folder).failures
    assert (
        "hfcd, trial 0: finished without a score: the validation parts have no accuracy." in found
    )
    assert "hfcd: no trial has finished with a score, so there is no winner." in found
    for text in texts(folder).values():
        assert not re.search(r"\bnan\b|\binf\b", text)


def test_one_method_and_one_seed_have_no_interval_and_no_rival(tmp_path, finished_run):
    folder = begin(tmp_path / "study", "hfcd", seeds=1, trials=2)
    for k in range(2):
        trial(folder, "hfcd", k, 0.5 + k)
    for label, value in (("hfcd tuned", 0.75), ("hfcd", 0.5)):
        cell(folder, finished_run, label, 1, {"accuracy": value})

    write_page(folder)

    report = report_of(folder)
    [gain] = rows(report.tables[1])
    assert gain["mean (95 % interval)"] == "+0.2500"
    assert gain["verdict"] == "no claim"


def test_one_trial_wins_everywhere(tmp_path):
    """The best of equal scores by loss is the winner of the search, the page, MLflow and fl."""
    folder = begin(tmp_path / "study", "hfcd", seeds=0, trials=4)
    losses = (0.4, 0.5, 0.3, 0.1)
    records = [
        trial(folder, "hfcd", k, score, loss=losses[k], params=DEFAULTS | {"algorithm.tau": 1 + k})
        for k, score in enumerate((0.8, 0.8, 0.8, 0.7))
    ]

    write_page(folder)

    assert winner(records).index == 2
    assert fl.Study(folder).best("hfcd").index == 2
    assert fl.Study(folder).trials["loss"].tolist() == list(losses)
    assert (
        json.loads(texts(folder)["report.json"])["search"]["methods"]["hfcd"]["winner"]["index"]
        == 2
    )
    with (folder / "tables/trials.csv").open() as file:
        assert [line["trial"] for line in csv.DictReader(file) if line["winner"] == "1"] == ["2"]
    [best] = [row["best"] for row in rows(report_of(folder).parameters("hfcd"))][:1]
    assert float(best) == 3


@pytest.mark.parametrize(
    ("scores", "states", "counts"),
    [
        ((0.9, 0.9, 0.895, 0.889), "fffs", ["3"]),
        ((0.9, 0.8, 0.7, 0.6), "ffff", []),
        ((0.9, 0.896, 0.7, 0.6), "ffff", ["2"]),
        ((0.0, 0.0, 0.0, 0.0), "fffs", ["4"]),
        ((0.9, 0.9, 0.9, 0.2), "fffs", ["3"]),
        ((0.5,), "f", []),
    ],
)
def test_trials_that_the_score_does_not_tell_apart_are_counted(tmp_path, scores, states, counts):
    folder = begin(tmp_path / "study", "hfcd", seeds=0, trials=len(scores), validation=200)
    names = {"f": "finished", "s": "stopped"}
    for k, (score, state) in enumerate(zip(scores, states, strict=True)):
        trial(folder, "hfcd", k, score, state=names[state])

    said = [note for note in report_of(folder).said if note.startswith("hfcd:")]

    assert [re.search(r"(\d+) trials", note)[1] for note in said] == counts
    assert ["--metric" in note for note in said] == [len(set(scores)) == 1] * len(said)
    assert ["loss" in note for note in said] == [scores.count(max(scores)) > 1] * len(said)


@pytest.mark.parametrize(("seeds", "verdict"), [(2, "no claim"), (3, "worse")])
def test_claim_needs_three_seeds(tmp_path, finished_run, seeds, verdict):
    folder = begin(tmp_path / "study", "hfcd", "fedavg", seeds=seeds)
    for method, value in (("hfcd", 0.1), ("fedavg", 0.8)):
        trial(folder, method, 1, 0.5)
        for seed in range(1, seeds + 1):
            score = value + seed * value / 1000
            cell(folder, finished_run, f"{method} tuned", seed, {"accuracy": score})

    [line] = rows(report_of(folder).tables[1])

    assert (line["difference"], line["verdict"]) == ("hfcd tuned - fedavg tuned", verdict)


def test_winner_at_the_edge_of_its_space_is_marked(tmp_path):
    space = {
        "algorithm.tau": {"loguniform": [0.01, 10.0]},
        "algorithm.groups": {"int": [2, 8]},
        "train.optimizer.lr": {"loguniform": [0.001, 1.0]},
    }
    folder = begin(tmp_path / "study", "fedavg", space=space)
    best = {
        "algorithm.tau": 9.9,
        "algorithm.groups": 2,
        "train.optimizer.lr": 0.03,
    }
    trial(folder, "fedavg", 0, 0.5, params=best)

    report = report_of(folder)
    warnings = report.extra.tree["search"]["methods"]["fedavg"]["at_the_edge"]

    ends = {path: text.partition(" end")[0] for path, text in warnings.items()}
    assert ends == {"algorithm.tau": "at the high", "algorithm.groups": "at the low"}
    assert "algorithm.tau is at the high end" in report.parameters("fedavg").about


def test_flat_values_are_those_of_trials_within_a_standard_error(tmp_path):
    """With 100 samples and a best score of 0.9 it is 0.03; with 10,000 it is 0.003."""
    for samples, wanted in ((100, ("0.1 to 0.4", "cosine, l2")), (10_000, None)):
        folder = begin(tmp_path / str(samples), "hfcd", validation=samples)
        for k, (score, tau, distance) in enumerate(
            ((0.88, 0.4, "l2"), (0.9, 0.1, "cosine"), (0.86, 2.0, "l2"))
        ):
            params = {"algorithm.tau": tau, "algorithm.distance": distance}
            params |= {"algorithm.groups": 1234 + k, "train.optimizer.lr": 0.01}
            trial(folder, "hfcd", k, score, params=params)

        flat = report_of(folder).flat("hfcd")

        if wanted is None:
            assert flat == {}
        else:
            assert flat["algorithm.tau"] == wanted[0]
            assert flat["algorithm.groups"] == "1234 to 1235"
            assert set(flat["algorithm.distance"].split(", ")) == set(wanted[1].split(", "))


def test_show_prints_a_study(written, capsys):
    assert main(["show", str(written)]) == 0

    printed = capsys.readouterr().out
    assert "eaderboard" in printed
    assert "+0.0520" in printed
    assert "tuning helped" in printed
    assert printed.count(str(written / "report.html")) == 1


def test_keys_of_parameters_are_not_cut(written, capsys, monkeypatch):
    monkeypatch.setattr(terminal, "NARROW", 75)

    render.console(report_of(written).parameters("hfcd"))

    printed = capsys.readouterr().out.split()
    assert set(DEFAULTS) <= set(printed)
