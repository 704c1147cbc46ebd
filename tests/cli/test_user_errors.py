"""What a user can get wrong.

One clear message each (what, where, cure), the right exit code, no traceback.
"""

import os
import tempfile
import zipfile
from pathlib import Path

import numpy as np
import pytest

from flbench.cli import app
from tests.support import SMALL, interrupted_run, write_npz

Prepared = tuple[list[str], str]


def npz(path: Path, **extra) -> Path:
    return write_npz(path, n=40, **extra)


def zipped(path: Path, name: str, content: bytes) -> Path:
    with zipfile.ZipFile(path, "w") as file:
        file.writestr(name, content)
    return path


def text(path: Path, content: str) -> Path:
    path.write_text(content)
    return path


def cut(path: Path, keep: float = 0.6) -> Path:
    content = path.read_bytes()
    path.write_bytes(content[: int(len(content) * keep)])
    return path


WRONG = {
    # keys and values
    "unknown key": (["train.round=3"], "Did you mean `rounds`"),
    "unknown key of a method": (["algorithm.taus=3"], "Did you mean `tau`"),
    "unknown method": (["algorithm.name=fedavgg"], "Did you mean `fedavg`"),
    "unknown data set": (["data.name=mnits"], "Did you mean `mnist`"),
    "word for a number": (["train.rounds=many"], "`train.rounds` must be a valid integer"),
    "ratios above one": (["partition.split=[0.9,0.2,0.2]"], "sum to 1"),
    "workers that are none": (
        ["engine.workers=-1"],
        "`engine.workers` must be 'auto' or >= 1, got '-1' (command line).",
    ),
    "device that is not there": (["engine.device=cuda:77"], "cuda:77 does not exist"),
    "TF32 on a CPU": (["engine.precision=tf32", "engine.device=cpu"], "needs a GPU"),
    "method named twice": (["--algo", "fedavg,fedavg"], "`fedavg` is named twice"),
    "empty argument": (["fedavg", ""], "an argument is empty"),
    "several at once": (["train.rounds=0", "partition.alpha=0"], "`partition.alpha`"),
    # the command line
    "no sign": (["train.rounds"], "key=value"),
    "no key": (["=3"], "key=value"),
    "unknown option": (["--round", "3"], "No such option"),
    "one of two methods unknown": (["--algo", "fedavg,nope"], "`nope` is neither a method"),
    # data and partitions that do not fit
    "more clients than samples": (["partition.clients=5000"], "Lower one of the two"),
    "more classes per client than exist": (
        ["partition.scheme=pathological", "partition.classes_per_client=11"],
        "at most the 10 classes",
    ),
    "natural without groups": (
        ["partition.scheme=natural", "partition.clients=null"],
        "needs natural clients",
    ),
    "grouped with too many classes": (
        ["partition.scheme=grouped", "partition.main_classes=[9,9]"],
        "sum to at most 10",
    ),
    "data name that is a path": (["data.name=../../etc"], "plain name"),
    "data that is nowhere": (["data.name=cinic10"], "cinic10.npz"),
    "reference that is not there": (["evaluation.confusable=nowhere"], "cannot be read"),
    "mlflow": (["tracking.mlflow=true"], "tracking.mlflow"),
}


