"""Pictures of a run, as figures of matplotlib that are not part of pyplot's state."""

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Final, TypeVar

import numpy as np

from flbench.core.errors import UserError, did_you_mean
from flbench.results.reading import VALIDATION

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.figure import Figure


Known = TypeVar("Known")


def curves(run: Any) -> "Figure":
    """Draw the validation metric that chooses the best round and the loss over the rounds."""
    from flbench.reports import run as pictures
    from flbench.results import reading

    rows = reading.read(run.path).rows
    return pictures.curves([(str(run.summary["algorithm"]), rows)], run.config.evaluation.best)


def per_class(run: Any, moment: str = "last") -> "Figure":
    """Draw recall and F1 of each class on the test parts, most training samples first."""
    from flbench.reports import data_figures

    rows = _at(run, run.per_class, moment).sort_values("train_support", ascending=False)
    pairs = zip(rows["name"], rows["rare"], strict=True)
    return data_figures.classes(
        [f"{name} (rare)" if rare else name for name, rare in pairs],
        {"recall": rows["recall"].tolist(), "F1": rows["f1"].tolist()},
        f"{run.title}: test, {moment} round",
        "class, most training samples first",
    )


def confusion(run: Any, split: str = "test") -> "Figure":
    """Draw the confusion matrix after the last round, as shares of each true class."""
    from flbench.reports import data_figures

    if split not in ("validation", "test"):
        raise UserError(f"`split` must be validation or test, got {split!r}.")
    names = _at(run, run.per_class, "last")["name"].tolist()
    counts = np.zeros((len(names), len(names)))
    rows = run.confusion[run.confusion["split"] == split]
    counts[rows["true"], rows["predicted"]] = rows["count"]
    return data_figures.confusion(counts, names, f"{run.title}: {split}, last round")


def clients(run: Any, metric: str | None = None, moment: str = "last") -> "Figure":
    """Draw a metric of `run.clients` against the number of training samples of each client."""
    from flbench.reports import data_figures

    metric = run.config.evaluation.best.column if metric is None else metric
    rows = _at(run, run.clients, moment)
    known = [name for name in rows.columns if rows[name].dtype == "float64"]
    if metric not in known:
        raise UserError(f"`metric` must be one of {', '.join(known)}, got {metric!r}.")
    part = "validation" if metric.startswith(VALIDATION) else "test"
    labels = rows["name"].tolist() if "name" in rows else rows["client"].astype(str).tolist()
    return data_figures.clients(
        rows["train_size"].to_numpy(),
        rows[metric].to_numpy(),
        labels,
        metric.removeprefix(VALIDATION).replace("_", " "),
        f"{run.title}: {part}, {moment} round",
    )


PICTURES: Final[dict[str, Callable[..., "Figure"]]] = {
    one.__name__: one for one in (curves, per_class, confusion, clients)
}
"""Pictures of a run by name, as `Run.plot` draws them."""


def plot(run: Any, name: str, **options: Any) -> "Figure":
    """Draw a picture of a run; see `Run.plot`."""
    return named(PICTURES, name)(run, **options)


def named(pictures: Mapping[str, Known], name: str) -> Known:
    """Return the picture of a name.

    Raises:
        UserError: There is no such picture.
    """
    if name not in pictures:
        raise UserError(
            f"there is no picture {name!r}.{did_you_mean(str(name), pictures)} There are"
            f" {', '.join(pictures)}."
        )
    return pictures[name]


def _at(run: Any, table: "pd.DataFrame", moment: str) -> "pd.DataFrame":
    """Return the rows of a table at a moment."""
    if table.empty:
        raise UserError(
            f"{run.path} is unfinished: this picture needs a finished run. Continue it with"
            f" fl.resume({str(run.path)!r})."
        )
    if moment not in ("best", "last"):
        raise UserError(f"`moment` must be best or last, got {moment!r}.")
    return table[table["moment"] == moment]
