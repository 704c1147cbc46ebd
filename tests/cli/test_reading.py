"""What a folder of a stranger names is not imported, unpickled or downloaded by what reads it."""

import io
import json
import pickle
import shutil
import subprocess
import sys
from copy import deepcopy
from pathlib import Path

import numpy as np
import pytest
import yaml

from flbench.config.resolve import read
from flbench.config.sources import leaves
from flbench.core.errors import ConfigError
from flbench.testing import run
from tests.tuning import studies

NAMES = (
    "evil:Net",
    "torch.nn./../evil.py:Net",
    "hf:evil",
    "https://127.0.0.1:9/evil.pth",
    "evil.pth",
)
LISTS = {  # keys whose values name code in entries of their own
    "train.terms": lambda name: [{"name": name}],
    "evaluation.metrics": lambda name: {"mine": {"source": name}},
    "model.args": lambda name: {"pretrained_cfg": name, "checkpoint_path": name},
}
FILES = (
    *("config.yaml", "summary.json", "metrics.csv", "per_class.csv", "clients.csv"),
    *("confusion.csv", "learned.json", "predictions.csv", "partition.json", "partition.npz"),
    *("provenance.json", "report.html", "checkpoints/last.safetensors"),
)
OPTIONAL = ("torch.utils", "tabulate", "lz4", "sitecustomize", "evil")  # modules beside a folder
READING = """
import os, sys
from pathlib import Path

WATCHED = ("pickle.find_class", "socket.connect", "socket.getaddrinfo", "os.system", "os.exec")
here, happened = os.getcwd(), []


def watch(event, arguments):
    if event in WATCHED or event == "exec" and arguments[0].co_filename.startswith(here):
        happened.append(f"{event} {arguments!r}")


sys.addaudithook(watch)
import flbench as fl
from flbench.cli.app import main

runs = sorted(str(path.parent) for path in Path().glob("*/*/config.yaml"))
folders = [*runs, "comparison", "study"]
pickled = [path for path in folders if path.startswith("pickled")]
named = [path for path in folders if path not in pickled]
for command in (
    ["pack", *named, "--out", "all.tar.xz"],
    ["show", *named, "all.tar.xz", "--json"],
    ["report", *named, "all.tar.xz", "--force"],
    ["sync", *named, "--uri", "sqlite:///mlflow.db"],
):
    assert main(command) == 0, command
    assert "torch" not in sys.modules, command
main(["show", *pickled])
main(["report", *pickled])
main(["sync", *pickled, "--uri", "sqlite:///mlflow.db"])
fl.runs(*folders)
fl.report(named, force=True)
for folder in folders:
    try:
        found = fl.load(folder)
        for name in ("metrics", "per_class", "clients", "summary", "trials", "comparison"):
            getattr(found, name, None)
    except fl.UserError:
        pass
happened += [name for name, module in sys.modules.items()
             if (getattr(module, "__file__", None) or "").startswith(here)]
print("\\n".join(happened))
"""


class Touching:
    """Leaves a file when it is unpickled."""

    def __reduce__(self):
        return Path("unpickled").touch, ()


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """The folder of a finished run whose method has learned something, with predictions."""
    return run(tmp_path_factory.mktemp("runs"), "algorithm=fednh", "output.predictions=true")[0]


def with_name(tree: dict, name: str, file: Path, *, backwards: bool) -> dict:
    """Return a configuration with a name in each key that a reader accepts there.

    Some keys exclude each other: with `backwards`, the last of these has the name.
    """
    for key in sorted(leaves(tree), reverse=backwards):
        if key == "evaluation.best.metric":  # then the run has no classes, and no report
            continue
        changed = deepcopy(tree)
        *above, last = key.split(".")
        section = changed
        for part in above:
            section = section[part]
        section[last] = LISTS.get(key, lambda name: name)(name)
        file.write_text(yaml.safe_dump(changed))
        try:
            read(file)
        except ConfigError:
            continue
        tree = changed
    file.write_text(yaml.safe_dump(tree))
    return tree


def with_pickle(file: Path) -> None:
    """Replace a file by a pickle, and an NPZ file by one whose arrays are pickled objects."""
    content = io.BytesIO()
    if file.suffix == ".npz":
        objects = np.array([Touching()], dtype=object)
        np.savez(content, train_counts=objects, index=objects, client=objects, part=objects)
    else:
        pickle.dump(Touching(), content)
    file.write_bytes(content.getvalue())


@pytest.mark.slow
@pytest.mark.processes
def test_nothing_is_imported_unpickled_or_downloaded(finished, tmp_path):
    for module in OPTIONAL:
        (tmp_path / f"{module}.py").write_text("open('imported', 'w')\nNet = object\n")
    with_pickle(tmp_path / "evil.pth")
    written = yaml.safe_load((finished / "config.yaml").read_text())
    keys: set[str] = set()
    for number, name in enumerate(NAMES):
        folder = shutil.copytree(finished, tmp_path / "theirs" / f"name-{number}")
        changed = leaves(
            with_name(written, name, folder / "config.yaml", backwards=number % 2 == 0)
        )
        keys |= {key for key, value in changed.items() if name in str(value)}
        for file in ("summary.json", "provenance.json", "partition.json"):
            text = (folder / file).read_text()
            for key, value in leaves(json.loads(text)).items():
                if isinstance(value, str) and key != "started":
                    text = text.replace(json.dumps(value), json.dumps(name))
            (folder / file).write_text(text)
    assert keys >= {"algorithm.name", "model.name", "data.name", "data.source", "model.weights"}
    assert keys >= {"evaluation.metrics.mine.source", "partition.scheme"}
    assert keys >= {"train.terms", "engine.address"}
    for number, name in enumerate(FILES):
        folder = shutil.copytree(finished, tmp_path / "pickled" / f"file-{number}")
        assert (folder / name).is_file()
        with_pickle(folder / name)
    comparison = tmp_path / "comparison"
    shutil.copytree(tmp_path / "theirs" / "name-0", comparison / "cells" / "one")
    layer = {"tree": {"model": {"name": NAMES[0]}}, "origins": {}}
    method = {"label": "mine", "tree": {"algorithm": {"name": NAMES[0]}}, "origins": {}}
    entry = {"name": "one", "method": "mine", "place": "digits", "repetition": 0}
    design = {"base": layer, "methods": [method], "data": [], "grid": {}, "seeds": 1}
    design |= {"vary": "training", "tuned": NAMES[0], "id": "c", "created": "2026-01-01T00:00:00"}
    design |= {"command": [], "cells": [entry | {"data": NAMES[0], "scheme": NAMES[0]}]}
    (comparison / "comparison.json").write_text(json.dumps(design))
    study = studies.begin(tmp_path / "study", "mine", seeds=1, trials=1, dataset=NAMES[0])
    studies.trial(study, "mine", 0, 0.5, params={"model.name": NAMES[0]})
    studies.cell(study, tmp_path / "theirs/name-0", "mine", 1, {"accuracy": 0.5})

    done = subprocess.run(
        [sys.executable, "-P", "-c", READING], cwd=tmp_path, capture_output=True, text=True
    )

    assert done.returncode == 0, done.stderr[-3000:]
    assert "Traceback" not in done.stderr
    assert done.stdout.splitlines()[-1] == "", done.stdout[-2000:]
    left = {path.name for path in tmp_path.iterdir()}
    assert not {"imported", "unpickled"} & left
