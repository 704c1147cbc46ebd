"""What the tables of a comparison say, in sentences.

Each sentence is true for the tables that it is made from: "better" means a significant difference
after the correction for several tests.
"""

from collections.abc import Sequence
from typing import Final

import numpy as np
import pandas as pd

from flbench.comparison.arrangement import Comparison
from flbench.comparison.statistics import Across
from flbench.reports.statistics import ALPHA, CLAIM_FROM
from flbench.reports.tables import size

MOST_NAMES: Final = 5  # more methods are counted, not named


def sentences(
    comparison: Comparison, leaderboard: pd.DataFrame, pairs: pd.DataFrame, across: Across | None
) -> tuple[str, ...]:
    """Return what a comparison says: which methods are best, how sure that is, and what they cost.

    Args:
        comparison: The runs.
        leaderboard: See `Analysis.leaderboard`.
        pairs: See `Analysis.pairs`.
        across: The comparison over places; None for a single place.
    """
    found = [] if across is None else [_over_places(comparison, across)]
    for place in comparison.places:
        rows = leaderboard[leaderboard["place"] == place]
        tests = pairs[pairs["place"] == place]
        found += _at_place(comparison, place, rows, tests)
    return tuple(found)


def _over_places(comparison: Comparison, across: Across) -> str:
    """Return what the ranks over places say."""
    names = list(across.ranks.index)
    best = names[0]
    opening = (
        f"Over {across.places} data sets or settings, {best} has the best mean rank by"
        f" {_words(comparison.metric)} ({across.ranks.iloc[0]:.1f} of {len(names)} methods)"
    )
    if len(names) < 3:
        return f"{opening}; Friedman's test needs three methods or more."
    if not across.friedman < ALPHA:
        return (
            f"{opening}, but Friedman's test sees no significant difference between the ranks of"
            f" the methods (p = {across.friedman:.2g})."
        )
    worse = [name for name in names if across.nemenyi.loc[best, name] < ALPHA]
    if not worse:
        return f"{opening}; Nemenyi's test does not tell it from any other method."
    return f"{opening}, and is better than {_listed(worse, len(names) - 1)} by Nemenyi's test."


def _at_place(
    comparison: Comparison, place: str, rows: pd.DataFrame, tests: pd.DataFrame
) -> list[str]:
    """Return the sentences about one place."""
    entry = comparison.at(place)[0]
    clients = entry.run.summary.get("clients", entry.run.config.partition.clients)
    where = f"On {place} with {clients} clients"
    what = _words(comparison.metric)
    best = rows.iloc[0]
    value = _value(best)
    others = [str(name) for name in rows["method"] if name != best["method"]]
    if not others:
        return [
            f"{where}, {best['method']} has a test {what} of {value}"
            f" ({_runs(int(best['n']))}), and sends {_sent(best['bytes'])}."
        ]
    if best["n"] < CLAIM_FROM:
        return [
            f"{where}, {best['method']} has the largest test {what}, {value}; with fewer than"
            f" {CLAIM_FROM} repetitions that is no claim that it is better.",
            _price(rows, [str(best["method"])], comparison.baseline),
        ]
    beaten = [name for name in others if _is_better(tests, str(best["method"]), name)]
    equal = [name for name in others if name not in beaten]
    top = [str(best["method"]), *equal]
    if not equal:
        first = (
            f"{where}, {best['method']} has the largest test {what}, {value}, and is better than"
            f" {_listed(beaten, len(others))}."
        )
    elif not beaten:
        first = (
            f"{where}, {best['method']} has the largest test {what}, {value}, but no significant"
            f" difference to {_listed(equal, len(others), all_others='any other method')}."
        )
    elif _is_group(tests, top, beaten):
        first = (
            f"{where}, {_and(top) if len(top) <= MOST_NAMES else f'the first {len(top)} methods'}"
            f" show no significant difference in test {what} ({best['method']}: {value}), and are"
            f" better than {_listed(beaten, len(others) + 1 - len(top))}."
        )
    else:
        first = (
            f"{where}, {best['method']} has the largest test {what}, {value}; it is better than"
            f" {_listed(beaten, len(others))}, and shows no significant difference to"
            f" {_listed(equal, len(others))}."
        )
    return [first, _price(rows, top, comparison.baseline)]


