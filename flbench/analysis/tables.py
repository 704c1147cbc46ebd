"""The tables of a comparison, from which its report is written.

All metrics are those of the models that are deployed to the clients, on their test parts, at the
best round by validation; without validation parts at the last round.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import combinations
from math import nan
from typing import Final

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


@dataclass(frozen=True)
class Analysis:
    """The tables of a comparison. NaN stands for what there is not.

    Attributes:
        comparison: The runs.
        long: A row for each metric of each evaluation of each run, from which any other program can
            compute the tables: `place`, `method`, `repetition`, `seed`; `split` (`validation`,
            `test` or `common`), `deployment` (`personal` for the clients' own models), `metric` and
            `value`; `round`; whether it is the `best` round by validation, and the `last` one;
            `trainings` of clients, `bytes` of all clients and `seconds` until then, if each round
            takes equally long; and `path`, the run folder.
        leaderboard: A row for each method of each place, best first. `mean`, `low`, `high`: the
            metric, with its 95 % interval over repetitions; `std`: standard deviation of the
            repetitions; `rank`: 1 for the best mean, NaN for a method that lacks repetitions of the
            place, because its mean is over others; such methods are the last ones, unless none has
            all repetitions; `groups`: methods without a common letter differ significantly; a
            method that was not tested has none, nor has any if only some pairs are tested or there
            are more than eight methods; `last`: mean of the metric after the last round; means of
            the other columns of `Arrangement.columns`, and always of `bytes` (of all clients and
            rounds, set-up included) and `seconds` (training and evaluation); `better_than`: tuple
            of methods that this one is significantly better than.
        scores: A row for each method of each place and each of its test metrics, `bytes` and
            `seconds`: the number `n` of repetitions that have it, `mean`, standard deviation `std`,
            and the 95 % interval `low`, `high` of the mean.
        pairs: A row for each metric of `Arrangement.tested` and every two methods of a place; see
            `statistics.differences`. With a reference there are only the pairs with it, and it is
            the second method. `p` is the p-value of the `test` that decides, one of TESTS, for the
            population of `Sampling.population`; NaN where the repetitions support no claim.
            `p_holm` is `p` after the correction for all pairs of the place in this metric, and
            decides the verdict: a method is `better` with more of the metric, and with less of one
            such as `nll`. `corrected` is NaN on one partition. `needed`: see
            `statistics.repetitions_needed`; NaN for significant differences, and where repetitions
            are not independent.
        classes: A row for each class and method of a place: means over repetitions; `n` is the
            number of repetitions with test samples of the class, over which recall and F1 are
            means; `holders` is the number of clients with training samples of the class;
            `difference`: recall minus the baseline's, with its interval, which is not corrected for
            the number of classes. A class without test samples in a repetition has neither recall
            nor F1 there; its precision is 0, as is that of a class that is never predicted.
            `recall_std`, `recall_low`, `recall_high` and the like: standard deviation of a score,
            and interval of its mean.
        clients: A row for each client of each run. `accuracy` is that of the test part. `skew`:
            total variation distance between the class shares of the client's training part and
            those of all clients', in [0, 1]; `gain`: accuracy minus that of `local` for the same
            client and repetition; `gain_ft`: the same for `ft`, fine-tuned FedAvg.
        client_scores: A row for each client and method of a place whose repetitions have the same
            clients: over the `n` repetitions in which the client has test samples, the mean
            `accuracy`, its standard deviation and interval, and those of `gain`. Empty for places
            whose repetitions draw clients anew.
        client_spread: A row for each method of each place and each measure, over repetitions: of
            the clients of a run with test samples, the mean accuracy, its standard deviation,
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
            for, or `evaluation.target_accuracy`; without either there are no rows. `reached` of the
            `n` repetitions reach it, which is `share`. `rounds`, `bytes` and `seconds` are medians
            over all repetitions; one that does not reach the target is censored at its end and
            counts as later than all others. Where half of them or more do not, the median is NaN,
            and `least_rounds`, `least_bytes` and `least_seconds` are the costs that it exceeds.
            `rounds_min`, `rounds_max` and the like are the smallest and the largest cost of the
            repetitions that reach the target.
        across: The comparison over places; None for a single place.
        answer: What the tables say, in sentences.
        train_counts: Training samples [N, C] by client and class, by place and repetition, as far
            as the run folders have them.
    """

    comparison: Arrangement
    long: pd.DataFrame
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


def analyse(comparison: Arrangement) -> Analysis:
    """Return the tables of a comparison.

    Raises:
        DataError: A file of a run is damaged.
    """
    long = long_of(comparison)
    values = values_of(comparison, long)
    pairs = _pairs(comparison, values)
    ranking = pairs[pairs["metric"] == comparison.metric]
    leaderboard = _leaderboard(comparison, values, values_of(comparison, long, "last"), ranking)
    means = leaderboard[leaderboard["rank"].notna()].pivot(
        index="place", columns="method", values="mean"
    )
    wide = means.reindex(index=list(comparison.places), columns=list(comparison.methods))
    across = statistics.across(wide, comparison.kinds)
    clients = _clients(comparison)
    curves = progress.curves_of(comparison, long)
    targets = progress.targets_of(comparison, curves)
    said = answer.sentences(comparison, leaderboard, ranking, across)
    return Analysis(
        comparison=comparison,
        long=long,
        leaderboard=leaderboard,
        scores=scores.scores_of(comparison, values),
        pairs=pairs,
        classes=_classes(comparison),
        clients=clients,
        client_scores=scores.client_scores_of(comparison, clients),
        client_spread=scores.client_spread_of(comparison, clients),
        new_clients=new_clients.new_clients_of(comparison, long),
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


def _pairs(comparison: Arrangement, values: pd.DataFrame) -> pd.DataFrame:
    """Return the table of pairs; see `Analysis.pairs`."""
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
    """Return the leaderboard; see `Analysis.leaderboard`.

    Args:
        comparison: The runs.
        values: Metrics at the best round, and costs; see `frame.values_of`.
        last: The same at the last round.
        pairs: The rows of `Analysis.pairs` of the metric that ranks.
    """
    by = ["place", "method"]
    # A metric of the user's own may be called like another column; it is in the table of scores.
    taken = (*LEADERBOARD, *PRICES, "better_than")
    others = [*(name for name in comparison.columns[1:] if name not in taken), *PRICES]
    mine = values[values["metric"] == comparison.metric]
    limits = (0.0, 1.0) if comparison.metric in SHARES else None
    board = over_repetitions(mine, by, "value", comparison.overlaps, limits)
    repetitions = mine.groupby("place")["repetition"].nunique()
    is_ranked = board["n"] == board["place"].map(repetitions)
    level = statistics.rounded(board["mean"])
    places = level.where(is_ranked).groupby(board["place"])
    board["rank"] = places.rank(method="min", ascending=False)
    after = last[last["metric"] == comparison.metric].groupby(by)["value"].agg(["mean", "count"])
    after = board[by].join(after, on=by)  # no mean over fewer repetitions than the others
    board["last"] = after["mean"].where(after["count"] == board["n"])
    counted = values.groupby([*by, "metric"])["value"].agg(["mean", "count"]).unstack("metric")
    for name in others:
        board[name] = nan
        if ("mean", name) in counted:
            # Means over different repetitions cannot be compared.
            known = board[by].join(counted["count"][name].rename("count"), on=by)["count"]
            means = board[by].join(counted["mean"][name].rename("mean"), on=by)["mean"]
            board[name] = means.where(known == board["n"])
    order = board.assign(lacks=~is_ranked, level=-level).sort_values(
        ["lacks", "level"], kind="stable"
    )
    board = board.loc[order.index]
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


def _classes(comparison: Arrangement) -> pd.DataFrame:
    """Return the table of classes; see `Analysis.classes`."""
    frames = []
    for entry in comparison.entries:
        table, counts = entry.run.class_table(), entry.run.client_counts
        holders = nan if counts is None else (counts > 0).sum(axis=0)[table["class"]]
        run = {name: getattr(entry, name) for name in RUN}
        frames.append(table.assign(**run, holders=holders))
    rows = pd.concat(frames, ignore_index=True)
    # A class without test samples has no recall.
    rows.loc[rows["test_support"] == 0, ["recall", "f1"]] = nan
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
    """Return the table of clients; see `Analysis.clients`."""
    frames = []
    for entry in comparison.entries:
        table, counts = entry.run.client_table(), entry.run.client_counts
        run = {name: getattr(entry, name) for name in RUN}
        skew = nan if counts is None else skews(counts)[table["client"]]
        frames.append(table.assign(**run, skew=skew, algorithm=entry.run.config.algorithm.name))
    rows = pd.concat(frames, ignore_index=True).fillna({"name": ""})
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
