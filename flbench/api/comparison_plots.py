"""The pictures of a comparison, as figures of matplotlib."""

from typing import TYPE_CHECKING

from flbench.analysis.tables import Analysis
from flbench.core.errors import UserError, did_you_mean

if TYPE_CHECKING:
    from matplotlib.figure import Figure


class ComparisonPlots:
    """Draws the pictures of a comparison's page; a notebook shows what a method returns.

    Each method draws one place, a data set with a setting.

    Args:
        analysis: The tables of the comparison.
    """

    def __init__(self, analysis: Analysis) -> None:
        self._analysis = analysis

    def leaders(self, place: str | None = None) -> "Figure":
        """Draw the metric of each method: mean, 95 % interval, and a dot for each repetition.

        Args:
            place: Label of the place; it may be left out if there is only one.

        Raises:
            UserError: There is no such place, or several and none is named.
        """
        from flbench.analysis import figures

        return figures.leaders(self._analysis, self._place(place))

    def recalls(self, place: str | None = None) -> "Figure":
        """Draw a heat map of the recall by method and class.

        Args:
            place: Label of the place; it may be left out if there is only one.

        Raises:
            UserError: There is no such place, or several and none is named.
        """
        from flbench.analysis import figures

        return figures.recalls(self._analysis, self._place(place))

    def recall_gains(self, place: str | None = None) -> "Figure":
        """Draw a heat map of the recall by class minus the baseline's.

        Args:
            place: Label of the place; it may be left out if there is only one.

        Raises:
            UserError: There is no such place, several and none is named, or only one method.
        """
        from flbench.analysis import figures

        if len(self._analysis.comparison.methods) < 2:
            raise UserError("there is only the baseline: differences need two methods.")
        return figures.recall_gains(self._analysis, self._place(place))

    def class_intervals(self, place: str | None = None) -> "Figure":
        """Draw recall and F1 of the rarest classes with their 95 % intervals.

        Args:
            place: Label of the place; it may be left out if there is only one.

        Raises:
            UserError: There is no such place, several and none is named, or fewer than three
                repetitions.
        """
        from flbench.analysis import figures

        figure = figures.class_intervals(self._analysis, self._place(place))
        if figure is None:
            raise UserError("scores of classes have intervals from three repetitions on.")
        return figure

    def clients(self, place: str | None = None) -> "Figure":
        """Draw the share of clients below each accuracy, a line for each method.

        Args:
            place: Label of the place; it may be left out if there is only one.

        Raises:
            UserError: There is no such place, or several and none is named.
        """
        from flbench.analysis import figures

        return figures.client_accuracy(self._analysis, self._place(place))

    def gains(self, place: str | None = None) -> "Figure":
        """Draw each client's gain in accuracy over `local` against its samples and its skew.

        The skew is the distance of a client's class shares from those of all clients, in [0, 1].

        Args:
            place: Label of the place; it may be left out if there is only one.

        Raises:
            UserError: There is no such place, several and none is named, or there are no runs
                of `local` beside those of another method.
        """
        from flbench.analysis import figures

        figure = figures.client_gains(self._analysis, self._place(place))
        if figure is None:
            raise UserError(
                "gains are measured against the method `local`: compare it with another method."
            )
        return figure

    def convergence(self, place: str | None = None) -> "Figure":
        """Draw the metric by rounds, bytes and seconds: mean and range of the repetitions.

        The upper panels show validation parts, if there are any, and the lower ones test parts.

        Args:
            place: Label of the place; it may be left out if there is only one.

        Raises:
            UserError: There is no such place, several and none is named, or the runs do not have
                the metric by round.
        """
        from flbench.analysis import figures

        figure = figures.convergence(self._analysis, self._place(place))
        if figure is None:
            metric = self._analysis.comparison.metric
            raise UserError(f"the runs do not have `{metric}` by round.")
        return figure

    def prices(self, place: str | None = None) -> "Figure":
        """Draw the metric against bytes and seconds, with the Pareto front.

        Args:
            place: Label of the place; it may be left out if there is only one.

        Raises:
            UserError: There is no such place, or several and none is named.
        """
        from flbench.analysis import figures

        return figures.prices(self._analysis, self._place(place))

    def settings(self) -> "Figure":
        """Draw a heat map of the metric by method and place.

        Raises:
            UserError: There is only one place or only one method.
        """
        from flbench.analysis import figures

        figure = figures.settings(self._analysis)
        if figure is None:
            raise UserError("this picture needs two data sets or settings, and two methods.")
        return figure

    def ranks(self) -> "Figure":
        """Draw the mean ranks over places with the critical difference.

        Raises:
            UserError: There is only one place, or no two methods that all places have.
        """
        from flbench.analysis import figures

        if self._analysis.across is None:
            raise UserError("ranks need two data sets or settings, and two methods that both have.")
        return figures.ranks(self._analysis)

    def _place(self, place: str | None) -> str:
        """Return the place that is meant."""
        places = self._analysis.comparison.places
        if place is None and len(places) == 1:
            return places[0]
        if place not in places:
            given = "name a place" if place is None else f"there is no place {place!r}"
            near = "" if place is None else did_you_mean(place, places)
            raise UserError(f"{given}.{near} The places: {', '.join(map(repr, places))}.")
        return place
