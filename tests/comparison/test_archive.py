"""Archives of finished runs, and the report that is made from them."""

import json
import re
import tarfile

import pytest

import flbench as fl
from flbench.cli import app
from flbench.comparison import archive
from flbench.comparison.collect import collect
from flbench.core.errors import DataError, UserError
from tests.comparison.made import run_folder
from tests.tuning import studies

SCORES = {"fedavg": (0.60, 0.62, 0.61), "hfcd": (0.80, 0.81, 0.83)}


LEAKING = {
    "keys": (
        *("train.optimizer.lr=0.1", "data.root='/home/ann smith/my data'"),
        "tracking.uri=sqlite:////home/ann/x.db",
    ),
    "provenance": {"command": "flbench run '--config=/home/ann smith/a b c d/x.yaml'"},
}
"""What names folders of the machine."""


def comparison(folder, tuned=None, **keywords):
    """Make the folder of a comparison without any training."""
    cells = []
    for method, scores in SCORES.items():
        for k, accuracy in enumerate(scores):
            name = f"{method}-digits-seed{k}"
            run_folder(folder / "cells" / name, method, accuracy, repetition=k, **keywords)
            cells.append({"name": name, "method": method})
    tree = {"command": ["/opt/env/bin/flbench", "--out", "/home/ann/out"], "tuned": tuned}
    (folder / "comparison.json").write_text(json.dumps(tree | {"cells": cells}))
    return folder


@pytest.fixture(scope="module")
def packed(tmp_path_factory):
    """Two comparisons, and the archive of both."""
    folder = tmp_path_factory.mktemp("runs") / "all"
    comparison(folder / "default")
    comparison(folder / "tuned", "/home/ann/studies/one", **LEAKING)
    for file in folder.glob("tuned/cells/*/summary.json"):
        notes = ["/home/ann smith/my data/x.npz: 3 rows", "file:///home/ann/runs"]
        file.write_text(json.dumps(json.loads(file.read_text()) | {"notes": notes}))
    return folder, fl.pack(folder, folder.parent / "board" / "digits.tar.xz")


@pytest.fixture(scope="module")
def reports(packed):
    """The reports of the folders and of the archive."""
    folder, file = packed
    return fl.report(folder), fl.report(file.parent)


def test_report_of_an_archive_is_that_of_the_folders(packed, reports):
    folder, file = packed

    of_folders, of_archive = reports

    assert len(of_archive.runs) == 12
    text = json.dumps(of_archive.tree(), default=str)
    assert f"{file}/all/tuned/cells/hfcd-digits-seed0" in text
    assert text.replace(f"{file}/all", str(folder)) == json.dumps(of_folders.tree(), default=str)


@pytest.mark.slow
def test_tuned_cells_are_named_beside_others_and_not_alone(packed, reports):
    folder, _ = packed

    assert set(reports[0].leaderboard["method"]) == {
        *("fedavg", "hfcd", "fedavg tuned", "hfcd tuned")
    }
    assert set(fl.report(folder / "tuned").leaderboard["method"]) == {"fedavg", "hfcd"}


def test_archive_has_no_path_of_the_machine_and_the_same_bytes_again(packed, tmp_path):
    folder, file = packed

    again = fl.pack(folder, tmp_path / "again.tar.xz")

    assert again.read_bytes() == file.read_bytes()
    with tarfile.open(file) as members:
        for member in members.getmembers():
            content = members.extractfile(member).read()
            assert re.search(rb"\bann\b", content) is None, member.name
            assert str(tmp_path.parent).encode() not in content, member.name
        assert "all/tuned/comparison.json" in members.getnames()


@pytest.mark.slow
def test_unpacked_files_are_deleted_with_the_comparison(packed):
    _, file = packed
    found = fl.report(file)
    [unpacked] = found._unpacked
    path = unpacked.path
    assert path.is_dir()

    del found, unpacked

    assert not path.exists()


def test_link_in_a_run_is_not_packed(tmp_path):
    secret = tmp_path / "secret"
    secret.write_text("of the user")
    run_folder(tmp_path / "run", "fedavg", 0.5)
    (tmp_path / "run" / "predictions.csv").symlink_to(secret)

    with pytest.raises(UserError, match=r"predictions\.csv"):
        fl.pack(tmp_path / "run", tmp_path / "x.tar.xz")


