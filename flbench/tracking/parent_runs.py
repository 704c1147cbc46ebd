"""Metrics of trials and final trainings in the runs above them.

MLflow's tables fold the lower runs of a tree, so a user sees the runs of methods and of the study
first.
"""

from collections.abc import Mapping, Sequence
from typing import Any, Final

from flbench.results.study_folder import VARIANTS
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


def send_best_trial(run: MlflowRun, best: TrialFolder, config: Mapping[str, Any]) -> None:
    """Send parameters, score and curve of the best trial to a run above it.

    MLflow cannot delete a curve. If the run has the curve of another trial, it keeps that one.

    Args:
        run: Run of the method or of the study.
        best: The best trial.
        config: Configuration of the trial.
    """
    trial = best.trial
    searched = {name: mlflow_names.text(value) for name, value in trial.params.items()}
    run.log_parameters({**mlflow_names.parameters(config), **searched})
    run.log_metrics({"score": trial.score or 0.0}, trial.round)
    name = f"{trial.method} {best.path.name}"
    if run.tags.get(CURVE_TAG, name) == name:
        mlflow_metrics.send(run, best.path / "metrics.csv", is_over=True)
        run.set_tags({CURVE_TAG: name, "best_trial": best.path.name})


def mean_final_metrics(
    finals: Sequence[TrialFolder], best: TrialFolder | None, seeds: int
) -> dict[str, float]:
    """Return the mean metrics of a method's final trainings, for the run of the method.

    Metrics of the default parameters get the prefix `default/`. The means of a variant are part of
    it when all of its final trainings are finished.

    Args:
        finals: Final trainings of the method.
        best: The best trial; None while it is not known.
        seeds: Number of final trainings of each variant.
    """
    means = {}
    for variant in VARIANTS:
        finished = [
            final
            for final in finals
            if final.trial.variant == variant and final.trial.state == "finished"
        ]
        if finished and len(finished) == seeds:
            means[variant] = mean_metrics([final.path for final in finished])
    if best is not None and best.trial.index == 0 and "default" in means:
        # The default parameters won: their final trainings are those of the tuned parameters.
        means.setdefault("tuned", means["default"])
    default = means.get("default", {})
    return means.get("tuned", {}) | {f"default/{name}": value for name, value in default.items()}
