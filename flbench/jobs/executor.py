"""Trains the jobs of a plan that are not finished: by any launcher, and in the plan's order."""

from collections.abc import Iterable
from typing import Protocol

from flbench.core.errors import UserError
from flbench.jobs.job import Job, Outcome, Task
from flbench.jobs.launchers.base import Launcher


class Campaign(Protocol):
    """What a plan, such as a comparison, tells the executor about its jobs, and hears of them."""

    def task(self, job: Job) -> Task:
        """Return what the process that trains a job gets. It is called when the job begins.

        Raises:
            UserError: The job cannot be trained.
        """

    def begin(self, job: Job) -> None:
        """Note that a job begins."""

    def end(self, job: Job, outcome: Outcome) -> None:
        """Note how a job ended."""


def carry_out(jobs: Iterable[Job], plan: Campaign, launcher: Launcher) -> None:
    """Train jobs, `launcher.at_once` of them at the same time.

    Args:
        jobs: The jobs that are left, in their order. The next one is taken when it can begin.
        plan: What they belong to. The failure of a job does not stop the others.
        launcher: Trains them.

    Raises:
        KeyboardInterrupt: A stop signal has arrived. Jobs that have ended are kept, and the others
            resume from their checkpoints.
        RunError: A server of Ray was lost, or a job changed the shared samples.
    """
    left, running = iter(jobs), 0
    while True:
        while running < launcher.at_once and (job := next(left, None)) is not None:
            plan.begin(job)
            try:
                launcher.begin(job, plan.task(job))
                running += 1
            except UserError as error:
                plan.end(job, Outcome.refused(error))
        if not running:
            return
        for ended, outcome in launcher.ended():
            running -= 1
            plan.end(ended, outcome)
