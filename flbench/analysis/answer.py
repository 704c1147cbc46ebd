"""What the tables of a comparison say, in sentences.

Each sentence is true for the tables that it is made from: "better" means a significant difference
after the correction for several tests.
"""

from collections.abc import Sequence
from math import nan
from typing import Final

import numpy as np
import pandas as pd

from flbench.analysis.arrangement import Arrangement
from flbench.analysis.statistics import ALPHA, CLAIM_FROM, Across
from flbench.core.text import one_line
from flbench.reports.shown import size

MOST_NAMES: Final = 5  # more methods are counted, not named
MOST_PLACES: Final = 4  # of more places, the sentences are about all places together
VERDICTS: Final = ("better", "worse", "no significant difference")
WORDS: Final = {
    "macro_f1": "macro F1",
    "worst10_accuracy": "accuracy of worst 10 %",
    "rare_f1": "rare F1",
    "auroc": "AUROC",
}


def sentences(
    comparison: Arrangement, leaderboard: pd.DataFrame, pairs: pd.DataFrame, across: Across | None
) -> tuple[str, ...]:
    """Return what a comparison says: which methods are best, how sure that is, and what they cost.

    Args:
        comparison: The runs.
        leaderboard: See `fl.Comparison.leaderboard`.
        pairs: See `fl.Comparison.pairs`.
        across: The comparison over places; None for a single place.

    Returns:
        A paragraph about each place, unless there are many, with one about all places before them:
        which method is best (with a reference: what that has), and from which others the tests tell
        it apart, or why they tell nothing. Then a sentence about bytes.
    """
    found = []
    if across is not None and comparison.reference is None:
        found.append(_over_places(comparison, leaderboard, across))
    if not found or len(comparison.places) <= MOST_PLACES or comparison.reference is not None:
        for place in comparison.places:
            rows = leaderboard[leaderboard["place"] == place]
            if comparison.reference in (None, *rows["method"]):
                found.append(_at_place(comparison, place, rows, pairs[pairs["place"] == place]))
    first = leaderboard["method"].iloc[0] if across is None else str(across.ranks.index[0])
    return (*found, _bytes(comparison, leaderboard, comparison.reference or first))


def _at_place(comparison: Arrangement, place: str, rows: pd.DataFrame, tests: pd.DataFrame) -> str:
    """Return which method of a place is best, and what the tests say about the others beside it."""
    of = {row["method"]: row for row in rows.to_dict("records")}
    main, metric = comparison.reference or next(iter(of)), words(comparison.metric)
    row, others = of[main], [name for name in of if name != main]
    sampling, clients = comparison.sampling_at(place), comparison.at(place)[0].run.summary
    where = f"On {place} with {clients['clients']} clients"
    where = ", ".join(filter(None, [where, sampling.population]))
    value = f"{row['mean']:.3f}"
    if not np.isnan(row["low"]):
        value += f" (95 % interval {row['low']:.3f} to {row['high']:.3f})"
    like = [name for name in others if of[name]["rank"] == row["rank"]]
    if comparison.reference is not None or not others:
        found = [f"{where}, {main} has a test {metric} of {value}"]
        if not others:
            found[0] += f" ({_runs(row['n'])})"
    elif len(like) == len(others):
        return f"{where}, {_listed([main, *like])} have the same test {metric}, {value}."
    else:
        best = f"{listing([main, *like])} {'have' if like else 'has'}"
        found = [f"{where}, {best} the largest test {metric}, {value}"]
        if rows["mean"].max() > row["mean"] and not np.isnan(row["rank"]):
            found[0] += " (of the methods that have all repetitions)"
    lacking = [name for name in of if np.isnan(of[name]["rank"])]
    if why := _why_not(comparison, place, row["n"]):
        found += [f"{why} support no claim that a method is better".capitalize()] * bool(others)
    else:
        found += _tested(main, others, tests)
    if lacking:
        found.append(f"Not ranked, because repetitions are missing: {_listed(lacking)}")
    return f"{'. '.join(found)}."


def _tested(main: str, others: Sequence[str], tests: pd.DataFrame) -> list[str]:
    """Return from which methods the tests tell a method apart, and from which they do not."""
    turned = {"better": "worse", "worse": "better"}
    said: dict[str, str] = {}
    gaps: dict[str, float] = {}
    for row in tests.to_dict("records"):
        if main in (row["first"], row["second"]):
            is_first = row["first"] == main
            other, verdict = row["second" if is_first else "first"], row["verdict"]
            said[other] = verdict if is_first else turned.get(verdict, verdict)
            gaps[other] = row["difference"] if row["n"] >= CLAIM_FROM else nan
    verdicts = {name: [one for one in others if said.get(one) == name] for name in VERDICTS}
    untested = [one for one in others if said.get(one, "no claim") == "no claim"]
    equal = [one for one in untested if gaps.get(one) == 0]
    parts = {
        f"{main} is better than": verdicts["better"],
        f"{main} is worse than": verdicts["worse"],
        f"No significant difference between {main} and": verdicts["no significant difference"],
        f"Equal to {main} in each repetition:": equal,
        f"No test compares {main} with": [one for one in untested if one not in equal],
    }
    return [f"{text} {_listed(names, len(others))}" for text, names in parts.items() if names]


