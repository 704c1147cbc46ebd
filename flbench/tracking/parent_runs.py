"""What the run of a method or a study shows of the runs below it, which MLflow's tables fold."""

from collections.abc import Mapping, Sequence
from typing import Any, Final

from flbench.results.study_folder import VARIANTS
from flbench.tracking import mlflow_figures, mlflow_names
from flbench.tracking.mlflow_entry import Entry, Point
from flbench.tracking.study_folder import TrialFolder, mean_metrics

CURVE: Final = "mlflow.flbench.curve"
SCORED: Final = "mlflow.flbench.scored"


def draw_scores(entry: Entry, trials: Sequence[TrialFolder]) -> None:
    """Draw the scores of trials over their numbers, each once."""
    drawn = entry.tags.get(SCORED, "").split()
    points, names = [], list(drawn)
    for folder in trials:
        score, index = folder.trial.score, folder.trial.index
        if score is not None and folder.path.name not in drawn:
            points.append(Point("search/score", score, index, 1000 * index))
            names.append(folder.path.name)
    if points:
        entry.draw(points, {SCORED: " ".join(sorted(names))})


def show_best(entry: Entry, best: TrialFolder, config: Mapping[str, Any]) -> None:
    """Give a run the parameters and the curve of the best trial below it."""
    trial = best.trial
    chosen = {name: mlflow_names.text(value) for name, value in trial.params.items()}
    entry.know({**mlflow_names.parameters(config), **chosen})
    entry.conclude({"score": trial.score or 0.0}, trial.round)
    name = f"{trial.method} {best.path.name}"
    if entry.tags.get(CURVE, name) == name:  # MLflow forgets no curve: never two in one
        mlflow_figures.send(entry, best.path / "metrics.csv", over=True)
        entry.mark({CURVE: name, "best_trial": best.path.name})


def show_finals(
    entry: Entry, finals: Sequence[TrialFolder], best: TrialFolder | None, seeds: int
) -> None:
    """Give a method's run the mean figures of its seeds, once all of a variant are there."""
    means = {}
    for variant in VARIANTS:
        finished = [
            final
            for final in finals
            if final.trial.variant == variant and final.trial.state == "finished"
        ]
        if finished and len(finished) == seeds:
            means[variant] = mean_metrics(finished)
    if best is not None and best.trial.index == 0 and "default" in means:
        means.setdefault("tuned", means["default"])
    entry.conclude(means.get("tuned", {}))
    default = means.get("default", {})
    entry.conclude({f"default/{name}": value for name, value in default.items()})
