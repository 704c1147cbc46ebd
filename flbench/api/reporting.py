"""Reports of finished runs: which method is best, how sure that is, and what it costs."""

from collections.abc import Iterable, Sequence
from os import PathLike
from pathlib import Path
from typing import Any, Final

import pandas as pd

from flbench.analysis import blocks, frame, text
from flbench.analysis import report as written
from flbench.analysis.arrangement import arrange
from flbench.analysis.tables import Analysis, analyse
from flbench.api import html
from flbench.api.comparison_plots import ComparisonPlots
from flbench.api.runs import Run
from flbench.calls import arguments
from flbench.comparison import archive
from flbench.comparison.archive import Unpacked
from flbench.comparison.collect import collect
from flbench.core import files
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
    def long(self) -> pd.DataFrame:
        """A row for each metric of each evaluation of each run, from which all tables are made.

        Columns: `place`, `method`, `repetition`, `seed`; `split` (`validation`, `test` or
        `common`), `deployment` (`personal` for the clients' own models), `metric`, `value`;
        `round`; whether it is the `best` one by validation, and the `last` evaluated one;
        `trainings` of clients, `bytes` of all clients and `seconds` until then; and the `path` of
        the run folder.
        """
        return self._analysis.long.copy()

    @property
    def leaderboard(self) -> pd.DataFrame:
        """A row for each method of each place, best first.

        Columns: `place` and `method`; `n`, the number of runs; `mean` of the metric over the runs,
        with the ends `low` and `high` of its 95 % interval; its standard deviation `std` between
        repetitions; `rank`, 1 for the largest mean, NaN for a method that lacks
        repetitions; `groups`, letters: two methods
        without a common letter differ significantly; `last`, the mean of the metric after the last
        round; means of the other metrics that `report` was
        given (`rare_recall`, `macro_f1` and `worst10_accuracy` by default), and of the `bytes` and
        `seconds` of a run; `better_than`, a tuple of the methods that are significantly worse.
        """
        return self._analysis.leaderboard.copy()

    @property
    def scores(self) -> pd.DataFrame:
        """A row for each method of each place and each of its test metrics, `bytes` and `seconds`.

        Columns: `place`, `method`, `metric`; `n`, the number of repetitions that have it; `mean`;
        standard deviation `std`; and the ends `low` and `high` of the 95 % interval of the mean.
        """
        return self._analysis.scores.copy()

    @property
    def pairs(self) -> pd.DataFrame:
        """A row for every two methods of a place and each metric that `report` was given. With a
        baseline, a row for each other method, and the baseline is the second one. Of an ablation, a
        row for each variant, and the full method is the second one.

        Columns: `place`, `metric`, `first`, `second`, `n`; `difference` of the metric, first minus
        second, with its 95 % interval `low`, `high`; `p`, the p-value of the `test` that decides,
        NaN where the repetitions support no claim; `p_holm`, which is `p` corrected for all rows of
        the place and metric and decides the `verdict`; the p-values of tests by name: `paired_t`,
        `corrected` (corrected resampled t-test, for other samples of the same kind), `wilcoxon`;
        `probability`, the share of repetitions in which the first method is better. For differences
        that are not significant: `needed`, the number of repetitions to see the difference with a
        probability of 80 %, NaN for more than 1,000, and where repetitions are not independent.
        `bytes`, `seconds` and metrics of which neither more nor less is better are not
        tested.
        """
        return self._analysis.pairs.copy()

    @property
    def classes(self) -> pd.DataFrame:
        """Means over repetitions by place, class and method.

        Columns: `place`, `class`, `name`, `train_support`, `test_support`, `holders` (clients with
        training samples), `rare`, `confusable`, `method`; `n`, the number of repetitions with test
        samples of the class, over which `recall` and `f1` are means; `precision`, `recall`, `f1`,
        each with a standard deviation and a 95 % interval (`f1_std`, `f1_low`, `f1_high`);
        `difference`, `low`, `high`: recall minus the baseline's.
        """
        return self._analysis.classes.copy()

    @property
    def clients(self) -> pd.DataFrame:
        """Accuracy of each client of each run.

        Columns: `place`, `method`, `repetition`, `client`, `name`, `train_size`, `test_size`,
        `classes`; `skew` in [0, 1], the distance of the client's class shares from those of all
        clients; `accuracy` on the test part; `validation_accuracy`, NaN in runs of earlier
        versions; `gain`, accuracy minus that of `local`, and `gain_ft`, minus that of `ft`.
        """
        return self._analysis.clients.copy()

    @property
    def client_scores(self) -> pd.DataFrame:
        """A row for each client and method of a place, where all repetitions have the same clients.

        Columns: `place`, `client`, `name`; `train_size` and `test_size`, means over repetitions;
        `method`; `n`, the number of repetitions in which the client has test samples; the mean
        `accuracy` with `accuracy_std`, `accuracy_low` and `accuracy_high`, its standard deviation
        and 95 % interval; and the same of `gain`, accuracy minus that of `local`.
        """
        return self._analysis.client_scores.copy()

    @property
    def client_spread(self) -> pd.DataFrame:
        """How the accuracy of the clients of a run is distributed, over repetitions.

        Columns: `place`, `method`, `measure`, `n`, `mean`, `std`, `low`, `high`. Measures: over the
        clients with test samples `mean`, `std`, `worst`, the deciles `q10`, `q20`, ..., `q90` (the
        fifth is `median`), `q25` and `q75` of the accuracy; with `local` the mean `gain` over it,
        and the shares of clients that gain (`gaining`) and lose (`losing`); with `ft` the same as
        `gain_ft`, `gaining_ft` and `losing_ft`.
        """
        return self._analysis.client_spread.copy()

    @property
    def new_clients(self) -> pd.DataFrame:
        """How clients do that join after the training (`partition.new_clients`), over repetitions.

        Columns: `place`, `method`; `epochs` of training on the client's training part, 0 for the
        model that the server would send; the mean over new clients of their test accuracy with `n`,
        `mean`, `std`, `low` and `high` over repetitions; and means of `seen`, the same of the
        clients that trained, `gap`, new minus seen, `worst10`, the mean of the worst tenth of the
        new clients, `received_bytes` and optimizer `steps` of a new client. Without such clients
        there are no rows.
        """
        return self._analysis.new_clients.copy()

    @property
    def curves(self) -> pd.DataFrame:
        """The `value` of the metric by `place`, `method`, `repetition`, `round` and `split`.

        `bytes` are those of all transfers until then, and `seconds` the time, if each round takes
        equally long.
        """
        return self._analysis.curves.copy()

    @property
    def targets(self) -> pd.DataFrame:
        """Rounds, bytes and seconds until each method reaches a target of a place.

        Columns: `place`; `split`, `validation` or `test`; `target`, a value of the metric;
        `method`; `share`, the share of the `n` runs that reach it, and their number `reached`;
        `rounds`, `bytes` and `seconds`, medians over all `n` runs, in which a run that ends without
        reaching the target is censored: it counts as later than all others. They are NaN where half
        of the runs or more do so; `least_rounds`, `least_bytes` and `least_seconds` are then the
        costs that the median exceeds. `rounds_min`, `rounds_max` and the like: smallest and largest
        cost of the runs that reach it. The targets are those that `report` was given,
        otherwise `evaluation.target_accuracy` if all runs of the place have the same. Without any
        there are no rows.
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
        """Return the leaderboard of each place, and the ranks over places, as tables of text.

        With a baseline there are the differences from it too, and with targets their costs.
        """
        analysis, comparison = self._analysis, self._analysis.comparison
        found: list[Block] = []
        for place in comparison.places:
            found.append(blocks.leaderboard_block(analysis, place))
            if comparison.reference is not None:
                found += blocks.pairs_blocks(analysis, place)
            if comparison.targets:
                found += blocks.targets_blocks(analysis, place)
        if analysis.across is not None:
            found.append(blocks.ranks_block(analysis))
        return found

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


Source = Run | str | PathLike[str]


def report(
    runs: Source | Sequence[Source],
    metric: str | Sequence[str],
    baseline: str | None,
    target: str | float | Iterable[float] | None,
    *,
    force: bool,
    long: str | PathLike[str] | None,
) -> Comparison:
    """Carry out a call of `fl.report`."""
    found = collect(_paths(runs))
    comparison = arrange(
        found.runs,
        metric=metric,
        targets=target,
        baseline=baseline,
        force=force,
        labels=found.labels,
        shown=found.names,
        notes=found.notes,
        reference=found.reference,
    )
    tables = analyse(comparison)
    if long is not None:
        file = arguments.path_of(long, "long")
        try:
            files.write(file, frame.csv_of(tables.long).encode())
        except OSError as error:
            raise UserError(
                f"{file} cannot be written ({error.strerror or error}). Name another file."
            ) from error
    return Comparison(tables, found.unpacked)


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
    given = [runs] if isinstance(runs, Run | str | PathLike) else list(runs)
    return [one.path if isinstance(one, Run) else arguments.path_of(one, "runs") for one in given]
