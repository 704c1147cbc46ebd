"""Pictures of a study, as figures of matplotlib that are not part of pyplot's state."""

from typing import TYPE_CHECKING

from flbench.core.errors import UserError, did_you_mean
from flbench.tuning.report import StudyReport

if TYPE_CHECKING:
    from matplotlib.figure import Figure


class StudyPlots:
    """Pictures of a study. A notebook shows the figure, and `figure.savefig(PATH)` writes it.

    Args:
        report: The results of the study.
    """

    def __init__(self, report: StudyReport) -> None:
        self._report = report

    def history(self) -> "Figure":
        """Draw the best validation score so far over the trials, a line for each method.

        Raises:
            UserError: No trial has a score yet.
        """
        from flbench.tuning import study_figures

        study = self._report.study
        lines = {method: study.trials_of(method) for method in study.methods}
        if not any(study.winner(method) for method in study.methods):
            raise UserError(self._missing("no trial has finished with a score"))
        return study_figures.progress(lines, self._report.metric)

    def parallel(self, method: str | None = None) -> "Figure":
        """Draw a line for each trial of a method through its parameters to its score.

        Args:
            method: Name of the method; it may be left out if the study has only one.

        Raises:
            UserError: There is no such method, or none of its trials has a score.
        """
        from flbench.tuning import study_figures

        name = self._drawable(method)
        trials = self._report.study.trials_of(name)
        return study_figures.parallel(self._report.axes[name], trials, self._report.metric)

    def scatter(self, method: str | None = None) -> "Figure":
        """Draw the score of a method's trials over each parameter.

        Args:
            method: Name of the method; it may be left out if the study has only one.

        Raises:
            UserError: There is no such method, or none of its trials has a score.
        """
        from flbench.tuning import study_figures

        name = self._drawable(method)
        trials = self._report.study.trials_of(name)
        return study_figures.scatter(self._report.axes[name], trials, self._report.metric)

    def importance(self, method: str | None = None) -> "Figure":
        """Draw how much of the score's variance each parameter of a method explains (fANOVA).

        Args:
            method: Name of the method; it may be left out if the study has only one.

        Raises:
            UserError: There is no such method, or too few of its trials have finished.
        """
        from flbench.tuning import study_figures

        name = self._method(method)
        found = self._report.importances[name]
        if not found.shares:
            raise UserError(f"the importance of the parameters of `{name}`: {found.why}")
        return study_figures.shares(found.shares)

    def comparison(self) -> "Figure":
        """Draw the study's metric on test parts, of the default and of the tuned parameters.

        Each seed of the final trainings is a dot. The lines are 95 % intervals of the mean. A
        method whose defaults won the search has no tuned parameters.

        Raises:
            UserError: No final training has finished.
        """
        from flbench.analysis import figures

        if self._report.analysis is None:
            raise UserError(self._missing("no final training has finished"))
        return figures.leaders(self._report.analysis, self._report.study.header.dataset)

    def _drawable(self, method: str | None) -> str:
        """Return the name of a method with a trial that has a score, and a searched parameter."""
        from flbench.tuning.study_page import drawable

        name = self._method(method)
        if not drawable(self._report, name):
            raise UserError(self._missing(f"no trial of `{name}` has a score"))
        return name

    def _method(self, name: str | None) -> str:
        """Return the name of a method of the study."""
        known = self._report.study.methods
        if name is None and len(known) == 1:
            return known[0]
        if name not in known:
            hint = "" if name is None else did_you_mean(name, known)
            raise UserError(f"`method` must be one of {', '.join(known)}, got {name!r}.{hint}")
        return str(name)

    def _missing(self, why: str) -> str:
        path = self._report.study.path
        return f"{path}: {why}. fl.resume({str(path)!r}) continues an interrupted study."
