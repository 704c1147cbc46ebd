"""The command line as a user meets it: what it prints, and the exit code."""

import errno
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
import yaml

from flbench.algorithms import ALGORITHMS
from flbench.cli import app
from flbench.core import files
from flbench.reports import render, terminal
from flbench.reports.shown import Column, Shown, score
from tests.support import SMALL, pictures_in_pages, write_npz
from tests.tuning.studies import begin

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.slow
def test_help_imports_nothing_heavy():
    script = (
        "import sys; from flbench.cli.app import main; code = main(['--help']);"
        "heavy = {'torch', 'lightning', 'numpy', 'sklearn', 'pydantic_core', 'matplotlib'};"
        "print(sorted(heavy & set(sys.modules)), file=sys.stderr); sys.exit(code)"
    )

    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=False
    )

    assert done.returncode == 0
    assert done.stderr.strip() in (
        "[]",
        "['pydantic_core']",
    )  # newer Typers bring pydantic themselves
    for command in ("run", "algos", "data", "show"):
        assert command in done.stdout


def test_version(flbench):
    assert flbench("--version")[:2] == (0, "0.1.0\n")


@pytest.mark.slow
def test_run_without_a_terminal_prints_a_line_per_evaluation_and_a_table(flbench, tmp_path):
    code, out, err = flbench("run", *SMALL, "--out", "here")

    assert code == 0
    lines = [line for line in err.splitlines() if line.startswith("round ")]
    assert [line.split()[1] for line in lines] == ["2/3", "3/3"]
    [folder] = (tmp_path / "here").glob("*/*")
    assert str(folder.relative_to(tmp_path)) in out
    for title in ("accuracy", "balanced", "macro", "worst", "up", "down", "seconds"):
        assert title in out
    assert "\x1b" not in out + err


def test_run_takes_file_option_and_overrides_in_this_order(flbench, tmp_path):
    (tmp_path / "x.yaml").write_text("seed: 5\nalgorithm: fedprox\ntrain:\n  rounds: 7\n")

    code, out, _ = flbench(
        "run", "--config", "x.yaml", "train.rounds=8", "--print-config", "--out", "elsewhere"
    )

    tree = yaml.safe_load(out)
    assert code == 0
    assert (tree["seed"], tree["train"]["rounds"], tree["algorithm"]["name"]) == (5, 8, "fedprox")
    assert tree["output"]["dir"] == "elsewhere"
    lines = {
        line.split("#")[0].strip(): line.split("#")[1].strip()
        for line in out.splitlines()
        if "#" in line
    }
    assert lines["seed: 5"] == "x.yaml:1"
    assert lines["rounds: 8"] == "command line"
    assert lines["batch_size: 32"] == "default"
    assert lines["dir: elsewhere"] == "--out"


@pytest.mark.slow
@pytest.mark.processes
def test_ctrl_c_of_a_real_process_exits_with_130(tmp_path):
    items = [*SMALL, "train.rounds=100000", f"output.dir={tmp_path / 'runs'}"]
    process = subprocess.Popen(
        [sys.executable, "-m", "flbench", "run", *items], stderr=subprocess.PIPE, text=True
    )
    try:
        for line in process.stderr:
            if line.startswith("round "):
                break
        process.send_signal(2)
        rest = process.communicate(timeout=60)[1]
    finally:
        process.kill()
    assert process.returncode == 130
    assert "Traceback" not in rest
    assert "--resume" in rest
    [folder] = (tmp_path / "runs").glob("*/*")
    assert (folder / "checkpoints" / "last.safetensors").exists()


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="looks into /proc")
@pytest.mark.processes
def test_ctrl_c_in_the_middle_of_the_imports_is_one_line(tmp_path):
    process = subprocess.Popen(
        [sys.executable, "-m", "flbench", "run", "fedavg", "--out", str(tmp_path)],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
    )
    libraries = Path(f"/proc/{process.pid}/maps")
    while "libtorch_python" not in libraries.read_text():
        time.sleep(0.002)
    time.sleep(0.01)

    process.send_signal(signal.SIGINT)

    _, said = process.communicate(timeout=60)
    assert process.returncode == 130
    assert len(said.splitlines()) == 1


