"""The commands that the README and the pages of docs/ print are carried out, in a small form.

Those of the README belong to `make test`, those of the pages to `make docs`. Commands are changed
in three ways: numbers of rounds, repetitions and trials are small; the samples are few; and the
folders that a page invents are those of `project`. All else stays as it is printed.
"""

import re
import shlex
import shutil
from contextlib import chdir
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from sklearn.datasets import load_breast_cancer, load_digits

from flbench.cli.app import main
from tests.installed import needs
from tests.test_docs import commands

ROOT = Path(__file__).resolve().parents[2]
REAL_DATA = ROOT.parent / "shared" / "data"

QUIET = ("tracking.mlflow=false", "engine.threads=1")
SMALL = {
    "train.rounds": "1",
    "partition.samples": "400",
    "partition.clients": "10",
    "train.local_epochs": "2",
    "evaluation.common.limit": "50",
}
FEW = {
    r"--rounds \d+": "--rounds 1",
    r"train\.rounds=\d+": "train.rounds=1",
    r"--seeds \d+": "--seeds 2",
    r"--trials \d+": "--trials 2",
    r"--clients \d+|partition\.clients=\d+": "partition.clients=10",
    r"partition\.samples=\w+": "partition.samples=600",
    r"evaluation\.every=\d+": "evaluation.every=1",
    r"evaluation\.common\.limit=\w+": "evaluation.common.limit=50",
    r"--jobs \d+": "--jobs 1",
    r"engine\.workers=\d+": "engine.workers=1",
    r"\$seed": "1",
    r"data\.root=(/data|DIR)": f"data.root={REAL_DATA}",
    r"(?<=[=, ])(emnist_byclass\.zip|cifar100\.zip|uci_har\.npz)": rf"{REAL_DATA}/\1",
    r"--algo NAME": "--algo fedavg",
    r"theirs": "runs/digits-dirichlet/RUN-ID",
}
"""What is written instead of a part of a command, by regular expressions."""
ELSEWHERE = {
    "HEAD:6379": "needs a cluster of Ray (tests/servers)",
    "--device cuda": "needs a GPU",
    "DEFAULT": "needs pretrained weights, which are downloaded",
    "hospitals.zip": "needs a file of the user",
    "--scale full": "takes days",
    "flbench ui": "serves until it is stopped (tests/tracking/test_ui.py)",
    "{samples: windows": "needs a file of the user",
}
WORDS = (*QUIET, *(f"{key}={value}" for key, value in SMALL.items()))
TRAINS = ("run", "compare", "ablate", "tune")
STUDY = "hfcd-fedavg-digits-20260101-120000-1a2b"
COMPARISON = "local-fedavg-digits-20260101-120000-1a2b"
ABLATION = "hfcd-digits-20260101-120000-1a2b"


def flbench(*arguments: str) -> None:
    """Run a command in the current folder; it must succeed."""
    assert main(list(arguments)) == 0, shlex.join(("flbench", *arguments))


def train_as(name: str, method: str, *keys: str) -> None:
    """Train a method, and give its folder another name."""
    before = set(Path().glob("runs/*/*"))
    flbench("run", method, *WORDS, *keys)
    [made] = set(Path().glob("runs/*/*")) - before
    made.rename(made.with_name(name))


def write_scans() -> None:
    """Write images of digits, a folder for each digit, and one image alone."""
    digits = load_digits()
    for number, (image, digit) in enumerate(zip(digits.images[:400], digits.target, strict=False)):
        folder = Path("scans", str(digit))
        folder.mkdir(parents=True, exist_ok=True)
        Image.fromarray((image * 15).astype(np.uint8)).save(folder / f"{number}.png")
    shutil.copy("scans/0/0.png", "scan.png")


def write_patients() -> None:
    """Write a table with a label."""
    table = load_breast_cancer(as_frame=True).frame[["mean radius", "mean texture", "target"]]
    table.rename(columns={"target": "label"}).to_csv("patients.csv", index=False)


@pytest.fixture(scope="module")
def project(tmp_path_factory):
    """A folder with a run, and with the files that predictions are made for."""
    folder = tmp_path_factory.mktemp("project")
    for name in ("configs", "docs"):
        (folder / name).symlink_to(ROOT / name)
    with chdir(folder):
        np.savez("new.npz", test_images=load_digits().images[:4].astype(np.uint8))
        train_as("RUN-ID", "fedavg")
    return folder


