import csv
import json
import re
import shutil

import numpy as np
import pytest
from scipy import stats

from flbench.cli.app import main
from flbench.core.errors import UserError
from flbench.reports.statistics import paired_difference, sample
from flbench.results import study_folder
from flbench.tuning import study_figures, tables
from flbench.tuning import study_page as results_of
from flbench.tuning.failures import find_failures
from flbench.tuning.report import StudyReport
from tests.support import pictures_in_pages
from tests.tuning.studies import DEFAULTS, begin, final, trial, write

pytestmark = pytest.mark.slow  # they write reports with pictures

FILES = ("trials.csv", "results.json", "study.md", "report.html")


@pytest.fixture(scope="module")
def written(tmp_path_factory, finished_run):
    """A finished study of two methods, with its results."""
    folder = begin(tmp_path_factory.mktemp("studies") / "study", "hfcd", "fedavg", trials=10)
    for offset, method in ((0.0, "hfcd"), (0.1, "fedavg")):
        for k in range(9):
            params = DEFAULTS | {"algorithm.tau": 0.01 * 2**k, "algorithm.groups": 2 + k % 7}
            trial(folder, method, k, 0.5 + offset + k / 100, params=params)
        del params["algorithm.distance"]
        trial(folder, method, 9, 0.4, params=params, state="stopped", round=1)
        for seed in (1, 2, 3):
            for variant, gain in (("default", 0.0), ("tuned", 0.05 + seed / 1000)):
                score = {"accuracy": 0.6 + offset + seed / 50 + gain, "macro_f1": 0.3}
                final(folder, finished_run, method, variant, seed, score, of=8 if gain else 0)
    with pictures_in_pages():
        results_of.write(folder)
    return folder


def texts(folder):
    return {name: (folder / name).read_text() for name in FILES}


def report_of(folder):
    return StudyReport(study_folder.read(folder))


def rows(block, **wanted):
    """Return the rows of a table as dicts, those with these cells."""
    names = [name.replace("\n", " ") for name in block.header]
    lines = [dict(zip(names, row, strict=True)) for row in block.rows]
    return [line for line in lines if wanted.items() <= line.items()]


@pytest.mark.slow
def test_report_names_the_deployment_that_it_compares(tmp_path, finished_run):
    folder = begin(tmp_path / "study", "ft", deployment="noft")
    for k in range(2):
        trial(folder, "ft", k, 0.5 + k / 10)
        for seed in (1, 2, 3):
            score = {"accuracy": 0.9, "noft": {"accuracy": 0.5 + k / 10 + seed / 100}}
            final(folder, finished_run, "ft", ("default", "tuned")[k], seed, score, of=k)
    results_of.write(folder)
    report = report_of(folder)

    assert report.facts["metric"] == "accuracy of the deployment `noft`, after the last round"
    assert tables.gains(report).title == "Default against tuned: accuracy of noft"
    [tuned] = rows(tables.gains(report), values="tuned")
    assert tuned["test, final"].startswith("0.6200")
    page = texts(folder)
    assert "Other test metrics of noft" in page["study.md"]
    assert "Classes, tuned: test, personal models" in page["study.md"]
    assert json.loads(page["results.json"])["study"]["deployment"] == "noft"


@pytest.mark.slow
def test_page_is_whole_and_has_no_outer_links(written):
    page = texts(written)["report.html"]

    links = re.findall(r'(?:src|href)="([^"]*)"', page)
    assert not [link for link in links if not link.startswith("#")]
    assert not re.search(r"url\(\s*['\"]?(?!#)", page)
    assert "<script" not in page
    # Three pictures of each method, and the curve of all.
    assert page.count("<svg") == 2 * 3 + 1
    for method in ("hfcd", "fedavg"):
        assert f"<h2>{method}</h2>" in page


@pytest.mark.slow
def test_pictures_are_written_for_other_pages(written):
    for method in ("hfcd", "fedavg"):
        content = (written / "pictures" / f"{method}-parallel.png").read_bytes()
        assert content.startswith(b"\x89PNG")


@pytest.mark.slow
def test_results_written_again_are_the_same(written):
    before = texts(written)

    with pictures_in_pages():
        results_of.write(written)

    assert texts(written) == before
    assert not list(written.rglob("*.part"))


