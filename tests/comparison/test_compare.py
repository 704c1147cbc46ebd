"""`flbench compare` and `fl.compare`: the matrix, its pairs, resuming, additions and failures."""

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import torch

import flbench as fl
from flbench.api import comparing
from flbench.cli import app
from flbench.comparison.design import Design, LabelledLayer
from flbench.comparison.prepare import prepare
from flbench.comparison.tuned import with_best
from flbench.config.resolve import resolve
from flbench.config.sources import Layer, from_file, from_overrides, from_values
from flbench.core.errors import ConfigError, UserError
from flbench.experiment import lifecycle
from flbench.jobs.samples import LoadedSamples
from tests.support import SMALL
from tests.tuning import studies

TINY = [item for item in SMALL if not item.startswith(("engine.", "tracking.", "train.rounds"))]
ONE = [*TINY, "train.rounds=1"]


def compare(out: Path, *words: str) -> int:
    return app.main(["compare", *words, "--out", str(out)])


def comparison_in(out: Path) -> Path:
    (path,) = out.iterdir()
    return path


def summary(cell: Path) -> dict[str, Any]:
    return json.loads((cell / "summary.json").read_text())


def partition_hash(cell: Path) -> str:
    return json.loads((cell / "partition.json").read_text())["hash"]


def identities(path: Path) -> dict[str, tuple[int, int]]:
    """Return inode and time of the summary of each finished cell."""
    found = {file.parent.name: file.stat() for file in path.glob("cells/*/summary.json")}
    return {name: (stat.st_ino, stat.st_mtime_ns) for name, stat in found.items()}


@pytest.fixture(autouse=True)
def without_pictures(monkeypatch: pytest.MonkeyPatch) -> None:
    """Do not draw the report, which takes seconds. The comparison of `both` has one."""
    monkeypatch.setattr("flbench.api.reporting.written.write", lambda folder, analysis: None)


