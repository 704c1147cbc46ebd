"""What trials of a search leave on the disk that nothing reads any more."""

import shutil
from collections.abc import Iterable
from pathlib import Path

from flbench.tuning.plan import winner
from flbench.tuning.study import Record, job_from_record


def remove_checkpoints(study: Path, records: Iterable[Record]) -> None:
    """Remove the checkpoints of the trials that have lost.

    A trial has lost if it has ended and another one of its method is better, or if it has no score.
    It is never trained again: its metrics and its configuration are all that is read of it.

    Args:
        study: Study folder.
        records: Contents of trial.json of the trainings that have ended.
    """
    by_method: dict[str, list[Record]] = {}
    for record in records:
        by_method.setdefault(record["method"], []).append(record)
    for of_method in by_method.values():
        best = winner(of_method)
        for record in of_method:
            if best is None or record["index"] != best.index:
                folder = study / job_from_record(record).name / "checkpoints"
                shutil.rmtree(folder, ignore_errors=True)


def remove_copies(study: Path) -> None:
    """Remove the states that Ray Tune has copied between trials, and its own files.

    Args:
        study: Study folder, of which no trial is trained at the moment.
    """
    shutil.rmtree(study / "ray" / "tune", ignore_errors=True)