def test_table_has_default_and_tuned_with_their_difference(written):
    """Tuned minus default is 0.051, 0.052, 0.053: mean 0.052, 2.484 deviations of 0.001."""
    [default, tuned] = rows(tables.gains(report_of(written)), method="hfcd")

    assert default["values"] == "default"
    assert default["validation, search"] == "0.5000"
    assert tuned["validation, search"] == "0.5800"
    assert default["test, final"].startswith("0.6400 ± ")
    assert tuned["gain from tuning (test)"] == "+0.0520 ± 0.0025"
    assert tuned["verdict"] == "tuning helped on this one partition"


def test_json_holds_the_numbers_of_the_tables(written):
    tree = json.loads(texts(written)["results.json"], parse_constant=pytest.fail)

    method = tree["methods"]["fedavg"]
    assert method["winner"]["index"] == 8
    assert {"notes", "failures"} <= tree.keys()
    assert method["gain"]["sample"]["mean"] == pytest.approx(0.052)
    assert method["seeds"]["tuned"] == pytest.approx({"1": 0.771, "2": 0.792, "3": 0.813})
    assert method["finals"]["tuned"]["test"]["macro_f1"]["mean"] == pytest.approx(0.3)
    assert set(method["importance"]) < set(DEFAULTS)
    [pair] = tree["pairs"]
    assert pair["gap"]["sample"]["mean"] == pytest.approx(-0.1)
    assert pair["verdict"] == "no claim"  # the same in every seed


def test_csv_has_a_line_for_each_trial(written):
    with (written / "trials.csv").open() as file:
        lines = list(csv.DictReader(file))

    assert len(lines) == 20
    assert [line["index"] for line in lines if line["winner"] == "1"] == ["8", "8"]
    assert float(lines[1]["algorithm.tau"]) == 0.02
    assert lines[1]["algorithm.distance"] == "cosine"
    assert lines[9]["state"] == "stopped"
    assert lines[9]["algorithm.distance"] == ""


@pytest.mark.slow
def test_no_test_figure_of_a_search_trial_is_read(tmp_path, written, finished_run):
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
    (place / "metrics.csv").write_text(
        f"round,split,protocol,metric,value\n3,test,personal,accuracy,{poison}\n"
    )

    with pictures_in_pages():
        results_of.write(folder)

    for name, text in texts(folder).items():
        assert "0.8765" not in text, name
        assert text == (written / name).read_text()


def test_study_without_any_trial_has_a_report(tmp_path):
    folder = begin(tmp_path / "study", "hfcd", "fedavg")

    results_of.write(folder)

    page, tree = texts(folder)["report.html"], json.loads(texts(folder)["results.json"])
    assert tree["methods"]["hfcd"]["winner"] is None
    assert (
        "The budget is not equal yet: of 4 trials each, 0 of hfcd, 0 of fedavg have begun." in page
    )
    assert "not trained with seed 1, 2, 3" in page
    assert not list((folder / "pictures").iterdir())


def test_unfinished_study_notes_what_is_missing(tmp_path, finished_run):
    folder = begin(tmp_path / "study", "hfcd", trials=3)
    trial(folder, "hfcd", 0, 0.5)
    trial(folder, "hfcd", 1, None, state="running", round=0, ended=None)
    trial(folder, "hfcd", 2, None, state="failed", reason="killed <b>twice</b> | gone.", attempts=3)
    final(folder, finished_run, "hfcd", "default", 1, {"accuracy": 0.5})
    final(folder, finished_run, "hfcd", "default", 2, {}, state="failed", reason="no memory.")

    results_of.write(folder)

    report = report_of(folder)
    assert "Unfinished: 1 trial still running or interrupted." in report.notes
    assert find_failures(report) == [
        "hfcd, trial 2: failed after 3 rounds (3 attempts): killed <b>twice</b> | gone.",
        "hfcd, default, seed 2: failed: no memory.",
        "hfcd, default: not trained with seed 3.",
        # Nothing of `tuned`: the default trial leads, so its trainings are the tuned ones.
    ]
    assert "<b>twice" not in texts(folder)["report.html"]
    [line] = rows(tables.trials(report))
    assert (line["finished"], line["running"], line["failed"], line["retried"]) == tuple("1111")


