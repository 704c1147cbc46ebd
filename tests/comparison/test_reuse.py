"""`flbench compare --reuse`: finished runs that stand for cells, and runs that do not."""

import json
import shutil
from pathlib import Path

import pytest

import flbench as fl
from flbench.cli import app
from flbench.config.resolve import resolve
from flbench.config.sources import from_overrides
from flbench.core.errors import UserError
from flbench.experiment import lifecycle, provenance
from tests.support import SMALL

pytestmark = pytest.mark.slow

TINY = [item for item in SMALL if not item.startswith(("engine.", "tracking.", "train.rounds"))]
ONE = [*TINY, "train.rounds=1"]
REVISION = "0123456789ab"


@pytest.fixture(scope="module", autouse=True)
def _clean_revision_and_no_pictures():
    """Let the code have a revision without changes, and do not draw the report."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(provenance, "git_revision", lambda: REVISION)
        patch.setattr("flbench.api.reporting.written.write", lambda folder, analysis: None)
        yield


def compare(out: Path, *words: str) -> int:
    return app.main(["compare", *words, "--jobs", "1", *ONE, "--out", str(out)])


def comparison_in(out: Path) -> Path:
    (path,) = out.iterdir()
    return path


@pytest.fixture(scope="module")
def trained(tmp_path_factory) -> Path:
    """A comparison of two methods with two repetitions."""
    out = tmp_path_factory.mktemp("trained")
    assert compare(out, "local", "fedavg", "--seeds", "2") == 0
    return comparison_in(out)


@pytest.fixture
def no_training(monkeypatch):
    def refuse(*_, **__):
        raise AssertionError("a cell is trained")

    monkeypatch.setattr(lifecycle, "run", refuse)
    monkeypatch.setattr(lifecycle, "resume", refuse)


@pytest.mark.usefixtures("no_training")
def test_runs_that_exist_are_taken_with_all_of_their_files(trained, tmp_path, capsys):
    words = ("local", "fedavg", "--seeds", "2", "--reuse", str(trained))
    assert compare(tmp_path / "out", *words) == 0

    path = comparison_in(tmp_path / "out")
    assert f"4 of 4 cells exist in {trained}, and are used again" in capsys.readouterr().err
    cells = sorted(cell.name for cell in (trained / "cells").iterdir())
    assert sorted(cell.name for cell in (path / "cells").iterdir()) == cells
    for name in cells:
        source, target = trained / "cells" / name, path / "cells" / name
        assert json.loads((target / "reused.json").read_text()) == {"path": str(source)}
        names = {file.relative_to(source) for file in source.rglob("*") if file.is_file()}
        for file in sorted(names - {Path(".lock"), Path("mlflow.log")}):
            assert (target / file).read_bytes() == (source / file).read_bytes()
            is_link = (target / file).stat().st_ino == (source / file).stat().st_ino
            assert is_link == (file.suffix == ".safetensors")
    assert set(fl.load(path).cells["state"]) == {"finished"}


def test_existing_runs_are_named_in_the_plan_and_its_cost(trained, tmp_path, capsys):
    words = ("local", "fedavg", "fedper", "--seeds", "3", "--reuse", str(trained.parent))

    assert compare(tmp_path / "out", *words, "--dry-run") == 0
    said = capsys.readouterr().out
    assert f"4 of 9 cells exist in {trained.parent}" in said
    assert "9 cells, of which 5 are not finished, 5 rounds" in said
    assert compare(tmp_path / "out", *words, "--dry-run", "--json") == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["cells"], found["left"], found["reused"]) == (9, 5, 4)
    assert not (tmp_path / "out").exists()


def test_runs_of_flbench_run_are_taken_and_the_rest_is_trained(tmp_path):
    own = ["algorithm=fedavg", "seed=1", "engine.threads=1", "tracking.mlflow=false"]
    alone = lifecycle.run(*resolve([from_overrides([*ONE, *own, f"output.dir={tmp_path}/runs"])]))

    words = ("fedavg", "--seeds", "2", "--reuse", str(tmp_path / "runs"))
    assert compare(tmp_path / "out", *words) == 0

    cells = comparison_in(tmp_path / "out") / "cells"
    origin = cells / "fedavg-digits-seed1" / "reused.json"
    assert json.loads(origin.read_text()) == {"path": str(alone)}
    trained = cells / "fedavg-digits-seed0"
    assert (trained / "summary.json").is_file()
    assert not (trained / "reused.json").exists()


def changed(source: Path, target: Path, name: str, **values: object) -> Path:
    """Copy a run folder, and change values of one of its JSON files."""
    shutil.copytree(source, target)
    file = target / name
    file.write_text(json.dumps({**json.loads(file.read_text()), **values}))
    return target


@pytest.mark.parametrize(
    ("name", "values", "said"),
    [
        ("provenance.json", {"git_revision": "ba9876543210"}, "(ba9876543210), and this is"),
        ("partition.json", {"data": "ab" * 32}, "its samples have the hash abababababab, not"),
        ("partition.json", {"hash": "cd" * 32}, "its clients' parts have the hash cdcdcdcdcdcd"),
    ],
)
def test_run_that_differs_is_named_and_not_used(trained, tmp_path, capsys, name, values, said):
    runs = tmp_path / "runs"
    changed(trained / "cells" / "local-digits-seed0", runs / "one", name, **values)

    words = ("local", "--seeds", "1", "--reuse", str(runs), "--dry-run")
    assert compare(tmp_path / "out", *words) == 0

    told = capsys.readouterr().out
    assert said in told
    assert f"{runs / 'one'} is not used for local, digits, repetition 1" in told
    assert "0 of 1 cells exist" in told


def test_keys_outside_the_configuration_hash_count(trained, tmp_path, capsys):
    words = ("local", "--seeds", "1", "--reuse", str(trained), "--dry-run", "evaluation.rare=share")
    assert compare(tmp_path / "out", *words) == 0

    assert "`evaluation.rare` is 'lowest' there, and 'share' here" in capsys.readouterr().out


def test_revision_with_uncommitted_changes_is_never_the_same(
    trained, tmp_path, capsys, monkeypatch
):
    runs, revision = tmp_path / "runs", f"{REVISION}-dirty"
    source = trained / "cells" / "local-digits-seed0"
    changed(source, runs / "one", "provenance.json", git_revision=revision)
    monkeypatch.setattr(provenance, "git_revision", lambda: revision)

    words = ("local", "--seeds", "1", "--reuse", str(runs), "--dry-run")
    assert compare(tmp_path / "out", *words) == 0
    assert "has uncommitted changes, which may differ" in capsys.readouterr().out


def test_folders_without_runs_are_refused(tmp_path, capsys):
    (tmp_path / "empty").mkdir()

    for path, said in ((tmp_path / "none", "does not exist"), (tmp_path / "empty", "no run")):
        assert compare(tmp_path / "out", "local", "--reuse", str(path)) == 2
        assert said in capsys.readouterr().err


@pytest.mark.usefixtures("no_training")
def test_cells_are_added_to_a_comparison_from_another_one(trained, tmp_path):
    shutil.copytree(trained, tmp_path / "one")
    for name in ("fedavg-digits-seed0", "fedavg-digits-seed1"):
        shutil.rmtree(tmp_path / "one" / "cells" / name)

    found = fl.resume(tmp_path / "one", reuse=[trained], jobs=1, progress=False)

    assert set(found.cells["state"]) == {"finished"}
    reused = sorted(file.parent.name for file in tmp_path.glob("one/cells/*/reused.json"))
    assert reused == ["fedavg-digits-seed0", "fedavg-digits-seed1"]


def test_nothing_is_added_to_cells_of_other_data(trained, tmp_path):
    shutil.copytree(trained, tmp_path / "one")
    file = tmp_path / "one" / "cells" / "fedavg-digits-seed1" / "partition.json"
    about = json.loads(file.read_text())
    file.write_text(json.dumps({**about, "data": "ab" * 32}))

    with pytest.raises(UserError) as refused:
        fl.resume(tmp_path / "one", methods=["fedper"], jobs=1, progress=False)

    said = str(refused.value)
    assert "`data`" in said
    assert "ab" * 6 in said
    assert about["data"][:12] in said
    assert str(file.parent) in said
    assert not list(tmp_path.glob("one/cells/fedper*"))


def test_comparison_is_loaded_without_the_code_of_its_methods(trained, tmp_path, capsys):
    path = tmp_path / "elsewhere"
    shutil.copytree(trained, path)
    for file in [path / "comparison.json", *path.glob("cells/*/config.yaml")]:
        text = file.read_text().replace("name: fedavg", "name: fedpull\n  tau: 0.5")
        file.write_text(text.replace('"name": "fedavg"', '"name": "fedpull"'))

    found, before = fl.load(path), fl.load(trained)

    columns = [name for name in before.cells if name != "path"]
    assert found.cells[columns].equals(before.cells[columns])
    assert found.methods == before.methods
    assert "4 finished" in repr(found)
    assert sorted(found.leaderboard["method"]) == ["fedavg", "local"]  # labels of the design
    for words in (["show"], ["report", "--out", str(tmp_path / "report")]):
        assert app.main([*words, str(path)]) == 0
    assert "fedpull" in capsys.readouterr().out


@pytest.mark.usefixtures("no_training")
def test_run_with_a_link_is_not_copied(trained, tmp_path, capsys):
    """The copy would be an ordinary file, which `flbench pack` publishes."""
    private, offered = tmp_path / "private", tmp_path / "offered"
    private.write_text("secret")
    shutil.copytree(trained, offered)
    for cell in (offered / "cells").iterdir():
        (cell / "predictions.csv").symlink_to(private)

    code = compare(tmp_path / "new", "local", "fedavg", "--seeds", "2", "--reuse", str(offered))

    assert code == 2
    assert "predictions.csv is a link" in capsys.readouterr().err
    copies = [one for one in (tmp_path / "new").rglob("predictions.csv") if not one.is_symlink()]
    assert copies == []
