"""Carries out a study, or the part of it that is left."""

from flbench.tuning.deployments import of_deployment
from flbench.tuning.plan import ENDS, StudyPlan
from flbench.tuning.prepare import Prepared
from flbench.tuning.progress_table import ProgressTable
from flbench.tuning.run import carry_out as train
from flbench.tuning.study import StudyFolder


def is_over(folder: StudyFolder, prepared: Prepared) -> bool:
    """Whether every training of a study has ended."""
    return StudyPlan(prepared.samplers(), prepared.budget, folder.records()).is_over()


def carry_out(folder: StudyFolder, prepared: Prepared) -> None:
    """Train the jobs of a study that have not ended, on a connected Ray cluster.

    Args:
        folder: Study folder.
        prepared: The study. `cluster.cluster(prepared.resources)` must be active.

    Raises:
        KeyboardInterrupt: Ctrl-C was pressed. Trainings that have ended are kept.
        RunError: Ray Tune stopped before the end.
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
    progress.add_ended(record for record in records if record["state"] in ENDS)
    with progress.live():
        train(
            folder.path,
            plan,
            prepared.federation,
            spaces=prepared.spaces,
            settings=prepared.settings,
            resources=prepared.resources,
            progress=progress,
            records=records,
        )