def test_scores_that_are_not_numbers_are_left_out(tmp_path):
    folder = begin(tmp_path / "study", "hfcd")
    trial(folder, "hfcd", 0, float("nan"))
    trial(folder, "hfcd", 1, None, state="diverged", reason="no client finished.")
    trial(folder, "hfcd", 2, float("inf"), state="stopped")

    results_of.write(folder)

    json.loads(texts(folder)["results.json"], parse_constant=pytest.fail)
    found = find_failures(report_of(folder))
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
    for variant, value in (("default", 0.5), ("tuned", 0.75)):
        final(folder, finished_run, "hfcd", variant, 1, {"accuracy": value})

    results_of.write(folder)

    report = report_of(folder)
    assert tables.comparisons(report) is None
    [_, tuned] = rows(tables.gains(report))
    assert tuned["gain from tuning (test)"] == "+0.2500"
    assert tuned["verdict"] == "no claim: 1 seed"
    assert "±" not in texts(folder)["study.md"]
    assert "One seed: there is no interval, and no difference is claimed." in report.notes


def test_study_without_seeds_notes_that_nothing_was_tested(tmp_path):
    folder = begin(tmp_path / "study", "hfcd", seeds=0, trials=2)
    trial(folder, "hfcd", 0, 0.5)
    trial(folder, "hfcd", 1, 0.6)

    said = " ".join(report_of(folder).notes)

    assert "test parts were not evaluated" in said
    assert "Two seeds" not in said


@pytest.mark.parametrize(
    ("values", "text"),
    [
        ((0.9, 1.0), "0.9500"),  # two values
        ((0.5, 0.5, 0.5), "0.5000 ± 0.0000"),
        ((0.9, 1.0, 1.0), "0.9667 in [0.8232, 1.0000]"),
        ((0.0, 0.0, 0.3), "0.1000 in [0.0000, 0.5303]"),
    ],
)
def test_intervals_stay_on_the_scale_of_the_metric(values, text):
    assert tables.interval(sample(values)) == text
    if " in " in text:
        low, high = stats.t.interval(0.95, len(values) - 1, np.mean(values), stats.sem(values))
        assert text.endswith(f"[{max(0, low):.4f}, {min(1, high):.4f}]")


def test_intervals_of_differences_stay_on_theirs():
    def gap(*after):
        return tables.difference(
            paired_difference(dict.fromkeys(range(3), 0.0), dict(enumerate(after)))
        )

    assert gap(0.2, 0.2, 0.3).startswith("+0.2333 ± ")
    assert gap(1.0, 1.0, 0.4).startswith("+0.8000 in [-0.0605, +1.0000]")


@pytest.mark.parametrize(
    ("seeds", "verdict"), [(2, "no claim: 2 seeds"), (3, "tuned-b is better on this one partition")]
)
def test_claim_needs_three_seeds(tmp_path, finished_run, seeds, verdict):
    folder = begin(tmp_path / "study", "hfcd", "tuned-b", seeds=seeds)
    for method, value in (("hfcd", 0.1), ("tuned-b", 0.8)):
        trial(folder, method, 1, 0.5)
        for seed in range(1, seeds + 1):
            score = value + seed * value / 1000
            final(folder, finished_run, method, "tuned", seed, {"accuracy": score})

    [line] = rows(tables.comparisons(report_of(folder)))

    assert line["verdict"] == verdict


def test_winner_at_the_edge_of_its_space_is_marked(tmp_path):
    space = {
        "algorithm.tau": {"loguniform": [0.01, 10.0]},
        "algorithm.groups": {"int": [2, 8]},
        "train.participation": {"uniform": [0.1, 1.0]},
        "train.optimizer.lr": {"loguniform": [0.001, 1.0]},
    }
    folder = begin(tmp_path / "study", "fedavg", space=space)
    best = {
        "algorithm.tau": 9.9,
        "algorithm.groups": 2,
        "train.participation": 0.99,
        "train.optimizer.lr": 0.03,
    }
    trial(folder, "fedavg", 0, 0.5, params=best)

    report = report_of(folder)
    warnings = {row["parameter"]: row[""] for row in rows(tables.parameters(report, "fedavg"))}

    assert warnings == {
        "algorithm.tau": "at the high end: widen the space",
        "algorithm.groups": "at the low end: widen the space",
        "train.participation": "at the high end, which is a limit of the parameter itself",
        "train.optimizer.lr": "",
    }
    assert "algorithm.tau at the high end" in tables.winner(report, "fedavg")


