"""A study folder, made of real runs, as `flbench tune` writes it."""

import json
import shutil
from datetime import UTC, datetime, timedelta
from pathlib import Path

from flbench.results import metrics_file
from tests.tuning import studies

SEEDS = 2
BEGIN = datetime(2026, 11, 21, 12, tzinfo=UTC)
# States and scores of a method's trials: 001 wins, 002 was better and is not finished.
TRIALS = (
    ("finished", 0.6, None),
    ("finished", 0.8, None),
    ("stopped", 0.9, None),
    ("diverged", None, "round 2, client 1: loss is not finite"),
)


def make(folder: Path, runs: dict[str, Path], *, cells: bool = True, name: str = "") -> Path:
    """Write a study over the methods of `runs`, each with a finished run folder to copy from."""
    about = {"created": BEGIN.isoformat(), "partition_hash": "ab" * 32, "scheduler": "asha"}
    about |= {"trials": len(TRIALS), "seeds": SEEDS, "git_revision": "abc123"}
    study = studies.begin(folder / "digits-20261121-120000-abcd", *runs, **about)
    (study / "methods").mkdir()
    (study / "pictures").mkdir()
    for shift, (method, run) in enumerate(runs.items()):
        shutil.copy(run / "config.yaml", study / "methods" / f"{method}.yaml")
        (study / "pictures" / f"{method}-parallel.png").write_bytes(b"\x89PNG " + method.encode())
        rows = metrics_file.read(run / "metrics.csv")
        kept = [row for row in rows if row.split in ("train", "server", "validation")]
        for index, (state, score, reason) in enumerate(TRIALS):
            begin = BEGIN + timedelta(minutes=index)
            studies.trial(
                *(study, method, index, None if score is None else score + shift / 100),
                params={"train.optimizer.lr": 0.01 * (index + 1)},
                state=state,
                reason=reason,
                started=begin.isoformat(),
                ended=(begin + timedelta(seconds=2)).isoformat(),
            )
            path = study / "trials" / method / f"{index:03d}"
            shutil.copy(run / "config.yaml", path)
            text = metrics_file.header_line() + metrics_file.to_text(kept)
            (path / "metrics.csv").write_text(text)
        for label in (f"{method} tuned", method) if cells else ():
            for seed in range(1, SEEDS + 1):
                studies.cell(study, run, label, seed, {})
    for name_of in ("report.md", "report.json", "report.html"):
        (study / name_of).write_text("{}")
    for name_of in ("partition.npz", "partition.json"):
        shutil.copy(next(iter(runs.values())) / name_of, study)
    if name:  # so that tests do not meet in the store
        edit(study / "study.json", id=name)
    return study


def edit(file: Path, **values: object) -> None:
    """Change keys of a JSON file."""
    studies.write(file, json.loads(file.read_text()) | values)
