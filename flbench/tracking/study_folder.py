"""What the mirror reads of a study folder: its trials and final trainings."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from flbench.tracking import mlflow_names
from flbench.tracking.mirror_run import read_json


@dataclass(frozen=True)
class Trial:
    """A trial of the search, or a final training.

    Attributes:
        path: its folder.
        about: trial.json.
    """

    path: Path
    about: Mapping[str, Any]

    @property
    def state(self) -> str:
        """running, finished, stopped, diverged or failed."""
        return str(self.about["state"])

    @property
    def score(self) -> float | None:
        """The validation figure; larger is better."""
        found: float | None = self.about.get("score")
        return found

    @property
    def is_final(self) -> bool:
        """Whether it is a final training, not a trial of the search."""
        return bool(self.about["kind"] == "final")

    @property
    def name(self) -> str:
        """As the user sees it."""
        method = self.about["method"]
        if self.is_final:
            # What tells them apart comes first: a tree leaves little room for their names.
            return f"{self.about['variant']}{self.about['seed']} {method}"
        return f"{method} {self.path.name}"

    def signature(self) -> tuple[Any, ...]:
        """Return what changes whenever its folder does."""
        files = (self.path / name for name in ("trial.json", "metrics.csv", "summary.json"))
        there = (file.stat() if file.exists() else None for file in files)
        return tuple(about and (about.st_mtime_ns, about.st_size) for about in there)


def trials_in(folder: Path) -> list[Trial]:
    """Return the trials below a folder, in order."""
    found = (Trial(file.parent, read_json(file)) for file in sorted(folder.glob("*/trial.json")))
    return [trial for trial in found if trial.about]


def winner(trials: Sequence[Trial]) -> Trial | None:
    """Return the finished trial with the best score, the first of equal ones."""
    scored = [(t.score, -t.about["index"], t) for t in trials if t.state == "finished"]
    return max((item for item in scored if item[0] is not None), default=(0, 0, None))[2]


def mean_figures(finals: Sequence[Trial]) -> dict[str, float]:
    """Return the means of the summaries' figures over seeds, of those that all have."""
    tables = [mlflow_names.summary(read_json(trial.path / "summary.json")) for trial in finals]
    shared = set.intersection(*(set(table) for table in tables))
    return {name: sum(table[name] for table in tables) / len(tables) for name in sorted(shared)}


def read_yaml(path: Path) -> dict[str, Any]:
    """Return a YAML file's keys; {} if it is not there."""
    if not path.is_file():
        return {}
    found: dict[str, Any] = yaml.safe_load(path.read_text(encoding="utf-8"))
    return found
