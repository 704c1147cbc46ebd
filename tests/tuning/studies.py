"""Study folders as `flbench tune` writes them, made by hand around a real run folder."""

import json
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

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
    tree = _trial(method, kind="search", index=index, score=score) | changes
    write(path / "trials" / method / f"{index:03d}" / "trial.json", tree)
    return tree


def final(
    path: Path,
    run: Path,
    method: str,
    variant: str,
    seed: int,
    test: Mapping[str, float],
    **changes: Any,
) -> Path:
    """Write a final training: a copy of a run folder whose test figures are these."""
    folder = path / "finals" / method / f"{variant}-seed{seed}"
    shutil.copytree(run, folder)
    summary = json.loads((folder / "summary.json").read_text())
    summary["last"]["test"] |= test
    summary["last"]["validation"] |= test
    summary["best"] = summary["last"]
    write(folder / "summary.json", summary)
    entry = _trial(method, kind="final", index=0, score=test.get("accuracy"))
    entry |= {"variant": variant, "seed": seed, "of": 0 if variant == "default" else 1} | changes
    write(folder / "trial.json", entry)
    return folder


def write(path: Path, tree: Any) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(tree))


def _trial(method: str, **entries: Any) -> dict[str, Any]:
    return {
        "method": method,
        "variant": None,
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
        "of": None,
        **entries,
    }