def test_algos_lists_methods_and_shows_one_with_its_hyper_parameters(flbench):
    entries = json.loads(flbench("algos", "--json")[1])
    assert [entry["name"] for entry in entries] == ALGORITHMS.load()
    text = flbench("algos")[1]
    assert all(name in text for name in ALGORITHMS)

    entry = json.loads(flbench("algos", "hfcd", "--json")[1])
    keys = {item["name"]: item for item in entry["parameters"]}
    assert (keys["tau"]["default"], keys["tau"]["range"]) == (0.2, "(0, inf)")
    assert {"tau", "alpha", "gamma", "lambda0", "agg_weights"} <= keys.keys()
    assert "10.12677/mos.2025.145437" in flbench("algos", "hfcd")[1]


def test_data_lists_sets_and_where_they_are_looked_up(flbench):
    names = {entry["name"]: entry for entry in json.loads(flbench("data", "--json")[1])}

    assert names["digits"]["found"] == "scikit-learn"
    assert names["cinic10"]["found"] is None
    assert any("cinic10.npz" in place for place in names["cinic10"]["looked_up"])
    assert "organamnist" in flbench("data")[1]


@pytest.mark.slow
def test_data_shows_a_partition_and_saves_it_with_its_picture(flbench, tmp_path):
    words = ("data", "digits", "partition.clients=5", "partition.alpha=0.3")
    with pictures_in_pages():
        code, out, _ = flbench(*words, "--out", "p.npz", "--picture", "p.png")
    entry = json.loads(flbench(*words, "--json")[1])

    assert code == 0
    assert any(shade in out for shade in "░▒▓█")
    assert sum(sum(entry["samples"][part]) for part in entry["samples"]) == 1500
    assert (tmp_path / "p.png").read_bytes().startswith(b"\x89PNG")
    assert entry["hash"] == json.loads((tmp_path / "p.json").read_text())["hash"]
    saved = flbench("data", "digits", "partition.scheme=file", "partition.path=p.npz", "--json")[1]
    assert json.loads(saved)["hash"] == entry["hash"]


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """Folder with a study and runs that differ in method, net, seed and partition."""
    folder = tmp_path_factory.mktemp("shown")
    others = ("algorithm=fedavg", "partition.alpha=2", "model.name=logistic")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        for keys in (("algorithm=local",), ("algorithm=local", "seed=1"), others):
            assert app.main(["run", *SMALL, *keys]) == 0
    begin(folder / "runs" / "deep" / "study", "hfcd")
    (folder / "runs" / ".hidden").mkdir()
    (folder / "runs" / ".hidden" / "config.yaml").write_text("nothing: 1")
    return folder, sorted(map(str, folder.glob("runs/digits*/*")))


@pytest.mark.slow
def test_show_has_a_column_for_each_key_that_differs(flbench, runs):
    code, out, _ = flbench("show", *runs[1])

    assert code == 0
    heads, *lines = [
        line.split()
        for line in out.splitlines()
        if line.split()[:1] in (["method"], ["local"], ["fedavg"])
    ]
    assert heads.index("seed") < heads.index("round")
    assert "dataset" not in heads
    places = [heads.index(name) for name in ("seed", "alpha", "model")]
    found = sorted(tuple(line[place] for place in places) for line in lines)
    assert found == [("0", "0.5", "mlp"), ("0", "2", "logistic"), ("1", "0.5", "mlp")]


@pytest.mark.slow
def test_show_walks_below_a_folder_and_prints_json(flbench, runs):
    folder, paths = runs
    assert all(f"{path}/report.html" in flbench("show", str(folder / "runs"))[1] for path in paths)

    code, out, error = flbench("show", "--json", str(folder / "runs"))

    assert (code, error) == (0, "")
    shown = json.loads(out, parse_constant=pytest.fail)  # JSON has neither NaN nor Infinity
    assert [run["path"] for run in shown["runs"]] == paths
    for run in shown["runs"]:
        summary = json.loads((Path(run["path"]) / "summary.json").read_text())
        assert run["finished"]
        assert run["best"]["test"]["accuracy"] == summary["best"]["test"]["accuracy"]
    study = str(folder / "runs" / "deep" / "study")
    assert shown["studies"] == [{"path": study, "trials": [], "comparison": None}]