def _price(rows: pd.DataFrame, top: Sequence[str], baseline: str) -> str:
    """Return what the best methods cost: the cheapest of them, beside another method."""
    costs = dict(zip(rows["method"], rows["bytes"], strict=True))
    cheap = min(top, key=lambda name: costs[name])
    if len(top) > 1:
        dear = max(top, key=lambda name: costs[name])
        if costs[cheap] == costs[dear]:
            return f"Each of these {len(top)} methods sends {_sent(costs[cheap])} in a run."
        return (
            f"Of these {len(top)} methods, {cheap} sends the fewest bytes: {_sent(costs[cheap])} in"
            f" a run, {_ratio(costs[cheap], costs[dear], dear)}."
        )
    others = [name for name in costs if name != cheap and costs[name]]
    other = baseline if baseline in others else next(iter(others), None)
    beside = "" if other is None else f", {_ratio(costs[cheap], costs[other], other)}"
    return f"It sends {_sent(costs[cheap])} in a run{beside}."


def _ratio(cost: float, other_cost: float, other: str) -> str:
    """Return how many bytes a method sends beside another one.

    >>> _ratio(10.0, 700.0, "a"), _ratio(13.0, 10.0, "a"), _ratio(10.0, 10.1, "a")
    ('1/70 of the bytes of a', '1.3 times the bytes of a', 'as many bytes as a')
    """
    share = cost / other_cost
    if cost == 0:
        return f"while {other} sends {_sent(other_cost)}"
    if 0.95 < share < 1.05:
        return f"as many bytes as {other}"
    if share <= 0.5:
        return (
            f"1/{1 / share:.2g} of the bytes of {other}"
            if share > 0.01
            else (f"1/{1 / share:.0f} of the bytes of {other}")
        )
    return f"{share:.2g} times the bytes of {other}"


def _is_better(tests: pd.DataFrame, first: str, second: str) -> bool:
    """Return whether a test says that the first method is better than the second."""
    for row in tests.itertuples():
        if (row.first, row.second) == (first, second):
            return bool(row.verdict == "better")
        if (row.first, row.second) == (second, first):
            return bool(row.verdict == "worse")
    return False


def _is_group(tests: pd.DataFrame, top: Sequence[str], beaten: Sequence[str]) -> bool:
    """Return whether methods do not differ, and each of them is better than all the others."""
    differ = any(_is_better(tests, one, other) for one in top for other in top)
    return not differ and all(_is_better(tests, one, other) for one in top for other in beaten)


def _value(row: pd.Series) -> str:
    """Return a mean with half the width of its interval."""
    if np.isnan(row["low"]):
        return f"{row['mean']:.3f}"
    return f"{row['mean']:.3f} [{row['low']:.3f}, {row['high']:.3f}]"


def _runs(n: int) -> str:
    return "one run" if n == 1 else f"mean of {n} runs"


def _sent(count: float) -> str:
    return "nothing" if count == 0 else size(count)


def _words(metric: str) -> str:
    """Return the name of a metric in words.

    >>> _words("macro_f1"), _words("worst10_accuracy"), _words("rare_recall")
    ('macro F1', 'accuracy of the worst tenth of the clients', 'rare class recall')
    """
    known = {
        "macro_f1": "macro F1",
        "worst10_accuracy": "accuracy of the worst tenth of the clients",
        "rare_recall": "rare class recall",
        "auroc": "AUROC",
    }
    return known.get(metric, metric.replace("_", " "))


def _listed(names: Sequence[str], of: int, all_others: str | None = None) -> str:
    """Return names in a sentence; as a number if there are many.

    Args:
        names: The names.
        of: Number of all other methods.
        all_others: What stands for all others; by default how many they are.

    >>> _listed(["a"], 3), _listed(["a", "b"], 2), _listed(list("abcdef"), 8)
    ('a', 'both others', '6 of the 8 others')
    """
    if len(names) == of and of > 1:
        if all_others is not None:
            return all_others
        return "both others" if of == 2 else f"the other {of}"
    return _and(names) if len(names) <= MOST_NAMES else f"{len(names)} of the {of} others"


def _and(names: Sequence[str]) -> str:
    """Return names as a list in a sentence.

    >>> _and(["a"]), _and(["a", "b", "c"])
    ('a', 'a, b and c')
    """
    return " and ".join(filter(None, [", ".join(names[:-1]), names[-1]]))
