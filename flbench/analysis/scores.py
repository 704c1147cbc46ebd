"""Scores of methods and clients over repetitions: number, mean, deviation, interval."""

from typing import Final

import numpy as np
import pandas as pd

from flbench.analysis.arrangement import PRICES, Arrangement
from flbench.analysis.frame import RUN, in_order
from flbench.analysis.statistics import over_repetitions
from flbench.results.summary import SHARES

DECILES: Final = {"median" if k == 5 else f"q{k}0": k / 10 for k in range(1, 10)}
"""Measures that are deciles of the clients' accuracy."""
QUANTILES: Final = dict(sorted({**DECILES, "q25": 0.25, "q75": 0.75}.items(), key=lambda q: q[1]))
"""Measures that are quantiles of the clients' accuracy."""
GAINS: Final = ("gain", "gain_ft")
"""Columns of `fl.Comparison.clients`: the gain of a client over `local`, and over `ft`."""
CLIENT_SCORES: Final = (
    *("place", "client", "name", "train_size", "test_size", "method", "n"),
    *("accuracy", "accuracy_std", "accuracy_low", "accuracy_high"),
    *("gain", "gain_std", "gain_low", "gain_high"),
)
UNIT: Final = SHARES | {
    *("gm", "pm_l", "pm_v", "auroc_mean", "average_precision_mean"),
    *("client_std", "trained_class_share"),
    *("auroc_macro", "auroc_macro_mean", "ece", "ece_mean"),
}
"""Metrics in [0, 1]."""


def scores_of(comparison: Arrangement, values: pd.DataFrame) -> pd.DataFrame:
    """Return the table of scores; see `fl.Comparison.scores`."""
    found = over_repetitions(values, ["place", "method", "metric"], "value", comparison.overlaps)
    is_unit = found["metric"].str.partition("@")[0].isin(UNIT)
    found.loc[is_unit, ["low", "high"]] = found.loc[is_unit, ["low", "high"]].clip(0, 1)
    is_cost = found["metric"].isin(PRICES)
    found.loc[is_cost, "low"] = found.loc[is_cost, "low"].clip(lower=0)
    order = {name: k for k, name in enumerate(comparison.columns)}
    found = found.assign(order=found["metric"].map(order).fillna(len(order)))
    found = found.sort_values("order", kind="stable").drop(columns="order")
    return in_order(found[found["n"] > 0], comparison)


def client_spread_of(comparison: Arrangement, clients: pd.DataFrame) -> pd.DataFrame:
    """Return the table of the spread of clients; see `fl.Comparison.client_spread`."""
    groups = clients.groupby(list(RUN), sort=False)
    accuracy = groups["accuracy"]
    levels = (
        accuracy.quantile(np.array([*QUANTILES.values()])).unstack().set_axis([*QUANTILES], axis=1)
    )
    measures = {"mean": accuracy.mean(), "std": accuracy.std(ddof=0), "worst": accuracy.min()}
    measures |= {name: levels[name] for name in QUANTILES}
    for gain in GAINS:
        known, end = clients[gain].notna(), gain.removeprefix("gain")
        measures[gain] = groups[gain].mean()
        for name, is_so in (("gaining", clients[gain] > 0), ("losing", clients[gain] < 0)):
            shares = clients.assign(share=is_so.where(known).astype(float))
            measures[name + end] = shares.groupby(list(RUN), sort=False)["share"].mean()
    rows = pd.DataFrame(measures).reset_index()
    rows = rows.melt(list(RUN), var_name="measure").dropna(subset="value")
    found = over_repetitions(rows, ["place", "method", "measure"], "value", comparison.overlaps)
    lowest = np.where(found["measure"].isin(GAINS), -1.0, 0.0)
    found = found.assign(**{end: found[end].clip(lowest, 1.0) for end in ("low", "high")})
    return in_order(found, comparison)


def client_scores_of(comparison: Arrangement, clients: pd.DataFrame) -> pd.DataFrame:
    """Return the table of the scores of each client; see `fl.Comparison.client_scores`."""
    frames = []
    for place in comparison.places:
        mine = clients[clients["place"] == place]
        key = _identity(comparison, place, mine) if len(mine) else None
        if key is None:
            continue
        mine = mine.assign(who=mine[key])
        about = mine.groupby("who").agg(
            client=("client", "first"),
            name=("name", "first"),
            train_size=("train_size", "mean"),
            test_size=("test_size", "mean"),
        )
        by = ["place", "method", "who"]
        accuracy = score_over(mine, by, "accuracy", comparison, (0.0, 1.0))
        gain = score_over(mine, by, "gain", comparison, (-1.0, 1.0)).drop(columns="n")
        frames.append(accuracy.join(gain).reset_index().merge(about, on="who"))
    if not frames:
        return pd.DataFrame(columns=list(CLIENT_SCORES))
    return in_order(pd.concat(frames, ignore_index=True), comparison, "client")[list(CLIENT_SCORES)]


def score_over(
    rows: pd.DataFrame,
    by: list[str],
    score: str,
    comparison: Arrangement,
    limits: tuple[float, float],
) -> pd.DataFrame:
    """Return a score over repetitions; see `statistics.over_repetitions`.

    Returns:
        A table with the index `by` and the columns `n`, `SCORE`, `SCORE_std`, `SCORE_low` and
        `SCORE_high`.
    """
    found = over_repetitions(rows, by, score, comparison.overlaps, limits).set_index(by)
    ends = {end: f"{score}_{end}" for end in ("std", "low", "high")}
    return found.rename(columns={"mean": score, **ends})


def _identity(comparison: Arrangement, place: str, clients: pd.DataFrame) -> str | None:
    """Return the column that tells clients of a place apart in all repetitions.

    Returns:
        `client` or `name`; None if the clients of a repetition are others than those of the next.
    """
    sampling = comparison.sampling_at(place)
    is_one_partition = sampling.vary in ("nothing", "training")
    if not is_one_partition and not sampling.has_fixed_clients:
        return None
    is_file = comparison.at(place)[0].run.config.partition.scheme == "file"
    if is_one_partition or is_file or sampling.shared == 1:
        return "client"
    run = ["method", "repetition", "name"]
    is_name = (clients["name"] != "").all() and not clients.duplicated(run).any()
    return "name" if is_name else None
