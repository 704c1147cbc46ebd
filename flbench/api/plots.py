"""Pictures of a run, as figures of matplotlib that are not part of pyplot's state."""

from typing import TYPE_CHECKING, Literal

import numpy as np

from flbench.core.errors import UserError
from flbench.results import reading, tables
from flbench.results.reading import VALIDATION

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.figure import Figure

Moment = Literal["best", "last"]


class RunPlots:
    """Pictures of a run. A notebook shows the figure, and `figure.savefig(PATH)` writes it.

    Args:
        run: The content of its folder.
    """

    def __init__(self, run: reading.StoredRun) -> None:
        self._run = run
        self._title = f"{run.summary['algorithm']} on {run.summary['dataset']}"

    def curves(self) -> "Figure":
        """Draw validation accuracy and training loss over the rounds.

        Where there are no classes, the metric by which the best round is chosen takes the place of
        the accuracy.
        """
        from flbench.reports.run import curves

        runs = [(str(self._run.summary["algorithm"]), self._run.rows)]
        return curves(runs, self._run.config.evaluation.best)

    def per_class(self, moment: Moment = "last") -> "Figure":
        """Draw recall and F1 of each class on the test parts, ordered by training samples.

        Args:
            moment: `best` or `last` round.

        Raises:
            UserError: The run is unfinished, or has no such moment or no classes.
        """
        from flbench.reports import data_figures

        self._run.check_classes()
        rows = self._at(self._per_class(), moment).sort_values("train_support", ascending=False)
        return data_figures.classes(
            [
                f"{name} (rare)" if rare else name
                for name, rare in zip(rows["name"], rows["rare"], strict=True)
            ],
            {"recall": rows["recall"].tolist(), "F1": rows["f1"].tolist()},
            f"{self._title}: test, {moment} round",
            "class, most training samples first",
        )

    def confusion(self, split: Literal["validation", "test"] = "test") -> "Figure":
        """Draw the confusion matrix after the last round, as shares of each true class.

        Args:
            split: `validation` or `test`.

        Raises:
            UserError: The run is unfinished, or has no such split or no classes.
        """
        from flbench.reports import data_figures

        if split not in ("validation", "test"):
            raise UserError(f"`split` must be validation or test, got {split!r}.")
        self._run.check_classes()
        table = tables.read(self._run.path / "confusion.csv", tables.CONFUSION)
        self._require(not table.empty)
        names = self._at(self._per_class(), "last")["name"].tolist()
        counts = np.zeros((len(names), len(names)))
        rows = table[table["split"] == split]
        counts[rows["true"], rows["predicted"]] = rows["count"]
        return data_figures.confusion(counts, names, f"{self._title}: {split}, last round")

    def clients(self, metric: str | None = None, moment: Moment = "last") -> "Figure":
        """Draw a metric of each client against its number of training samples.

        Args:
            metric: A metric of `Run.clients`, of the test part, or of the validation part, such as
                `validation_accuracy`; None for the accuracy, or where there are no classes
                the metric by which the best round is chosen.
            moment: `best` or `last` round.

        Raises:
            UserError: The run is unfinished, or has no such moment or metric.
        """
        from flbench.reports import data_figures

        path = self._run.path / "clients.csv"
        config = self._run.config
        metric = config.evaluation.best.column if metric is None else metric
        columns = tables.CLIENTS if config.has_classes else tables.TARGET_CLIENTS
        table = tables.read(path, columns, optional=tables.SOMETIMES)
        rows = self._at(tables.both_moments(table), moment)
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
            f"{self._title}: {part}, {moment} round",
        )

    def _per_class(self) -> "pd.DataFrame":
        table = tables.read(self._run.path / "per_class.csv", tables.PER_CLASS)
        return tables.both_moments(table)

    def _at(self, table: "pd.DataFrame", moment: str) -> "pd.DataFrame":
        """Return the rows of a table at a moment."""
        self._require(not table.empty)
        if moment not in ("best", "last"):
            raise UserError(f"`moment` must be best or last, got {moment!r}.")
        return table[table["moment"] == moment]

    def _require(self, condition: bool) -> None:
        if not condition:
            raise UserError(
                f"{self._run.path} is unfinished: this picture needs a finished run. Continue it"
                f" with fl.resume({str(self._run.path)!r})."
            )
