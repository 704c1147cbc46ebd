"""The runs of a plan: found again, resumed, or begun; ordinary run folders, all of them."""

import time
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, Literal

from flbench.config.resolve import resolve
from flbench.config.schema import Config
from flbench.config.sources import Layer, from_file, from_overrides
from flbench.core.errors import UserError
from flbench.experiment import lifecycle
from flbench.experiment.loop import Reporter
from flbench.reproduce.configurations import fingerprint
from flbench.reproduce.plan import Job, Plan

PAUSE: Final = 20.0  # seconds between two lines on one run
State = Literal["finished", "to resume", "new"]
Open = Callable[[str], AbstractContextManager[Reporter]]


class Shelf:
    """The run folders of a directory, found by what was asked of them."""

    def __init__(self, root: Path) -> None:
        self._root = root.absolute()
        self._keys: dict[Path, str | None] = {}  # None: of another version, or damaged

    def find(self, config: Config) -> Path | None:
        """Return the folder of a run with this configuration, a finished one if there is any."""
        for file in sorted(self._root.glob("*/*/config.yaml")):
            if file.parent not in self._keys:
                self._keys[file.parent] = _key_of(file)
        wanted = fingerprint(config)
        found = [path for path, key in self._keys.items() if key == wanted and path.is_dir()]
        return max(found, key=lambda path: (is_finished(path), path.name), default=None)


def is_finished(path: Path) -> bool:
    """Return whether a run is over."""
    return (path / "summary.json").is_file()


def _key_of(file: Path) -> str | None:
    try:
        return fingerprint(resolve([from_file(file)])[0])
    except UserError:
        return None


@dataclass
class Done:
    """What became of the jobs.

    Attributes:
        folders: of finished runs, by the job's key.
        troubles: why others have none, by the job's key.
    """

    folders: dict[str, Path] = field(default_factory=dict)
    troubles: dict[str, str] = field(default_factory=dict)


def config_of(job: Job, shelf: Shelf) -> Config:
    """Return a job's configuration with the place of its reference run, if that is finished."""
    if job.reference is None:
        return job.config
    folder = shelf.find(job.reference.config)
    if folder is None or not is_finished(folder):
        return job.config
    evaluation = job.config.evaluation.model_copy(update={"confusable": str(folder)})
    return job.config.model_copy(update={"evaluation": evaluation})


def state_of(job: Job, shelf: Shelf) -> State:
    """Return whether a job's run is there."""
    folder = shelf.find(config_of(job, shelf))
    if folder is None:
        return "new"
    return "finished" if is_finished(folder) else "to resume"


class Brief(Reporter):
    """Tells less: each note once over many runs, and of judgements the last and one in a while."""

    def __init__(self, inner: Reporter, told: set[str]) -> None:
        self._inner, self._told = inner, told
        self._rounds, self._said = 0, time.monotonic()

    def begin(self, done: int, rounds: int) -> None:
        """Pass it on."""
        self._rounds = rounds
        self._inner.begin(done, rounds)

    def round_done(self, done: int, loss: float) -> None:
        """Pass it on."""
        self._inner.round_done(done, loss)

    def evaluated(self, done: int, figures: Mapping[tuple[str, str, str], float]) -> None:
        """Pass on the last one, and one in a while."""
        if done == self._rounds or time.monotonic() - self._said > PAUSE:
            self._said = time.monotonic()
            self._inner.evaluated(done, figures)

    def warn(self, text: str) -> None:
        """Pass it on unless it was said of an earlier run."""
        if text not in self._told:
            self._told.add(text)
            self._inner.warn(text)


def carry_out(plan: Plan, shelf: Shelf, tell: Open, done: Done) -> None:
    """Run what is not there yet; write into `done` as it goes, so that an interrupt keeps it.

    A run that the user's input makes impossible is noted, and the others go on.

    Raises: RunError, KeyboardInterrupt; what was written stays and the next call goes on.
    """
    told: set[str] = set()
    for number, job in enumerate(plan.jobs.values(), start=1):
        config = config_of(job, shelf)
        folder = shelf.find(config)
        if folder is None or not is_finished(folder):
            try:
                with tell(f"run {number} of {len(plan.jobs)}, {job.title}") as reporter:
                    brief = Brief(reporter, told)
                    if folder is None:
                        folder = lifecycle.run(config, dict(job.origins), brief)
                    else:
                        folder = lifecycle.resume(folder, _engine(plan), brief)
            except UserError as error:
                done.troubles[job.key] = " ".join(str(error).split())
                continue
        done.folders[job.key] = folder


def _engine(plan: Plan) -> Layer:
    """Return the overrides that a resumed run may take: what computes, not what comes out."""
    given = from_overrides(plan.request.overrides)
    engine = given.tree.get("engine", {})
    free = {key: value for key, value in engine.items() if f"engine.{key}" in lifecycle.CHANGEABLE_ON_RESUME}
    return Layer({"engine": free} if free else {}, given.origins)


def collect(plan: Plan, shelf: Shelf, done: Done) -> None:
    """Find the finished runs of all cells, those that were not asked for too."""
    for item in plan.cells:
        for job in item.jobs.values():
            if job.key in done.folders:
                continue
            folder = shelf.find(config_of(job, shelf))
            if folder is not None and is_finished(folder):
                done.folders[job.key] = folder
