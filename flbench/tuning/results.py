"""What a study folder says: read back for tables, whether the study is finished or not."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from math import isfinite
from pathlib import Path
from typing import Any, Literal, TypeVar

from pydantic import TypeAdapter, ValidationError

from flbench.core.errors import DataError, UserError
from flbench.results import reading

State = Literal["running", "finished", "stopped", "diverged", "failed"]
Variant = Literal["default", "tuned"]
Params = Mapping[str, Any]

Content = TypeVar("Content")

STATES: tuple[State, ...] = ("finished", "stopped", "running", "diverged", "failed")
VARIANTS: tuple[Variant, ...] = ("default", "tuned")


@dataclass(frozen=True)
class Method:
    """What a study says of a method at its start.

    Attributes:
        space: the file of its space, or "built in".
        defaults: its default hyper-parameters by path.
        space_tree: the space, as its file has it.
    """

    space: str
    defaults: Params
    space_tree: Mapping[str, Any]


@dataclass(frozen=True)
class Header:
    """study.json: what was asked for."""

    id: str
    created: str
    command: tuple[str, ...]
    dataset: str
    scheme: str
    partition_hash: str | None
    seed: int
    metric: str
    search: str
    scheduler: str
    trials: int
    rounds: int
    seeds: int
    git_revision: str | None
    methods: Mapping[str, Method]


@dataclass(frozen=True)
class Trial:
    """trial.json: a trial of the search, or a final training.

    Attributes:
        method: its method.
        kind: search or final.
        index: number of the trial; 0 has the default hyper-parameters.
        variant: of a final: default or tuned.
        seed: of training.
        params: hyper-parameters by path; with PBT the latest.
        state: what became of it; stopped: by the scheduler.
        reason: of a failure, a sentence.
        round: done.
        rounds: asked for.
        score: the study's metric on validation when it was last evaluated; None before that, and
            where it is no finite number.
        seconds: spent, by what.
        started: ISO time.
        ended: ISO time; None while it runs.
        attempts: one, and one more for each time its worker failed.
        node: where it ran.
        of: of a final: the trial whose hyper-parameters it has.
    """

    method: str
    kind: Literal["search", "final"]
    index: int
    variant: Variant | None
    seed: int
    params: Params
    state: State
    reason: str | None
    round: int
    rounds: int
    score: float | None
    seconds: Mapping[str, float] | None
    started: str | None
    ended: str | None
    attempts: int = 1
    node: str | None = None
    of: int | None = None


@dataclass(frozen=True)
class Final:
    """A final training: a run over all rounds whose test part was scored.

    Attributes:
        path: its run folder.
        trial: what its trial.json says.
        run: the run; None while it is unfinished.
    """

    path: Path
    trial: Trial
    run: reading.Run | None

    def figure(self, split: str, name: str) -> float | None:
        """Return a figure of the last round; None while unfinished, or where there is none."""
        value = None if self.run is None else self.run.summary["last"][split].get(name)
        return value if isinstance(value, int | float) and isfinite(value) else None


@dataclass(frozen=True)
class Study:
    """A study folder.

    Attributes:
        path: the folder.
        header: what was asked for.
        trials: of the search, by method in the order of the study, then by index.
        finals: the final trainings, by method, variant and seed.
    """

    path: Path
    header: Header
    trials: tuple[Trial, ...]
    finals: tuple[Final, ...]

    @property
    def methods(self) -> tuple[str, ...]:
        """The methods, in the order of the study."""
        return tuple(self.header.methods)

    @property
    def seeds(self) -> tuple[int, ...]:
        """The seeds of final trainings."""
        first = self.header.seed + 1
        return tuple(range(first, first + self.header.seeds))

    def trials_of(self, method: str) -> list[Trial]:
        """Return a method's trials by index."""
        return [trial for trial in self.trials if trial.method == method]

    def winner(self, method: str) -> Trial | None:
        """Return the finished trial with the best score, of equal ones the first; None without."""
        return best(self.trials_of(method))

    def finals_of(self, method: str, variant: Variant) -> dict[int, Final]:
        """Return the finished final trainings of a method, by seed.

        Where the default hyper-parameters won, their trainings are the tuned ones, unless those
        were run again.
        """
        found = {
            final.trial.seed: final
            for final in self.finals
            if (final.trial.method, final.trial.variant) == (method, variant) and final.run
        }
        won = self.winner(method)
        if variant == "tuned" and not found and won is not None and won.index == 0:
            return self.finals_of(method, "default")
        return found

    def values(
        self, method: str, variant: Variant, name: str, *, split: str = "test"
    ) -> dict[int, float]:
        """Return a figure of a method's final trainings after the last round, by seed."""
        found = {
            seed: final.figure(split, name)
            for seed, final in self.finals_of(method, variant).items()
        }
        return {seed: value for seed, value in found.items() if value is not None}


