"""One damaged or hostile run does not end a report: it is left out by name."""

import json
import os
import resource
import sys
from contextlib import suppress

import numpy as np
import pytest

import flbench as fl
from flbench.analysis import report
from flbench.analysis.page import page_of
from flbench.api.studies import report_of
from flbench.cli import app
from flbench.core.errors import DataError, UserError
from flbench.reports import render
from flbench.results import reading, study_folder
from tests.comparison.made import matrix, run_folder
from tests.support import benchmark_script
from tests.tuning import studies

EVIL = "<img src=x onerror=alert(1)>"
LONG = "9" * 4000
USUAL = ("Zoë ß", "القلب", "👩‍🔬 lab", "R&D", "a_b", "$x$", "<=50K", "x" * 60)
SIZE = 64 * 2**30


def replaced(name, old, new):
    """Replace a text of a file once or more."""

    def change(run):
        content = (run / name).read_text()
        assert old in content
        (run / name).write_text(content.replace(old, new))

    return change


def summary(path, value):
    """Set a value of summary.json."""

    def change(run):
        tree = json.loads((run / "summary.json").read_text())
        *keys, last = path.split(".")
        section = tree
        for key in keys:
            section = section[key]
        section[last] = value
        (run / "summary.json").write_text(json.dumps(tree))

    return change


def content(name, written):
    """Replace a file."""
    return lambda run: (run / name).write_bytes(written.encode())


def sparse(name):
    """Make a file of 64 GiB, of which the disk holds nothing."""

    def change(run):
        with (run / name).open("ab") as file:
            file.truncate(SIZE)

    return change


def counts(values):
    return lambda run: np.savez(run / "partition.npz", train_counts=values)


def fifo(name):
    def change(run):
        (run / name).unlink()
        os.mkfifo(run / name)

    return change


def claimed(run):
    """An array whose header claims a shape of a terabyte."""
    np.savez(run / "partition.npz", train_counts=np.zeros((6, 4), np.int64))
    file = run / "partition.npz"
    old, new = b"'shape': (6, 4), }", b"'shape': (9999999, 9999)}"
    spaces = b" " * (len(new) - len(old))
    assert old + spaces in file.read_bytes()
    file.write_bytes(file.read_bytes().replace(old + spaces, new))


BAD = {
    "rounds": replaced("summary.json", '"rounds": 3', f'"rounds": {LONG}'),
    "round of the best": replaced("summary.json", '"round": 3', f'"round": {LONG}'),
    "bytes": replaced("summary.json", '"up_bytes": 3000', f'"up_bytes": {LONG}'),
    "seed": replaced("summary.json", '"seed": 1', '"seed": 100000000000000000000'),
    "negative seconds": summary("seconds.train", -1.0),
    "accuracy NaN": summary("best.test.accuracy", float("nan")),
    "hash is a list": summary("weights_digest", [1]),
    "target of another type": summary("target", 5),
    "method with escape": summary("algorithm", "a\x1b[31m"),
    "long name of data": summary("dataset", "x" * 2**20),
    "not JSON": content("summary.json", '{"algorithm":'),
    "deep": content("summary.json", "[" * 100_000),
    "metrics of no last round": replaced("metrics.csv", "\n3,test,", "\n2,test,"),
    "class of 23 digits": replaced("per_class.csv", "last,0,", f"last,{10**22},"),
    "class beyond the partition": replaced("per_class.csv", "last,0,", "last,99,"),
    "class twice": replaced("per_class.csv", "last,1,", "last,0,"),
    "negative counts": counts(np.full((6, 4), -5)),
    "claimed counts": claimed,
    "64 GiB of summary": sparse("summary.json"),
    "64 GiB of partition": sparse("partition.npz"),
    "pipe": fifo("provenance.json"),
    "folder": lambda run: ((run / "provenance.json").unlink(), (run / "provenance.json").mkdir()),
    "configuration": content("config.yaml", "seed: many\n"),
}


@pytest.fixture(scope="module")
def good(tmp_path_factory):
    """Two methods with two repetitions each, and what their report says."""
    folder = tmp_path_factory.mktemp("good")
    matrix(folder, {"fedavg": [0.6, 0.62], "hfcd": [0.7, 0.72]})
    return folder, fl.report(folder).leaderboard


