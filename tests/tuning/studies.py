"""Study folders as `flbench tune` writes them, made by hand around a real run folder."""

import json
import re
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from flbench.results import metrics_file
from flbench.results.metrics_file import Row

SPACE = {
    "algorithm.tau": {"loguniform": [0.01, 10.0]},
    "algorithm.groups": {"int": [2, 8]},
    "algorithm.distance": {"choice": ["cosine", "l2"]},
    "train.optimizer.lr": {"loguniform": [0.001, 1.0]},
}
DEFAULTS = {
    "algorithm.tau": 0.5,
    "algorithm.groups": 4,
    "algorithm.distance": "cosine",
    "train.optimizer.lr": 0.01,
}


def begin(path: Path, *methods: str, space: Mapping[str, Any] = SPACE, **header: Any) -> Path:
    """Write study.json."""
    path.mkdir(parents=True)
    entries = {
        method: {
            "space": "built in",
            "defaults": DEFAULTS,
            "space_tree": {"method": method, "space": space},
        }
        for method in methods
    }
    tree = {
        "id": path.name,
        "created": "2026-11-21T18:00:00",
        "command": ["flbench", "tune", "--algo", ",".join(methods)],
        "dataset": "digits",
        "scheme": "dirichlet",
        "partition_hash": "0123456789abcdef",
        "seed": 0,
        "metric": "accuracy",
        "search": "random",
        "scheduler": "none",
        "trials": 4,
        "rounds": 3,
        "seeds": 3,
        "git_revision": None,
        "methods": entries,
    }
    write(path / "study.json", {**tree, **header})
    return path


def trial(
    path: Path, method: str, index: int, score: float | None = None, **changes: Any
) -> dict[str, Any]:
    """Write a trial of the search, and return what its trial.json says."""
    tree = _trial(method, index=index, score=score) | changes
    write(path / "trials" / method / f"{index:03d}" / "trial.json", tree)
    return tree


def evaluated(path: Path, method: str, index: int, scores: Mapping[int, float]) -> None:
    """Write the validation accuracy of a trial by round."""
    rows = [Row(done, "validation", "personal", "accuracy", v) for done, v in scores.items()]
    folder = path / "trials" / method / f"{index:03d}"
    text = metrics_file.header_line() + metrics_file.to_text(rows)
    (folder / "metrics.csv").write_text(text)


def cell(
    path: Path,
    run: Path,
    label: str,
    seed: int,
    test: Mapping[str, Any],
    last: Mapping[str, Any] | None = None,
) -> Path:
    """Write a cell of a method with a label: a copy of a run folder whose test figures are these.

    Its seed is given, its partition is that of the run. Its best round is the last one, unless
    figures of the last one are given.
    """
    folder = path / "cells" / f"{label.replace(' ', '_')}-digits-seed{seed}"
    shutil.copytree(run, folder)
    summary = json.loads((folder / "summary.json").read_text())
    after = summary["last"]["round"]
    found = {"last": (after, test), "best": (after, test)}
    if last is not None:
        found = {"last": (after, last), "best": (after - 1, test)}
    lines = []
    for moment, (number, figures) in found.items():
        summary[moment] = json.loads(json.dumps(summary["last"])) | {"round": number}
        for split in ("test", "validation"):
            summary[moment][split] |= figures
            lines += [
                Row(number, split, deployment, name, value)
                for deployment, metrics in _by_deployment(summary[moment][split]).items()
                for name, value in metrics.items()
            ]
    with (folder / "metrics.csv").open("a") as file:
        file.write(metrics_file.to_text(lines))
    write(folder / "summary.json", summary | {"seed": seed})
    config = (folder / "config.yaml").read_text()
    (folder / "config.yaml").write_text(re.sub(r"(?m)^seed: \d+", f"seed: {seed}", config))
    header = json.loads((path / "study.json").read_text())
    file = path / "comparison.json"
    tree = json.loads(file.read_text()) if file.is_file() else _comparison(header)
    if label not in [one["label"] for one in tree["methods"]]:
        layer = {"algorithm": {"name": label.split()[0]}}
        tree["methods"].append({"label": label, "tree": layer, "origins": {}})
    entry = {"name": folder.name, "method": label, "place": "digits", "data": "digits", "own": True}
    tree["cells"].append({**entry, "repetition": seed - 1, "scheme": "dirichlet"})
    write(file, tree)
    return folder


def _by_deployment(figures: Mapping[str, Any]) -> dict[str, dict[str, float]]:
    own = {name: value for name, value in figures.items() if not isinstance(value, dict)}
    return {"personal": own, **{k: v for k, v in figures.items() if isinstance(v, dict)}}


def _comparison(header: Mapping[str, Any]) -> dict[str, Any]:
    base = {"tree": {"seed": header["seed"] + 1}, "origins": {}}
    about = {key: header[key] for key in ("id", "created", "command", "seeds")}
    design = {"grid": {}, "vary": "training", "tuned": None, "reference": None}
    one = {"label": "", "tree": {}, "origins": {}}
    return {"format": 1, **about, "base": base, "methods": [], "data": [one], **design, "cells": []}


def write(path: Path, tree: Any) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(tree))


def _trial(method: str, **entries: Any) -> dict[str, Any]:
    return {
        "method": method,
        "seed": 0,
        "params": dict(DEFAULTS),
        "state": "finished",
        "reason": None,
        "round": 3,
        "rounds": 3,
        "seconds": {"train": 1.0, "evaluate": 0.5, "total": 2.0},
        "started": "2026-11-21T18:00:00",
        "ended": "2026-11-21T18:00:02",
        "attempts": 1,
        "node": None,
        **entries,
    }
