"""A study as an object: its trials, its winners and what can be said about them."""

from functools import cached_property
from itertools import chain
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING

import pandas as pd

from flbench.api.comparisons import PlannedComparison
from flbench.calls import arguments
from flbench.comparison.folder import is_comparison
from flbench.core.errors import UserError, did_you_mean
from flbench.reports.shown import Chapter, card
from flbench.results import study_folder
from flbench.results.study_folder import Trial
from flbench.tuning.report import StudyReport

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def report_of(path: Path) -> StudyReport:
    """Read the results of a study so far, with its comparison if a cell is finished.

    Raises:
        UserError: The path is not a study folder.
        DataError: study.json is damaged.
    """
    study = study_folder.read(path, lenient=True)
    if not is_comparison(path):
        return StudyReport(study)
    cells: list[str] = []
    try:
        comparison = PlannedComparison(path)
        cells = comparison.cells["state"].tolist()
        _ = comparison.comparison  # which raises the error, if there is one
        return StudyReport(study, comparison, cells=cells)
    except UserError as error:
        return StudyReport(study, None, f"The cells cannot be compared: {error}", cells)


class Study:
    """A study of `fl.tune`, finished or not, as read from its folder.

    Args:
        path: The study folder.

    Raises:
        UserError: The path is not a study folder.
        DataError: A file in the folder is damaged.

    Attributes:
        path: The study folder.
        report: What the pages and tables of the study show.
    """

    def __init__(self, path: str | PathLike[str]) -> None:
        self.path = arguments.path_of(path, "path")
        self.report = report_of(self.path)
        self._study = self.report.study

    @property
    def methods(self) -> tuple[str, ...]:
        """Names of the methods."""
        return self._study.methods

    @property
    def metric(self) -> str:
        """Validation metric that scores the trials."""
        return self._study.header.metric

    @cached_property
    def trials(self) -> pd.DataFrame:
        """The trials of the search, one per row; trial 0 of a method has the default parameters.

        Columns: `method` str; `trial` int64, its number; `state` str, `finished`, `stopped` (by the
        scheduler), `running`, `diverged` or `failed`; `score` float64, the validation metric at the
        last evaluation; `loss` float64, the validation loss after the last round, which decides
        between equal scores; `round` and `rounds` int64, those done and those asked for; `steps`
        float64, those of the optimizers; `seconds` float64; `winner` bool, whether it is the best
        of its method; a column for each hyper-parameter by its dotted key, missing where the method
        does not have it; `attempts` int64; `reason` str, why it failed.
        """
        return self.report.trials

    def plot(self, name: str, method: str | None = None) -> "Figure":
        """Draw a picture of the study as a figure of matplotlib.

        Args:
            name: `parallel`, a line for each trial of a method through its parameters to its score;
                `scatter`, the score over each parameter; or `comparison`, the metric on test parts
                of the default and of the tuned parameters.
            method: Name of the method of `parallel` and `scatter`; it may be left out if the study
                has only one.

        Raises:
            UserError: There is no such picture or method, or the study does not have yet what the
                picture shows.
        """
        if name == "comparison":
            return self.comparison.plot("leaders")
        if method is None and len(self.methods) == 1:
            method = self.methods[0]
        asked = f"{method}-{name}"
        drawn = [one for part in self.report.extra.chapters for one in part.pictures()]
        figures = {one.name: one.figure for one in drawn}
        if asked not in figures:
            raise UserError(
                f"{self.path} has no picture `{asked}`.{did_you_mean(asked, figures)} There are"
                f" {', '.join(figures) or 'none yet'}. fl.resume({str(self.path)!r})"
                " continues an interrupted study."
            )
        return figures[asked]

    @cached_property
    def comparison(self) -> PlannedComparison:
        """The default and the best parameters of the methods, compared over repetitions.

        Its methods are `METHOD` and, unless the default parameters won the search, `METHOD tuned`.

        Raises:
            UserError: The study has no cells, because its search has not ended, or no method has a
                best trial, or it was begun with `seeds=0`.
        """
        if not is_comparison(self.path):
            raise UserError(
                f"{self.path} has no cells to compare: its search has not ended, or `seeds` is 0."
                f" fl.resume({str(self.path)!r}) continues an interrupted study."
            )
        return PlannedComparison(self.path)

    def best(self, method: str) -> Trial:
        """Return the best finished trial of a method; of equal scores, that of the smallest loss.

        `study.best("hfcd").params` are its hyper-parameters by their dotted keys, which
        `fl.run("hfcd", **study.best("hfcd").params)` trains again.

        Args:
            method: Name of the method.

        Raises:
            UserError: The study has no such method, or no trial of it has finished with a score.
        """
        if method not in self.methods:
            raise UserError(
                f"{self.path} has no method `{method}`.{did_you_mean(method, self.methods)} It has"
                f" {', '.join(self.methods)}."
            )
        found = self._study.winner(method)
        if found is None:
            raise UserError(
                f"no trial of `{method}` in {self.path} has finished with a score. fl.resume("
                f"{str(self.path)!r}) continues an interrupted study."
            )
        return found

    @property
    def notes(self) -> list[str]:
        """Facts that make a comparison unfair or unfinished, and failures; one sentence each."""
        return self.report.said

    def __fspath__(self) -> str:
        return str(self.path)

    def __reduce__(self) -> tuple[type["Study"], tuple[Path]]:
        return Study, (self.path,)

    def __repr__(self) -> str:
        header = self._study.header
        return (
            f"<Study of {', '.join(self.methods)} on {header.dataset}: {len(self._study.trials)} of"
            f" {sum(map(header.trials_of, self.methods))} trials; {self.path}>"
        )

    def _repr_html_(self) -> str:
        own = [self.report.own_tables(method) for method in self.methods]
        facts = {key: self.report.facts[key] for key in ("data", "budget", "metric", "search")}
        notes = Chapter("Notes", [self.notes], is_open=True)
        return card(
            self.report.heading,
            facts | {"folder": str(self.path)},
            *self.report.answer,
            *chain(*own),
            *self.report.tables,
            notes,
        )
