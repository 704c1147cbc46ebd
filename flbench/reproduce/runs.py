"""Carries out the runs of a plan: each is found, resumed or started, in an ordinary run folder."""

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, Literal

from flbench.callbacks import Callback, RunView
from flbench.config.resolve import read
from flbench.config.schema import Config
from flbench.config.sources import Layer
from flbench.core.errors import RunError, UserError
from flbench.experiment import lifecycle
from flbench.jobs import executor
from flbench.jobs.job import Job, Outcome, Task
from flbench.jobs.launchers.this_process import ThisProcess
from flbench.jobs.samples import LoadedSamples
from flbench.reproduce.configurations import fingerprint
from flbench.reproduce.plan import PaperPlan, PlannedRun
from flbench.results.reading import is_finished

PAUSE: Final = 20.0  # seconds between two lines of progress of a run
State = Literal["finished", "to resume", "new"]
OpenDisplay = Callable[[str], AbstractContextManager[Callback]]


class RunFolders:
    """The run folders of a directory, found by their configuration.

    Args:
        root: Directory with run folders two levels below it.
    """

    def __init__(self, root: Path) -> None:
        self._root = root.absolute()
        self._keys: dict[Path, str | None] = {}  # None: written by another version, or damaged

    def find(self, config: Config) -> Path | None:
        """Return the folder of a run with this configuration; None if there is none.

        A finished run takes precedence, then the last name in alphabetical order.
        """
        for file in sorted(self._root.glob("*/*/config.yaml")):
            if file.parent not in self._keys:
                self._keys[file.parent] = _key_of(file)
        wanted = fingerprint(config)
        found = [path for path, key in self._keys.items() if key == wanted and path.is_dir()]
        return max(found, key=lambda path: (is_finished(path), path.name), default=None)


def _key_of(file: Path) -> str | None:
    try:
        return fingerprint(read(file))
    except UserError:
        return None


@dataclass
class RunResults:
    """Results of the planned runs.

    Attributes:
        folders: Folders of the finished runs, by name of the planned run.
        failures: Reasons why other runs have no folder, by name of the planned run.
    """

    folders: dict[str, Path] = field(default_factory=dict)
    failures: dict[str, str] = field(default_factory=dict)


def config_of(job: PlannedRun, folders: RunFolders) -> Config:
    """Return the configuration of a run, with the folder of its reference run if that finished."""
    if job.reference is None:
        return job.config
    folder = folders.find(job.reference.config)
    if folder is None or not is_finished(folder):
        return job.config
    return job.config.altered(evaluation=job.config.evaluation.altered(confusable=str(folder)))


def state_of(job: PlannedRun, folders: RunFolders) -> State:
    """Return whether a planned run has finished, can be resumed, or is new."""
    folder = folders.find(config_of(job, folders))
    if folder is None:
        return "new"
    return "finished" if is_finished(folder) else "to resume"


class Quiet(Callback):
    """A display of progress that prints less: each note once over many runs, evaluations rarely.

    Args:
        display: Callback that displays the progress of the run.
        printed: Notes that have been printed; new ones are added.
    """

    def __init__(self, display: Callback, printed: set[str]) -> None:
        self._display, self._printed = display, printed
        self._printed_at = time.monotonic()

    def on_run_start(self, run: RunView) -> None:
        self._display.on_run_start(run)

    def on_round_end(self, run: RunView, metrics: Mapping[str, float]) -> None:
        self._display.on_round_end(run, metrics)

    def on_evaluation_end(self, run: RunView, metrics: Mapping[str, float]) -> None:
        """Display the evaluation of the last round, and others at least 20 seconds apart."""
        last = run.round == run.rounds or run.stopped
        if last or time.monotonic() - self._printed_at > PAUSE:
            self._printed_at = time.monotonic()
            self._display.on_evaluation_end(run, metrics)

    def on_note(self, text: str) -> None:
        """Print a note unless an earlier run has printed it."""
        if text not in self._printed:
            self._printed.add(text)
            self._display.on_note(text)


@dataclass
class _PaperJobs:
    """The plan of a paper's runs, for the executor.

    Attributes:
        plan: Plan of the runs.
        folders: Existing run folders.
        samples: Data of the runs.
        done: Results; failures are added.
    """

    plan: PaperPlan
    folders: RunFolders
    samples: LoadedSamples
    done: RunResults

    def left(self) -> Iterator[PlannedRun]:
        """Yield the runs that have not finished when their turn comes."""
        return (job for job in self.plan.jobs.values() if state_of(job, self.folders) != "finished")

    def task(self, job: Job) -> Task:
        config = config_of(self.plan.jobs[job.name], self.folders)
        path = self.folders.find(config)
        if path is not None:
            self.samples.check_unchanged(job, path)
        return Task(path, Layer(config.tree(), job.origins), _engine(self.plan))

    def begin(self, job: Job) -> None:
        """Do nothing: the display of the run tells that it begins."""

    def end(self, job: Job, outcome: Outcome) -> None:
        if outcome.reason is None:
            return
        if not outcome.is_input:
            raise RunError(outcome.reason)
        self.done.failures[job.name] = outcome.reason


def carry_out(
    plan: PaperPlan, folders: RunFolders, open_display: OpenDisplay, done: RunResults
) -> None:
    """Carry out the runs of a plan that have not finished.

    A run that fails because of the user's input is recorded as a failure, and the other runs
    continue. `collect` adds the finished runs.

    Args:
        plan: Plan of the runs.
        folders: Existing run folders.
        open_display: Function that opens the display of progress for the title of a run.
        done: Results; failures are added.

    Raises:
        RunError: A run failed. Finished rounds are kept, and the next call resumes the run.
        KeyboardInterrupt: Ctrl-C was pressed; the same holds.
    """
    printed: set[str] = set()
    numbers = {name: number for number, name in enumerate(plan.jobs, start=1)}

    @contextmanager
    def display(job: Job) -> Iterator[Callback]:
        title = f"run {numbers[job.name]} of {len(plan.jobs)}, {job.title}"
        with open_display(title) as shown:
            yield Quiet(shown, printed)

    samples = LoadedSamples()
    jobs = _PaperJobs(plan, folders, samples, done)
    executor.carry_out(jobs.left(), jobs, ThisProcess(samples, display))


def _engine(plan: PaperPlan) -> Layer:
    """Return the overrides of the engine that a resumed run accepts."""
    return plan.request.overrides.where(
        lambda key: key.startswith("engine.") and key in lifecycle.CHANGEABLE_ON_RESUME
    )


def collect(plan: PaperPlan, folders: RunFolders, done: RunResults) -> None:
    """Add the finished runs of all cells to `done`, also of those that were not requested."""
    for item in plan.cells:
        for job in item.jobs.values():
            if job.name in done.folders:
                continue
            folder = folders.find(config_of(job, folders))
            if folder is not None and is_finished(folder):
                done.folders[job.name] = folder
