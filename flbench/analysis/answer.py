"""What the tables of a comparison say, in sentences.

Each sentence is true for the tables that it is made from: "better" means a significant difference
after the correction for several tests.
"""

from collections.abc import Mapping, Sequence
from itertools import combinations
from typing import Final, cast

import numpy as np
import pandas as pd

from flbench.analysis.arrangement import Arrangement
from flbench.analysis.statistics import ALPHA, CLAIM_FROM, Across, Verdict
from flbench.reports.tables import size

MOST_NAMES: Final = 5  # more methods are counted, not named
NEAR: Final = 0.05  # numbers of bytes that differ by a smaller share are about equal
MOST_PLACES: Final = 4  # of more places, the sentences are about all places together


def sentences(
    comparison: Arrangement, leaderboard: pd.DataFrame, pairs: pd.DataFrame, across: Across | None
) -> tuple[str, ...]:
    """Return what a comparison says: which methods are best, how sure that is, and what they cost.

    Args:
        comparison: The runs.
        leaderboard: See `Analysis.leaderboard`.
        pairs: See `Analysis.pairs`.
        across: The comparison over places; None for a single place.

    Returns:
        Of one place two sentences, about the metric and about the bytes. Of several places the same
        two over all places, and one about the metric for each place unless there are many. Of a
        comparison with a reference, a sentence for each place about the others beside it, and one
        about the bytes.
    """
    if comparison.leading:
        leaderboard = leaderboard[leaderboard["method"].isin(comparison.leading)]
    places = [
        (place, leaderboard[leaderboard["place"] == place], pairs[pairs["place"] == place])
        for place in comparison.places
    ]
    if comparison.reference is not None:
        beside = [_beside_reference(comparison, *each) for each in places]
        return tuple(filter(None, [*beside, _reference_price(comparison, leaderboard)]))
    if len(places) == 1:
        found = [*_at_place(comparison, *places[0])]
    else:
        found = [] if across is None else [*_over_places(comparison, leaderboard, across)]
        if across is None or len(places) <= MOST_PLACES:
            found += [_at_place(comparison, *each)[0] for each in places]
    return tuple(found)


def _beside_reference(
    comparison: Arrangement, place: str, rows: pd.DataFrame, tests: pd.DataFrame
) -> str:
    """Return the metric of the reference in a place, and what the tests say about the others.

    Returns:
        The sentences; "" if the place does not have the reference.
    """
    mine = rows[rows["method"] == comparison.baseline]
    if mine.empty:
        return ""
    clients = comparison.at(place)[0].run.summary["clients"]
    sampling = comparison.sampling_at(place)
    where = ", ".join(filter(None, [f"On {place} with {clients} clients", sampling.population]))
    value = f"a test {words(comparison.metric)} of {_value(mine.iloc[0])}"
    beside = _verdicts(comparison, rows, tests)
    end = f". Beside it, {beside}" if beside else ""
    if beside and (few := _why_not(comparison, place, rows)):
        end += f": {few} support no claim"
    return f"{where}, {comparison.baseline} has {value}{end}."


def _why_not(comparison: Arrangement, place: str, rows: pd.DataFrame) -> str:
    """Return which repetitions of a place support no claim; "" if they do."""
    if rows["n"].max() < CLAIM_FROM:
        return f"fewer than {CLAIM_FROM} repetitions"
    return comparison.sampling_at(place).why_not


