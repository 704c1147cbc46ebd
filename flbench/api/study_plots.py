"""Pictures of a study, as figures of matplotlib that are not part of pyplot's state."""

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Final

from flbench.api.plots import named
from flbench.core.errors import UserError, did_you_mean
from flbench.tuning.report import StudyReport

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Draw = Callable[[StudyReport, str | None], "Figure"]


def plot(report: StudyReport, name: str, method: str | None) -> "Figure":
    """Draw a picture of a study; see `Study.plot`."""
    return named(PICTURES, name)(report, method)


def _history(report: StudyReport, method: str | None) -> "Figure":
    from flbench.tuning import study_figures

    study = report.study
    if not any(study.winner(one) for one in study.methods):
        raise UserError(_missing(report, "no trial has finished with a score"))
    return study_figures.progress({m: study.trials_of(m) for m in study.methods}, report.metric)


def _parallel(report: StudyReport, method: str | None) -> "Figure":
    from flbench.tuning import study_figures

    one = _drawable(report, method)
    return study_figures.parallel(report.axes[one], report.study.trials_of(one), report.metric)


def _scatter(report: StudyReport, method: str | None) -> "Figure":
    from flbench.tuning import study_figures

    one = _drawable(report, method)
    return study_figures.scatter(report.axes[one], report.study.trials_of(one), report.metric)


def _importance(report: StudyReport, method: str | None) -> "Figure":
    from flbench.tuning import study_figures

    one = _method(report, method)
    found = report.importances[one]
    if not found.shares:
        raise UserError(f"the importance of the parameters of `{one}`: {found.why}")
    return study_figures.shares(found.shares)


def _comparison(report: StudyReport, method: str | None) -> "Figure":
    from flbench.analysis import figures

    place = report.study.header.dataset
    figure = None if report.analysis is None else figures.draw(report.analysis, "leaders", place)
    if figure is None:
        raise UserError(_missing(report, "no cell has finished"))
    return figure


PICTURES: Final[Mapping[str, Draw]] = {
    "history": _history,
    "parallel": _parallel,
    "scatter": _scatter,
    "importance": _importance,
    "comparison": _comparison,
}
"""The pictures of a study by name."""


def _drawable(report: StudyReport, method: str | None) -> str:
    """Return the name of a method with a trial that has a score, and a searched parameter."""
    name = _method(report, method)
    if not report.is_drawable(name):
        raise UserError(_missing(report, f"no trial of `{name}` has a score"))
    return name


def _method(report: StudyReport, name: str | None) -> str:
    """Return the name of a method of the study."""
    known = report.study.methods
    if name is None and len(known) == 1:
        return known[0]
    if name not in known:
        hint = "" if name is None else did_you_mean(name, known)
        raise UserError(f"`method` must be one of {', '.join(known)}, got {name!r}.{hint}")
    return str(name)


def _missing(report: StudyReport, why: str) -> str:
    path = report.study.path
    return f"{path}: {why}. fl.resume({str(path)!r}) continues an interrupted study."
