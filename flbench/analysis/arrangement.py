"""The arrangement of finished runs: methods, data sets and settings, and repetitions.

Everything is derived from the configurations of the runs (see `flbench.results.differences`), so a
report of bare run folders is the same as one of `flbench compare`:

- A *place* is a data set with a setting.
- The *repetitions* of a place differ in `seed`, in `partition.seed`, or in both. Runs of several
  methods with the same two seeds are paired.

Methods are compared within a place. They must therefore share places, and within a repetition the
partition and the version of the code.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from math import isfinite, isnan, nan
from pathlib import Path
from typing import Final

import numpy as np
import pandas as pd

from flbench.analysis.collapsed import collapsed
from flbench.analysis.equal_work import AT, TRAFFIC, at_equal_work
from flbench.analysis.sampling import FIXED, Sampling, Vary, sampling_of
from flbench.analysis.statistics import CLAIM_FROM
from flbench.config.schema import SCHEME_KEYS
from flbench.core.errors import UserError, did_you_mean
from flbench.core.own_names import SUFFIXES
from flbench.metrics import names as metric_names
from flbench.metrics.names import RARE
from flbench.results.differences import (
    DATA,
    HASHES,
    Differences,
    differences,
    provenance,
    seeds_of,
    text_of,
)
from flbench.results.reading import StoredRun
from flbench.results.summary import SHARES

BASELINE: Final = "fedavg"  # the method to which others are compared, if it is there
SPREADS: Final = ("client_std",)  # metrics that rank no methods: less is not better, nor is more
HOW_MANY: Final = ("samples", "samples_per_client", "min_samples", "split", "pool")
"""Keys of schemes that say how many samples clients have, not how these differ."""
HARDWARE: Final = ("processor", "gpus", "threads")
PRICES: Final = ("bytes", "seconds")
"""What a run costs; a leaderboard shows it beside metrics."""
BEYOND: Final = ("rare_recall", "macro_f1", "worst10_accuracy")
"""Metrics that leaderboards show besides the one that ranks the methods."""
MOST_COLLAPSED: Final = 5  # collapsed runs that a sentence names
LARGEST: Final = 1e300
MANY: Final = 100  # validation samples; with fewer, the choice of the best round is chance


@dataclass(frozen=True)
class Entry:
    """A finished run in its place.

    Attributes:
        method: Label of the method.
        place: Label of the data set and the setting.
        repetition: Number of the repetition, from 1. Runs of one place and repetition have the same
            seeds and partition.
        run: The run.
        folder: The run folder as users know it.
    """

    method: str
    place: str
    repetition: int
    run: StoredRun
    folder: str

    def score(self, name: str) -> float:
        """Return a test metric at the best round; NaN for one that the run lacks."""
        value = self.run.summary["best"]["test"].get(name)
        return float(value) if isinstance(value, int | float) else nan


@dataclass(frozen=True)
class Arrangement:
    """Finished runs of methods, arranged for a comparison.

    Attributes:
        entries: The runs, ordered by place, method and repetition.
        methods: Labels of the methods, in the order in which they were given.
        metric: Test metric that ranks the methods.
        baseline: Method with which the others are compared in the recall of the classes.
        notes: Sentences about what was left out, and about where the runs come from.
        apart: Why the runs are not comparable, if `force` compares them nevertheless; or None.
        reference: Method with which each of the others is compared, if no other pair is tested: the
            baseline that the user has named, or the reference of the runs' plan. It is the
            baseline. None if pairs are tested otherwise.
        chosen: What the user has named for the columns of the leaderboards besides `metric`;
            empty for BEYOND and PRICES.
        targets: Values of the metric whose costs the user asks for; empty for those of the runs.
        work: At which equal work methods are compared, one of `equal_work.AT`; None if each run is
            read to its end.
        equal: How much that is, a sentence for each place.
    """

    entries: tuple[Entry, ...]
    methods: tuple[str, ...]
    metric: str
    baseline: str
    notes: tuple[str, ...]
    apart: str | None = None
    reference: str | None = None
    chosen: tuple[str, ...] = ()
    targets: tuple[float, ...] = ()
    work: str | None = None
    equal: tuple[str, ...] = ()

    @cached_property
    def runs(self) -> pd.DataFrame:
        """A row for each run, in the order of `entries`.

        `place`, `method`, `repetition`, `seed`, `path`, `algorithm` (the method's own name), the
        rounds `best` and `last`, the `bytes` that all clients sent and received, set-up included,
        the `seconds` of training and evaluation, and HASHES.
        """
        return pd.DataFrame(
            {
                **{name: getattr(one, name) for name in ("place", "method", "repetition")},
                "seed": one.run.config.seed,
                "path": one.folder,
                "algorithm": one.run.config.algorithm.name,
                **{moment: summary[moment]["round"] for moment in ("best", "last")},
                "bytes": float(sum(summary["communication"][kind] for kind in TRAFFIC)),
                "seconds": float(summary["seconds"]["train"] + summary["seconds"]["evaluate"]),
                **{name: summary.get(name) for name in HASHES},
            }
            for one, summary in ((one, one.run.summary) for one in self.entries)
        )

    @property
    def columns(self) -> tuple[str, ...]:
        """Metrics, `bytes` and `seconds` that leaderboards show, each once; `metric` is the first.

        Metrics of rare classes are among them also where no class is rare.
        """
        return tuple(dict.fromkeys([self.metric, *(self.chosen or (*BEYOND, *PRICES))]))

    @property
    def tested(self) -> tuple[str, ...]:
        """Metrics in which methods are tested: `metric`, and those that the user has named."""
        named = (name for name in self.chosen if name not in (*PRICES, *SPREADS))
        return tuple(dict.fromkeys([self.metric, *named]))

    @property
    def measured(self) -> str:
        """Which models are compared, after which round."""
        within = f", among the rounds{self.at_work}" if self.work else ""
        return (
            "the models that are deployed to the clients, at the best round by validation accuracy,"
            f" or at the last round without validation parts{within}"
        )

    @property
    def at_work(self) -> str:
        """What titles say of equal work; "" if each run is read to its end."""
        return f" at equal {AT[self.work]}" if self.work else ""

    def at(self, place: str, method: str | None = None) -> list[Entry]:
        """Return the entries of a place, of one method or of all, ordered by repetition."""
        return [
            entry
            for entry in self.entries
            if entry.place == place and method in (None, entry.method)
        ]

    @cached_property
    def places(self) -> tuple[str, ...]:
        """Labels of the places."""
        return tuple(dict.fromkeys(one.place for one in self.entries))

    @property
    def repetitions(self) -> int:
        """Largest number of repetitions of a method in a place."""
        return int(self.runs.groupby(["place", "method"]).size().max())

    @property
    def vary(self) -> Vary:
        """What differs between repetitions."""
        return _vary(self.runs)

    @cached_property
    def kinds(self) -> dict[str, str]:
        """Kind of partition of each place: the scheme by which clients get samples, with its keys.

        Places of one kind rank methods alike.
        """
        return {place: _kind(self.at(place)[0].run) for place in self.places}

    @cached_property
    def samplings(self) -> dict[str, Sampling]:
        """How the repetitions of each place were drawn."""
        return {
            str(place): sampling_of(
                [one.run for one in self.at(str(place))], _vary(rows), rows["repetition"].nunique()
            )
            for place, rows in self.runs.groupby("place", sort=False)
        }

    def sampling_at(self, place: str) -> Sampling:
        """Return how the repetitions of a place were drawn."""
        return self.samplings[place]

    @cached_property
    def warnings(self) -> tuple[str, ...]:
        """Sentences about what limits the comparison."""
        return (*self.notes, *(sentence for about in CAVEATS for sentence in about(self)))

    @property
    def corrected_for(self) -> str:
        """For which pairs of methods p-values are corrected together, in words."""
        if self.reference is None:
            return "for all pairs"
        return f"for all differences from {self.reference}"

    @property
    def overlaps(self) -> dict[str, float]:
        """Overlap of the repetitions by place; see `Sampling.overlap`."""
        return {place: self.sampling_at(place).overlap for place in self.places}


def arrange(
    runs: Sequence[StoredRun],
    *,
    metric: str | Sequence[str] = "accuracy",
    targets: str | float | Iterable[float] | None = (),
    baseline: str | None = None,
    force: bool = False,
    labels: Mapping[Path, str] | None = None,
    shown: Mapping[Path, str] | None = None,
    notes: Sequence[str] = (),
    reference: str | None = None,
    at: str | None = None,
) -> Arrangement:
    """Arrange runs for a comparison.

    Args:
        runs: The runs. Unfinished ones are left out, which a warning says.
        metric: See `fl.report`, as for `targets`, `baseline` and `force`.
        targets: Values of the metric whose costs are wanted.
        baseline: Method with which each of the others is compared.
        force: Whether to compare runs that are not comparable.
        labels: Label of the method by run folder, for runs whose method is known by another name
            than its keys.
        shown: Name for users by run folder, for runs of archives.
        notes: Sentences about where the runs come from, and about what was left out, which become
            warnings.
        reference: The baseline of runs whose plan has one. It has no effect if the user names
            another one, or if it has no finished run.
        at: See `fl.report`.

    Raises:
        UserError: There is no finished run, the runs are not comparable, a run does not have what
            `at` needs, or the metric or the baseline is not known.
    """
    metric, *chosen = _names(metric)
    wanted = _targets(targets, metric)
    finished = [run for run in runs if run.finished]
    if not finished:
        raise UserError("there is no finished run to compare.")
    # A run that lacks the metric is refused below.
    undefined = [run for run in finished if not isfinite(run.scores.get(metric, 0.0))]
    finished = [run for run in finished if isfinite(run.scores.get(metric, 0.0))]
    if not finished:
        raise UserError(f"`{metric}` of {undefined[0].path} is no number. Choose another metric.")
    named = {run.path: (shown or {}).get(run.path, str(run.path)) for run in runs}
    warnings = [
        f"left out: {named[run.path]}: its test {metric} is no number." for run in undefined
    ]
    if unfinished := [named[run.path] for run in runs if not run.finished]:
        warnings.append(f"not finished, and left out: {', '.join(unfinished)}.")
    apart = differences(finished, labels, named)
    places = apart.labels
    warnings += apart.notes
    if (reason := apart.reason) is not None:
        if not force:
            raise UserError(
                f"these runs are not comparable: {reason}. Compare runs that agree, or use --force"
                " to compare them with a warning."
            )
        warnings.append(f"These runs are not comparable: {reason}.")
        if apart.strangers is not None:  # one place for all
            places = [" and ".join(dict.fromkeys(apart.settings[DATA]))] * len(finished)
    entries, more = _entries(apart, places)
    _check_metrics(finished, metric, chosen)
    equal: Sequence[str] = ()
    if at is not None:
        entries, lacking = _with_all_methods(entries)
        warnings += lacking
        keys = [(one.place, one.repetition, one.method, one.folder) for one in entries]
        read, equal = at_equal_work([one.run for one in entries], keys, at)
        warnings += _about_unknown(entries, read)
        entries = [replace(one, run=run) for one, run in zip(entries, read, strict=True)]
        _check_evaluated(entries, metric)
    order = list(dict.fromkeys(apart.methods))
    if baseline is not None and baseline not in order:
        raise UserError(
            f"the baseline {str(baseline)!r} is not one of the methods: {', '.join(order)}."
            f"{did_you_mean(str(baseline).lower(), order)}"
        )
    beside = baseline or (reference if reference in order else None)
    return Arrangement(
        entries=tuple(entries),
        methods=tuple(order),
        metric=metric,
        baseline=beside or _baseline(entries),
        notes=(*warnings, *more, *notes),
        apart=reason,
        reference=beside,
        chosen=tuple(chosen),
        targets=wanted,
        work=at,
        equal=tuple(equal),
    )


def _with_all_methods(entries: Sequence[Entry]) -> tuple[list[Entry], list[str]]:
    """Return the entries of repetitions with all methods of their place, and sentences on others.

    Raises:
        UserError: A place has no such repetition.
    """
    keys = [(one.place, one.repetition, one.method) for one in entries]
    table = pd.DataFrame(keys, columns=["place", "repetition", "method"])
    have = table.groupby(["place", "repetition"])["method"].transform("nunique")
    whole = have == table.groupby("place")["method"].transform("nunique")
    sentences = []
    for place, lacking in table[~whole].groupby("place", sort=False)["repetition"]:
        if not whole[table["place"] == place].any():
            raise UserError(
                f"{place}: no repetition has all methods, so there is no equal work at which they"
                " can be compared. Train them with the same seeds, or leave out a method."
            )
        numbers = ", ".join(map(str, sorted(lacking.unique())))
        sentences.append(
            f"{place}: repetitions that lack a method have no equal work, and are left out:"
            f" {numbers}."
        )
    return [one for one, is_whole in zip(entries, whole, strict=True) if is_whole], sentences


def _check_evaluated(entries: Sequence[Entry], metric: str) -> None:
    """Raise a UserError if a run at equal work was not evaluated on its test part there."""
    for one in entries:
        if isnan(one.score(metric)):
            raise UserError(
                f"{one.folder} has no test {metric} after round {one.run.summary['best']['round']},"
                " the best one of those that count. Compare runs that were evaluated there."
            )


def _about_unknown(entries: Sequence[Entry], read: Sequence[StoredRun]) -> list[str]:
    """Return a sentence about runs whose classes and clients are not known at equal work."""
    known = [{one.run.summary[k]["round"] for k in ("best", "last")} for one in entries]
    numbers = [run.summary["best"]["round"] for run in read]
    lost = sum(number not in ends for number, ends in zip(numbers, known, strict=True))
    if not lost:
        return []
    return [
        f"Scores of single classes and clients are kept for the best and the last round of a run:"
        f" {lost} of {len(read)} runs are read at another round, and have none here."
    ]


def _entries(apart: Differences, places: Sequence[str]) -> tuple[list[Entry], list[str]]:
    """Return the entries in their order, and sentences about runs that are there twice."""
    seeds: dict[str, set[tuple[int, int]]] = {}
    for run, place in zip(apart.runs, places, strict=True):
        seeds.setdefault(place, set()).add(seeds_of(run))
    found: dict[tuple[str, str, int], Entry] = {}
    twice = []
    for run, method, place in zip(apart.runs, apart.methods, places, strict=True):
        number = 1 + sorted(seeds[place]).index(seeds_of(run))
        entry = Entry(method, place, number, run, apart.names[run.path])
        first = found.setdefault((place, method, number), entry)
        if first is not entry:
            twice.append(
                f"{entry.folder} has the method and the seeds of {first.folder}, and is left out."
            )
    order, names = [*seeds], [*dict.fromkeys(apart.methods)]
    entries = sorted(
        found.values(),
        key=lambda one: (order.index(one.place), names.index(one.method), one.repetition),
    )
    return entries, twice


def _about_missing(comparison: Arrangement) -> Iterator[str]:
    """Yield sentences about runs that are missing, and about too few repetitions."""
    runs = comparison.runs
    counts = Counter(zip(runs["place"], runs["method"], strict=True))
    for place, every in runs.groupby("place", sort=False)["repetition"].nunique().items():
        have = {method: counts[place, method] for method in comparison.methods}
        if short := [f"{method} has {n} of {every}" for method, n in have.items() if n < every]:
            yield f"{place}: repetitions are missing: {', '.join(short)}."
    if len(comparison.methods) > 1 and comparison.repetitions < CLAIM_FROM:
        yield (
            f"Fewer than {CLAIM_FROM} repetitions: the tables show what these runs measured, and"
            " support no claim that a method is better."
        )


def _baseline(entries: Sequence[Entry]) -> str:
    """Return the label of FedAvg if it is there, otherwise that of a method by its own name."""
    names = {entry.method: entry.run.config.algorithm.name for entry in entries}
    return min(names, key=lambda method: (names[method] != BASELINE, names[method] != method))


def _about_hardware(comparison: Arrangement) -> Iterator[str]:
    """Yield a sentence if the runs were trained on different hardware or by different engines."""
    runs = [one.run for one in comparison.entries]
    origins = [{key: str(provenance(run).get(key)) for key in HARDWARE} for run in runs]
    found = pd.DataFrame(origins).assign(
        **{"engine.name": [run.config.engine.name for run in runs]}
    )
    different = found.nunique()
    if different.max() > 1:
        names = ", ".join(different.index[different > 1])
        yield f"The runs differ in {names}, so their seconds are not comparable."


def _vary(runs: pd.DataFrame) -> Vary:
    """Return what differs between the repetitions of a method in a place, see Arrangement.runs."""
    groups = runs.groupby(["place", "method"])[["seed", "partition_hash"]]
    training, partition = groups.nunique().gt(1).any()
    if training and partition:
        return "both"
    return "training" if training else "partition" if partition else "nothing"


def _kind(run: StoredRun) -> str:
    """Return the kind of partition of a run: its scheme, with the keys that the scheme uses.

    Clients that the data set has are a kind of their own for each data set.
    """
    partition = run.config.partition
    if partition.scheme in FIXED:
        return f"{partition.title} of {run.summary['dataset']}"
    keys = [key for key, schemes in SCHEME_KEYS.items() if partition.scheme in schemes]
    known = [key for key in keys if key not in HOW_MANY]
    own = ("args", "sha256") if partition.is_own else ()
    values = [
        f"{key}={text_of(value)}"
        for key in (*known, *own)
        if (value := getattr(partition, key)) is not None
    ]
    return " ".join([partition.title, *values])


def _about_choice(comparison: Arrangement) -> Iterator[str]:
    """Yield a sentence for each place where few validation samples have chosen the best rounds."""
    for place in comparison.places:
        known = comparison.sampling_at(place).validation
        has_choice = any(
            len({row.round for row in entry.run.rows if row.split == "validation"}) > 1
            for entry in comparison.at(place)
        )
        if has_choice and known is not None and 0 < known < MANY:
            yield (
                f"{place}: the best rounds were chosen on {known} validation samples of all"
                f" clients. With fewer than {MANY} the choice is largely chance, and favours"
                " methods whose results vary between rounds."
            )


def _about_collapsed(comparison: Arrangement) -> Iterator[str]:
    """Yield a sentence for each place that has collapsed runs."""
    metric = comparison.metric
    for place in comparison.places:
        runs = {(one.repetition, one.method): one for one in comparison.at(place)}
        values = pd.Series({key: one.score(metric) for key, one in runs.items()}).unstack()
        those = [
            f"{method} in repetition {k} ({values.loc[k, method]:.4g} beside a median of"
            f" {values[method].median():.4g}; seed {runs[k, method].run.config.seed},"
            f" {runs[k, method].folder})"
            for k, method in collapsed(values)
        ]
        if those:
            more = len(those) - MOST_COLLAPSED
            end = f", and {more} other runs" if more > 0 else ""
            is_one = len(those) == 1
            yield (
                f"{place}: {len(those)} {'run lies' if is_one else 'runs lie'} far below the other"
                f" repetitions of {'its' if is_one else 'their'} method in test {metric}:"
                f" {'; '.join(those[:MOST_COLLAPSED])}{end}. Means, intervals and tests contain"
                f" {'it' if is_one else 'them'}. Look at the training loss in metrics.csv."
            )


def _about_direction(comparison: Arrangement) -> Iterator[str]:
    """Yield a sentence for each metric of the user's own in which methods are tested.

    Whether its small values are good is known to its code only, which a report does not need.
    """
    own = {
        f"{name}{suffix}"
        for one in comparison.entries
        for name in one.run.config.evaluation.metrics or {}
        for suffix in ("", *SUFFIXES)
    }
    for metric in comparison.tested:
        if metric in own:
            yield (
                f"`{metric}` is a metric of your own, and the report takes larger values for better"
                " ones. If smaller values are better, ranks and verdicts mean the opposite: report"
                " its negative."
            )


def _about_rare(comparison: Arrangement) -> Iterator[str]:
    """Yield a sentence if the user asks for a metric of rare classes, and there are none."""
    asked = [name for name in comparison.chosen if name.startswith("rare_")]
    if asked and not any(one.run.has_rare_classes for one in comparison.entries):
        yield (
            f"`{asked[0]}` is left out, because no class is rare: the classes are balanced, or"
            " `evaluation.rare` selects none."
        )


def _about_seconds(comparison: Arrangement) -> Iterator[str]:
    """Yield a sentence if methods are compared at equal seconds."""
    if comparison.work == "seconds":
        yield (
            "Seconds depend on the machine and on its load, so what is said at equal seconds holds"
            " for these runs alone."
        )


CAVEATS: Final = (
    *(_about_seconds, _about_hardware, _about_missing, _about_direction, _about_rare),
    *(_about_choice, _about_collapsed),
)
"""What limits a comparison: each yields sentences about it."""


def _names(metric: str | Sequence[str]) -> list[str]:
    """Return the names of metrics, each once; a UserError if there is none."""
    given = [metric] if isinstance(metric, str) or not isinstance(metric, Iterable) else metric
    parts = (part.strip() for one in given if isinstance(one, str) for part in one.split(","))
    names = [*dict.fromkeys(filter(None, parts))]
    if not names:
        raise UserError(f"metric={metric!r} names no metric. Name one, such as accuracy.")
    return names


def _targets(given: str | float | Iterable[float] | None, metric: str) -> tuple[float, ...]:
    """Return the values of the metric whose costs are wanted, each once.

    Raises:
        UserError: One of them is not a number, or beyond the values of the metric.
    """
    parts = filter(str.strip, given.split(",")) if isinstance(given, str) else given
    try:
        found = np.ravel(
            [] if parts is None else [*parts] if isinstance(parts, Iterable) else parts
        )
        values = np.array([nan]) if found.dtype.kind in "bc" else found.astype(np.float64)
    except (TypeError, ValueError):
        values = np.array([nan])
    limits = (0.0, 1.0) if metric in SHARES else (-LARGEST, LARGEST)
    if not all(limits[0] <= value <= limits[1] for value in values):
        raise UserError(
            f"targets={given!r} are not all values of `{metric}`. Name numbers that it can have,"
            " such as 0.8,0.9 for an accuracy."
        )
    return tuple(dict.fromkeys(values.tolist()))


def _check_metrics(runs: Sequence[StoredRun], metric: str, others: Sequence[str]) -> None:
    """Raise a UserError if a run does not have a metric that ranks methods, or another column."""
    if metric in (*PRICES, *SPREADS, *metric_names.LESS_IS_BETTER):
        raise UserError(
            f"`{metric}` ranks no methods: more of it is not better. Name a metric first, as in"
            f" accuracy,{metric}."
        )
    for run in runs:
        if metric.startswith("rare_") and not run.has_rare_classes:
            raise UserError(
                f"{run.path} has no rare class, so `{metric}` ranks no methods. Classes are rare"
                " by `evaluation.rare` if they have few training samples and the classes are not"
                " balanced. Choose another metric."
            )
        if metric not in run.scores:
            raise UserError(
                f"{run.path} has no test metric `{metric}`.{did_you_mean(metric, run.scores)} It"
                f" has {', '.join(run.scores)}."
            )
    known = dict.fromkeys([*(name for run in runs for name in run.scores), *PRICES, *RARE])
    for name in others:
        if name not in known:
            raise UserError(
                f"no run has a test metric `{name}` for a column of the tables."
                f"{did_you_mean(name, known)} There are {', '.join(known)}."
            )
