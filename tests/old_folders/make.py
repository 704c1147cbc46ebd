"""Makes `folders.tar.xz` with the version of flbench that Python imports.

    git worktree add OLD 789746e
    PYTHONPATH=OLD python tests/old_folders/make.py tests/old_folders/folders.tar.xz

The archive has runs, an interrupted run, a study, a comparison, its archive and a paper's table.
Names of the machine are replaced, and reports, which can be made again, are left out.
"""

import json
import platform
import re
import shutil
import signal
import socket
import subprocess
import sys
import tarfile
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

import yaml

import flbench

KEYS = (
    *("data.name=digits", "model.name=mlp", "model.hidden=[4]", "partition.clients=2"),
    *("partition.samples=300", "partition.alpha=0.5", "train.rounds=2", "train.local_epochs=1"),
    *("engine.name=sequential", "engine.threads=1", "engine.precision=64-true"),
    "tracking.mlflow=false",
)
COMMANDS = (
    ("run", "hfcd", "fedavg", "--out", "runs", *KEYS),
    ("tune", "fedper", "--trials", "2", "--seeds", "2", "--concurrent", "1", "--out", ".", *KEYS),
    ("compare", "fedavg", "ft", "--seeds", "2", "--jobs", "1", "--out", ".", *KEYS),
    (
        *("reproduce", "hfcd", "--dataset", "CIFAR-100=digits", "--seeds", "1"),
        *("--algos", "HFCD share=full,fedavg", "--output", "paper", *KEYS[1:], "data.root=/data"),
    ),
)
NAMES = {"tune": "study", "compare": "comparison"}
"""Name that the new folder of a command gets."""
INTERRUPTED = "--interrupted"
LEFT_OUT = (
    *("**/report*", "**/tables", "**/pictures", "**/ray", "**/*.html", "**/*.png", "**/*.lock"),
    *("study/study.md", "study/*.csv", "study/results.json", "paper/hfcd-*"),
    *("study/**/checkpoints", "comparison/**/checkpoints", "paper/**/checkpoints"),
)


def interrupt_a_run() -> None:
    """Train one of three rounds of Ditto."""

    class Interrupting(flbench.Callback):
        def on_round_end(self, run, metrics):
            signal.raise_signal(signal.SIGINT)

    keys = {name: yaml.safe_load(text) for name, text in (key.split("=", 1) for key in KEYS)}
    keys |= {"train.rounds": 3, "output.dir": "interrupted"}
    try:
        flbench.run("ditto", callbacks=[Interrupting()], progress=False, **keys)
    except KeyboardInterrupt:
        return
    raise RuntimeError("the run was not interrupted")


def clean(folder: Path) -> None:
    """Replace what names this machine, and remove what can be made again."""
    checkout = Path(flbench.__file__).parents[1]
    for pattern in LEFT_OUT:
        for path in [*folder.glob(pattern)]:
            shutil.rmtree(path) if path.is_dir() else path.unlink()
    for file in folder.rglob("provenance.json"):
        about = json.loads(file.read_text("utf-8"))
        about |= {"platform": "Linux", "processor": "a processor", "command": "flbench"}
        file.write_text(json.dumps(about, indent=1) + "\n", "utf-8")
    for file in text_files(folder):
        clear = file.read_text("utf-8")
        for place in (folder, checkout):  # the checkout has presets, which are named as origins
            clear = clear.replace(f"{place}/", "").replace(str(place), ".")
        if file.name == "trial.json":
            clear = json.dumps(json.loads(clear) | {"node": "a node", "pid": 1}, indent=1) + "\n"
        file.write_text(clear, "utf-8")


def text_files(folder: Path) -> Iterator[Path]:
    """Yield the files below a folder that have text."""
    for file in folder.rglob("*"):
        if file.is_file() and file.suffix not in (".npz", ".safetensors"):
            yield file


def check(folder: Path) -> None:
    """Raise a ValueError if a file names this machine or its user."""
    names = {socket.gethostname(), platform.node(), str(Path.home()), sys.prefix, "/tmp", "/home"}
    pattern = "|".join(rf"(?<!\w){re.escape(name)}(?!\w)" for name in names | {str(folder)})
    for file in text_files(folder):
        if found := re.search(pattern, file.read_text("utf-8")):
            raise ValueError(f"{file} has {found[0]}")


def main(out: str) -> None:
    """Make the archive."""
    target = Path(out).resolve()
    with TemporaryDirectory() as folder:
        root = Path(folder).resolve()
        for words in COMMANDS:
            before = {*root.iterdir()}
            call(root, "-m", "flbench", *words)
            if words[0] in NAMES:
                [made] = {*root.iterdir()} - before
                made.rename(root / NAMES[words[0]])
        call(root, str(Path(__file__).resolve()), INTERRUPTED)
        clean(root)
        check(root)
        call(root, "-m", "flbench", "pack", "comparison", "--out", "comparison.tar.xz")
        with tarfile.open(target, "w:xz", preset=9) as archive:
            for path in sorted(root.iterdir()):
                archive.add(path, path.name, filter=_anonymous)


def call(folder: Path, *words: str) -> None:
    """Call Python in a folder."""
    subprocess.run([sys.executable, *words], cwd=folder, check=True)


def _anonymous(member: tarfile.TarInfo) -> tarfile.TarInfo:
    member.uid = member.gid = member.mtime = 0
    member.uname = member.gname = ""
    return member


if __name__ == "__main__":
    if sys.argv[1:] == [INTERRUPTED]:
        interrupt_a_run()
    else:
        main(*sys.argv[1:])
