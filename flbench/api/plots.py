"""Pictures of a run, as figures of matplotlib that are not part of pyplot's state."""

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Final, TypeVar

import numpy as np

from flbench.core.errors import UserError, did_you_mean

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.figure import Figure


Known = TypeVar("Known")


def curves(run: Any) -> "Figure":
    """Draw the validation metric that chooses the best round and the loss over the rounds."""
    from flbench.reports import run as pictures
    from flbench.results import reading

    rows = reading.read(run.path).rows
    return pictures.curves(rows, run.config.evaluation.best)


def per_class(run: Any) -> "Figure":
    """Draw recall and F1 of each class on the test parts, most training samples first."""
    from flbench.reports import data_figures

    rows = _classes(run).sort_values("train_support", ascending=False)
    pairs = zip(rows["name"], rows["rare"], strict=True)
    return data_figures.classes(
        [f"{name} (rare)" if rare else name for name, rare in pairs],
        {"recall": rows["recall"].tolist(), "F1": rows["f1"].tolist()},
        f"{run.title}: test, last round",
        "class, most training samples first",
    )


def confusion(run: Any, split: str = "test") -> "Figure":
    """Draw the confusion matrix after the last round, as shares of each true class."""
    from flbench.reports import data_figures

    if split not in ("validation", "test"):
        raise UserError(f"`split` must be validation or test, got {split!r}.")
    names = _classes(run)["name"].tolist()
    counts = np.zeros((len(names), len(names)))
    rows = run.confusion[run.confusion["split"] == split]
    counts[rows["true"], rows["predicted"]] = rows["count"]
    return data_figures.confusion(counts, names, f"{run.title}: {split}, last round")


def _classes(run: Any) -> "pd.DataFrame":
    """Return the classes of a run after its last round."""
    table: pd.DataFrame = run.per_class
    if table.empty:
        raise UserError(
            f"{run.path} is unfinished: this picture needs a finished run. Continue it with"
            f" fl.resume({str(run.path)!r})."
        )
    return table[table["moment"] == "last"]


PICTURES: Final[dict[str, Callable[..., "Figure"]]] = {
    one.__name__: one for one in (curves, per_class, confusion)
}
"""Pictures of a run by name, as `Run.plot` draws them."""


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
