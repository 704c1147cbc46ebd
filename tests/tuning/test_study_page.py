"""The report of a study: its search, what tuning changed, and what is unfinished or undecided."""

import csv
import json
import re
import shlex
import shutil

import pytest

import flbench as fl
from flbench.api import studies
from flbench.cli.app import main
from flbench.config.resolve import resolve
from flbench.config.sources import from_overrides, leaves
from flbench.tuning.request import LONG_TAIL
from tests.support import pictures_in_pages
from tests.tuning.studies import DEFAULTS, begin, cell, evaluated, trial, write

pytestmark = pytest.mark.slow  # they write reports

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


def tree_of(folder):
    """Return report.json, in which all numbers are finite."""
    return json.loads((folder / "report.json").read_text(), parse_constant=pytest.fail)


def test_report_has_the_search_and_what_tuning_gains(written, capsys):
    """Tuned minus default is 0.051, 0.052, 0.053: mean 0.052, 2.484 deviations of 0.001."""
    tree = tree_of(written)

    pictures = {file.stem for file in written.glob("pictures/*.svg")}
    kinds = ("parallel", "scatter")
    assert {f"{method}-{kind}" for method in ("hfcd", "fedavg") for kind in kinds} <= pictures
    page = (written / "report.html").read_text()
    assert page.count('<svg role="img"') == len(pictures)
    links = re.findall(r'(?:src|href)="([^"]*)"', page)
    assert not [link for link in links if not link.startswith(("#", "data:image/"))]
    method = tree["search"]["methods"]["fedavg"]
    assert method["winner"]["index"] == 8
    assert set(method["importance"]) < set(DEFAULTS)
    board = {row["method"]: row for row in tree["leaderboard"]}
    assert board["fedavg tuned"]["mean"] == pytest.approx((0.771 + 0.792 + 0.813) / 3)
    assert board["fedavg tuned"]["macro_f1"] == pytest.approx(0.3)
    pairs = {(row["first"], row["second"]): row for row in tree["pairs"]}
    gain = pairs["fedavg tuned", "fedavg"]
    wide = 2.484 / 1000
    assert [gain[name] for name in ("difference", "low", "high")] == pytest.approx(
        [0.052, 0.052 - wide, 0.052 + wide], abs=1e-6
    )
    assert gain["verdict"] == "better"
    pair = pairs["hfcd tuned", "fedavg tuned"]
    assert pair["difference"] == pytest.approx(-0.1)
    assert pair["verdict"] == "no claim"  # the same in every seed
    [row] = [one for one in report_of(written).table.rows if one["method"] == "hfcd"]
    assert (row["default"], row["best"]) == (0.5, pytest.approx(0.58))
    gains = {row["metric"]: row for row in report_of(written).gain("fedavg").rows}
    assert gains["accuracy"]["gain"] == pytest.approx(
        [gain[k] for k in ("difference", "low", "high")]
    )
    assert gains["accuracy"]["tuned"] == pytest.approx(board["fedavg tuned"]["mean"])
    assert gains["macro F1"]["gain"][0] == pytest.approx(0)
    with (written / "tables/trials.csv").open() as file:
        lines = list(csv.DictReader(file))
    assert len(lines) == 20
    assert [line["trial"] for line in lines if line["winner"] == "1"] == ["8", "8"]
    assert (lines[9]["state"], lines[9]["algorithm.distance"]) == ("stopped", "")
    assert main(["show", str(written)]) == 0
    assert "+0.0520" in capsys.readouterr().out


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


def test_answer_has_the_gain_in_rare_recall(tmp_path, finished_run):
    """Tuned minus default is 0.1, 0.2, 0.3: mean 0.2, 2.484 deviations of 0.1 on either side."""
    folder = begin(tmp_path / "study", "hfcd", trials=2)
    trial(folder, "hfcd", 0, 0.5)
    trial(folder, "hfcd", 1, 0.9, params=DEFAULTS | {"algorithm.tau": 0.1})
    for seed in (1, 2, 3):
        cell(folder, finished_run, "hfcd", seed, {"accuracy": seed / 10, "rare_recall": 0.1})
        found = {"accuracy": 0.2 + seed / 10, "rare_recall": 0.1 + seed / 10}
        cell(folder, finished_run, "hfcd tuned", seed, found)

    assert "+0.2000 [-0.0484, +0.4484]" in report_of(folder).answer[0]


def test_cells_that_are_damaged_are_left_out(tmp_path, finished_run):
    folder = begin(tmp_path / "study", "hfcd", metric="gain")
    trial(folder, "hfcd", 1, 0.5)
    for seed, test in ((2, {"gain": 0.5}), (3, {"gain": 0.6})):
        path = cell(folder, finished_run, "hfcd", seed, test)
    (path / "clients.csv").write_text("moment,client\n")

    report = report_of(folder)

    assert report.analysis.leaderboard[["n", "mean"]].to_numpy().tolist() == [[1, 0.5]]
    assert any("clients.csv" in note for note in report.said)


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


