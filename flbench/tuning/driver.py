"""Carries out a study, or the part of it that is left."""

from flbench.tuning.deployments import of_deployment
from flbench.tuning.plan import ENDS, StudyPlan
from flbench.tuning.prepare import PreparedStudy
from flbench.tuning.progress_table import ProgressTable
from flbench.tuning.ray_tune import quiet
from flbench.tuning.run import carry_out as train
from flbench.tuning.study import StudyFolder
from flbench.workers.supervisor import Supervisor


def is_over(folder: StudyFolder, prepared: PreparedStudy) -> bool:
    """Whether every training of a study has ended."""
    return StudyPlan(prepared.samplers(), prepared.budget, folder.records()).is_over()


def carry_out(
    folder: StudyFolder, prepared: PreparedStudy, supervisor: Supervisor, *, shown: bool = True
) -> None:
    """Train the jobs of a study that have not ended, on a connected Ray cluster.

    Args:
        folder: Study folder.
        prepared: The study. `cluster.cluster(prepared.resources, supervisor)` must be active.
        supervisor: Stops the study after a stop signal or the loss of a server of Ray.
        shown: Whether to show the progress.

    Raises:
        KeyboardInterrupt: A stop signal has arrived. Trainings that have ended are kept.
        RunError: Ray Tune stopped before the end, or a server of Ray was lost.
    """
    records = list(folder.records())
    plan = StudyPlan(prepared.samplers(), prepared.budget, records)
    progress = ProgressTable(
        methods=tuple(prepared.spaces),
        metric=of_deployment(prepared.settings.metric, prepared.settings.deployment),
        trials=prepared.budget.trials,
        finals=2 * prepared.budget.seeds,
        rounds=prepared.settings.rounds,
    )
    progress.console.quiet = not shown
    progress.add_ended(record for record in records if record["state"] in ENDS)
    progress.add_interrupted(record for record in records if record["state"] not in ENDS)
    supervisor.close_display = progress.close
    with quiet(), progress.live():
        train(
            folder.path,
            plan,
            prepared.federation,
            spaces=prepared.spaces,
            settings=prepared.settings,
            resources=prepared.resources,
            parcel=prepared.parcel,
            resume=folder.resume_command,
            progress=progress,
            records=records,
            supervisor=supervisor,
        )