def best(trials: Sequence[Trial]) -> Trial | None:
    """Return the finished trial with the best score, of equal ones the lowest index."""
    able = [(trial.score, trial) for trial in trials if trial.state == "finished"]
    scored = [(score, trial) for score, trial in able if score is not None]
    return max(scored, key=lambda item: (item[0], -item[1].index))[1] if scored else None


def is_study(path: Path) -> bool:
    """Return whether a folder is a study's."""
    return (path / "study.json").is_file()


def read(path: Path) -> Study:
    """Read a study folder; what is still being written is left out.

    Raises: UserError if it is none, DataError if a file in it is damaged.
    """
    if not path.exists():
        raise UserError(f"{path} does not exist.")
    if not is_study(path):
        raise UserError(f"{path} is not a study folder: it has no study.json.")
    header = _load(path / "study.json", Header)
    order = list(header.methods)
    trials = [trial for _, trial in _trials(path, "trials", order)]
    finals = [_final(folder, trial) for folder, trial in _trials(path, "finals", order)]
    return Study(
        path,
        header,
        tuple(sorted(trials, key=lambda trial: (order.index(trial.method), trial.index))),
        tuple(sorted(finals, key=lambda final: _place(final.trial, order))),
    )


def _place(trial: Trial, order: Sequence[str]) -> tuple[int, int, int]:
    variant = VARIANTS.index(trial.variant) if trial.variant is not None else -1
    return order.index(trial.method), variant, trial.seed


def _trials(path: Path, kind: str, methods: Sequence[str]) -> list[tuple[Path, Trial]]:
    """Return the trials below `trials/` or `finals/` that have been begun, with their folders."""
    found = []
    for file in sorted((path / kind).glob("*/*/trial.json")):
        trial = _trial(file)
        if trial.method not in methods or trial.method != file.parent.parent.name:
            raise DataError(
                f"{file} is damaged: its method is {trial.method!r}. Move the folder"
                f" {file.parent} away."
            )
        if (trial.kind == "final") != (kind == "finals") or (
            trial.kind == "final" and trial.variant is None
        ):
            raise DataError(
                f"{file} is damaged: a {trial.kind} of variant {trial.variant} does not lie in"
                f" {kind}/. Move the folder {file.parent} away."
            )
        found.append((file.parent, trial))
    return found


def _trial(file: Path) -> Trial:
    trial = _load(file, Trial)
    unscored = trial.score is None or not isfinite(trial.score)
    return replace(trial, score=None) if unscored else trial


def _final(folder: Path, trial: Trial) -> Final:
    """Return a final training; its summary says that the run is finished, and trial.json that
    it was not given up after that.
    """
    done = (folder / "summary.json").is_file() and trial.state == "finished"
    return Final(folder, trial, reading.read(folder) if done else None)


def _load(file: Path, kind: type[Content]) -> Content:
    """Return a JSON file as a dataclass; keys that it does not know are left out.

    Raises: DataError naming the file.
    """
    try:
        return TypeAdapter(kind).validate_json(file.read_bytes())
    except ValidationError as error:
        first = error.errors()[0]
        place = ".".join(map(str, first["loc"])) or "the whole"
        raise DataError(f"{file} is damaged: `{place}`: {first['msg']}.") from error
    except OSError as error:
        raise DataError(f"{file} cannot be read: {error.strerror}.") from error
