"""Scores of methods, classes and clients over repetitions: mean, deviation, interval, number."""

from collections.abc import Mapping, Sequence
from math import nan
from typing import Final

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from flbench.analysis import statistics
from flbench.analysis.arrangement import PRICES, Arrangement, Entry
from flbench.results.summary import SHARES

OVER: Final = ("n", "mean", "std", "low", "high")
"""What is known of a score over repetitions."""
SCORES: Final = ("place", "method", "metric", *OVER)
CLIENT_SPREAD: Final = ("place", "method", "measure", *OVER)
CLIENT_SCORES: Final = (
    *("place", "client", "name", "train_size", "test_size", "method", "n"),
    *("accuracy", "accuracy_std", "accuracy_low", "accuracy_high"),
    *("gain", "gain_std", "gain_low", "gain_high"),
)
DECILES: Final = {"median" if k == 5 else f"q{k}0": k / 10 for k in range(1, 10)}
"""Measures that are deciles of the clients' accuracy."""
QUANTILES: Final = dict(sorted({**DECILES, "q25": 0.25, "q75": 0.75}.items(), key=lambda q: q[1]))
"""Measures that are quantiles of the clients' accuracy."""
GAINS: Final = ("gain", "gain_ft")
"""Columns of `Analysis.clients`: the gain of a client over `local`, and over `ft`."""
MEASURES: Final = (
    *("mean", "std", "worst", *QUANTILES),
    *("gain", "gaining", "losing", "gain_ft", "gaining_ft", "losing_ft"),
)
"""Measures of the clients of a run; see `Analysis.client_spread`."""
FROM_MINUS_ONE: Final = GAINS
"""Measures in [-1, 1]; the others are in [0, 1]."""

UNIT: Final = SHARES | {
    *("gm", "pm_l", "pm_v", "auroc_mean", "average_precision_mean"),
    *("client_std", "trained_class_share"),
    *("auroc_macro", "auroc_macro_mean", "ece", "ece_mean"),
}
"""Metrics in [0, 1]."""

Values = NDArray[np.float64]
Limits = tuple[float, float] | None
"""Smallest and largest value that a score can have."""


def over_repetitions(
    values: Values, overlap: float, limits: Sequence[Limits]
) -> dict[str, NDArray[np.generic]]:
    """Return the columns of OVER, each with K values.

    Args:
        values: Scores [R, K] of R repetitions; NaN where a repetition has none.
        overlap: See `statistics.difference`.
        limits: Limits of the K scores, at which their intervals end; None for scores without.

    >>> found = over_repetitions(np.array([[0.6], [0.8], [np.nan]]), 0.0, [(0.0, 1.0)])
    >>> [round(float(found[name][0]), 4) for name in OVER]
    [2.0, 0.7, 0.1414, nan, nan]
    """
    n = (~np.isnan(values)).sum(axis=0)
    means, low, high = statistics.intervals(values, overlap)
    std = np.full(values.shape[1], nan)
    std[n > 1] = np.nanstd(values[:, n > 1], axis=0, ddof=1)
    for k, ends in enumerate(limits):
        if ends is not None:
            low[k], high[k] = np.clip([low[k], high[k]], *ends)
    return {"n": n, "mean": np.where(n > 0, means, nan), "std": std, "low": low, "high": high}


def limits_of(metric: str) -> Limits:
    """Return the limits of a metric; None for one that is no share.

    >>> limits_of("macro_f1"), limits_of("accuracy@local"), limits_of("seconds")
    ((0.0, 1.0), (0.0, 1.0), None)
    """
    return (0.0, 1.0) if metric.partition("@")[0] in UNIT else None


def scores_of(comparison: Arrangement) -> pd.DataFrame:
    """Return the table of scores; see `Analysis.scores`."""
    frames = []
    for place in comparison.places:
        names = _metrics(comparison.at(place), comparison.columns)
        overlap = comparison.sampling_at(place).overlap
        for method in comparison.methods:
            entries = comparison.at(place, method)
            if entries:
                values = np.array([[entry.score(name) for name in names] for entry in entries])
                found = over_repetitions(values, overlap, [*map(limits_of, names)])
                frames.append(
                    pd.DataFrame({"place": place, "method": method, "metric": names, **found})
                )
    table = pd.concat(frames, ignore_index=True)
    return table.loc[table["n"] > 0, list(SCORES)].reset_index(drop=True)


