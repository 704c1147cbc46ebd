"""Trains jobs that are not finished: by any launcher, and in the order of their plan."""

from collections.abc import Callable, Iterable

from flbench.core.errors import UserError
from flbench.jobs.job import Job, Outcome, Task
from flbench.jobs.launchers.base import Launcher


def carry_out(
    jobs: Iterable[Job],
    launcher: Launcher,
    task: Callable[[Job], Task],
    begin: Callable[[Job], object],
    end: Callable[[Job, Outcome], object],
) -> None:
    """Train jobs, `launcher.at_once` of them at the same time.

    Args:
        jobs: The jobs that are left, in their order. The next one is taken when it can begin.
        launcher: Trains them.
        task: Function that returns what the process that trains a job gets, called when it begins.
            A UserError means that the job cannot be trained.
        begin: Function that is called when a job begins.
        end: Function that is called with how a job ended. The failure of a job does not stop the
            others.

    Raises:
        KeyboardInterrupt: A stop signal has arrived. Jobs that have ended are kept, and the others
            resume from their checkpoints.
        RunError: A server of Ray was lost.
    """
    left, running = iter(jobs), 0
    while True:
        while running < launcher.at_once and (job := next(left, None)) is not None:
            begin(job)
            try:
                launcher.begin(job, task(job))
                running += 1
            except UserError as error:
                end(job, Outcome.refused(error))
        if not running:
            return
        for ended, outcome in launcher.ended():
            running -= 1
            end(ended, outcome)
