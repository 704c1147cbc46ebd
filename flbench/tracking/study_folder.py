"""What the mirror reads of a study folder: what was asked, its trials and final trainings."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import isfinite
from pathlib import Path
from typing import Any, Self

from flbench.core.documents import milliseconds, naming, read_json
from flbench.core.errors import DataError
from flbench.tracking.mirror_run import summary_of


@dataclass(frozen=True)
class Header:
    """What was asked for.

    Attributes:
        id: the study's.
        started: ms since 1970.
        trials: asked for, of each method.
        seeds: of final trainings.
        methods: in their order, each with the dotted paths of what is searched.
        about: study.json.
    """

    id: str
    started: int
    trials: int
    seeds: int
    methods: Mapping[str, Sequence[str]]
    about: Mapping[str, Any]

    @classmethod
    def read(cls, file: Path) -> Self:
        """Read a study.json. Raises: DataError if it is damaged."""
        about = read_json(file)
        with naming(file):
            for key in ("dataset", "scheme", "partition_hash", "metric", "seed"):
                about[key]  # a KeyError says which one is missing
            return cls(
                id=str(about["id"]),
                started=milliseconds(about["created"]),
                trials=int(about["trials"]),
                seeds=int(about["seeds"]),
                methods={
                    name: tuple(method.get("defaults", ()))
                    for name, method in about["methods"].items()
                },
                about=about,
            )


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
        """The validation figure; larger is better. None where it is no finite number."""
        found = self.about.get("score")
        return found if isinstance(found, int | float) and isfinite(found) else None

    @property
    def of(self) -> int:
        """Of a final training: the number of the trial that it trains again."""
        return int(self.about.get("of") or 0)

    @property
    def started(self) -> int:
        """When it began, in ms since 1970."""
        return milliseconds(self.about["started"])

    @property
    def ended(self) -> int | None:
        """When it ended, in ms since 1970; None if that is not known."""
        time = self.about.get("ended")
        return None if time is None else milliseconds(time)

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
            return f"{self.about.get('variant')}{self.about['seed']} {method}"
        return f"{method} {self.path.name}"

    def signature(self) -> tuple[Any, ...]:
        """Return what changes whenever its folder does."""
        files = (self.path / name for name in ("trial.json", "metrics.csv", "summary.json"))
        there = (file.stat() if file.exists() else None for file in files)
        return tuple(about and (about.st_mtime_ns, about.st_size) for about in there)


def trials_in(folder: Path) -> tuple[list[Trial], list[DataError]]:
    """Return the trials below a folder, in order, and what is wrong with those left out."""
    found, damaged = [], []
    for file in sorted(folder.glob("*/trial.json")):
        try:
            found.append(_trial(file))
        except DataError as error:
            damaged.append(error)
    return found, damaged


def _trial(file: Path) -> Trial:
    """Read a trial.json. Raises: DataError if it is damaged."""
    about = read_json(file)
    with naming(file):
        texts = {key: str(about[key]) for key in ("method", "kind", "state")}
        numbers = {key: int(about[key]) for key in ("index", "seed", "round")}
        checked = {**texts, **numbers, "params": dict(about["params"])}
        trial = Trial(file.parent, about | checked)
        trial.of, trial.started, trial.ended  # noqa: B018  (each is what it must be)
        return trial


def winner(trials: Sequence[Trial]) -> Trial | None:
    """Return the finished trial with the best score, of equal ones the lowest index.

    The same one as `flbench.tuning.results.best`, which the mirror does not import: it is heavy.
    """
    able = [(trial.score, trial) for trial in trials if trial.state == "finished"]
    scored = [(score, trial) for score, trial in able if score is not None]
    return max(scored, key=lambda item: (item[0], -item[1].about["index"]))[1] if scored else None


def mean_figures(finals: Sequence[Trial]) -> dict[str, float]:
    """Return the means of the summaries' figures over seeds, of those that all have."""
    tables = [summary_of(trial.path) for trial in finals]
    shared = set.intersection(*(set(table) for table in tables))
    return {name: sum(table[name] for table in tables) / len(tables) for name in sorted(shared)}