def _reference_price(comparison: Arrangement, leaderboard: pd.DataFrame) -> str:
    """Return what the others send beside the reference, in all places together."""
    held = leaderboard.groupby("method", sort=False)["bytes"].agg(["sum", "count"])
    costs = held.loc[held["count"] == len(comparison.places), "sum"].to_dict()
    if (mine := costs.pop(comparison.baseline, None)) is None:
        return ""
    reference = comparison.baseline
    alike = [name for name, cost in costs.items() if abs(cost - mine) <= NEAR * mine]
    different = [
        f"{name} ({_ratio(cost, mine, reference) if mine and cost else _sent(cost)})"
        for name, cost in costs.items()
        if name not in alike
    ]
    per = "in a run" if len(comparison.places) == 1 else "with one run in each place"
    first = f"{reference} sends {_sent(mine)} {per}"
    if len(different) > MOST_NAMES:
        more = [cost for name, cost in costs.items() if name not in alike]
        ends = f"{_sent(min(more))} to {_sent(max(more))}"
        rest = "; the others send about as many bytes" if alike else ""
        return f"{first}; {len(more)} of the {len(costs)} others send {ends}{rest}."
    if not alike:
        return f"{first}; beside it: {listing(different)}." if different else f"{first}."
    is_equal = all(costs[name] == mine for name in alike)
    others = "and so do the others" if is_equal else "and the others send about as many bytes"
    return f"{first}, {others}{f', except {listing(different)}' if different else ''}."


def _verdicts(comparison: Arrangement, rows: pd.DataFrame, tests: pd.DataFrame) -> str:
    """Return the others of a place, grouped by the verdict of their test against the baseline.

    Many methods without a significant difference are counted, not named. Those that are equal to
    the baseline in each repetition are a group of their own.

    Args:
        comparison: The runs.
        rows: Rows of the leaderboard of the place.
        tests: Its pairs.

    Returns:
        The groups in words; "" if the place does not have the baseline, or has nothing else.
    """
    baseline, names = comparison.baseline, [str(name) for name in rows["method"]]
    if baseline not in names:
        return ""
    phrases: dict[Verdict, tuple[str, str]] = {
        "better": ("is better", "are better"),
        "worse": ("is worse", "are worse"),
        "no significant difference": ("shows", "show"),
        "no claim": ("was not tested", "were not tested"),
    }
    parts = []
    equal = _equal(tests, baseline)
    has_claims = not _why_not(comparison, str(rows["place"].iloc[0]), rows)
    constant = _constant(tests, baseline) if has_claims else []
    for verdict, (one, more) in phrases.items():
        those = [
            name
            for name in names
            if name not in (baseline, *equal, *constant)
            if _verdict(tests, name, baseline) == verdict
        ]
        if those:
            end = " no significant difference" if verdict == "no significant difference" else ""
            is_counted = verdict in ("no significant difference", "no claim")
            which = _listed(those, len(names) - 1) if is_counted else listing(those)
            parts.append(f"{which} {one if len(those) == 1 else more}{end}")
    if constant:
        differs = "differs" if len(constant) == 1 else "differ"
        which = _listed(constant, len(names) - 1)
        parts.append(
            f"{which} {differs} by the same amount in each repetition, which no test judges"
        )
    if equal:
        has = "has" if len(equal) == 1 else "have"
        which = _listed(equal, len(names) - 1)
        parts.append(f"{which} {has} the same {words(comparison.metric)} in each repetition")
    return "; ".join(parts)


def _equal(tests: pd.DataFrame, baseline: str) -> list[str]:
    """Return the methods whose difference from the baseline is 0 in each of three repetitions."""
    zero = (tests["difference"] == 0) & tests["paired_t"].isna() & (tests["n"] >= CLAIM_FROM)
    return [str(name) for name in tests.loc[zero & (tests["second"] == baseline), "first"]]


def _constant(tests: pd.DataFrame, baseline: str) -> list[str]:
    """Return the methods with one difference from the baseline in three repetitions, but not 0."""
    same = (tests["difference"] != 0) & tests["paired_t"].isna() & (tests["n"] >= CLAIM_FROM)
    return [str(name) for name in tests.loc[same & (tests["second"] == baseline), "first"]]