@pytest.fixture(scope="module")
def both(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A comparison of two methods in two settings with two repetitions, and its report."""
    out = tmp_path_factory.mktemp("both")
    words = ["local", "fedavg", "--seeds", "2", "--jobs", "1", "--grid", "partition.alpha=0.2,5"]
    assert compare(out, *words, *ONE) == 0
    return comparison_in(out)


@pytest.mark.slow
def test_cells_are_the_product_of_methods_settings_and_repetitions(both: Path):
    names = {folder.name for folder in (both / "cells").iterdir()}
    assert names == {
        f"{method}-digits-alpha={alpha}-seed{seed}"
        for method in ("local", "fedavg")
        for alpha in ("0.2", "5")
        for seed in (0, 1)
    }
    found = fl.load(both)
    assert isinstance(found, fl.Comparison)
    assert (both / "report.html").stat().st_size
    assert (both / "tables" / "leaderboard.csv").stat().st_size
    assert set(found.cells["state"]) == {"finished"}
    assert (found.methods, found.seeds, found.vary) == (("local", "fedavg"), 2, "both")
    assert set(found.leaderboard["n"]) == {2}
    assert isinstance(fl.load(found.cells["path"][0]), fl.Run)
    # Methods of a repetition share a partition, and repetitions do not.
    partitions = {cell.name: partition_hash(cell) for cell in (both / "cells").iterdir()}
    for name, one in partitions.items():
        assert partitions[name.replace("local", "fedavg")] == one
    assert len(set(partitions.values())) == 4


@pytest.mark.slow
def test_a_cell_computes_what_flbench_run_does(both: Path, tmp_path: Path):
    cell = both / "cells" / "fedavg-digits-alpha=5-seed1"
    layers = [from_overrides([*ONE, "partition.alpha=5", "seed=1", "engine.threads=1"])]
    quiet = from_overrides([f"output.dir={tmp_path}", "tracking.mlflow=false", "algorithm=fedavg"])
    alone = lifecycle.run(*resolve([*layers, quiet]))
    assert summary(alone)["weights_digest"] == summary(cell)["weights_digest"]
    written = [resolve([from_file(path / "config.yaml")])[0] for path in (alone, cell)]
    assert written[0].hash() == written[1].hash()
    for name in ("partition.npz", "partition.json"):
        assert (alone / name).read_bytes() == (cell / name).read_bytes()


@pytest.mark.slow
def test_methods_and_repetitions_are_added_and_nothing_is_repeated(both: Path):
    before = identities(both)
    assert (
        app.main(["compare", "--resume", str(both), "fedper", "--seeds", "3", "--jobs", "1"]) == 0
    )
    after = identities(both)
    assert len(after) == 3 * 2 * 3
    assert {name: after[name] for name in before} == before
    assert fl.load(both).methods == ("local", "fedavg", "fedper")


@pytest.mark.slow
def test_a_finished_comparison_has_nothing_to_resume_and_refuses_other_keys(
    both: Path, capsys: pytest.CaptureFixture[str]
):
    before = identities(both)
    assert app.main(["compare", "--resume", str(both), "--json"]) == 0
    printed = capsys.readouterr()
    assert json.loads(printed.out)["path"] == str(both)
    assert not printed.err
    for words, named in (
        (["train.rounds=7"], "`train.rounds`"),
        (["--seeds", "1"], "`seeds=1`"),
        (["--grid", "model.name=mlp"], "--grid"),
        (["algorithm.tau=1"], "`algorithm.tau`"),
    ):
        assert app.main(["compare", "--resume", str(both), *words]) == 2
        assert named in capsys.readouterr().err
    assert identities(both) == before


@pytest.mark.slow
def test_nothing_is_added_to_cells_of_other_data(both: Path, tmp_path: Path):
    shutil.copytree(both, tmp_path / "one")
    file = tmp_path / "one" / "cells" / "fedavg-digits-alpha=5-seed1" / "partition.json"
    about = json.loads(file.read_text())
    file.write_text(json.dumps({**about, "data": "ab" * 32}))

    with pytest.raises(UserError, match=f"(?s)`data`.*{file.parent}"):
        fl.resume(tmp_path / "one", methods=["ft"], jobs=1, progress=False)

    assert not list(tmp_path.glob("one/cells/ft*"))


@pytest.mark.slow
def test_comparison_is_loaded_without_the_code_of_its_methods(both: Path, tmp_path: Path):
    path = tmp_path / "elsewhere"
    shutil.copytree(both, path)
    for file in [path / "comparison.json", *path.glob("cells/*/config.yaml")]:
        text = file.read_text().replace("name: fedavg", "name: fedpull\n  tau: 0.5")
        file.write_text(text.replace('"name": "fedavg"', '"name": "fedpull"'))

    found, before = fl.load(path), fl.load(both)

    columns = [name for name in before.cells if name != "path"]
    assert found.cells[columns].equals(before.cells[columns])
    assert found.methods == before.methods
    assert {*found.leaderboard["method"]} == {*before.methods}  # labels of the design
    for words in (["show"], ["report", "--out", str(tmp_path / "report")]):
        assert app.main([*words, str(path)]) == 0


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["seed=1"], "flbench compare"),
        (["one: hfcd tau=1", "one: hfcd tau=2"], "`one`"),
        (["local", "--grid", "partition.alpha"], "`partition.alpha`"),
        (["local", "--grid", "seed=1,2"], "`seeds`"),
        (["local", "--grid", "algorithm.tau=1,2"], "`algorithm.tau`"),
        (["local", "--data", "digits,digits"], "`digits`"),
        (["local", "--data", "digits", "--dataset", "digits"], "--dataset"),
        (["local", "engine.name=ray", "--jobs", "2"], "engine.name=ray"),
    ],
)
def test_wrong_arguments_are_refused_by_their_names(
    tmp_path: Path,
    words: list[str],
    said: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
):
    monkeypatch.chdir(tmp_path)
    assert app.main(["compare", *words]) == 2
    assert said in capsys.readouterr().err
    assert not list(tmp_path.iterdir())


@pytest.mark.slow
@pytest.mark.parametrize("vary", ["training", "partition"])
def test_what_varies_between_repetitions(tmp_path: Path, vary: str):
    """Also data of one's own, a net of one's own, and several data sets."""
    torch.manual_seed(0)
    x, y = torch.randn(80, 4).numpy(), torch.randint(0, 2, (80,)).numpy()
    found = fl.compare(
        ["local"],
        seeds=2,
        vary=vary,
        data=["digits", fl.Data((x, y))],
        partition={"clients": 3, "samples": 60},
        train={"rounds": 1, "local_epochs": 1},
        output={"dir": tmp_path},  # for `out`
        jobs=1,
        progress=False,
    )
    assert found.path.parent == tmp_path
    cells = found.cells
    assert set(cells["state"]) == {"finished"}
    for _, rows in cells.groupby("data"):
        hashes = {partition_hash(Path(path)) for path in rows["path"]}
        digests = {summary(Path(path))["weights_digest"] for path in rows["path"]}
        assert len(hashes) == (1 if vary == "training" else 2)
        assert len(digests) == 2
        assert len(set(rows["seed"])) == (2 if vary == "training" else 1)


@pytest.mark.slow
def test_a_partition_that_cannot_vary_is_refused(both: Path, tmp_path: Path):
    saved = both / "cells" / "local-digits-alpha=5-seed0" / "partition.npz"
    partition = {"scheme": "file", "path": saved}
    with pytest.raises(ConfigError, match="`vary=partition`"):
        fl.compare("local", vary="partition", partition=partition, out=tmp_path)
    assert not list(tmp_path.iterdir())


@pytest.mark.slow
def test_a_cell_that_fails_is_named_and_the_others_go_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    run = lifecycle.run

    def failing(config: Any, *given: Any, **options: Any) -> Path:
        if config.algorithm.name == "fedavg" and config.seed == 1:
            raise ConfigError("no such luck")
        return run(config, *given, **options)

    monkeypatch.setattr(lifecycle, "run", failing)
    words = ("local", "fedavg", "--seeds", "2", "--jobs", "1")
    assert compare(tmp_path, *words, *ONE) == 1
    path = comparison_in(tmp_path)
    said = capsys.readouterr().err
    assert f"{path}/cells/fedavg-digits-seed1: no such luck" in said
    assert f"flbench compare --resume {path}" in said
    cells = fl.load(path).cells
    assert list(cells[cells["state"] == "failed"]["reason"]) == ["no such luck"]
    before = identities(path)
    assert len(before) == 3
    monkeypatch.setattr(lifecycle, "run", run)
    found = fl.resume(path, jobs=1, progress=False)
    assert set(found.cells["state"]) == {"finished"}
    assert {name: identities(path)[name] for name in before} == before


@pytest.mark.slow
def test_an_interrupt_says_how_to_resume_and_resuming_ends_alike(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    words = ["local", "fedavg", "--seeds", "2", "--jobs", "1", *TINY, "train.rounds=2"]
    assert compare(tmp_path / "whole", *words) == 0
    write = lifecycle.finalize.write
    count = 0

    def interrupted(*given: Any) -> Any:
        nonlocal count
        count += 1
        if count == 3:
            os.kill(os.getpid(), signal.SIGTERM)
            time.sleep(1)
        return write(*given)

    monkeypatch.setattr(lifecycle.finalize, "write", interrupted)
    assert compare(tmp_path / "cut", *words) == 130
    monkeypatch.setattr(lifecycle.finalize, "write", write)
    path = comparison_in(tmp_path / "cut")
    assert f"flbench compare --resume {path}" in capsys.readouterr().err
    before = identities(path)
    assert len(before) == 2
    assert app.main(["compare", "--resume", str(path), "--jobs", "1"]) == 0
    assert {name: identities(path)[name] for name in before} == before
    for cell in (path / "cells").iterdir():
        whole = comparison_in(tmp_path / "whole") / "cells" / cell.name
        assert summary(cell)["weights_digest"] == summary(whole)["weights_digest"]


def test_the_seeds_and_names_of_cells_do_not_depend_on_what_is_added():
    base = from_values({"seed": 3}, "test")
    methods = tuple(
        LabelledLayer.of(name, from_values({"algorithm": name}, "test")) for name in ("local", "ft")
    )
    few = Design(base=base, methods=methods[:1], seeds=2, vary="partition").cells()
    many = Design(base=base, methods=methods, seeds=4, vary="partition").cells()
    known = {cell.name: cell.config.tree() for cell in many}
    for cell in few:
        assert known[cell.name] == cell.config.tree()
    assert {(c.config.seed, c.config.partition.seed) for c in many} == {
        (3, seed) for seed in (3, 4, 5, 6)
    }
    about = {"vary": "training", "tuned": "study", "reference": "ft", "untuned": ("ft",)}
    design = Design(base=base, methods=methods, grid={"train.rounds": (1, 2)}, **about)
    assert Design.model_validate(json.loads(design.model_dump_json())) == design


def test_the_name_of_a_cell_does_not_depend_on_other_cells():
    """Method `a-b` on data `c` beside method `a` on data `b-c`, and the like."""
    layer = from_values({"algorithm": "local"}, "test")
    pairs = [("a-b", "c"), ("a", "b-c"), ("a b", "c"), ("a", "b c"), ("a b c", "d"), ("a", "d")]
    pairs += [("a/b", "c"), ("..", "c"), ("a" * 50 + "b", "c"), ("a" * 50 + "c", "c")]
    both = Design(
        base=Layer(),
        methods=tuple(LabelledLayer.of(name, layer) for name in dict(pairs)),
        data=tuple(LabelledLayer.of(name, Layer()) for name in {data: 0 for _, data in pairs}),
        seeds=1,
    ).cells()
    names = {(cell.method, cell.data): cell.name for cell in both}
    assert len({*names.values()}) == len(names)
    assert not any("/" in name or name.startswith(".") for name in names.values())
    for method, data in pairs:
        one = (LabelledLayer.of(method, layer),), (LabelledLayer.of(data, Layer()),)
        [alone] = Design(base=Layer(), methods=one[0], data=one[1], seeds=1).cells()
        assert alone.name == names[method, data]


def test_new_attempts_of_a_cell_are_those_that_are_asked_for():
    design = Design.of(comparing.methods_of("local", "test"), [from_overrides(ONE)], seeds=1)
    assert prepare(design, LoadedSamples(), None, retries=0).resources.retries == 0
    assert prepare(design, LoadedSamples(), None).resources.retries == 2


@pytest.fixture
def study(tmp_path: Path) -> Path:
    """A study in which hfcd has a winner, and fedavg has none."""
    path = studies.begin(tmp_path / "study", "hfcd", "fedavg")
    best = {"algorithm.tau": 0.7, "train.optimizer.lr": 0.03}
    studies.trial(path, "hfcd", 0, 0.5, params={})
    studies.trial(path, "hfcd", 1, 0.9, params=best)
    studies.trial(path, "fedavg", 0, state="failed")
    return path


def test_methods_take_the_best_parameters_of_a_study(study: Path):
    design = Design.of(comparing.methods_of("hfcd", "test"), [])
    (cell, *_) = with_best(design, study).cells()
    assert cell.config.algorithm.tau == 0.7
    assert cell.config.train.optimizer.lr == 0.03
    assert cell.origins["algorithm.tau"] == str(study)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["hfcd", "fedavg"], "fedavg"),
        (["hfcd", "algorithm.tau=1"], "`algorithm.tau`"),
        (["local", "ft"], "hfcd, fedavg"),
    ],
)
def test_a_study_that_does_not_fit_is_refused(
    study: Path, words: list[str], said: str, capsys: pytest.CaptureFixture[str]
):
    assert app.main(["compare", *words, "--tuned", str(study)]) == 2
    assert said in capsys.readouterr().err


@pytest.mark.slow
@pytest.mark.processes
@pytest.mark.timeout(300)
@pytest.mark.parametrize(
    ("jobs", "seeds"), [("1", 2), pytest.param("2", 10, marks=pytest.mark.full)]
)
def test_cells_at_once_survive_the_death_of_their_driver(tmp_path: Path, jobs: str, seeds: int):
    """Killed in the middle: finished cells stay, the others continue, all ends as in one process.

    The comparison that is killed trains two cells at a time; it is continued with one or two.
    """
    words = ["local", "fedavg", "--seeds", str(seeds), *ONE]
    assert compare(tmp_path / "alone", *words, "--jobs", "1") == 0
    command = [sys.executable, "-m", "flbench", "compare", *words, "--jobs", "2"]
    process = subprocess.Popen(
        [*command, "--out", str(tmp_path / "two")], stderr=subprocess.DEVNULL, text=True
    )
    while len(list((tmp_path / "two").glob("*/cells/*/summary.json"))) < seeds - 1:
        assert process.poll() is None, "the comparison ended before it was to be killed"
        time.sleep(0.01)
    process.kill()
    process.wait()
    path = comparison_in(tmp_path / "two")
    before = identities(path)
    assert app.main(["compare", "--resume", str(path), "--jobs", jobs]) == 0
    after = identities(path)
    assert len(after) == 2 * seeds
    assert {name: after[name] for name in before} == before
    alone = comparison_in(tmp_path / "alone")
    for cell in (path / "cells").iterdir():
        other = alone / "cells" / cell.name
        assert summary(cell)["weights_digest"] == summary(other)["weights_digest"]
        assert (cell / "partition.json").read_bytes() == (other / "partition.json").read_bytes()
    boards = [fl.load(one).leaderboard.drop(columns="seconds") for one in (alone, path)]
    assert boards[0].equals(boards[1])


@pytest.mark.slow
@pytest.mark.processes
def test_one_data_set_is_given_as_for_a_run_and_two_jobs_need_no_ray(tmp_path):
    """In a process of its own, in which nothing has imported Ray."""
    code = f"""
import sys
import numpy as np
import flbench as fl
from flbench.api import reporting

reporting.written.write = lambda folder, analysis: None  # the report takes seconds
x, y = np.arange(64 * 60, dtype=np.uint8).reshape(60, 8, 8), np.arange(60) % 3
more = {{"seeds": 2, "jobs": 2, "train": {{"rounds": 1}}, "progress": False}}
more["partition"] = {{"scheme": "iid", "clients": 2, "samples": 60}}
for k, data in enumerate((fl.Data(x, y, name="own"), "digits")):
    found = fl.compare("local", data=data, out="{tmp_path}/" + str(k), **more)
    assert list(found.leaderboard["n"]) == [2]
assert "ray" not in sys.modules
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=200)

    assert done.returncode == 0, done.stderr