def _why_not(comparison: Arrangement, place: str, n: int) -> str:
    """Return which repetitions of a place support no claim; "" if they do."""
    few = f"fewer than {CLAIM_FROM} repetitions" if n < CLAIM_FROM else ""
    return few or comparison.sampling_at(place).why_not


def _over_places(comparison: Arrangement, leaderboard: pd.DataFrame, across: Across) -> str:
    """Return what the ranks over places say."""
    names = [str(name) for name in across.ranks.index]
    best = [name for name in names if across.ranks[name] == across.ranks.iloc[0]]
    kinds = f" of {across.blocks} kinds of partition" if across.blocks < across.places else ""
    found = [
        f"Over {across.places} data sets or settings{kinds}, {listing(best)}"
        f" {'has' if len(best) == 1 else 'have'} the best mean rank by test"
        f" {words(comparison.metric)}, {across.ranks.iloc[0]:.2g} on the scale from 1 to"
        f" {len(names)}"
    ]
    fewest = int(leaderboard.loc[leaderboard["method"].isin(names), "n"].min())
    reasons = [_why_not(comparison, place, fewest) for place in comparison.places]
    p = across.nemenyi[best[0]].to_dict()
    worse = [name for name in names if p[name] < ALPHA]
    if why := next(filter(None, reasons), ""):
        found.append(f"{why} in a place support no claim that a method is better".capitalize())
    elif len(names) < 3:
        found.append("Friedman's test needs three methods or more")
    elif not across.friedman < ALPHA:
        found.append(
            "Friedman's test sees no significant difference between the methods"
            f" (p = {across.friedman:.2g})"
        )
    elif worse:
        others = _listed(worse, len(names) - 1)
        found.append(f"By Nemenyi's test, {best[0]} is better than {others}")
    else:
        found.append(f"Nemenyi's test does not tell {best[0]} from any other method")
    if lacking := [name for name in comparison.methods if name not in names]:
        found.append(f"Not ranked, because a place or repetitions are missing: {_listed(lacking)}")
    return f"{'. '.join(found)}."


def _bytes(comparison: Arrangement, leaderboard: pd.DataFrame, main: str) -> str:
    """Return what a method sends in all places together, beside few others or the cheapest."""
    groups = leaderboard.groupby("method", sort=False)["bytes"]
    places = groups.count().to_dict()
    sums = {str(name): float(cost) for name, cost in groups.sum().items()}
    costs = {name: cost for name, cost in sums.items() if places[name] == places[main]}
    per = "in a run" if len(comparison.places) == 1 else "with one run in each place"
    beside = sorted(costs, key=lambda name: (name == main, costs[name]))
    if len(beside) > MOST_NAMES:
        beside = [name for name in dict.fromkeys((comparison.baseline, beside[0])) if name in costs]
    others = [f"{name} {_sent(costs[name])}" for name in beside if name != main]
    return f"{main} sends {_sent(costs[main])} {per}{''.join(f', {one}' for one in others)}."


def _sent(count: float) -> str:
    return "nothing" if count == 0 else size(count)


def _runs(n: int) -> str:
    return "one run" if n == 1 else f"mean of {n} runs"


def words(metric: str) -> str:
    """Return the name of a metric in words.

    >>> words("macro_f1"), words("balanced_accuracy")
    ('macro F1', 'balanced accuracy')
    """
    return WORDS.get(metric, one_line(metric.replace("_", " ")))


def _listed(names: Sequence[str], of: int | None = None) -> str:
    """Return names in a sentence; as a number if there are many.

    >>> _listed(["a"], 3), _listed(list("abc"), 3), _listed(list("abcdef"), 8)
    ('a', 'a, b and c', '6 of the 8 others')
    """
    if len(names) <= MOST_NAMES:
        return listing(names)
    if of is None:
        return f"{len(names)} methods"
    return f"each of the {of} others" if len(names) == of else f"{len(names)} of the {of} others"


def listing(names: Sequence[str]) -> str:
    """Return names as a list in a sentence.

    >>> listing(["a"]), listing(["a", "b", "c"])
    ('a', 'a, b and c')
    """
    return " and ".join(filter(None, [", ".join(names[:-1]), names[-1]]))