def _over_places(
    comparison: Arrangement, leaderboard: pd.DataFrame, across: Across
) -> tuple[str, str]:
    """Return what the ranks over places say, and what the best method sends in all of them."""
    names = [str(name) for name in across.ranks.index]
    best = names[0]
    like = [name for name in names[1:] if across.ranks[name] == across.ranks[best]]
    samplings = [comparison.sampling_at(place) for place in comparison.places]
    one_each = (
        ", each with one partition" if all(one.vary == "training" for one in samplings) else ""
    )
    kinds = f" of {across.blocks} kinds of partition" if across.blocks < across.places else ""
    first = (
        f"Over {across.places} data sets or settings{kinds}{one_each}, {_like(best, like)} has the"
        f" best mean rank by"
        f" test {words(comparison.metric)}, {across.ranks.iloc[0]:.2g} on the scale from 1 to"
        f" {len(names)}"
    )
    beside = across.nemenyi[best].to_dict()
    worse = [name for name in names if float(beside[name]) < ALPHA]
    ranked = leaderboard[leaderboard["method"].isin(names)]  # with all repetitions everywhere
    if ranked["n"].min() < CLAIM_FROM:
        first += (
            f"; fewer than {CLAIM_FROM} repetitions in a place support no claim that it is better."
        )
    elif few := next(filter(None, (one.why_not for one in samplings)), ""):
        first += f"; {few} in a place support no claim that it is better."
    elif len(names) < 3:
        first += "; Friedman's test needs three methods or more."
    elif not across.friedman < ALPHA:
        first += (
            ", but Friedman's test sees no significant difference between the methods"
            f" (p = {across.friedman:.2g})."
        )
    elif not worse:
        first += "; Nemenyi's test does not tell it from any other method."
    else:
        first += f"; it is better than {_listed(worse, len(names) - 1)} by Nemenyi's test."
    if left_out := [name for name in comparison.methods if name not in names]:
        is_are, lack = ("is", "it lacks") if len(left_out) == 1 else ("are", "they lack")
        held = leaderboard[leaderboard["rank"].notna()].groupby("method")["place"].nunique()
        there = leaderboard.groupby("method")["place"].nunique()
        has_all = [name for name in left_out if there.get(name) == across.places]
        what = "repetitions" if has_all == left_out else "a place or repetitions"
        if not has_all and all(held.get(name) == there.get(name) for name in left_out):
            what = "a place"
        first += f" {listing(left_out)} {is_are} not ranked, because {lack} {what}."
    costs = {name: float(ranked.loc[ranked["method"] == name, "bytes"].sum()) for name in names}
    sent = _price(costs, [best, *like], comparison.baseline, "with one run in each")
    return first, f"Over all places, {sent}"


