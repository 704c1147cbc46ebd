"""Carries out the jobs of a campaign that has a folder, with its progress."""

from collections.abc import Sequence

from flbench.config.sources import Layer
from flbench.core.errors import UserError
from flbench.experiment import frozen_outputs
from flbench.jobs import executor
from flbench.jobs.folder import JobFolder, why_nothing_was_trained
from flbench.jobs.job import Job, Outcome, Task
from flbench.jobs.launchers import launcher
from flbench.jobs.progress import JobProgress
from flbench.jobs.resources import Resources
from flbench.jobs.samples import LoadedSamples


def carry_out(
    jobs: Sequence[Job],
    folder: JobFolder,
    samples: LoadedSamples,
    resources: Resources,
    *,
    changed: Layer,
    shown: bool,
) -> dict[str, str]:
    """Train the jobs that are not finished, in a folder that this process has locked.

    Returns:
        Why jobs failed, by their names. All others are finished.

    Raises:
        KeyboardInterrupt: A stop signal has arrived. Finished jobs are kept, and the others resume
            from their checkpoints when the campaign is resumed.
        RunError: A server of Ray was lost.
    """
    left = list(folder.unfinished(jobs))
    # A run that has trained nothing would train nothing again.
    found = {job.name: why_nothing_was_trained(folder.run_folder(job)) for job in jobs}
    failures = {name: reason for name, reason in found.items() if reason is not None}
    folder.save_failures(failures)
    progress = JobProgress(jobs, folder, resources.kind)
    progress.console.quiet = not shown

    def task(job: Job) -> Task:
        return Task(folder.run_folder(job), job.layer, changed, folder.resume_command)

    def end(job: Job, outcome: Outcome) -> None:
        try:
            reason = outcome.reason or why_nothing_was_trained(folder.run_folder(job))
        except UserError as error:  # somebody has changed a file of the job
            reason = str(error)
        if reason is not None:
            failures[job.name] = reason
            folder.save_failures(failures)
        progress.end(job, reason, outcome)

    with progress.live(), launcher(left, samples, resources, progress.note) as chosen:
        try:
            executor.carry_out(left, chosen, task, progress.begin, end)
        finally:
            frozen_outputs.forget()  # of jobs that this process has trained
    return failures
