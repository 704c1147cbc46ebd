"""How methods come to their results: curves over rounds, and what it costs to reach a target."""

from itertools import product
from math import inf
from typing import Final

import pandas as pd

from flbench.analysis.arrangement import Arrangement
from flbench.results.study_folder import PERSONAL
from flbench.results.summary import SPLITS

CURVES: Final = (
    *("place", "method", "repetition", "round", "steps", "bytes", "seconds", "split", "value"),
)
COSTS: Final = ("rounds", "bytes", "seconds")
"""Costs of the table of targets."""
TARGETS: Final = (
    *("place", "split", "target", "method", "share", "reached", "n", *COSTS),
    *(f"{cost}_{end}" for cost in COSTS for end in ("min", "max")),
)


def curves_of(comparison: Arrangement, long: pd.DataFrame) -> pd.DataFrame:
    """Return the table of curves; see `fl.Comparison.curves`."""
    is_metric = long["metric"] == comparison.metric
    is_own = long["deployment"] == PERSONAL
    return long.loc[is_metric & is_own & long["split"].isin(SPLITS), list(CURVES)]


def targets_of(comparison: Arrangement, curves: pd.DataFrame) -> pd.DataFrame:
    """Return the table of targets; see `fl.Comparison.targets`.

    The rounds, bytes and seconds of a run until it reaches a target are a time to an event. A run
    that does not reach the target is censored at its end. It counts as later than all others, so a
    median is known if more than half of all runs reach the target.
    """
    frames = []
    for place, split in product(comparison.places, SPLITS):
        at_place = curves[curves["place"] == place]
        mine = at_place[at_place["split"] == split].sort_values("round", kind="stable")
        runs = {(one.method, one.repetition) for one in comparison.at(place)}
        if not runs <= {*zip(mine["method"], mine["repetition"], strict=True)}:
            continue  # some runs have no validation part
        keys = ["method", "repetition", "round"]
        others = at_place[at_place["split"] == "validation"]
        if split == "test" and len(others.merge(mine, on=keys)) < len(others):
            continue  # test parts were not evaluated in each round
        for target in given_targets(comparison, place):
            costs = _costs(mine, target).set_index("method").reindex(comparison.methods)
            costs = costs.dropna(subset="n").reset_index()
            frames.append(costs.assign(place=place, split=split, target=target))
    if not frames:
        return pd.DataFrame(columns=list(TARGETS))
    found = pd.concat(frames, ignore_index=True).astype({"reached": int, "n": int})
    return found[list(TARGETS)]


def _costs(curves: pd.DataFrame, target: float) -> pd.DataFrame:
    """Return the columns of TARGETS from `method` on, for one target of a place and a split."""
    curves = curves.rename(columns={"round": "rounds"})
    keys = ["method", "repetition"]
    above = curves[curves["value"] >= target].drop_duplicates(keys).set_index(keys)[list(COSTS)]
    first = above.reindex(curves.drop_duplicates(keys).set_index(keys).index)
    medians = first.fillna(inf).groupby("method").median()
    ends = above.groupby("method")
    groups = first["rounds"].groupby("method")
    reached, n = groups.count(), groups.size()
    found = pd.DataFrame({"reached": reached, "n": n, "share": reached / n})
    found = found.join(medians.where(medians < inf))
    found = found.join([ends.min().add_suffix("_min"), ends.max().add_suffix("_max")])
    return found.reset_index()


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


def unknown_targets(comparison: Arrangement, targets: pd.DataFrame) -> list[str]:
    """Return a sentence for each place without a table of the targets that were asked for."""
    return [
        f"{place}: what a target costs is not known, because some runs have no {comparison.metric}"
        " by round."
        for place in comparison.places
        if comparison.targets and place not in set(targets["place"])
    ]