@pytest.mark.slow
@pytest.mark.parametrize("cases", [[*BAD][::2], [*BAD][1::2]], ids=len)
def test_bad_runs_are_left_out_by_name(cases, good, tmp_path):
    folder, leaderboard = good
    for case in cases:
        BAD[case](run_folder(tmp_path / case, "ditto", 0.9, repetition=1))
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss

    found = fl.report([folder, tmp_path])

    left_out = [one for one in found.warnings if one.startswith("left out: ")]
    assert len(left_out) == len(cases)
    written = render.page(page_of(found)).replace("\\", "")
    for case in cases:
        [sentence] = [one for one in left_out if str(tmp_path / case) in one]
        assert sentence.isprintable()
        assert len(sentence) < 800
        assert sentence[:40] in written
    assert found.leaderboard.equals(leaderboard)
    used = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
    assert used < 512 * 1024 or sys.platform != "linux"  # in KiB


def test_a_bad_run_alone_is_an_error_and_commands_show_the_others(good, tmp_path, capsys):
    cases = ("rounds", "not JSON", "64 GiB of summary", "target of another type")
    for case in cases:
        bad = run_folder(tmp_path / case, "ditto", 0.9)
        BAD[case](bad)
        with pytest.raises(DataError, match=case):
            fl.report(bad)

    with pytest.raises(UserError, match="missing"):
        fl.report([good[0], tmp_path / "missing"])

    assert app.main(["show", str(good[0]), str(tmp_path)]) == 2
    said = capsys.readouterr()
    assert "hfcd" in said.out
    assert [case for case in cases if case not in said.err] == []
    assert "Traceback" not in said.err


@pytest.mark.slow
def test_damaged_archives_and_bad_runs_of_others_are_left_out_by_name(good, tmp_path):
    runs = matrix(tmp_path / "all", {"fedavg": [0.6, 0.62], "ditto": [0.9, 0.91]})
    BAD["class of 23 digits"](runs["ditto", 1])
    file = fl.pack(tmp_path / "all", tmp_path / "x.tar.xz")
    (tmp_path / "bad.tar.xz").write_bytes(file.read_bytes()[:-50])

    found = fl.report([file, tmp_path / "bad.tar.xz"])

    left_out = [one for one in found.warnings if one.startswith("left out: ")]
    for named in ("bad.tar.xz", f"{file}/all/ditto-1/per_class.csv"):
        assert len([one for one in left_out if named in one]) == 1
    assert len(found.runs) == 3


@pytest.mark.slow
def test_unpacked_archive_with_bad_runs_is_deleted_with_its_report(tmp_path, monkeypatch):
    """At once, and not when Python searches for unreachable cycles."""
    runs = matrix(tmp_path / "all", {"fedavg": [0.6], "ditto": [0.9]})
    for method in ("ditto", "fedavg"):
        BAD["class of 23 digits"](runs[method, 0])
        file = fl.pack(tmp_path / "all", tmp_path / "x.tar.xz")
        monkeypatch.setattr("tempfile.tempdir", str(tmp_path))

        with suppress(UserError):  # in the end, no run is left
            assert len(fl.report(file).runs) == 1

        assert not list(tmp_path.glob("flbench-*"))


def test_damaged_trial_is_left_out_of_a_study(finished_run, tmp_path):
    study = studies.begin(tmp_path / "study", "hfcd", "fedavg", trials=2)
    for method in ("hfcd", "fedavg"):
        for index in (0, 1):
            studies.trial(study, method, index, 0.5 + index / 10)
    file = study / "trials" / "hfcd" / "001" / "trial.json"
    file.write_text(file.read_text().replace('"round": 3', f'"round": {LONG}'))

    found = study_folder.read(study, lenient=True)

    assert len(found.trials) == 3
    assert "hfcd/001/trial.json" in found.left_out[0]
    assert found.left_out[0] in fl.load(study).notes
    with pytest.raises(DataError, match=r"trial\.json"):
        study_folder.read(study)