def test_what_cannot_be_packed_or_read_is_refused(packed, tmp_path, capsys):
    folder, file = packed
    damaged = tmp_path / "damaged.tar.xz"
    damaged.write_bytes(file.read_bytes()[:-100])
    (tmp_path / "empty").mkdir()
    other = comparison(tmp_path / "all" / "default").parent

    with pytest.raises(DataError, match=r"damaged\.tar\.xz"):
        collect([damaged])
    for paths, name, named in (
        ([folder], "board.zip", r"board\.zip"),
        ([folder, tmp_path / "empty"], "x.tar.xz", "empty"),
        ([folder, other], "x.tar.xz", "all"),
        ([folder / "no"], "x.tar.xz", "no"),
    ):
        with pytest.raises(UserError, match=named):
            fl.pack(paths, tmp_path / name)
        assert not (tmp_path / name).exists()
    assert app.main(["pack", str(folder), "--out", str(tmp_path / "x.tar.xz")]) == 0
    assert archive.is_archive(tmp_path / "x.tar.xz")


@pytest.mark.slow
def test_study_without_cells_is_packed_and_shown(tmp_path, capsys):
    study = studies.begin(tmp_path / "study", "fedpull", seeds=0, trials=2)  # not installed
    for k, score in enumerate((0.5, 0.6)):
        studies.trial(study, "fedpull", k, score)
    file = fl.pack(study, tmp_path / "study.tar.xz")

    for path in (study, file):
        assert app.main(["show", str(path)]) == 0
        assert "fedpull" in capsys.readouterr().out
    assert app.main(["report", str(file)]) == 2
    assert app.main(["report", str(study)]) == 0  # the report of a search alone
    assert (study / "report.html").is_file()
    capsys.readouterr()
    assert app.main(["show", str(file), "--json"]) == 0
    [shown] = json.loads(capsys.readouterr().out)["studies"]
    assert [one["score"] for one in shown["trials"]] == [0.5, 0.6]
    assert shown["path"] == f"{file}/study"

    comparison(tmp_path / "all")
    found = fl.report([tmp_path / "all", file])
    assert set(found.leaderboard["method"]) == set(SCORES)
    assert any(f"{file}/study" in one for one in found.warnings)


@pytest.mark.slow
def test_cells_of_a_packed_study_are_compared_without_their_method(tmp_path):
    study = studies.begin(tmp_path / "study", "fedpull", seeds=2, trials=1, metric="macro_f1")
    studies.trial(study, "fedpull", 0, 0.5)
    for seed in (1, 2):
        run = run_folder(tmp_path / f"run{seed}", "fedavg", 0.5, repetition=seed)
        config = run / "config.yaml"
        config.write_text(config.read_text().replace("name: fedavg", "name: fedpull\n  tau: 1"))
        cell = studies.cell(study, run, "fedpull", seed, {"accuracy": 0.5})
        studies.write(cell / "partition.json", {"hash": str(seed)})
    studies.write(study / "partition.json", {"hash": "1"})
    studies.write(study / "trials" / "fedpull" / "000" / "partition.json", {"hash": "1"})
    file = fl.pack(study, tmp_path / "study.tar.xz")

    of_archive = fl.report(file)

    with tarfile.open(file) as members:
        packed = [name for name in members.getnames() if name.endswith("partition.json")]
    cells = [f"cells/fedpull-digits-seed{seed}" for seed in (1, 2)]
    assert sorted(packed) == [
        *(f"study/{cell}/partition.json" for cell in cells),
        "study/partition.json",
        "study/trials/fedpull/000/partition.json",
    ]
    assert of_archive.leaderboard.equals(fl.report(study).leaderboard)
    assert of_archive.runs["path"].tolist() == [f"{file}/study/{cell}" for cell in cells]
    run_folder(tmp_path / "beside", "local", 0.4, repetition=1)
    for found in (of_archive, fl.report([study, tmp_path / "beside"], force=True)):
        assert found.tree()["metric"] == "macro_f1"  # that of the study
