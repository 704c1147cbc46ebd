"""The tables of a comparison, from which its report is written.

All metrics are those of the models that are deployed to the clients, on their test parts, at the
best round by validation; without validation parts at the last round. For a study they are those of
its deployment.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import astuple, dataclass
from itertools import combinations
from math import nan
from statistics import fmean
from typing import Any, Final

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from flbench.analysis import answer, new_clients, progress, scores, statistics
from flbench.analysis.arrangement import PRICES, Arrangement, Entry, Pair
from flbench.analysis.sampling import Sampling
from flbench.analysis.statistics import Across, Difference
from flbench.metrics.names import LESS_IS_BETTER
from flbench.results.summary import SHARES

CLASS_SCORES: Final = {"recall": "recall", "precision": "precision", "f1": "F1"}
"""Scores of a class, and how they are written."""
PAIRED: Final = "paired t-test"
CORRECTED: Final = "corrected resampled t-test"
MODERATED: Final = "moderated t-test"
TESTS: Final = (PAIRED, CORRECTED, MODERATED)
"""Tests that decide about differences: of independent repetitions, of splits of fixed clients, and
of many methods beside a reference."""
LOCAL: Final = "local"  # name of the method without any communication
FINE_TUNED: Final = "ft"  # name of fine-tuned FedAvg
LEADERBOARD: Final = (
    *("place", "method", "n", "mean", "std", "low", "high", "iqm", "iqm_low", "iqm_high", "rank"),
    *("groups", "last"),
)
"""Columns of the leaderboard that are followed by the other metrics, costs and `better_than`."""
PAIRS: Final = (
    *("place", "metric", "first", "second", "n", "difference", "low", "high", "test", "p"),
    *("p_holm", "paired_t"),
    *("corrected", "wilcoxon", "probability", "verdict", "needed", "needed_low", "needed_high"),
    *("floor",),
)
CLASSES: Final = (
    *("place", "class", "name", "train_support", "test_support", "holders", "rare", "confusable"),
    *("method", "n", "precision", "recall", "f1", "difference", "low", "high"),
    *(f"{score}_{what}" for score in CLASS_SCORES for what in ("std", "low", "high")),
)
CLIENTS: Final = (
    *("place", "method", "repetition", "client", "name", "train_size", "test_size", "classes"),
    *("skew", "validation_accuracy", "accuracy", "gain", "gain_ft"),
)


@dataclass(frozen=True)
class Analysis:
    """The tables of a comparison. NaN stands for what there is not.

    Attributes:
        comparison: The runs.
        leaderboard: A row for each method of each place, best first. `mean`, `low`, `high`: the
            metric, with its 95 % interval over repetitions; `std`: standard deviation of the
            repetitions; `iqm`: interquartile mean, with a bootstrap interval from ten repetitions;
            `rank`: 1 for the best mean, NaN for a method that lacks
            repetitions of the place, because its mean is over others; such methods are the last
            ones, unless none has all repetitions; `groups`: methods without a common
            letter differ significantly; a method that was not tested has none, nor has any if only
            some pairs are tested; `last`: mean of the metric after the last round; means of the
            other columns of `Arrangement.columns`, and always of `bytes` (of all clients and
            rounds, set-up included) and `seconds` (training and evaluation); `better_than`: tuple
            of methods that this one is significantly better than.
        scores: A row for each method of each place and each of its test metrics, `bytes` and
            `seconds`: the number `n` of repetitions that have it, `mean`, standard deviation `std`,
            and the 95 % interval `low`, `high` of the mean.
        pairs: A row for each metric of `Arrangement.tested` and every two methods of a place; see
            `statistics.Difference`. With a reference there are only the pairs with it, and it is
            the second method. `p` is the p-value of the `test` that decides, one of TESTS, for the
            population of `Sampling.population`; NaN where the repetitions support no claim.
            `p_holm` is `p` after the correction for all pairs of the place in this metric, and
            decides the verdict: a method is `better` with more of the metric, and with less of one
            such as `nll`. `corrected` is the p-value of the corrected resampled t-test, whose claim
            holds for other samples of the same kind; NaN on one partition. `needed`, `needed_low`,
            `needed_high` and `floor`: see `statistics.Repetitions`; NaN for significant differences
            and moderated tests.
        classes: A row for each class and method of a place: means over repetitions; `n` is the
            number of repetitions with test samples of the class, over which recall and F1 are
            means; `holders` is the number of clients with training samples of the class;
            `difference`: recall minus the
            baseline's, with its interval, which is not corrected for the number of classes. A class
            without test samples in a repetition has neither recall nor F1 there; its precision is
            0, as is that of a class that is never predicted. `recall_std`, `recall_low`,
            `recall_high` and the like: standard deviation of a score, and interval of its mean.
        clients: A row for each client of each run. `accuracy` is that of the test part, and
            `validation_accuracy` NaN in runs of earlier versions. `skew`: total variation distance
            between the class shares of the client's training part and those of all clients', in
            [0, 1]; `gain`: accuracy minus that of `local` for the same client and repetition;
            `gain_ft`: the same for `ft`, fine-tuned FedAvg.
        client_scores: A row for each client and method of a place whose repetitions have the same
            clients: over the `n` repetitions in which the client has test samples, the mean
            `accuracy`, its standard deviation and interval, and those of `gain`. Empty for places
            whose repetitions draw clients anew.
        client_spread: A row for each method of each place and each of MEASURES, over repetitions:
            of the clients of a run with test samples, the mean accuracy, its standard deviation,
            `worst` and quantiles: the deciles `q10`, `q20`, ..., `q90` (the fifth is `median`),
            `q25` and `q75`; the mean `gain`, and the shares of clients that gain (`gaining`) and
            lose (`losing`) against `local`; the same against `ft` (`gain_ft`, `gaining_ft`,
            `losing_ft`).
        new_clients: A row for each method of each place and number of `epochs`, of runs with
            clients that join after the training: the mean over these clients of their accuracy
            after so many epochs, with `n`, `mean`, `std`, `low`, `high` over repetitions; and means
            over repetitions of `seen`, that of the clients that trained, `gap`, the difference,
            `worst10`, and `received_bytes` and optimizer `steps` of a client.
        curves: The metric of a run by round, split (`validation`, `test`), and cumulated `bytes`
            and `seconds`. The seconds of a run are shared out evenly over its rounds.
        targets: Rounds, bytes and seconds until a method reaches a target of a place, by `split`:
            `validation` where all runs have it, and `test`. The target is the one that was asked
            for, or `evaluation.target_accuracy`; without either there are no rows.
            `reached` of the `n` repetitions reach it, which is `share`. `rounds`, `bytes` and
            `seconds` are medians over all repetitions; one that does not reach the target is
            censored at its end and counts as later than all others. Where half of them or more do
            not, the median is NaN, and `least_rounds`, `least_bytes` and `least_seconds` are the
            costs that it exceeds. `rounds_min`, `rounds_max` and the like are the smallest and the
            largest cost of the repetitions that reach the target.
        across: The comparison over places; None for a single place.
        answer: What the tables say, in sentences.
        train_counts: Training samples [N, C] by client and class, by place and repetition, as far
            as the run folders have them.
    """

    comparison: Arrangement
    leaderboard: pd.DataFrame
    scores: pd.DataFrame
    pairs: pd.DataFrame
    classes: pd.DataFrame
    clients: pd.DataFrame
    client_scores: pd.DataFrame
    client_spread: pd.DataFrame
    new_clients: pd.DataFrame
    curves: pd.DataFrame
    targets: pd.DataFrame
    across: Across | None
    answer: tuple[str, ...]
    train_counts: Mapping[tuple[str, int], NDArray[np.int64]]

    @property
    def ranking_pairs(self) -> pd.DataFrame:
        """The rows of `pairs` of the metric that ranks."""
        return self.pairs[self.pairs["metric"] == self.comparison.metric]


def analyse(comparison: Arrangement) -> Analysis:
    """Return the tables of a comparison.

    Raises:
        DataError: A file of a run is damaged.
    """
    pairs = pd.DataFrame(
        [
            row
            for place in comparison.places
            for metric in comparison.tested
            for row in _pair_rows(comparison, place, metric)
        ],
        columns=list(PAIRS),
    )
    ranking = pairs[pairs["metric"] == comparison.metric]
    leaderboard = _leaderboard(comparison, ranking)
    clients = _clients(comparison)
    across = statistics.across(
        {
            method: {
                place: [entry.score(comparison.metric) for entry in entries]
                for place in comparison.places
                if (entries := comparison.at(place, method))
                if comparison.is_complete(place, method)
            }
            for method in comparison.methods
        },
        comparison.kinds,
    )
    curves = progress.curves_of(comparison)
    targets = progress.targets_of(comparison, curves)
    said = answer.sentences(comparison, leaderboard, ranking, across)
    return Analysis(
        comparison=comparison,
        leaderboard=leaderboard,
        scores=scores.scores_of(comparison),
        pairs=pairs,
        classes=_classes(comparison),
        clients=clients,
        client_scores=scores.client_scores_of(comparison, clients),
        client_spread=scores.client_spread_of(comparison, clients),
        new_clients=new_clients.new_clients_of(comparison),
        curves=curves,
        targets=targets,
        across=across,
        answer=(*said, *progress.target_sentences(comparison, targets)),
        train_counts={
            (entry.place, entry.repetition): counts
            for entry in comparison.entries
            if (counts := entry.run.client_counts) is not None
        },
    )


def _values(entries: Sequence[Entry], name: str) -> dict[int, float]:
    """Return a test metric, `bytes` or `seconds` by repetition."""
    return {entry.repetition: entry.score(name) for entry in entries}


def _families(comparison: Arrangement, methods: Sequence[str]) -> Sequence[Sequence[Pair]]:
    """Return the pairs of methods that are tested, in groups that are corrected together."""
    if comparison.families:
        return [
            [pair for pair in family if {*pair} <= {*methods}] for family in comparison.families
        ]
    return [[*combinations(methods, 2)]]


def _pair_rows(comparison: Arrangement, place: str, metric: str) -> Iterator[tuple[Any, ...]]:
    """Yield the rows of PAIRS of one place and metric: pairs of methods that share repetitions."""
    sampling, sign = comparison.sampling_at(place), -1 if metric in LESS_IS_BETTER else 1
    values = {
        method: _values(mine, metric)
        for method in comparison.methods
        if (
            mine := [one for one in comparison.at(place, method) if not np.isnan(one.score(metric))]
        )
    }
    for pairs in _families(comparison, list(values)):
        gaps: dict[Pair, Difference] = {}
        for first, second in pairs:
            gap = statistics.difference(values[first], values[second], overlap=sampling.overlap)
            if gap is not None:
                gaps[first, second] = gap
        test, p = _tested(gaps, sampling)
        corrected, count = statistics.correct(p), int(np.count_nonzero(~np.isnan(p)))
        for (pair, gap), one, holm in zip(gaps.items(), p, corrected, strict=True):
            said = statistics.verdict(sign * gap.mean, holm)
            # The moderated test knows the variance of a difference better than its repetitions do.
            is_open = said == "no significant difference" and test != MODERATED
            needed = statistics.repetitions(gap, count) if is_open else None
            yield (
                *(place, metric, *pair, gap.n, gap.mean, gap.low, gap.high),
                *("" if np.isnan(one) else test, one, holm, gap.paired_t),
                _for_other_samples(gap, sampling),
                *(gap.wilcoxon, gap.probability if sign > 0 else 1 - gap.probability, said),
                *((nan,) * 4 if needed is None else astuple(needed)),
            )


def _tested(gaps: Mapping[Pair, Difference], sampling: Sampling) -> tuple[str, list[float]]:
    """Return one of TESTS, and its p-values of differences that are corrected together."""
    found = list(gaps.values())
    p = [gap.p if sampling.supports_claims else nan for gap in found]
    is_beside_one = len({second for _, second in gaps}) == 1
    if is_beside_one and np.count_nonzero(~np.isnan(p)) >= statistics.MODERATE_FROM:
        return MODERATED, statistics.moderated(found)
    return CORRECTED if sampling.overlap else PAIRED, p


def _for_other_samples(gap: Difference, sampling: Sampling) -> float:
    """Return the p-value of a difference for other samples of the same kind; NaN if there is none.

    One partition says nothing about others, and fewer than three repetitions about nothing.
    """
    if not sampling.other_samples or not sampling.supports_claims or np.isnan(gap.sd):
        return nan
    return statistics.p_value_of_t(gap.mean, gap.sd, gap.n, sampling.other_samples)


def _leaderboard(comparison: Arrangement, pairs: pd.DataFrame) -> pd.DataFrame:
    # A metric of the user's own may be called like another column; it is in the table of scores.
    taken = (*LEADERBOARD, *PRICES, "better_than")
    others = [*(name for name in comparison.columns[1:] if name not in taken), *PRICES]
    rows = []
    for place in comparison.places:
        mine = pairs[pairs["place"] == place]
        means = {
            method: fmean(_values(entries, comparison.metric).values())
            for method in comparison.methods
            if (entries := comparison.at(place, method))
        }
        # Means over different repetitions cannot be compared: a method that lacks some has no rank.
        ranked = [method for method in means if comparison.is_complete(place, method)]
        level = dict(zip(means, statistics.rounded([*means.values()]).tolist(), strict=True))
        order = sorted(means, key=lambda method: (method not in ranked, -level[method]))
        p = pd.DataFrame(nan, index=order, columns=order)
        better: dict[str, list[str]] = {method: [] for method in order}
        tests = (mine[name] for name in ("first", "second", "p_holm", "verdict"))
        for first, second, value, said in zip(*tests, strict=True):
            p.loc[first, second] = p.loc[second, first] = value
            if said == "better":
                better[first].append(second)
            elif said == "worse":
                better[second].append(first)
        letters = dict.fromkeys(order, "") if comparison.families else statistics.letters(p)
        for method in order:
            entries = comparison.at(place, method)
            values = list(_values(entries, comparison.metric).values())
            estimate = statistics.mean(values, comparison.sampling_at(place).overlap)
            spread = statistics.sample_std(values)
            middle = statistics.interquartile_mean([values])
            low, high = estimate.low, estimate.high
            if comparison.metric in SHARES:
                low, high = np.clip([low, high], 0, 1).tolist()
            rows.append(
                (
                    *(place, method, len(entries), estimate.value),
                    *(nan if spread is None else spread, low, high),
                    *(middle.value, middle.low, middle.high),
                    1 + sum(level[other] > level[method] for other in ranked)
                    if method in ranked
                    else nan,
                    *(letters[method], fmean(one.last(comparison.metric) for one in entries)),
                    *(fmean(_values(entries, name).values()) for name in others),
                    tuple(name for name in order if name in better[method]),
                )
            )
    found = pd.DataFrame(rows, columns=[*LEADERBOARD, *others, "better_than"])
    if found["rank"].isna().any():  # whole numbers beside NaN
        ranks = [row[LEADERBOARD.index("rank")] for row in rows]
        found["rank"] = pd.Series(ranks, dtype=object)
    return found


def _classes(comparison: Arrangement) -> pd.DataFrame:
    order = {method: k for k, method in enumerate(comparison.methods)}
    frames = []
    for place in comparison.places:
        entries = comparison.at(place)
        parts = []
        holders: dict[int, NDArray[np.int64]] = {}  # [C] by repetition
        for entry in entries:
            table = entry.run.class_table().assign(method=entry.method, repetition=entry.repetition)
            table["rare"] &= entry.run.has_rare_classes
            parts.append(table)
            if (counts := entry.run.client_counts) is not None:
                holders[entry.repetition] = (counts > 0).sum(axis=0)
        rows = pd.concat(parts)
        # A class without test samples has no recall.
        rows.loc[rows["test_support"] == 0, ["recall", "f1"]] = nan
        mine = rows.groupby(["method", "class"], sort=True).agg(
            name=("name", "first"),
            train_support=("train_support", "mean"),
            test_support=("test_support", "mean"),
            rare=("rare", "any"),
            confusable=("confusable", "any"),
            n=("recall", "count"),
            **{score: (score, "mean") for score in CLASS_SCORES},
        )
        overlap = comparison.sampling_at(place).overlap
        gaps = _recall_gaps(rows, comparison.baseline).loc[mine.index].to_numpy().T
        means, low, high = statistics.intervals(gaps, overlap)
        mine = mine.assign(difference=means, low=np.clip(low, -1, 1), high=np.clip(high, -1, 1))
        for score in CLASS_SCORES:
            wide = rows.pivot(index=["method", "class"], columns="repetition", values=score)
            values = wide.loc[mine.index].to_numpy(float).T
            about = scores.over_repetitions(values, overlap, [(0.0, 1.0)] * len(mine))
            mine = mine.assign(**scores.suffixed(score, about))
        mine = mine.reset_index().assign(place=place)
        # Data sets that are compared by force can have different numbers of classes.
        sizes = {len(each) for each in holders.values()}
        is_known = len(sizes) == 1 and mine["class"].max() < sizes.pop()
        mine["holders"] = nan
        for method, numbers in mine.groupby("method")["class"] if is_known else ():
            repetitions = [entry.repetition for entry in entries if entry.method == method]
            counted = [holders[k] for k in repetitions if k in holders]
            if counted:
                mine.loc[numbers.index, "holders"] = np.mean(counted, axis=0)[numbers]
        mine = mine.assign(order=mine["method"].map(order)).sort_values(["class", "order"])
        frames.append(mine[list(CLASSES)])
    return pd.concat(frames, ignore_index=True)


def _recall_gaps(rows: pd.DataFrame, baseline: str) -> pd.DataFrame:
    """Return recall minus the baseline's by method and class, with a column by repetition.

    Args:
        rows: Rows with `method`, `class`, `repetition` and `recall`.
        baseline: Method whose recall is subtracted; it has no differences itself.
    """
    recall = rows.pivot(index=["method", "class"], columns="repetition", values="recall")
    base = rows[rows["method"] == baseline].pivot(
        index="class", columns="repetition", values="recall"
    )
    like = base.reindex(index=recall.index.get_level_values("class"), columns=recall.columns)
    gaps = recall - like.to_numpy()
    gaps.loc[gaps.index.get_level_values("method") == baseline] = nan
    return gaps


def _clients(comparison: Arrangement) -> pd.DataFrame:
    frames = []
    for entry in comparison.entries:
        table, counts = entry.run.client_table(), entry.run.client_counts
        frames.append(
            table.assign(
                place=entry.place,
                method=entry.method,
                repetition=entry.repetition,
                name=table.get("name", ""),
                classes=table.get("classes", nan),
                validation_accuracy=table.get("validation_accuracy", nan),
                skew=nan if counts is None else skews(counts)[table["client"]],
            )
        )
    everybody = pd.concat(frames, ignore_index=True)
    key = ["place", "repetition", "client"]
    names = {entry.method: entry.run.config.algorithm.name for entry in comparison.entries}
    gains = {}
    for column, baseline in (("gain", LOCAL), ("gain_ft", FINE_TUNED)):
        mine = everybody[everybody["method"].map(names) == baseline].drop_duplicates(key)
        known = mine.set_index(key)["accuracy"]
        matched = known.reindex(pd.MultiIndex.from_frame(everybody[key])).to_numpy()
        gains[column] = everybody["accuracy"] - matched
    return everybody.assign(**gains)[list(CLIENTS)]


def skews(counts: NDArray[np.int64]) -> NDArray[np.float64]:
    """Return how far the class shares of each client are from those of all clients together.

    Args:
        counts: Training samples [N, C] by client and class.

    Returns:
        Total variation distances [N] in [0, 1]: half the sum of the absolute differences of the
        shares. NaN for clients without training samples.

    >>> skews(np.array([[5, 5], [5, 5]])).tolist(), skews(np.array([[10, 0], [0, 10]])).tolist()
    ([0.0, 0.0], [0.5, 0.5])
    """
    sizes = counts.sum(axis=1, keepdims=True)
    with np.errstate(invalid="ignore"):
        shares = counts / sizes  # [N, C]
    whole = counts.sum(axis=0) / max(1, counts.sum())  # [C]
    distances: NDArray[np.float64] = np.abs(shares - whole).sum(axis=1) / 2
    return distances
