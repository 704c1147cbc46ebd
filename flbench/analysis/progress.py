"""How methods come to their results: curves over rounds, and what it costs to reach a target."""

from collections.abc import Mapping, Sequence
from math import inf, isinf, nan
from statistics import median
from typing import Any, Final

import numpy as np
import pandas as pd

from flbench.analysis.answer import listing, words
from flbench.analysis.arrangement import TRAFFIC, Arrangement, Entry
from flbench.results.summary import ended_after

CURVES: Final = ("place", "method", "repetition", "round", "bytes", "seconds", "split", "value")
COSTS: Final = ("rounds", "bytes", "seconds")
"""Costs of the table of targets."""
TARGETS: Final = (
    *("place", "split", "target", "method", "share", "reached", "n", *COSTS),
    *(f"{cost}_{end}" for cost in COSTS for end in ("min", "max")),
    *(f"least_{cost}" for cost in COSTS),
)
SPLITS: Final = ("validation", "test")


def curves_of(comparison: Arrangement) -> pd.DataFrame:
    """Return the table of curves; see `Analysis.curves`."""
    rows: list[tuple[Any, ...]] = []
    for entry in comparison.entries:
        sent = {0: 0.0}  # bytes of each round
        for row in entry.run.rows:
            if row.split in ("train", "setup") and row.metric in TRAFFIC:
                sent[row.round] = sent.get(row.round, 0.0) + row.value
        rounds = sorted(sent)
        total = dict(zip(rounds, np.cumsum([sent[k] for k in rounds]).tolist(), strict=True))
        each = entry.seconds / max(1, ended_after(entry.run.summary))
        for row in entry.run.rows:
            if row.protocol != entry.deployment or row.metric != comparison.metric:
                continue
            if row.split in SPLITS:
                spent = total[max(k for k in rounds if k <= row.round)]
                rows.append(
                    (
                        *(entry.place, entry.method, entry.repetition, row.round),
                        *(spent, row.round * each, row.split, row.value),
                    )
                )
    return pd.DataFrame(rows, columns=list(CURVES))


def targets_of(comparison: Arrangement, curves: pd.DataFrame) -> pd.DataFrame:
    """Return the table of targets; see `Analysis.targets`.

    The rounds, bytes and seconds of a run until it reaches a target are a time to an event. A run
    that does not reach the target is censored at its end. It counts as later than all others, so a
    median is known if more than half of all runs reach the target.
    """
    rows: list[tuple[Any, ...]] = []
    for place in comparison.places:
        entries = comparison.at(place)
        at_place = curves[curves["place"] == place]
        for split in SPLITS:
            mine = at_place[at_place["split"] == split].sort_values("round", kind="stable")
            if not {(one.method, one.repetition) for one in entries} <= _runs_of(mine):
                continue  # some runs have no validation part
            if split == "test" and not _rounds_of(at_place, "validation") <= _rounds_of(mine):
                continue  # final trainings of a study have test metrics of one or two rounds
            for target in given_targets(comparison, place):
                rows += [
                    (place, split, target, method, *_costs(mine, target, method, mine_of_method))
                    for method in comparison.methods
                    if (mine_of_method := [one for one in entries if one.method == method])
                ]
    return pd.DataFrame(rows, columns=list(TARGETS))


def _runs_of(curves: pd.DataFrame) -> set[tuple[str, int]]:
    """Return method and repetition of the runs that have a curve."""
    return set(zip(curves["method"], curves["repetition"], strict=True))


def _rounds_of(curves: pd.DataFrame, split: str = "test") -> set[tuple[str, int, int]]:
    """Return method, repetition and round of the evaluations on a split."""
    mine = curves[curves["split"] == split]
    return set(zip(mine["method"], mine["repetition"], mine["round"], strict=True))


def _costs(
    curves: pd.DataFrame, target: float, method: str, entries: Sequence[Entry]
) -> tuple[float, ...]:
    """Return the columns of TARGETS from `share` on."""
    own = [entry.repetition for entry in entries]
    curve = curves[curves["method"] == method]
    above = curve[curve["value"] >= target].drop_duplicates("repetition")
    first = above.set_index("repetition").reindex(own)
    last = curve.drop_duplicates("repetition", keep="last").set_index("repetition")
    medians, ends, least = [], [], []
    for what in ("round", "bytes", "seconds"):
        middle = median(first[what].fillna(inf))
        is_known = not isinf(middle)
        medians.append(middle if is_known else nan)
        ends += [above[what].min(), above[what].max()]
        least.append(nan if is_known else median(first[what].fillna(last[what])))
    return (len(above) / len(own), len(above), len(own), *medians, *ends, *least)


def given_targets(comparison: Arrangement, place: str) -> tuple[float, ...]:
    """Return the targets that the user has given for a place; empty if there are none.

    They are those of the report. Without such, it is `evaluation.target_accuracy` if all runs of
    the place have the same.
    """
    if comparison.targets:
        return comparison.targets
    wanted = {entry.run.config.evaluation.target_accuracy for entry in comparison.at(place)}
    known = [target for target in wanted if target is not None]
    is_one = len(wanted) == 1 and comparison.metric == "accuracy"
    return tuple(known) if is_one else ()


def target_sentences(comparison: Arrangement, targets: pd.DataFrame) -> tuple[str, ...]:
    """Return what the table says about the targets that the report was asked for, in sentences."""
    if not comparison.targets:
        return ()
    known = set(targets["place"])
    found = [
        f"{place}: what a target costs is not known, because some runs have no {comparison.metric}"
        " by round."
        for place in comparison.places
        if place not in known
    ]
    for (place, target), rows in targets.groupby(["place", "target"], sort=False):
        split = rows["split"].iloc[0]  # validation, if there is such a part
        found.append(
            _sentence(comparison, str(place), float(str(target)), rows[rows["split"] == split])
        )
    return tuple(found)


def _sentence(comparison: Arrangement, place: str, target: float, rows: pd.DataFrame) -> str:
    """Return which method of a place reaches a target in the fewest rounds, and which do not."""
    what = f"{rows['split'].iloc[0]} {words(comparison.metric)}"
    known = rows[rows["rounds"].notna()].sort_values("rounds", kind="stable")
    where = f"On {place}, " if len(comparison.places) > 1 else ""
    if known.empty:
        return f"{where}no method reaches a {what} of {target:g} in more than half of its runs."
    least = known[known["rounds"] == known["rounds"].iloc[0]]
    names = [str(name) for name in least["method"]]
    first: Mapping[str, Any] = least.iloc[0].to_dict()
    runs = f"{first['reached']} of {first['n']} runs reach it" if len(names) == 1 else ""
    sentence = (
        f"{where}{listing(names)} {'needs' if len(names) == 1 else 'need'} the fewest rounds for a"
        f" {what} of {target:g}: {first['rounds']:g} in the median{f' ({runs})' if runs else ''}"
    )
    lost = [str(name) for name in rows.loc[rows["rounds"].isna(), "method"]]
    if not lost:
        return f"{sentence}."
    count = len(rows)
    which = listing(lost) if len(lost) <= 5 else f"{len(lost)} of the {count} methods"
    is_one = len(lost) == 1
    return (
        f"{sentence}; {which} {'does' if is_one else 'do'} not reach it in more than half of"
        f" {'its' if is_one else 'their'} runs."
    )