def test_unfinished_studies_say_what_is_missing_and_how_to_resume(tmp_path, finished_run):
    folder = begin(tmp_path / "study", "hfcd", trials=2)
    write_page(folder)
    assert tree_of(folder)["search"]["methods"]["hfcd"]["winner"] is None
    trial(folder, "hfcd", 0, 0.4, state="stopped", round=1)
    trial(folder, "hfcd", 1, None, state="failed", reason="killed <b>twice</b> | gone.", attempts=3)
    write_page(folder)
    assert "<b>twice" not in texts(folder)["report.html"]
    [row] = report_of(folder).table.rows
    assert (row["default"], row["best"]) == (None, None)  # the score is of an earlier round
    assert (row["stopped"], row["failed"], row["retried"]) == (1, 1, 1)

    for k in range(2):
        trial(folder, "hfcd", k, 0.5 + k / 10)
    for label in ("hfcd", "hfcd tuned"):
        for seed in (1, 2, 3):
            path = cell(folder, finished_run, label, seed, {"accuracy": 0.5 + seed / 10})
    assert not report_of(folder).notes
    (path / "summary.json").unlink()
    notes = report_of(folder).notes
    shutil.rmtree(folder / "trials" / "hfcd" / "001")
    for found, missing in ((notes, "5 of 6"), (report_of(folder).notes, "1 of 2")):
        [note] = [one for one in found if f"`flbench tune --resume {folder}`" in one]
        assert missing in note


def test_answer_has_the_best_parameters_to_paste(tmp_path):
    about = {"imbalance": LONG_TAIL["data.imbalance"], "setting": LONG_TAIL}
    folder = begin(tmp_path / "study", "hfcd", "fedavg", trials=2, **about)
    best = {"algorithm.tau": 0.0993273, "algorithm.loss_form": "separate", "train.clip": None}
    for method, score in (("hfcd", 0.9), ("fedavg", 0.1)):
        trial(folder, method, 0, 0.5)
        trial(folder, method, 1, score, params=DEFAULTS | best)

    hfcd, fedavg, command = report_of(folder).best

    words = shlex.split(hfcd.partition(": ")[2])
    assert [word.partition("=")[0] for word in words] == [*best]
    values = leaves(resolve([from_overrides(["algorithm.name=hfcd", *words])])[0].tree())
    assert {key: values[key] for key in best} == best
    assert "=" not in fedavg  # its default parameters are the best
    told = shlex.split(command.partition(": ")[2])
    assert told == ["flbench", "compare", "hfcd", "fedavg", "local", "--tuned", str(folder)]


def test_scores_that_are_not_numbers_are_left_out(tmp_path):
    folder = begin(tmp_path / "study", "hfcd")
    trial(folder, "hfcd", 0, float("nan"))
    trial(folder, "hfcd", 1, None, state="diverged", reason="no client finished.")
    trial(folder, "hfcd", 2, float("inf"), state="stopped")

    write_page(folder)

    assert len(tree_of(folder)["search"]["failures"]) == 3  # two trials, and the method
    for text in texts(folder).values():
        assert not re.search(r"\bnan\b|\binf\b", text)


def test_one_trial_wins_everywhere(tmp_path):
    """The best of equal scores by loss is the winner of the search, the page, MLflow and fl."""
    folder = begin(tmp_path / "study", "hfcd", seeds=0, trials=4)
    losses = (0.4, 0.5, 0.3, 0.1)
    for k, score in enumerate((0.8, 0.8, 0.8, 0.7)):
        params = DEFAULTS | {"algorithm.tau": 1 + k}
        trial(folder, "hfcd", k, score, loss=losses[k], params=params)

    write_page(folder)

    assert fl.Study(folder).best("hfcd").index == 2
    assert tree_of(folder)["search"]["methods"]["hfcd"]["winner"]["index"] == 2
    with (folder / "tables/trials.csv").open() as file:
        assert [line["trial"] for line in csv.DictReader(file) if line["winner"] == "1"] == ["2"]


@pytest.mark.parametrize(
    ("scores", "states", "counts"),
    [
        ((0.9, 0.9, 0.895, 0.889), "fffs", ["3"]),
        ((0.9, 0.8, 0.7, 0.6), "ffff", []),
        ((0.0, 0.0, 0.0, 0.0), "fffs", ["4"]),
        ((0.5,), "f", []),
    ],
)
def test_trials_that_the_score_does_not_tell_apart_are_counted(tmp_path, scores, states, counts):
    folder = begin(tmp_path / "study", "hfcd", seeds=0, trials=len(scores), validation=200)
    names = {"f": "finished", "s": "stopped"}
    for k, (score, state) in enumerate(zip(scores, states, strict=True)):
        trial(folder, "hfcd", k, score, state=names[state])

    said = report_of(folder).undecided("hfcd")

    assert [re.search(r"(\d+) trials", note)[1] for note in said] == counts


def test_winner_at_the_edge_of_its_space_is_marked(tmp_path):
    space = {
        "algorithm.tau": {"loguniform": [0.01, 10.0]},
        "algorithm.groups": {"int": [2, 8]},
        "train.optimizer.lr": {"loguniform": [0.001, 1.0]},
    }
    folder = begin(tmp_path / "study", "fedavg", space=space)
    best = {"algorithm.tau": 9.9, "algorithm.groups": 2, "train.optimizer.lr": 0.03}
    trial(folder, "fedavg", 0, 0.5, params=best)

    write_page(folder)

    warnings = tree_of(folder)["search"]["methods"]["fedavg"]["at_the_edge"]
    ends = {path: re.findall(r"\bhigh\b|\blow\b", text) for path, text in warnings.items()}
    assert ends == {"algorithm.tau": ["high"], "algorithm.groups": ["low"]}


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
