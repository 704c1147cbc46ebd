"""What the run of a method or a study shows of the runs below it, which MLflow's tables fold."""

from collections.abc import Mapping, Sequence
from typing import Any, Final

from flbench.tracking import mlflow_figures, mlflow_names
from flbench.tracking.mlflow_entry import Entry, Point
from flbench.tracking.study_folder import Trial, mean_figures

CURVE: Final = "mlflow.flbench.curve"
SCORED: Final = "mlflow.flbench.scored"


def draw_scores(entry: Entry, trials: Sequence[Trial]) -> None:
    """Draw the scores of trials over their numbers, each once."""
    drawn = entry.tags.get(SCORED, "").split()
    new = [trial for trial in trials if trial.score is not None and trial.path.name not in drawn]
    points = [
        Point("search/score", trial.score or 0.0, trial.about["index"], 1000 * trial.about["index"])
        for trial in new
    ]
    if new:
        entry.draw(points, {SCORED: " ".join(sorted([*drawn, *(t.path.name for t in new)]))})


def show_best(entry: Entry, best: Trial, config: Mapping[str, Any]) -> None:
    """Give a run the parameters and the curve of the best trial below it."""
    chosen = {name: mlflow_names.text(value) for name, value in best.about["params"].items()}
    entry.know({**mlflow_names.parameters(config), **chosen})
    entry.conclude({"score": best.score or 0.0}, int(best.about["round"]))
    name = f"{best.about['method']} {best.path.name}"
    if entry.tags.get(CURVE, name) == name:  # MLflow forgets no curve: never two in one
        mlflow_figures.send(entry, best.path / "metrics.csv", over=True)
        entry.mark({CURVE: name, "best_trial": best.path.name})


def show_finals(entry: Entry, finals: Sequence[Trial], best: Trial | None, seeds: int) -> None:
    """Give a method's run the mean figures of its seeds, once all of a variant are there."""
    means = {}
    for variant in ("tuned", "default"):
        mine = [t for t in finals if t.about.get("variant") == variant and t.state == "finished"]
        if mine and len(mine) == seeds:
            means[variant] = mean_figures(mine)
    if best is not None and best.about["index"] == 0 and "default" in means:
        means.setdefault("tuned", means["default"])
    entry.conclude(means.get("tuned", {}))
    default = means.get("default", {})
    entry.conclude({f"default/{name}": value for name, value in default.items()})
