"""Runs at equal work: each is read when it has spent as much as the cheapest."""

from collections.abc import Sequence
from dataclasses import replace
from math import nan
from typing import Final

import pandas as pd

from flbench.core.errors import UserError, did_you_mean
from flbench.reports.shown import size
from flbench.results.metrics_file import TRAINING
from flbench.results.reading import StoredRun, so_far
from flbench.results.study_folder import PERSONAL
from flbench.results.summary import SPLITS, ended_after

TRAFFIC: Final = ("up_bytes", "down_bytes", "peer_bytes", "setup_bytes")
AT: Final = {
    "rounds": "rounds",
    "steps": "optimizer steps",
    "bytes": "bytes",
    "seconds": "seconds of training and evaluation",
}
"""Work at which runs can be compared, in words."""


def at_equal_work(
    runs: Sequence[StoredRun], keys: Sequence[tuple[str, int, str, str]], at: str
) -> tuple[list[StoredRun], list[str]]:
    """Return each run until its last evaluation within what the cheapest one spends.

    The cheapest run is that of the same place and repetition; runs that spend nothing do not count.

    Args:
        runs: The runs.
        keys: Their places, repetitions, methods and folders.
        at: One of AT.

    Returns:
        The runs, and a sentence for each place that says what was compared.

    Raises:
        UserError: `at` is not known, a run does not say what it spends by round, or it has spent
            more when it is first evaluated.
    """
    if at not in AT:
        raise UserError(f"at={at!r} is not one of {', '.join(AT)}.{did_you_mean(at, AT)}")
    table = pd.DataFrame(keys, columns=["place", "repetition", "method", "folder"])
    spent = [_spent(run, folder, at) for run, folder in zip(runs, table["folder"], strict=True)]
    table["total"] = [one.iloc[-1] for one in spent]
    totals = table["total"].where(table["total"] > 0)
    groups = totals.groupby([table["place"], table["repetition"]])
    table["budget"] = groups.transform("min").fillna(0.0)
    numbers = []
    for one, folder, budget in zip(spent, table["folder"], table["budget"], strict=True):
        if (within := one[one <= budget]).empty:
            raise UserError(
                f"{folder} has spent {_amount(one.iloc[0], at)} when it is first evaluated, and the"
                f" cheapest run {_amount(budget, at)} at its end. Leave out one of the two methods,"
                " or train with a smaller `evaluation.every`."
            )
        numbers.append(int(within.index[-1]))
    sentences = []
    for place, mine in table.assign(round=numbers).groupby("place", sort=False):
        cheapest = mine.loc[mine["total"] == mine["budget"], "method"].unique()
        ends = mine.groupby("method", sort=False)["round"].agg(["min", "max"])
        rounds = [f"{name} {_range(*map(str, both))}" for name, *both in ends.itertuples()]
        budget = [_amount(mine["budget"].agg(end), at) for end in ("min", "max")]
        where = f"On {place}, methods" if table["place"].nunique() > 1 else "Methods"
        sentences.append(
            f"{where} are compared at equal {AT[at]}, {_range(*budget)}, which is what"
            f" {', '.join(cheapest)} spends in a whole run; each is read at its last evaluated"
            f" round within that: {', '.join(rounds)}."
        )
    return [until(run, number) for run, number in zip(runs, numbers, strict=True)], sentences


def _range(least: str, most: str) -> str:
    return least if least == most else f"{least} to {most}"


def _amount(value: float, at: str) -> str:
    if at == "bytes":
        return size(value)
    return f"{value:,.1f} s" if at == "seconds" else f"{value:,.0f}"


def _spent(run: StoredRun, folder: str, at: str) -> "pd.Series[float]":
    """Return what a run has spent until each of the rounds after which it was evaluated."""
    # Other deployments can have rows of rounds without an evaluation.
    numbers = sorted({r.round for r in run.rows if r.split in SPLITS and r.protocol == PERSONAL})
    if at in ("rounds", "seconds"):
        seconds = run.summary["seconds"]
        each = (seconds["train"] + seconds["evaluate"]) / max(1, ended_after(run.summary))
        return pd.Series(numbers, numbers, dtype=float) * (1.0 if at == "rounds" else each)
    kinds = TRAFFIC if at == "bytes" else (at,)
    costs = [(r.round, r.value) for r in run.rows if r.split in TRAINING and r.metric in kinds]
    if not costs:
        raise UserError(
            f"{folder} does not say its {AT[at]} by round, as runs of earlier versions do not."
            " Compare at equal rounds or seconds, or train it again."
        )
    sums = pd.DataFrame(costs).groupby(0)[1].sum().cumsum()
    return sums.reindex(numbers, method="ffill").fillna(0.0)


def until(run: StoredRun, number: int) -> StoredRun:
    """Return what a run would be if it had ended after an evaluated round.

    Scores of single classes and clients are in files for the best and the last round alone: where
    another round takes the place of one of these, they are NaN.
    """
    before, rows = run.summary, [row for row in run.rows if row.round <= number]
    if number == before["last"]["round"]:
        return run
    share = number / max(1, ended_after(before))
    summary = {
        **{key: value for key, value in before.items() if key not in ("stopped", "new_clients")},
        **so_far(run.config, rows),
        "dataset": before["dataset"],
        "rounds": number,
        "weights_digest": "-",
        "seconds": {name: value * share for name, value in before["seconds"].items()},
    }

    def moved(table: pd.DataFrame) -> pd.DataFrame:
        parts = []
        for moment in ("best", "last"):
            now = summary[moment]["round"]
            same = [one for one in ("best", "last") if before[one]["round"] == now]
            part = table[table["moment"] == (*same, moment)[0]].assign(moment=moment)
            if not same:
                part[part.select_dtypes("float").columns] = nan
            parts.append(part)
        return pd.concat(parts, ignore_index=True)

    classes, clients = moved(run.classes), moved(run.clients)
    return replace(run, summary=summary, rows=rows, classes=classes, clients=clients)