@pytest.mark.slow
def test_studies_with_a_damaged_header_are_left_out(good, tmp_path):
    entry = {"space": "", "defaults": {}, "space_tree": {}}
    headers = [{"seeds": 10**18}, {"trials": -1}, {"dataset": None}, {"metric": "a\x1b"}]
    headers += [{"scheme": "a\nb"}, {"methods": {"../../x": entry}}]
    headers += [{"methods": {"\x1b[31m": entry}}]
    for k, header in enumerate(headers):
        studies.begin(tmp_path / f"study{k}", "hfcd", **header)

    found = fl.report([good[0], tmp_path])

    assert len(found.runs) == 4
    for k in range(len(headers)):
        assert any(f"study{k}/study.json" in sentence for sentence in found.warnings)


@pytest.mark.slow
def test_damaged_comparison_is_left_out(good, tmp_path):
    """Its cells are shown under the names of their methods."""
    run_folder(tmp_path / "c" / "cells" / "a", "fedavg", 0.5, repetition=0)
    (tmp_path / "c" / "comparison.json").write_text('{"tuned": "x", "cells": [{"name": []}]}')

    found = fl.report(tmp_path / "c")

    assert len(found.runs) == 1
    assert any("comparison.json" in sentence for sentence in found.warnings)


@pytest.fixture(scope="module")
def hostile(tmp_path_factory):
    """A study with a method whose name is a live element of a page."""
    folder = tmp_path_factory.mktemp("hostile") / "evil.tar.xz"
    study = studies.begin(folder, "local", "ft", EVIL, seeds=2, dataset=EVIL)
    run = run_folder(folder.parent / "run", "fedavg", 0.5)
    for method in ("local", "ft", EVIL):
        studies.trial(study, method, 0, 0.5)
        studies.trial(study, method, 1, 0.6)
        for seed in (1, 2):
            for label, accuracy in ((f"{method} tuned", 0.6), (method, 0.5)):
                path = studies.cell(study, run, label, seed, {"accuracy": accuracy})
                summary("best.test.accuracy", accuracy + len(method) / 1000 + seed / 100)(path)
                summary("dataset", f"{EVIL} `x` [a](javascript:b) | \x1b[31m")(path)
    return folder


@pytest.mark.slow
def test_page_of_the_board_shows_a_hostile_name_as_text(hostile, monkeypatch):
    with benchmark_script("board") as board:
        monkeypatch.setattr(board, "about", lambda config, start: "A setting.")
        monkeypatch.setattr(board, "BOARD", hostile.parent)

        page = board.page("evil")

    assert EVIL not in page
    assert "&lt;img src=x onerror=alert(1)>" in page


@pytest.mark.slow
def test_report_shows_hostile_names_as_text(hostile, tmp_path, capsys):
    found = fl.report(hostile)
    analysis = found

    written = render.page(page_of(analysis))
    assert "<img" not in written
    assert "[a](javascript" not in written
    assert "<img" not in found._repr_html_()
    everything = written + "".join(report.latex_of(analysis).values()) + report.json_of(analysis)
    everything += "".join(report.csv_of(analysis, name) for name in report.FRAMES)
    assert "\x1b" not in everything
    app.main(["show", str(hostile)])
    said = capsys.readouterr()
    assert "\x1b" not in said.out + said.err
    report_of(hostile).write(tmp_path / "page")
    for name in ("report.html", "report.md"):
        assert "<img" not in (tmp_path / "page" / name).read_text()


@pytest.mark.slow
def test_usual_names_of_classes_and_data_are_shown(tmp_path):
    runs = matrix(tmp_path, {"fedavg": [0.6, 0.61], "hfcd": [0.7, 0.72]}, classes=len(USUAL))
    for run in runs.values():
        for k, name in enumerate(USUAL):
            replaced("per_class.csv", f"class {k}", name)(run)
        summary("dataset", USUAL[0])(run)
    found = fl.report(tmp_path)
    assert not any(one.startswith("left out") for one in found.warnings)
    assert set(found.classes["name"]) == set(USUAL)
    assert set(found.leaderboard["place"]) == {USUAL[0]}
    assert reading.read(runs["hfcd", 0]).class_table("last")["name"].tolist() == list(USUAL)


def test_warnings_have_no_control_characters(tmp_path):
    bad = run_folder(tmp_path / "a\x1b[31m", "fedavg", 0.5)
    (bad / "summary.json").write_text("{")

    with pytest.warns(UserWarning, match=r"summary\.json") as caught:
        fl.runs(tmp_path)

    assert "\x1b" not in str(caught[0].message)