@pytest.fixture(scope="module")
def campaigns(project):
    """The folder, with a study, comparisons and archives of comparisons too."""
    with chdir(project):
        write_scans()
        write_patients()
        train_as("OTHER-ID", "ft")
        train_as("RUN-ID", "fedper", "data.path=scans")
        train_as("RUN-ID", "fedper", "data.path=patients.csv")
        flbench("compare", "local", "fedavg", "--seeds", "2", *WORDS)
        [made] = Path("comparisons").glob("local-fedavg-digits-*")
        flbench("pack", str(made), "--out", "board/first.tar.xz")
        made.rename(f"comparisons/{COMPARISON}")
        flbench("ablate", "hfcd", "--keys", "contrast", "--seeds", "2", *WORDS)
        [made] = Path("comparisons").glob("hfcd-digits-*")
        made.rename(f"comparisons/{ABLATION}")
        few = ("--trials", "2", "--seeds", "2", "--jobs", "1")
        flbench("tune", "hfcd", "fedavg", *few, *WORDS)
        [made] = Path("studies").glob("hfcd-fedavg-digits-*")
        made.rename(f"studies/{STUDY}")
        shutil.copytree(f"studies/{STUDY}", "studies/STUDY")
    return project


def carry_out(line: str) -> None:
    """Carry out a command, or what is left of it when it is made small, in the current folder."""
    for part, why in ELSEWHERE.items():
        if part in line:
            pytest.skip(why)
    if str(REAL_DATA) in (small := made_small(line)) and not REAL_DATA.is_dir():
        pytest.skip(f"{REAL_DATA} is not there")
    _, command, *arguments = shlex.split(small, comments=True)
    arguments = [path for word in arguments for path in expanded(word)]
    if command in TRAINS and "--resume" not in arguments:
        given = " ".join(arguments)
        keys = {key: value for key, value in SMALL.items() if f"{key}=" not in given}
        if "--rounds" in arguments:
            keys.pop("train.rounds", None)
        if "partition.scheme=natural" in given:  # the data name their clients
            del keys["partition.clients"]
        arguments += [f"{key}={value}" for key, value in keys.items()]
        arguments += [word for word in QUIET if word.partition("=")[0] + "=" not in given]
        if command in ("compare", "ablate", "tune") and "--seeds" not in arguments:
            arguments += ["--seeds", "2"]
        if command == "tune" and "--jobs" not in arguments:
            arguments += ["--jobs", "1"]
    if command == "reproduce" and arguments:
        given = " ".join(arguments)
        arguments += [f"{key}={value}" for key, value in SMALL.items() if key not in given]
        if "--algo" not in given:
            arguments += ["--algo", "FedAvg"]
        if "--seeds" not in given:
            arguments += ["--seeds", "1"]
    flbench(command, *arguments)


def made_small(line: str) -> str:
    """Return a command with small numbers, and with folders that are there."""
    for pattern, text in FEW.items():
        line = re.sub(pattern, lambda found, text=text: found.expand(text), line)
    return line


def expanded(word: str) -> list[str]:
    """Return the paths that a shell makes of a word with a star."""
    return sorted(map(str, Path().glob(word))) if word.endswith("/*") else [word]


LONG = ("flbench tune hfcd fedproto fedavg",)
"""Commands of the README that are left to `make docs`, because the README has a shorter one."""
COMMANDS = [
    pytest.param(line, id=place, marks=[pytest.mark.docs] * line.startswith(LONG))
    for place, line in commands()
]
OF_README = [one for one in COMMANDS if one.id.startswith("README.md")]
OF_PAGES = [one for one in COMMANDS if not one.id.startswith("README.md")]


@pytest.fixture(scope="module")
def readme(project, tmp_path_factory):
    """A copy of the folder, for commands that find what those of the README before them wrote."""
    return shutil.copytree(project, tmp_path_factory.mktemp("readme") / "project", symlinks=True)


@needs("ray")
@pytest.mark.slow
@pytest.mark.parametrize("line", OF_README)
def test_commands_of_the_readme(line, readme, monkeypatch):
    monkeypatch.chdir(readme)
    carry_out(line)


@needs("ray")
@needs("mlflow")
@pytest.mark.docs
@pytest.mark.mlflow
@pytest.mark.parametrize("line", OF_PAGES)
def test_commands_of_the_pages(line, campaigns, tmp_path, monkeypatch):
    shutil.copytree(campaigns, tmp_path / "project", symlinks=True)
    monkeypatch.chdir(tmp_path / "project")
    carry_out(line)
