"""Reports of finished runs: which method is best, how sure that is, and what it costs."""

from collections.abc import Sequence
from os import PathLike
from pathlib import Path
from typing import Any, Final

import pandas as pd

from flbench.analysis import report as written
from flbench.analysis import text
from flbench.analysis.arrangement import arrange
from flbench.analysis.tables import Analysis, analyse
from flbench.api import html
from flbench.api.comparison_plots import ComparisonPlots
from flbench.api.runs import Run
from flbench.api.studies import Study
from flbench.calls import arguments
from flbench.comparison import archive
from flbench.comparison.archive import Unpacked
from flbench.comparison.collect import collect
from flbench.core.errors import UserError
from flbench.reports.tables import Block

RUNS: Final = ("place", "method", "repetition", "seed", "path")
"""Columns of `Comparison.runs`."""


class Comparison:
    """Methods compared over repetitions; `fl.report` returns one.

    All figures are test metrics of the models that are deployed to the clients, at the best round
    by validation, or at the last round without validation parts. A *place* is a data set with a
    setting; its methods are compared with each other.

    Args:
        analysis: The tables.
        unpacked: The archives from which the runs come.
    """

    def __init__(self, analysis: Analysis, unpacked: Sequence[Unpacked] = ()) -> None:
        self._analysis = analysis
        self._unpacked = unpacked  # their folders are deleted together with this object

    @property
    def answer(self) -> list[str]:
        """What the tables say: which method is best, how sure that is, and what it costs."""
        return list(self._analysis.answer)

    @property
    def warnings(self) -> list[str]:
        """Sentences about what limits the comparison."""
        return list(self._analysis.comparison.warnings)

    @property
    def populations(self) -> dict[str, str]:
        """By place, what its claims hold for, such as `over new partitions of these samples`; an
        empty text where repetitions have the same seeds, or where there is one.
        """
        comparison = self._analysis.comparison
        return {place: comparison.sampling_at(place).population for place in comparison.places}

    @property
    def kinds(self) -> dict[str, str]:
        """Kind of partition by place: the scheme by which samples are distributed to clients, with
        its keys. Places of one kind rank methods alike, so the tests over places count it once.
        """
        return dict(self._analysis.comparison.kinds)

    @property
    def leaderboard(self) -> pd.DataFrame:
        """A row for each method of each place, best first.

        Columns: `place` and `method`; `n`, the number of runs; `mean` of the metric over the runs,
        with the ends `low` and `high` of its 95 % interval; its standard deviation `std` between
        repetitions; interquartile mean `iqm` with
        `iqm_low` and `iqm_high`; `rank`, 1 for the largest mean, NaN for a method that lacks
        repetitions; `groups`, letters: two methods
        without a common letter differ significantly; means of `macro_f1`, `rare_recall`,
        `worst10_accuracy`, and of the `bytes` and `seconds` of a run; `better_than`, a tuple of the
        methods that are significantly worse.
        """
        return self._analysis.leaderboard.copy()

    @property
    def pairs(self) -> pd.DataFrame:
        """A row for every two methods of a place. If `report` was given a baseline, a row for each
        other method, and the baseline is the second one. Of an ablation, a row for each variant,
        and the full method is the second one.

        Columns: `place`, `first`, `second`, `n`; `difference` of the metric, first minus second,
        with its 95 % interval `low`, `high`; `p`, the p-value of the `test` that decides, NaN where
        the repetitions support no claim; `p_holm`, which is `p` corrected for all rows of the
        place and decides the `verdict`; the p-values of tests by name: `paired_t`, `corrected`
        (corrected resampled t-test, for other samples of the same kind), `wilcoxon`; `probability`,
        the share of repetitions in which the first method is better. For differences that are not
        significant: `needed`, the number of repetitions to see the difference with a probability of
        80 %, with the ends `needed_low` and `needed_high` of an 80 % interval, NaN for more than
        1,000; and `floor`, the difference below which no number of repetitions suffices.
        """
        return self._analysis.pairs.copy()

    @property
    def classes(self) -> pd.DataFrame:
        """Means over repetitions by place, class and method.

        Columns: `place`, `class`, `name`, `train_support`, `test_support`, `holders` (clients with
        training samples), `rare`, `confusable`, `method`; `n`, the number of repetitions with test
        samples of the class, over which `recall` and `f1` are means; `precision`, `recall`, `f1`;
        `difference`, `low`, `high`: recall minus the baseline's.
        """
        return self._analysis.classes.copy()

    @property
    def clients(self) -> pd.DataFrame:
        """Accuracy of each client of each run.

        Columns: `place`, `method`, `repetition`, `client`, `name`, `train_size`, `test_size`,
        `classes`; `skew` in [0, 1], the distance of the client's class shares from those of all
        clients; `accuracy`; `gain`, accuracy minus that of Local-Only.
        """
        return self._analysis.clients.copy()

    @property
    def curves(self) -> pd.DataFrame:
        """The `value` of the metric by `place`, `method`, `repetition`, `round` and `split`.

        `bytes` are those of all transfers until then, and `seconds` the time, if each round takes
        equally long.
        """
        return self._analysis.curves.copy()

    @property
    def targets(self) -> pd.DataFrame:
        """Rounds, bytes and seconds until each method reaches the target of a place.

        Columns: `place`, `method`; `target`, the value of the metric on the `split`; `reached`, the
        number of runs that reach it, of `n`; `rounds`, `bytes` and `seconds`, medians over all `n`
        runs, in which a run that does not reach the target counts as more expensive than any that
        does. They are NaN where half of the runs or more do not reach it; `least_rounds`,
        `least_bytes` and `least_seconds` are then the costs that the median exceeds. The target
        is `evaluation.target_accuracy` if all runs of the place have the
        same, otherwise the mean of the baseline at the end of its runs.
        """
        return self._analysis.targets.copy()

    @property
    def ranks(self) -> "pd.Series[float] | None":
        """Mean rank of each method over places, best first; None for a single place."""
        across = self._analysis.across
        return None if across is None else across.ranks.copy()

    @property
    def plot(self) -> ComparisonPlots:
        """The pictures of the page, such as `comparison.plot.leaders()`."""
        return ComparisonPlots(self._analysis)

    @property
    def runs(self) -> pd.DataFrame:
        """The runs: `place`, `method`, `repetition`, `seed`, `path`."""
        return pd.DataFrame(
            [
                (one.place, one.method, one.repetition, one.run.config.seed, one.folder)
                for one in self._analysis.comparison.entries
            ],
            columns=list(RUNS),
        )

    def write(self, folder: str | PathLike[str]) -> Path:
        """Write the report: a page, Markdown, LaTeX, JSON, CSV tables and pictures.

        Args:
            folder: Folder of the report; it is made if it does not exist.

        Returns:
            The folder.

        Raises:
            UserError: The folder cannot be written.
        """
        place = arguments.path_of(folder, "folder")
        try:
            written.write(place, self._analysis)
        except OSError as error:
            raise UserError(
                f"the report cannot be written to {place} ({error.strerror or error}). Name"
                " another folder."
            ) from error
        return place

    def blocks(self) -> list[Block]:
        """Return the leaderboard of each place, and the ranks over places, as tables of text."""
        analysis = self._analysis
        found = [text.leaderboard_block(analysis, place) for place in analysis.comparison.places]
        return found if analysis.across is None else [*found, text.ranks_block(analysis)]

    def tree(self) -> dict[str, Any]:
        """Return the whole report as values of JSON."""
        return text.tree_of(self._analysis)

    def __repr__(self) -> str:
        return f"<Comparison: {text.heading(self._analysis.comparison)}>"

    def _repr_html_(self) -> str:
        comparison = self._analysis.comparison
        pieces = [html.prose("\n\n".join(self.answer))]
        pieces += map(html.block, self.blocks())
        return html.card(text.heading(comparison), *pieces, html.notes(self.warnings))


