"""Reports of finished runs: which method is best, how sure that is, and what it costs."""

from collections.abc import Iterable, Sequence
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import pandas as pd

from flbench.analysis import frame
from flbench.analysis import report as written
from flbench.analysis.arrangement import Arrangement, arrange
from flbench.analysis.page import heading
from flbench.analysis.shown import TABLES, ranks
from flbench.analysis.tables import Analysis
from flbench.api.plots import named
from flbench.api.runs import Run
from flbench.calls import arguments
from flbench.comparison import archive
from flbench.comparison.archive import Unpacked
from flbench.comparison.collect import collect
from flbench.core import files
from flbench.core.errors import UserError, did_you_mean
from flbench.core.system_errors import as_flbench_errors
from flbench.reports.shown import Shown, card

if TYPE_CHECKING:
    from matplotlib.figure import Figure

RUNS: Final = ("place", "method", "repetition", "seed", "path")
"""Columns of `Comparison.runs`."""


class Comparison(Analysis):
    """Methods compared over repetitions; `fl.report` returns one.

    All figures are test metrics of the models that are deployed to the clients, at the best round
    by validation, or at the last round without validation parts. A *place* is a data set with a
    setting; its methods are compared with each other. Each table is a copy, and NaN stands for what
    there is not. `low` and `high` are the ends of a 95 % interval of a mean over repetitions, `std`
    is the standard deviation between them, and `n` their number.

    Args:
        comparison: The runs.
        unpacked: The archives from which the runs come.

    Attributes:
        leaderboard: A row for each method of each place, best first: `n`, `mean`, `std`, `low` and
            `high` of the metric; `rank`, NaN for a method that lacks repetitions; `groups`, letters
            of at most eight methods, of which two without a common one differ significantly;
            `last`, the mean after the last round; means of the other metrics that `report` was
            given, of `bytes` and of `seconds`; `better_than`, a tuple of the methods that are
            significantly worse.
        scores: A row for each method of each place and each test `metric`, `bytes` and `seconds`,
            with `n`, `mean`, `std`, `low`, `high`.
        pairs: A row for every two methods of a place and each metric that `report` was given; with
            a baseline, or the full method of an ablation, each other method beside it. `difference`
            is first minus second, with `low` and `high`; `p` is the p-value of the `test` that
            decides, NaN where the repetitions support no claim; `p_holm`, corrected for all rows of
            the place and metric, decides the `verdict`; `paired_t`, `corrected` (for other samples
            of the same kind) and `wilcoxon` are p-values of further tests; `probability` is the
            share of repetitions in which the first method is better; `needed` is the number of
            repetitions to see a difference that is not significant with a probability of 80 %.
        classes: A row for each class and method of a place: `train_support`, `test_support`,
            `holders` (clients with training samples), `rare`, `confusable`; `precision`, `recall`
            and `f1`, each with `_std`, `_low`, `_high`, over the `n` repetitions with test samples
            of the class; `difference`, `low`, `high`: recall minus the baseline's.
        clients: A row for each client of each run: `name`, `train_size`, `test_size`, `classes`;
            `skew` in [0, 1], the distance of its class shares from those of all clients;
            `accuracy`, `validation_accuracy`; `gain` and `gain_ft`, accuracy minus that of `local`
            and of `ft`.
        client_scores: A row for each client and method of a place whose repetitions have the same
            clients: `accuracy` and `gain` over repetitions, each with `_std`, `_low`, `_high`.
        client_spread: Over repetitions each `measure` of the clients of a run with test samples:
            `mean`, `std`, `worst`, deciles `q10` to `q90` (the fifth is `median`), `q25` and `q75`
            of the accuracy; the mean `gain`, and the shares of clients that gain (`gaining`) and
            lose (`losing`); the same over `ft`.
        new_clients: The clients that join after the training (`partition.new_clients`) by `epochs`
            on their own training parts: their mean test accuracy over repetitions, and means of
            `seen`, that of the clients that trained, `gap`, `worst10`, `received_bytes`, `steps`.
        curves: The `value` of the metric by `repetition`, `round` and `split`, with the `steps`,
            `bytes` and `seconds` until then.
        targets: The costs until a method reaches each `target` that `report` was given (otherwise
            `evaluation.target_accuracy`), by `split`: `reached` of `n` runs, which is `share`;
            medians of `rounds`, `bytes` and `seconds` over all runs, in which a run that ends
            without reaching the target counts as later than all others, NaN where half of the runs
            or more do; `rounds_min` and `rounds_max` and the like are the ends over the runs that
            reach it.
        long: A row for each `metric` of each evaluation of each run, from which all tables are
            made: `split` (`validation`, `test` or `common`), `deployment` (`personal` for the
            clients' own models), `value`, `round`; whether it is the `best` one by validation, and
            the `last` evaluated one; `steps` of the optimizers, `bytes` and `seconds` until then;
            `path`.
    """

    def __init__(self, comparison: Arrangement, unpacked: Sequence[Unpacked] = ()) -> None:
        super().__init__(comparison)
        self._unpacked = unpacked  # their folders are deleted together with this object

    @property
    def equal(self) -> list[str]:
        """The first sentences of `answer` at equal work: how much that is, in each place."""
        return list(self.comparison.equal)

    @property
    def warnings(self) -> list[str]:
        """Sentences about what limits the comparison."""
        return list(self.comparison.warnings)

    @property
    def ranks(self) -> "pd.Series[float] | None":
        """Mean rank of each method over places, best first; None for a single place."""
        return None if self.across is None else self.across.ranks.copy()

    @property
    def runs(self) -> pd.DataFrame:
        """The runs: `place`, `method`, `repetition`, `seed`, `path`."""
        return self.comparison.runs[list(RUNS)]

    def plot(self, name: str, place: str | None = None, *, width: float = 9.0) -> "Figure":
        """Draw a picture of the page; a notebook shows it, `figure.savefig(PATH)` writes it.

        Args:
            name: `leaders`, `class-intervals`, `recall`, `precision`, `f1`, `recall-gain`,
                `clients`, `convergence`, `prices` or `partition` of a place; `settings` or `ranks`
                of all places.
            place: Label of the place; it may be left out if there is only one.
            width: Width in inches; a column of a paper has 3.4. Panels of a narrow picture are
                below each other. That of `partition` follows from what it shows.

        Raises:
            UserError: There is no such picture or place, several places and none is named, or the
                runs do not have what the picture shows.
        """
        from flbench.analysis import figures

        one = named({**figures.PICTURES, **figures.ACROSS}, name)
        places = self.comparison.places
        if name in figures.ACROSS or (place is None and len(places) == 1):
            place = places[0]
        if place not in places:
            given = "name a place" if place is None else f"there is no place {place!r}"
            near = "" if place is None else did_you_mean(place, places)
            raise UserError(f"{given}.{near} The places: {', '.join(map(repr, places))}.")
        figure = figures.draw(self, name, place, width)
        if figure is None:
            raise UserError(f"there is no picture {name!r}: {one.lacks}")
        return figure

    def write(self, folder: str | PathLike[str]) -> Path:
        """Write the report: a page, Markdown, JSON, tables as CSV and LaTeX, and pictures.

        Args:
            folder: Folder of the report; it is made if it does not exist.

        Returns:
            The folder.

        Raises:
            UserError: The folder cannot be written.
        """
        place = arguments.path_of(folder, "folder")
        with as_flbench_errors():
            written.write(place, self)
        return place

    def shown(self) -> list[Shown]:
        """Return the leaderboard of each place with its rare classes, and the ranks, as shown.

        With a baseline there are the differences from it too, and with targets their costs.
        """
        comparison = self.comparison
        wanted = {"leaderboard": True, "rare": True, "pairs": comparison.reference is not None}
        wanted["targets"] = bool(comparison.targets)
        return [
            *(
                one
                for place in comparison.places
                for name, is_wanted in wanted.items()
                if is_wanted
                for one in TABLES[name](self, place)
            ),
            *ranks(self),
        ]

    def tree(self) -> dict[str, Any]:
        """Return the whole report as values of JSON."""
        return written.tree_of(self)

    def __repr__(self) -> str:
        return f"<Comparison: {heading(self.comparison)}>"

    def _repr_html_(self) -> str:
        comparison = self.comparison
        return card(heading(comparison), *self.answer, *self.shown(), self.warnings)


Source = Run | str | PathLike[str]


def report(
    runs: Source | Sequence[Source],
    metric: str | Sequence[str] | None,
    baseline: str | None,
    target: str | float | Iterable[float] | None,
    *,
    force: bool,
    at: str | None,
    long: str | PathLike[str] | None,
) -> Comparison:
    """Carry out a call of `fl.report`."""
    given = {"metric": metric, "baseline": baseline, "targets": target, "at": at}
    found = Comparison(*arranged(_paths(runs), force=force, **given))
    if long is not None:
        with as_flbench_errors():
            files.write(arguments.path_of(long, "long"), frame.csv_of(found.long).encode())
    return found


def arranged(
    paths: Sequence[Path], *, metric: Any = None, **options: Any
) -> tuple[Arrangement, Sequence[Unpacked]]:
    """Return the runs at or below paths, and the archives from which they come."""
    found = collect(paths)
    comparison = arrange(
        found.runs,
        metric=metric or found.metric,
        labels=found.labels,
        shown=found.names,
        notes=found.notes,
        reference=found.reference,
        **options,
    )
    return comparison, found.unpacked


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