def _at_place(
    comparison: Arrangement, place: str, rows: pd.DataFrame, tests: pd.DataFrame
) -> tuple[str, str]:
    """Return the sentences about one place: about the metric, and about the bytes."""
    clients = comparison.at(place)[0].run.summary["clients"]
    what = f"test {words(comparison.metric)}"
    row = rows.iloc[0]
    best, value = str(row["method"]), _value(row)
    costs = dict(zip(map(str, rows["method"]), rows["bytes"], strict=True))
    others = [name for name in costs if name != best]
    sampling = comparison.sampling_at(place)
    where = ", ".join(filter(None, [f"On {place} with {clients} clients", sampling.population]))
    if not others:
        one = f"{where}, {best} has a {what} of {value} ({_runs(int(row['n']))})."
        return one, _upper(_price(costs, [best], comparison.baseline))
    like = [str(name) for name in rows.loc[rows["rank"] == row["rank"], "method"] if name != best]
    if len(like) == len(others):
        which = "both methods" if len(costs) == 2 else f"all {len(costs)} methods"
        first = f"{where}, {which} have the same {what}, {value}: it tells none of them apart."
        return first, _upper(_price(costs, [best, *like], comparison.baseline))
    opening = f"{where}, {_like(best, like)} has the largest {what}, {value}"
    if rows["mean"].max() > row["mean"] and not np.isnan(row["rank"]):
        opening += " (of the methods that have all repetitions)"
    said = {name: _verdict(tests, best, name) for name in others}
    beaten = [name for name in others if said[name] == "better"]
    above = [name for name in others if said[name] == "worse"]
    equal = [name for name in others if said[name] == "no significant difference"]
    unknown = [name for name in others if said[name] == "no claim" and name not in like]
    top = [best, *equal]
    if few := _why_not(comparison, place, rows.iloc[:1]):
        first = f"{opening}; {few} support no claim that it is better."
        return first, _upper(_price(costs, [best, *like], comparison.baseline))
    if not (beaten or equal):
        first = f"{opening}."
    elif not equal:
        first = f"{opening}, and is better than {_listed(beaten, len(others))}."
    elif not beaten:
        first = (
            f"{opening}, but no significant difference from"
            f" {_listed(equal, len(others), all_others='any other method')}."
        )
    elif _is_group(tests, top, beaten) and not like:
        whole = listing(top) if len(top) <= MOST_NAMES else f"the first {len(top)} methods"
        first = (
            f"{where}, {whole} show no significant difference in {what} ({best}: {value}), and are"
            f" better than {_listed(beaten, len(others) + 1 - len(top))}."
        )
    else:
        first = (
            f"{opening}; it is better than {_listed(beaten, len(others))}, and shows no significant"
            f" difference from {_listed(equal, len(others))}."
        )
    if above:
        first += f" Over the repetitions that both have, it is worse than {listing(above)}."
    if unknown:
        which = _listed(unknown, len(others), all_others="any other method")
        first += f" No test compares it with {which}."
    if unranked := [str(name) for name in rows.loc[rows["rank"].isna(), "method"]]:
        is_are, lack = ("is", "it lacks") if len(unranked) == 1 else ("are", "they lack")
        first += f" {listing(unranked)} {is_are} not ranked, because {lack} repetitions."
    return first, _upper(_price(costs, top, comparison.baseline))


def _like(best: str, others: Sequence[str]) -> str:
    """Return the best method with those that have the same value.

    >>> _like("a", []), _like("a", ["b", "c"])
    ('a', 'a, like b and c,')
    """
    return f"{best}, like {listing(others)}," if others else best


def _price(
    costs: Mapping[str, float], top: Sequence[str], baseline: str, per: str = "in a run"
) -> str:
    """Return what the best methods send, beside each other or beside another method.

    >>> _price({"a": 10.0, "b": 700.0, "c": 0.0}, ["a"], "b")
    'a sends 10 B in a run, 1/70 of the bytes of b.'
    >>> _price({"a": 10.0, "b": 700.0, "c": 0.0}, ["a", "b", "c"], "b")
    'of a, b and c, c sends nothing; of the others, a sends the fewest bytes: 10 B in a run, 1/70 of the bytes of b.'
    """  # noqa: E501
    silent = [name for name in top if not costs[name]]
    loud = [name for name in top if costs[name]]
    which = listing(top) if len(top) <= MOST_NAMES else f"these {len(top)} methods"
    if len(top) == 1 or not loud:
        known = [name for name in costs if name not in top and costs[name]]
        other = baseline if baseline in known else next(iter(known), None)
        beside = "" if other is None else f", {_ratio(costs[top[0]], costs[other], other)}"
        return f"{which} {_send(top)} {_sent(costs[top[0]])} {per}{beside}."
    least, most = min(map(costs.__getitem__, loud)), max(map(costs.__getitem__, loud))
    cheap = [name for name in loud if costs[name] == least]
    dear = next(name for name in loud if costs[name] == most)
    if silent and least == most:
        return (
            f"{listing(silent)} {_send(silent)} nothing {per}, while {listing(loud)} {_send(loud)}"
            f" {_sent(least)}{' each' if len(loud) > 1 else ''}."
        )
    if least == most:
        return f"{which} send {_sent(least)} each {per}."
    first = f"of {which}, "
    if silent:
        first += f"{listing(silent)} {_send(silent)} nothing; of the others, "
    each = " each" if len(cheap) > 1 else ""
    return (
        f"{first}{listing(cheap)} {_send(cheap)} the fewest bytes: {_sent(least)}{each} {per},"
        f" {_ratio(least, most, dear)}."
    )


