"""Carries out a comparison, or the part of it that is left."""

from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from flbench.comparison.folder import ComparisonFolder
from flbench.comparison.plan import Cell
from flbench.comparison.prepare import PreparedComparison
from flbench.comparison.progress import ComparisonProgress
from flbench.comparison.training import Outcome, Task, layer_of, train
from flbench.config.sources import Layer
from flbench.core import files
from flbench.core.errors import UserError
from flbench.core.wording import lower_rate
from flbench.results import reading
from flbench.results.summary import training_failure
from flbench.workers.supervisor import Supervisor


@dataclass
class Work:
    """The part of a comparison that is left, for the functions that train it.

    Attributes:
        prepared: The comparison.
        folder: Its folder.
        left: Cells to train, in their order.
        changed: New values of keys that may change when a cell is resumed.
        progress: Shows the progress.
        failures: Reasons of the cells that failed, by their names.
    """

    prepared: PreparedComparison
    folder: ComparisonFolder
    left: deque[Cell]
    changed: Layer
    progress: ComparisonProgress
    failures: dict[str, str] = field(default_factory=dict)

    def task(self, cell: Cell) -> Task:
        """Return what the process that trains a cell needs besides its samples."""
        layer = layer_of(cell.config.tree(), cell.origins)
        return Task(self.folder.cell(cell), layer, self.changed, self.folder.resume_command)

    def end(self, cell: Cell, outcome: Outcome) -> None:
        """Note how a cell ended, and say it."""
        reason = outcome.reason or why_nothing_was_trained(self.folder.cell(cell))
        if reason is not None:
            self.failures[cell.name] = reason
            self.folder.save_failures(self.failures)
        self.progress.end(cell, reason, outcome)


def carry_out(
    prepared: PreparedComparison,
    folder: ComparisonFolder,
    supervisor: Supervisor,
    *,
    changed: Layer,
    shown: bool,
    on_ray: Callable[[Work, Supervisor], None],
) -> dict[str, str]:
    """Train the cells that are not finished.

    Args:
        prepared: The comparison.
        folder: Its folder, locked by this process.
        supervisor: Stops the comparison after a stop signal or the loss of a server of Ray.
        changed: New values of keys that may change when a cell is resumed.
        shown: Whether to show the progress.
        on_ray: Function that trains several cells at the same time.

    Returns:
        Why cells failed, by their names. All others are finished.

    Raises:
        KeyboardInterrupt: A stop signal has arrived. Finished cells are kept, and the others resume
            from their checkpoints when the comparison is resumed.
        RunError: A server of Ray was lost, or a cell changed the shared samples.
    """
    left = list(unfinished(prepared, folder))
    progress = ComparisonProgress(prepared.cells, folder, done=len(prepared.cells) - len(left))
    progress.console.quiet = not shown
    supervisor.close_display = progress.close
    work = Work(prepared, folder, deque(left), changed, progress)
    for cell in prepared.cells:  # a run that has trained nothing would train nothing again
        if folder.is_done(cell) and (reason := why_nothing_was_trained(folder.cell(cell))):
            work.failures[cell.name] = reason
    folder.save_failures(work.failures)
    with progress.live():
        if min(prepared.resources.concurrent, len(left)) > 1:
            on_ray(work, supervisor)
        else:
            _here(work)
    return work.failures


def _here(work: Work) -> None:
    """Train the cells in this process, one after the other."""
    samples = work.prepared.samples
    while work.left:
        cell = work.left.popleft()
        work.progress.begin(cell)
        try:
            federation, partition = samples.federation(cell), samples.partition(cell)
        except UserError as error:
            work.end(cell, Outcome(" ".join(str(error).split()), (), 0.0))
            continue
        work.end(cell, train(work.task(cell), federation, partition))


def unfinished(prepared: PreparedComparison, folder: ComparisonFolder) -> Iterator[Cell]:
    """Yield the cells that are not finished, in their order."""
    return (cell for cell in prepared.cells if not folder.is_done(cell))


def is_locked(path: Path) -> bool:
    """Return whether a process writes to a run folder, which need not exist."""
    if not path.is_dir():
        return False
    try:
        files.lock_folder(path).close()
    except UserError:
        return True
    return False


def why_nothing_was_trained(path: Path) -> str | None:
    """Return why a finished run has trained nothing; None if it has, or is not finished."""
    if not reading.is_finished(path):
        return None
    run = reading.read(path)
    reason = training_failure(run.summary)
    lower = lower_rate(own_optimizer=run.config.has_own_optimizer)
    return reason and (
        f"{reason}. {lower}, set train.clip, or check train.batch_size and train.last_batch."
    )
