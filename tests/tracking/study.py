"""A study folder, made of two real runs, as `flbench tune` writes it."""

import json
import shutil
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from flbench.results import metrics_file
from tests.tuning.studies import cell

SEEDS = 2
BEGIN = datetime(2026, 11, 21, 12, tzinfo=UTC)
# States and scores of a method's trials: 001 wins, 002 was better and is not finished.
TRIALS = (
    ("finished", 0.6, None),
    ("finished", 0.8, None),
    ("stopped", 0.9, None),
    ("diverged", None, "round 2, client 1: loss is not finite"),
)


def make(folder: Path, runs: dict[str, Path], *, cells: bool = True) -> Path:
    """Write a study over the methods of `runs`, each with a finished run folder to copy from."""
    study = folder / "digits-20261121-120000-abcd"
    about = {
        "id": study.name,
        "created": BEGIN.isoformat(),
        "command": ["flbench", "tune"],
        "dataset": "digits",
        "scheme": "dirichlet",
        "partition_hash": "ab" * 32,
        "seed": 0,
        "metric": "accuracy",
        "search": "random",
        "scheduler": "asha",
        "trials": len(TRIALS),
        "rounds": 3,
        "seeds": SEEDS,
        "git_revision": "abc123",
        "methods": {
            name: {"space": "built in", "defaults": {"train.optimizer.lr": 0.01}, "space_tree": {}}
            for name in runs
        },
    }
    study.mkdir()
    write(study / "study.json", about)
    for shift, (method, run) in enumerate(runs.items()):
        (study / "methods").mkdir(exist_ok=True)
        shutil.copy(run / "config.yaml", study / "methods" / f"{method}.yaml")
        for index, (state, score, reason) in enumerate(TRIALS):
            path = study / "trials" / method / f"{index:03d}"
            path.mkdir(parents=True)
            shutil.copy(run / "config.yaml", path)
            rows = metrics_file.read(run / "metrics.csv")
            kept = [row for row in rows if row.split in ("train", "server", "validation")]
            (path / "metrics.csv").write_text(
                metrics_file.header_line() + metrics_file.to_text(kept)
            )
            found = None if score is None else score + shift / 100
            write(path / "trial.json", trial(method, index, state, found, reason=reason))
        for label in (f"{method} tuned", method) if cells else ():
            for seed in range(1, SEEDS + 1):
                cell(study, run, label, seed, {})
    for name in ("report.md", "report.json", "report.html"):
        (study / name).write_text("{}")
    for name in ("partition.npz", "partition.json"):
        shutil.copy(next(iter(runs.values())) / name, study)
    (study / "pictures").mkdir()
    for method in runs:
        (study / "pictures" / f"{method}-parallel.png").write_bytes(b"\x89PNG " + method.encode())
    return study


def trial(
    method: str, index: int, state: str, score: float | None, *, reason: str | None = None
) -> dict[str, Any]:
    """Return what a trial.json holds."""
    begin = BEGIN + timedelta(minutes=index)
    return {
        "method": method,
        "index": index,
        "seed": 0,
        "params": {"train.optimizer.lr": 0.01 * (index + 1)},
        "state": state,
        "reason": reason,
        "round": 3,
        "rounds": 3,
        "score": score,
        "seconds": {"train": 1.0, "evaluate": 0.5, "total": 2.0},
        "started": begin.isoformat(),
        "ended": None if state == "running" else (begin + timedelta(seconds=2)).isoformat(),
        "attempts": 1,
        "node": None,
    }


def write(path: Path, value: dict[str, Any]) -> None:
    """Write a JSON file."""
    path.write_text(json.dumps(value))
