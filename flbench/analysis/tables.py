"""The tables of a comparison, from which its report is written.

All metrics are those of the models that are deployed to the clients, on their test parts, at the
best round by validation; without validation parts at the last round.
"""

from collections.abc import Callable, Mapping
from functools import cached_property
from itertools import combinations
from math import nan
from typing import Any, Final

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from flbench.analysis import answer, new_clients, progress, scores, statistics
from flbench.analysis.arrangement import PRICES, Arrangement
from flbench.analysis.frame import RUN, in_order, long_of, values_of
from flbench.analysis.statistics import Across, over_repetitions
from flbench.metrics.names import LESS_IS_BETTER
from flbench.results.summary import SHARES

CLASS_SCORES: Final = {"recall": "recall", "precision": "precision", "f1": "F1"}
"""Scores of a class, and how they are written."""
PAIRED: Final = "paired t-test"
CORRECTED: Final = "corrected resampled t-test"
TESTS: Final = (PAIRED, CORRECTED)
"""Tests that decide about differences: of independent repetitions, of splits of fixed clients."""
LOCAL: Final = "local"  # name of the method without any communication
FINE_TUNED: Final = "ft"  # name of fine-tuned FedAvg
LEADERBOARD: Final = (
    *("place", "method", "n", "mean", "std", "low", "high", "rank", "groups", "last"),
)
"""Columns of the leaderboard that are followed by the other metrics, costs and `better_than`."""
PAIRS: Final = (
    *("place", "metric", "first", "second", "n", "difference", "low", "high", "test", "p"),
    *("p_holm", "paired_t", "corrected", "wilcoxon", "probability", "verdict", "needed"),
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


class Analysis:
    """The tables of a comparison, see `fl.Comparison`; NaN stands for what there is not.

    Each table of TABLES is made when it is first asked for, and is a copy.

    Args:
        comparison: The runs.
    """

    long: pd.DataFrame
    values: pd.DataFrame
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

    def __init__(self, comparison: Arrangement) -> None:
        self.comparison = comparison

    def __getattr__(self, name: str) -> pd.DataFrame:
        if name not in TABLES:
            raise AttributeError(f"{type(self).__name__} has no attribute {name!r}")
        made: dict[str, pd.DataFrame] = vars(self).setdefault("_made", {})
        if name not in made:
            made[name] = TABLES[name](self)
        return made[name].copy()

    def __dir__(self) -> list[str]:
        return [*super().__dir__(), *TABLES]

    @property
    def ranking(self) -> pd.DataFrame:
        """Those of `pairs` in the metric that ranks the methods."""
        return self.pairs[self.pairs["metric"] == self.comparison.metric]

    @cached_property
    def across(self) -> Across | None:
        """The comparison over places; None for a single place."""
        ranked = self.leaderboard[self.leaderboard["rank"].notna()]
        means = ranked.pivot(index="place", columns="method", values="mean")
        places, methods = self.comparison.places, self.comparison.methods
        wide = means.reindex(index=list(places), columns=list(methods))
        return statistics.across(wide, self.comparison.kinds)

    @cached_property
    def answer(self) -> list[str]:
        """What the tables say: which method is best, how sure that is, and what it costs."""
        comparison = self.comparison
        return [
            *comparison.equal,
            *answer.sentences(comparison, self.leaderboard, self.ranking, self.across),
            *progress.unknown_targets(comparison, self.targets),
        ]


TABLES: Final[Mapping[str, Callable[[Analysis], pd.DataFrame]]] = {
    "long": lambda one: long_of(one.comparison),
    "values": lambda one: values_of(one.comparison, one.long),
    "leaderboard": lambda one: _leaderboard(
        one.comparison, one.values, values_of(one.comparison, one.long, "last"), one.ranking
    ),
    "scores": lambda one: scores.scores_of(one.comparison, one.values),
    "pairs": lambda one: _pairs(one.comparison, one.values),
    "classes": lambda one: _classes(one.comparison),
    "clients": lambda one: _clients(one.comparison),
    "client_scores": lambda one: scores.client_scores_of(one.comparison, one.clients),
    "client_spread": lambda one: scores.client_spread_of(one.comparison, one.clients),
    "new_clients": lambda one: new_clients.new_clients_of(one.comparison, one.long),
    "curves": lambda one: progress.curves_of(one.comparison, one.long),
    "targets": lambda one: progress.targets_of(one.comparison, one.curves),
}
"""What makes each table. `values` are the test metrics at the best rounds, and what runs cost; see
`frame.values_of`."""


def _pairs(comparison: Arrangement, values: pd.DataFrame) -> pd.DataFrame:
    """Return the table of pairs; see `fl.Comparison.pairs`."""
    frames = []
    for place in comparison.places:
        sampling = comparison.sampling_at(place)
        mine = values[(values["place"] == place) & values["value"].notna()]
        for metric in comparison.tested:
            wide = mine[mine["metric"] == metric].pivot(
                index="repetition", columns="method", values="value"
            )
            methods = [name for name in comparison.methods if name in wide]
            sign = -1 if metric in LESS_IS_BETTER else 1
            pairs = [*combinations(methods, 2)]
            if (reference := comparison.reference) is not None:
                others = [name for name in methods if name != reference and reference in methods]
                pairs = [(name, reference) for name in others]
            other = sampling.other_samples if sampling.supports_claims else 0.0
            found = statistics.differences(
                wide, pairs, overlap=sampling.overlap, other_samples=other
            )
            if not sampling.supports_claims:
                found["p"] = nan
            test = CORRECTED if sampling.overlap else PAIRED
            found["test"] = np.where(found["p"].isna(), "", test)
            found["p_holm"] = statistics.correct(found["p"])
            found["verdict"] = statistics.verdicts(sign * found["difference"], found["p_holm"])
            is_open = found["verdict"].eq("no significant difference") & (sampling.overlap == 0)
            effect, count = found["effect"].where(is_open), found["p"].count()
            found["needed"] = statistics.repetitions_needed(effect, max(1, count))
            if sign < 0:
                found["probability"] = 1 - found["probability"]
            frames.append(found.assign(place=place, metric=metric)[list(PAIRS)])
    return pd.concat([frame for frame in frames if len(frame)] or frames[:1], ignore_index=True)


def _leaderboard(
    comparison: Arrangement, values: pd.DataFrame, last: pd.DataFrame, pairs: pd.DataFrame
) -> pd.DataFrame:
    """Return the leaderboard from what `frame.values_of` has at the best and at the last round."""
    by = ["place", "method"]
    # A metric of the user's own may be called like another column; it is in the table of scores.
    taken = (*LEADERBOARD, *PRICES, "better_than")
    others = [*(name for name in comparison.columns[1:] if name not in taken), *PRICES]
    mine = values[values["metric"] == comparison.metric]
    limits = (0.0, 1.0) if comparison.metric in SHARES else None
    board = over_repetitions(mine, by, "value", comparison.overlaps, limits).set_index(by)
    # Means over different repetitions cannot be compared.
    means, after = (
        mean.where(count.eq(board["n"], axis=0)).reindex(columns=names)
        for (mean, count), names in ((_means(values), others), (_means(last), [comparison.metric]))
    )
    board = board.assign(last=after[comparison.metric]).join(means).reset_index()
    repetitions = mine.groupby("place")["repetition"].nunique()
    is_ranked = board["n"] == board["place"].map(repetitions)
    level = statistics.rounded(board["mean"])
    places = level.where(is_ranked).groupby(board["place"])
    board["rank"] = places.rank(method="min", ascending=False)
    order = board.assign(lacks=~is_ranked, level=-level)
    board = board.loc[order.sort_values(["lacks", "level"], kind="stable").index]
    boards = []
    for place in comparison.places:
        rows = board[board["place"] == place]
        names = [*rows["method"]]
        tests = pairs[pairs["place"] == place]
        p = pd.DataFrame(nan, index=names, columns=names)
        won = set()
        for row in tests.to_dict("records"):
            first, second = row["first"], row["second"]
            p.loc[first, second] = p.loc[second, first] = row["p_holm"]
            if row["verdict"] in ("better", "worse"):
                won.add((first, second) if row["verdict"] == "better" else (second, first))
        letters = {} if comparison.reference else statistics.letters(p)
        better = [tuple(other for other in names if (name, other) in won) for name in names]
        groups = rows["method"].map(letters).fillna("")
        boards.append(rows.assign(groups=groups, better_than=pd.Series(better, index=rows.index)))
    found = pd.concat(boards, ignore_index=True)[[*LEADERBOARD, *others, "better_than"]]
    if found["rank"].notna().all():
        return found.astype({"rank": int})
    ranks = [nan if np.isnan(rank) else int(rank) for rank in found["rank"]]
    return found.assign(rank=pd.Series(ranks, dtype=object))  # whole numbers beside NaN


def _means(values: pd.DataFrame) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Return the mean and the count of each metric of each method of each place."""
    groups = values.groupby(["place", "method", "metric"])["value"]
    mean, count = groups.mean().unstack("metric"), groups.count().unstack("metric")
    return pd.DataFrame(mean), pd.DataFrame(count)


def _rows(comparison: Arrangement, name: str) -> pd.DataFrame:
    """Return the rows of `classes` or `clients` of all runs at their best rounds.

    They have the number of the run as `run`, the columns of RUN, and the method as `algorithm`.
    """
    tables: list[pd.DataFrame] = [getattr(entry.run, name) for entry in comparison.entries]
    rows = pd.concat(tables, keys=range(len(tables)), names=["run"]).reset_index("run")
    rows = rows[rows["moment"] == "best"].reset_index(drop=True)
    return rows.join(comparison.runs[[*RUN, "algorithm"]], on="run")


def _of_counts(
    comparison: Arrangement,
    rows: pd.DataFrame,
    key: str,
    function: Callable[[NDArray[np.int64]], NDArray[Any]],
) -> list[float]:
    """Return for each row of a run what a function of its `client_counts` has there, or NaN."""
    counts = [entry.run.client_counts for entry in comparison.entries]
    known = [None if one is None else function(one) for one in counts]
    places = zip(rows["run"], rows[key], strict=True)
    return [nan if (found := known[run]) is None else found[number] for run, number in places]


def _classes(comparison: Arrangement) -> pd.DataFrame:
    """Return the table of classes; see `fl.Comparison.classes`."""
    rows = _rows(comparison, "classes")
    rows["holders"] = _of_counts(comparison, rows, "class", lambda one: (one > 0).sum(axis=0))
    one = ["place", "repetition", "class"]
    base = rows[rows["method"] == comparison.baseline].set_index(one)["recall"].rename("base")
    rows = rows.join(base, on=one)
    is_other = rows["method"] != comparison.baseline
    rows["difference"] = (rows["recall"] - rows["base"]).where(is_other)
    by = ["place", "method", "class"]
    found = rows.groupby(by, sort=False).agg(
        name=("name", "first"),
        **{name: (name, "mean") for name in ("train_support", "test_support", "holders")},
        **{name: (name, "any") for name in ("rare", "confusable")},
    )
    for score in CLASS_SCORES:
        over = scores.score_over(rows, by, score, comparison, (0.0, 1.0))
        found = found.join(over if score == "recall" else over.drop(columns="n"))
    gaps = over_repetitions(rows, by, "difference", comparison.overlaps, (-1.0, 1.0)).set_index(by)
    gaps = gaps.rename(columns={"mean": "difference"})[["difference", "low", "high"]]
    return in_order(found.join(gaps).reset_index(), comparison, "class")[list(CLASSES)]


def _clients(comparison: Arrangement) -> pd.DataFrame:
    """Return the table of clients; see `fl.Comparison.clients`."""
    rows = _rows(comparison, "clients")
    rows["skew"] = _of_counts(comparison, rows, "client", skews)
    rows = rows.reindex(columns=list(dict.fromkeys([*rows.columns, *CLIENTS])))
    rows["name"] = rows["name"].fillna("")
    key = ["place", "repetition", "client"]
    for column, baseline in (("gain", LOCAL), ("gain_ft", FINE_TUNED)):
        mine = rows[rows["algorithm"] == baseline].drop_duplicates(key).set_index(key)["accuracy"]
        rows[column] = rows["accuracy"] - rows[key].join(mine.rename("base"), on=key)["base"]
    return rows[list(CLIENTS)]


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