def test_numbers_of_a_table_are_never_cut(capsys, monkeypatch):
    monkeypatch.setattr(terminal, "NARROW", 60)
    columns = {"method": Column("method"), "mean": Column("accuracy (95 % interval)", str)}
    columns |= {f"m{k}": Column(f"metric {k}", score) for k in range(8)}
    row = dict.fromkeys(columns, 0.125) | {"mean": "0.9540 [0.9100, 0.9900]"}

    render.console(Shown("Leaderboard", columns, [row | {"method": "a method of mine"}] * 3))

    *lines, last = capsys.readouterr().out.splitlines()
    assert sum("0.9540 [0.9100, 0.9900]" in line for line in lines) == 3
    assert sum(line.count("0.1250") for line in lines) % 3 == 0
    assert not any("\N{HORIZONTAL ELLIPSIS}" in line for line in lines)
    assert "metric 7" in last  # which has no room


@pytest.mark.slow
def test_rare_classes_have_a_column_and_a_data_file_gives_titles_its_name(flbench, tmp_path):
    with np.load(write_npz(tmp_path / "skewed.npz", n=400)) as arrays:
        kept = np.flatnonzero((np.arange(400) % 4 > 0) | (np.arange(400) < 120))
        parts = {name: arrays[name] for name in arrays}
    parts |= {name: parts[name][kept] for name in ("train_images", "train_labels")}
    np.savez(tmp_path / "skewed.npz", **parts)

    code, out, error = flbench("run", *SMALL, "algorithm=local", "data.path=skewed.npz")

    assert code == 0
    assert out.count("rare") >= 2  # in the table of classes, and above the recall
    assert "rare" not in error
    assert "local on skewed" in error
    assert "digits" not in out + error
    [page] = tmp_path.glob("runs/skewed-dirichlet/*/report.html")
    assert "rare_recall" in page.read_text()
    assert page.read_text().count(">rare</td>") == 1
    assert "<h1>local on skewed</h1>" in page.read_text()
    assert "local on skewed" in flbench("show", str(page.parent))[1]


def test_every_example_configuration_is_valid(flbench, subtests):
    for file in (ROOT / "configs").rglob("*.yaml"):
        with subtests.test(file.name):
            code, out, err = flbench("run", "--config", str(file), "--print-config")
            assert code == 0, err
            assert yaml.safe_load(out)["train"]["rounds"] >= 1


@pytest.mark.processes
def test_a_full_disk_below_standard_output_is_an_error():
    with open("/dev/full", "w") as full:
        command = [sys.executable, "-m", "flbench", "--help"]
        ended = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, text=True, check=False)

    assert ended.returncode
    assert os.strerror(errno.ENOSPC) in ended.stderr


@pytest.mark.slow
def test_full_disk_exits_with_1_and_leaves_no_half(flbench, tmp_path, monkeypatch):
    def full(path):
        raise OSError(errno.ENOSPC, "No space left on device", str(path))

    (tmp_path / "old.png").write_bytes(b"old")
    monkeypatch.setattr(files, "sync", full)

    for arguments in (
        ("data", "digits", "--out", "p.npz"),
        ("data", "digits", "--picture", "old.png"),
    ):
        code, _, error = flbench(*arguments)
        assert code == 1, error
        assert error.splitlines()[-1].startswith("error: ")
        assert "Traceback" not in error

    assert (tmp_path / "old.png").read_bytes() == b"old"
    assert not list(tmp_path.rglob("*.part"))
    assert not (tmp_path / "p.npz").exists()


@pytest.mark.slow
def test_run_without_a_finished_training_exits_with_1_and_keeps_its_folder(flbench, tmp_path):
    code, out, error = flbench("run", *SMALL, "algorithm=fedavg", "train.optimizer.lr=1e36")

    assert code == 1
    assert error.splitlines()[-1].startswith("error: ")
    [folder] = tmp_path.glob("runs/*/*")
    assert str(folder.relative_to(tmp_path)) in out
    assert (folder / "summary.json").is_file()


@pytest.mark.slow
def test_a_closed_pipe_ends_quietly():
    """As with `flbench --help | head -1`."""
    command = [sys.executable, "-m", "flbench", "--help"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    process.stdout.close()

    assert process.communicate()[1] == b""
    assert process.returncode == 1