Source = Run | Study | str | PathLike[str]


def report(
    runs: Source | Sequence[Source],
    *,
    metric: str = "accuracy",
    baseline: str | None = None,
    force: bool = False,
) -> Comparison:
    """Compare finished runs, as `flbench report` does.

    Runs are compared within a place: a data set with a setting. What a place is, which runs are
    repetitions of each other and which methods they belong to follows from their configurations.

    Args:
        runs: Runs and studies, their folders, the folder of a comparison, archives that `pack` has
            written, or folders above them. Of a study the final trainings are compared.
        metric: Test metric that ranks the methods; larger is better.
        baseline: Method with which each of the others is compared: no other pair is tested,
            `answer` says which methods are better, the recall of `classes` has differences from it,
            and its results are the target of `targets`. By default all pairs are tested, and
            classes and targets have FedAvg if it is there, otherwise the first method.
        force: Whether to compare runs that are not comparable, with a warning that says why.

    Returns:
        The report, as tables and sentences; its method `write` makes the files.

    Raises:
        UserError: A path is not the folder of a run, no run is finished, the runs are not
            comparable, or the metric or the baseline is not known.
        DataError: A file in a folder is damaged.
    """
    found = collect(_paths(runs))
    comparison = arrange(
        found.runs,
        metric=metric,
        baseline=baseline,
        force=force,
        labels=found.labels,
        shown=found.names,
        notes=found.notes,
        reference=found.reference,
    )
    return Comparison(analyse(comparison), found.unpacked)


def pack(runs: Source | Sequence[Source], file: str | PathLike[str]) -> Path:
    """Write finished runs and studies without checkpoints into one file, as `flbench pack`.

    `fl.report(file)` compares them, so the file suffices to publish results that others can
    recompute. Absolute paths are reduced to the names of files and folders.

    Args:
        runs: Runs and studies, their folders, the folder of a comparison, or folders above them.
        file: The file; its name ends with `.tar.xz`.

    Returns:
        The file.

    Raises:
        UserError: A path has no finished run and no trial of a study, the name of the file ends
            otherwise, or the file cannot be written.
        DataError: A file in a folder is damaged.
    """
    place = arguments.path_of(file, "file")
    archive.pack(_paths(runs), place)
    return place


def _paths(runs: Source | Sequence[Source]) -> list[Path]:
    """Return the folders of runs and studies, and the paths that were given."""
    given = [runs] if isinstance(runs, Run | Study | str | PathLike) else list(runs)
    return [
        one.path if isinstance(one, Run | Study) else arguments.path_of(one, "runs")
        for one in given
    ]