def files(folder: Path) -> dict[str, Prepared]:
    """Cases that need a file first."""
    table = "a,b,y\n1,2,0\n3,4,1\n"
    words = "a,y\nbig,1\n2,0\n3,1\n"
    return {
        "config that is not there": (["--config", "nope.yaml"], "nope.yaml"),
        "config with a misspelt key": (
            ["--config", str(text(folder / "1.yaml", "seeed: 3\n"))],
            "1.yaml:1",
        ),
        "config that runs code": (
            [
                "--config",
                str(text(folder / "2.yaml", "seed: !!python/object/apply:os.getpid []\n")),
            ],
            ".yaml:1",
        ),
        "config of broken YAML": (["--config", str(text(folder / "3.yaml", "a: [\n"))], "3.yaml"),
        "config with a key twice": (
            ["--config", str(text(folder / "4.yaml", "seed: 1\nseed: 2\n"))],
            "twice",
        ),
        "config that is a list": (
            ["--config", str(text(folder / "5.yaml", "- 1\n"))],
            "must contain keys with values",
        ),
        "truncated npz": ([f"data.path={cut(npz(folder / '1.npz'))}"], "not an intact NPZ"),
        "npz of pickles": (
            [f"data.path={npz(folder / '2.npz', train_labels=np.array([{}] * 40, dtype=object))}"],
            "2.npz",
        ),
        "label out of range": (
            [f"data.path={npz(folder / '3.npz', train_labels=np.full(40, -3))}"],
            "must lie in",
        ),
        "text for npz": ([f"data.path={text(folder / '4.npz', 'hello')}"], "not an intact NPZ"),
        "zip entry that escapes": (
            [f"data.path={zipped(folder / '1.zip', '../train/a/x.png', b'x')}"],
            "leads out",
        ),
        "image that is none": (
            [f"data.path={zipped(folder / '2.zip', 'train/a/x.png', b'x')}"],
            "cannot be decoded",
        ),
        "zip of something else": (
            [f"data.path={zipped(folder / '3.zip', 'x.bin', b'x')}"],
            "has no images",
        ),
        "truncated zip": (
            [f"data.path={cut(zipped(folder / '4.zip', 'a.csv', table.encode() * 50))}"],
            "4.zip",
        ),
        "table with a word": (
            [f"data.path={zipped(folder / '5.zip', 'a.csv', words.encode())}"],
            "column `a`",
        ),
        "label column that is not there": (
            [f"data.path={zipped(folder / '6.zip', 'a.csv', table.encode())}", "data.label=z"],
            "Columns: a, b, y",
        ),
        "table into a convolution": (
            [
                f"data.path={zipped(folder / '7.zip', 'a.csv', table.encode() * 1)}",
                "model.name=lenet5",
                "partition.clients=1",
                "partition.min_samples=1",
            ],
            "takes images",
        ),
        "output that is a file": (["--out", str(text(folder / "out", ""))], "output.dir"),
        "resume of a folder that is not a run": (["--resume", str(folder)], "not a run folder"),
    }


def fails(arguments: list[str], capsys) -> str:
    code = app.main(arguments)
    captured = capsys.readouterr()
    assert code == 2, captured.err
    assert "Traceback" not in captured.err
    assert captured.out == ""
    return captured.err


@pytest.mark.parametrize("case", WRONG)
def test_wrong_input_is_one_message_and_exit_code_2(case, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    arguments, said = WRONG[case]

    error = fails(["run", *SMALL, "partition.min_samples=10", *arguments], capsys)

    assert said in " ".join(error.split())
    assert not list(tmp_path.rglob("summary.json"))
    assert not (tmp_path / "runs").exists()


with tempfile.TemporaryDirectory() as some_folder:
    FILES = tuple(files(Path(some_folder)))


@pytest.mark.parametrize("case", FILES)
def test_wrong_file_is_one_message_and_exit_code_2(case, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    arguments, said = files(tmp_path)[case]

    common = [] if "--resume" in arguments else list(SMALL)
    error = fails(["run", *common, *arguments], capsys)

    assert said in " ".join(error.split())


@pytest.mark.slow
@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["algos", "hfdc"], "Did you mean `hfcd`"),
        (["data", "digits", "mnist"], "one data set"),
        (["data", "digits", "partition.clients=9999"], "Lower one of the two"),
        (["data", "digits", "--out", "x.txt"], "ends with .npz"),
        (
            ["data", "digits", "--out", "no/such/folder/x.npz"],
            "no/such/folder: this folder does not",
        ),
        (["data", "digits", "--picture", "x.xyz"], "must end with .png"),
        (["data", "digits", "--picture", "no/such/x.png"], "no/such: this folder does not exist"),
        (["data", "mnits"], "Did you mean `mnist`"),
        (["show", "nowhere"], "does not exist"),
        (["nonsense"], "No such command"),
    ],
)
def test_other_commands_do_the_same(arguments, said, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)

    code = app.main(arguments)

    error = " ".join(capsys.readouterr().err.split())
    assert code == 2
    assert said in error
    assert "Traceback" not in error


@pytest.mark.parametrize("damage", ["config", "checkpoint", "metrics", "rounds", "more options"])
@pytest.mark.slow
def test_resume_of_a_damaged_run_is_one_message(damage, capsys, tmp_path):
    folder = interrupted_run(tmp_path / "runs", "algorithm=fedavg")
    arguments = ["run", "--resume", str(folder)]
    if damage == "config":
        (folder / "config.yaml").write_text("a: [")
    elif damage == "checkpoint":
        cut(folder / "checkpoints" / "last.safetensors", 0.3)
    elif damage == "metrics":
        (folder / "metrics.csv").write_text("nonsense\n")
    elif damage == "rounds":
        arguments.append("train.rounds=99")
    else:
        arguments += ["--algo", "local"]

    assert fails(arguments, capsys).count("error: ") == 1


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
def test_output_folder_without_permission(capsys, tmp_path):
    tmp_path.chmod(0o500)

    assert "--out" in fails(["run", *SMALL, "--out", str(tmp_path / "x")], capsys)