def test_classes_are_means_over_seeds_with_rare_ones_marked(tmp_path, finished_run):
    folder = begin(tmp_path / "study", "hfcd", seeds=2)
    trial(folder, "hfcd", 1, 0.5)
    values = {}
    for seed, recall in ((1, 0.25), (2, 0.75)):
        place = final(folder, finished_run, "hfcd", "tuned", seed, {})
        with (place / "per_class.csv").open() as file:
            lines = list(csv.DictReader(file))
        with (place / "per_class.csv").open("w") as file:
            writer = csv.DictWriter(file, lines[0])
            writer.writeheader()
            writer.writerows(
                line | {"recall": recall, "train_support": 9 if line["rare"] == "1" else 90}
                for line in lines
            )
        values |= {line["name"]: line["rare"] for line in lines if line["moment"] == "last"}

    lines = rows(tables.classes(report_of(folder)))

    assert {line["recall, hfcd"] for line in lines} == {"0.5000"}
    marked = [line["class"] for line in lines if line["class"].endswith("(rare)")]
    assert marked == [f"{name} (rare)" for name, rare in values.items() if rare == "1"]
    assert marked
    assert "rare-class recall" in tables.other_metrics(report_of(folder)).header


def test_balanced_classes_have_no_rare_one(tmp_path, finished_run):
    folder = begin(tmp_path / "study", "hfcd", seeds=1)
    trial(folder, "hfcd", 1, 0.5)
    final(folder, finished_run, "hfcd", "tuned", 1, {})

    assert "rare" not in str(tables.classes(report_of(folder)).rows)
    assert "rare-class recall" not in tables.other_metrics(report_of(folder)).header
    assert "AUROC" not in tables.other_metrics(report_of(folder)).header  # ten classes


def test_page_prints_tables_with_their_heads_and_all_columns(written):
    html = texts(written)["report.html"]

    assert html.count("<table>") == html.count("<thead>") == html.count("</thead>")
    _, printing = html.split("@media print")
    assert "landscape" in printing
    assert "white-space: normal" in printing


def test_final_trainings_of_a_former_winner_are_noted(tmp_path, finished_run):
    folder = begin(tmp_path / "study", "hfcd")
    trial(folder, "hfcd", 1, 0.5)
    trial(folder, "hfcd", 2, 0.6)
    final(folder, finished_run, "hfcd", "tuned", 1, {"accuracy": 0.5}, of=1)

    assert (
        "hfcd: trial 2 is the best one, but the final trainings use trial 1."
        in report_of(folder).notes
    )


def test_show_prints_a_study(written, capsys):
    assert main(["show", str(written)]) == 0

    printed = capsys.readouterr().out
    assert "Default against tuned: accuracy" in printed
    assert "+0.0520 ± 0.0025" in printed
    assert "tuning helped" in printed
    assert str(written / "report.html") in printed


def test_show_prints_studies_and_runs_together(written, finished_run, capsys):
    assert main(["show", str(finished_run), str(written)]) == 0

    printed = capsys.readouterr().out
    assert "Default against tuned" in printed
    assert "at the best round" in printed


def test_show_draws_no_curves_of_a_study(written, tmp_path, capsys):
    assert main(["show", str(written), "--picture", str(tmp_path / "curves.png")]) == 2

    assert "report.html" in capsys.readouterr().err
    assert not (tmp_path / "curves.png").exists()


def test_folder_that_is_not_a_study_is_refused(tmp_path):
    with pytest.raises(UserError, match=r"no study\.json"):
        results_of.write(tmp_path)


def test_lines_of_trials_are_legible_on_white():
    """WCAG asks for a contrast of 3 for parts of pictures."""
    shades = np.array(study_figures._dark("viridis_r")(np.linspace(0, 1, 50)))[:, :3]
    linear = np.where(shades <= 0.04045, shades / 12.92, ((shades + 0.055) / 1.055) ** 2.4)
    luminance = linear @ [0.2126, 0.7152, 0.0722]

    assert (1.05 / (luminance + 0.05)).min() >= 3
