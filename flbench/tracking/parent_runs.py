"""Metrics of trials and final trainings in the runs above them.

MLflow's tables fold the lower runs of a tree, so a user sees the runs of methods and of the study
first.
"""

from collections.abc import Mapping, Sequence
from typing import Any, Final

from flbench.results.study_folder import Variant
from flbench.tracking import mlflow_metrics, mlflow_names
from flbench.tracking.mlflow_run import MetricPoint, MlflowRun
from flbench.tracking.study_folder import TrialFolder, mean_metrics

CURVE_TAG: Final = "mlflow.flbench.curve"
"""Tag with the method and the trial whose curve was sent."""
SCORED_TAG: Final = "mlflow.flbench.scored"
"""Tag with the names of the trials whose scores were sent."""


def send_scores(run: MlflowRun, trials: Sequence[TrialFolder]) -> None:
    """Send the scores of trials as a curve over the numbers of the trials.

    Args:
        run: Run of the method.
        trials: Trials that are over. A trial whose score was sent before is left out.
    """
    sent = run.tags.get(SCORED_TAG, "").split()
    points, names = [], list(sent)
    for folder in trials:
        score, index = folder.trial.score, folder.trial.index
        if score is not None and folder.path.name not in sent:
            points.append(MetricPoint("search/score", score, index, 1000 * index))
            names.append(folder.path.name)
    if points:
        run.log_points(points, {SCORED_TAG: " ".join(sorted(names))})


def send_trial(run: MlflowRun, folder: TrialFolder, config: Mapping[str, Any]) -> None:
    """Send parameters, score and curve of a finished trial to a run above it.

    MLflow cannot delete a curve. If the run has the curve of another trial, it keeps that one.

    Args:
        run: Run of the method or of the study.
        folder: The trial.
        config: Configuration of the trial.
    """
    trial = folder.trial
    searched = {name: mlflow_names.text(value) for name, value in trial.params.items()}
    run.log_parameters({**mlflow_names.parameters(config), **searched})
    run.log_metrics({"score": trial.score or 0.0}, trial.round)
    name = f"{trial.method} {folder.path.name}"
    if run.tags.get(CURVE_TAG, name) == name:
        mlflow_metrics.send(run, folder.path / "metrics.csv", is_over=True)
        run.set_tags({CURVE_TAG: name})


def mean_final_metrics(
    finals: Sequence[TrialFolder], variant: Variant, seeds: int
) -> dict[str, float]:
    """Return the mean metrics of a method's final trainings, when all of them are finished.

    Args:
        finals: Final trainings of the method.
        variant: `default` or `tuned` parameters.
        seeds: Number of final trainings of each variant.
    """
    finished = [
        final
        for final in finals
        if final.trial.variant == variant and final.trial.state == "finished"
    ]
    complete = bool(finished) and len(finished) == seeds
    return mean_metrics([final.path for final in finished]) if complete else {}