def _metrics(entries: Sequence[Entry], columns: Sequence[str]) -> list[str]:
    """Return the names of the scores of a place: the columns of its leaderboard come first."""
    others = dict.fromkeys(
        name
        for entry in entries
        for name, value in entry.test.items()
        if isinstance(value, int | float)
    )
    return list(dict.fromkeys([*columns, *others, *PRICES]))


def client_spread_of(comparison: Arrangement, clients: pd.DataFrame) -> pd.DataFrame:
    """Return the table of the spread of clients; see `Analysis.client_spread`.

    Args:
        comparison: The runs.
        clients: See `Analysis.clients`.
    """
    limits: list[Limits] = [(-1.0 if one in FROM_MINUS_ONE else 0.0, 1.0) for one in MEASURES]
    frames = []
    for (place, method), mine in clients.groupby(["place", "method"], sort=False):
        values = np.array([_measures(one) for _, one in mine.groupby("repetition")])
        found = over_repetitions(values, comparison.sampling_at(str(place)).overlap, limits)
        frames.append(
            pd.DataFrame({"place": place, "method": method, "measure": MEASURES, **found})
        )
    table = pd.concat(frames, ignore_index=True)
    return table.loc[table["n"] > 0, list(CLIENT_SPREAD)].reset_index(drop=True)


def _measures(clients: pd.DataFrame) -> list[float]:
    """Return MEASURES of the clients of a run; NaN where there are none.

    Clients without test samples have no accuracy.
    """
    accuracy = clients["accuracy"].dropna().to_numpy(float)
    if not len(accuracy):
        return [nan] * len(MEASURES)
    gains: list[float] = []
    for column in GAINS:
        gain = clients[column].dropna().to_numpy(float)
        gains += [gain.mean(), (gain > 0).mean(), (gain < 0).mean()] if len(gain) else [nan] * 3
    levels = np.quantile(accuracy, list(QUANTILES.values()))
    found = [accuracy.mean(), accuracy.std(), accuracy.min(), *levels, *gains]
    return [float(value) for value in found]


def client_scores_of(comparison: Arrangement, clients: pd.DataFrame) -> pd.DataFrame:
    """Return the table of the scores of each client; see `Analysis.client_scores`.

    Args:
        comparison: The runs.
        clients: See `Analysis.clients`.
    """
    frames = [
        _client_scores(comparison, place, mine, key)
        for place in comparison.places
        if len(mine := clients[clients["place"] == place])
        if (key := _identity(comparison, place, mine)) is not None
    ]
    if not frames:
        return pd.DataFrame(columns=list(CLIENT_SCORES))
    return pd.concat(frames, ignore_index=True)


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


def _client_scores(
    comparison: Arrangement, place: str, clients: pd.DataFrame, key: str
) -> pd.DataFrame:
    """Return the rows of CLIENT_SCORES of a place."""
    about = (
        clients.groupby(key, sort=True)
        .agg(
            client=("client", "first"),
            name=("name", "first"),
            train_size=("train_size", "mean"),
            test_size=("test_size", "mean"),
        )
        .rename_axis(None)
    )
    overlap = comparison.sampling_at(place).overlap
    frames = []
    for number, (method, mine) in enumerate(clients.groupby("method", sort=False)):
        columns: dict[str, NDArray[np.generic]] = {}
        for score, ends in (("accuracy", (0.0, 1.0)), ("gain", (-1.0, 1.0))):
            wide = mine.pivot(index="repetition", columns=key, values=score).reindex(
                columns=about.index
            )
            found = over_repetitions(wide.to_numpy(float), overlap, [ends] * len(about))
            columns |= {score: found["mean"], **suffixed(score, found)}
            columns.setdefault("n", found["n"])
        frames.append(about.assign(place=place, method=method, order=number, **columns))
    rows = pd.concat(frames).sort_values(["client", "order"], kind="stable")
    return rows[list(CLIENT_SCORES)].reset_index(drop=True)


def suffixed(
    score: str, found: Mapping[str, NDArray[np.generic]]
) -> dict[str, NDArray[np.generic]]:
    """Return deviation and interval of a score as columns that begin with its name."""
    return {f"{score}_{name}": found[name] for name in ("std", "low", "high")}
