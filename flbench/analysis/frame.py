"""The runs of a comparison as one table in long form, from which its other tables are made."""

from functools import cache
from typing import Any, Final

import pandas as pd

from flbench.analysis.arrangement import PRICES, Arrangement
from flbench.analysis.equal_work import TRAFFIC
from flbench.core.text import cell
from flbench.metrics.names import RARE
from flbench.results.metrics_file import TRAINING
from flbench.results.study_folder import PERSONAL
from flbench.results.summary import ended_after

RUN: Final = ("place", "method", "repetition")
"""Columns that tell runs apart."""
LONG: Final = (
    *(*RUN, "seed", "split", "deployment", "metric", "value", "round", "best", "last"),
    *("steps", "bytes", "seconds", "path"),
)
ON_COMMON: Final = ("gm", "pm_v", "pm_l")
"""Deployments whose accuracy on the common test set is a metric of the run."""


def long_of(comparison: Arrangement) -> pd.DataFrame:
    """Return a row for each metric of each evaluation of each run; see `fl.Comparison.long`."""
    rows = pd.DataFrame(
        [(k, *row) for k, one in enumerate(comparison.entries) for row in one.run.rows],
        columns=["run", "round", "split", "deployment", "metric", "value"],
    )
    costs = rows[rows["split"].isin(TRAINING)]
    spent = pd.DataFrame(
        {
            name: costs[costs["metric"].isin(kinds)].groupby(["run", "round"])["value"].sum()
            for name, kinds in (("bytes", TRAFFIC), ("steps", ("steps",)))
        }
    )
    spent = spent.fillna(0.0).groupby("run").cumsum().reset_index()
    about = [*RUN, "seed", "path", "best", "last"]
    runs = comparison.runs[about].rename_axis("run").reset_index()
    ends = [max(1, ended_after(one.run.summary)) for one in comparison.entries]
    runs["each"] = comparison.runs["seconds"] / ends
    runs["has_rare"] = [one.run.has_rare_classes for one in comparison.entries]
    found = rows[~rows["split"].isin((*TRAINING, "server"))]
    found = found.drop_duplicates(["run", "round", "split", "deployment", "metric"], keep="last")
    found = found.merge(runs, on="run")
    found = found[found["has_rare"] | ~found["metric"].isin(RARE)]
    found = found.assign(order=range(len(found))).sort_values("round", kind="stable")
    found = pd.merge_asof(found, spent.sort_values("round"), on="round", by="run")
    found = found.sort_values("order").fillna({"bytes": 0.0, "steps": 0.0})
    has_steps = found["run"].isin(costs.loc[costs["metric"] == "steps", "run"])
    found = found.assign(
        steps=found["steps"].where(has_steps),  # runs of archives may lack them
        seconds=found["round"] * found["each"],
        **{moment: found["round"] == found[moment] for moment in ("best", "last")},
    )
    found = found[list(LONG)].reset_index(drop=True)
    if comparison.apart is not None:
        found["warning"] = f"not comparable: {comparison.apart}"
    return found


def csv_of(table: pd.DataFrame) -> str:
    """Return a table as the text of a CSV file; see `core.text.cell`.

    NaN is an empty cell, and tuples are joined by semicolons.
    """
    known = cache(cell)  # few texts stand in many rows

    def written(value: Any) -> Any:
        value = "; ".join(value) if isinstance(value, tuple) else value
        return known(value) if isinstance(value, str) else value

    texts = table.select_dtypes(exclude=["number", "bool"])
    table = table.assign(**{str(name): texts[name].map(written) for name in texts})
    return table.to_csv(index=False, lineterminator="\n")


def values_of(comparison: Arrangement, long: pd.DataFrame, moment: str = "best") -> pd.DataFrame:
    """Return the test metrics of the runs, at the best or the last round, and what runs cost.

    Args:
        comparison: The runs.
        long: See `long_of`.
        moment: `best` or `last`.

    Returns:
        A row for each run and metric, with the columns of RUN, `metric` and `value`.
    """
    rows = long[long[moment]]
    own = rows[(rows["split"] == "test") & (rows["deployment"] == PERSONAL)]
    common = rows[(rows["split"] == "common") & (rows["metric"] == "accuracy")]
    common = common[common["deployment"].str.removesuffix("@local").isin(ON_COMMON)]
    prices = comparison.runs.melt([*RUN], [*PRICES], "metric")
    parts = [own, common.assign(metric=common["deployment"]), prices]
    found = pd.concat([part[list(prices.columns)] for part in parts], ignore_index=True)
    return in_order(found, comparison)


def in_order(table: pd.DataFrame, comparison: Arrangement, *further: str) -> pd.DataFrame:
    """Return the rows of a table ordered by place, method and further columns."""
    orders = {"place": comparison.places, "method": comparison.methods}
    keys = pd.DataFrame({name: table[name] for name in further}, index=table.index)
    for name, values in orders.items():
        keys[name] = table[name].map({value: k for k, value in enumerate(values)})
    order = keys.sort_values(["place", *further, "method"], kind="stable").index
    return table.loc[order].reset_index(drop=True)