def _ratio(cost: float, other_cost: float, other: str) -> str:
    """Return how many bytes a method sends beside another one.

    >>> _ratio(10.0, 700.0, "a"), _ratio(13.0, 10.0, "a"), _ratio(10.0, 10.1, "a")
    ('1/70 of the bytes of a', '1.3 times the bytes of a', 'about as many bytes as a')
    >>> _ratio(10.0, 999.9, "a"), _ratio(9.0, 10.0, "a"), _ratio(1e4, 10.0, "a")
    ('1/100 of the bytes of a', '0.9 times the bytes of a', '1000 times the bytes of a')
    """
    if cost == 0:
        return f"while {other} sends {_sent(other_cost)}"
    share = cost / other_cost
    if 1 - NEAR < share < 1 + NEAR:
        return f"{'' if cost == other_cost else 'about '}as many bytes as {other}"
    if share <= 0.5:
        return f"1/{_rounded(1 / share)} of the bytes of {other}"
    return f"{_rounded(share)} times the bytes of {other}"


def _rounded(value: float) -> str:
    """Return a number with two digits, or without decimals from 10."""
    return f"{value:.0f}" if value >= 10 else f"{value:.2g}"


def _send(names: Sequence[str]) -> str:
    return "sends" if len(names) == 1 else "send"


def _upper(sentence: str) -> str:
    """Return a sentence with a capital first letter; the name of a method stays as it is.

    >>> _upper("these 3 methods send 10 B each."), _upper("fedavg sends 10 B.")
    ('These 3 methods send 10 B each.', 'fedavg sends 10 B.')
    """
    is_word = sentence.startswith(("of ", "these "))
    return f"{sentence[0].upper()}{sentence[1:]}" if is_word else sentence


def _verdict(tests: pd.DataFrame, first: str, second: str) -> Verdict:
    """Return what the tests of a place say about the first method beside the second."""
    turned: dict[Verdict, Verdict] = {"better": "worse", "worse": "better"}
    names = ("first", "second", "verdict")
    for one, other, verdict in zip(*(tests[name] for name in names), strict=True):
        if (one, other) == (first, second):
            return cast(Verdict, verdict)
        if (one, other) == (second, first):
            return turned.get(verdict, cast(Verdict, verdict))
    return "no claim"


def _is_group(tests: pd.DataFrame, top: Sequence[str], beaten: Sequence[str]) -> bool:
    """Return whether methods do not differ, and each of them is better than all the others."""
    alike = all(
        _verdict(tests, one, other) == "no significant difference"
        for one, other in combinations(top, 2)
    )
    return alike and all(_verdict(tests, one, other) == "better" for one in top for other in beaten)


def _value(row: pd.Series) -> str:
    """Return a mean with its interval."""
    if np.isnan(row["low"]):
        return f"{row['mean']:.3f}"
    return f"{row['mean']:.3f} (95 % interval {row['low']:.3f} to {row['high']:.3f})"


def _runs(n: int) -> str:
    return "one run" if n == 1 else f"mean of {n} runs"


def _sent(count: float) -> str:
    return "nothing" if count == 0 else size(count)


def words(metric: str) -> str:
    """Return the name of a metric in words.

    >>> words("macro_f1"), words("worst10_accuracy"), words("rare_recall")
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
    return listing(names) if len(names) <= MOST_NAMES else f"{len(names)} of the {of} others"


def listing(names: Sequence[str]) -> str:
    """Return names as a list in a sentence.

    >>> listing(["a"]), listing(["a", "b", "c"])
    ('a', 'a, b and c')
    """
    return " and ".join(filter(None, [", ".join(names[:-1]), names[-1]]))
