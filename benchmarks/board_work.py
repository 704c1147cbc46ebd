"""The board at equal work: the same number of optimizer steps, or of bytes, for all methods.

The runs of the board were trained before flbench counted steps. No search space but that of APFL
(`adaptive`) has a parameter that changes the optimizer steps of a round, so that runs with default
parameters tell them: all methods of a setting have the same clients, samples and cohorts. Their
counts are in docs/board/steps.json. The fine-tuning of an evaluation is no part of a round and is
not counted.
"""

import json
from collections.abc import Iterator
from functools import cached_property
from typing import Final

import board
import numpy as np
import pandas as pd
from board import REFERENCES, TUNED, Gap, corrected
from scipy.stats import kendalltau
from shown import ROOT, code, percent, render

from flbench.analysis.statistics import across, differences

COUNTS: Final = ROOT / "docs" / "board" / "steps.json"
READ: Final = (10, 20, 30)
"""Rounds after which the runs of the board were evaluated; `heart` has 40 and 50 too."""
BUDGET: Final = 20
"""Rounds of FedAvg whose steps or bytes every method may use. All runs were evaluated after 10, 20
and 30 rounds, so that a method with twice the steps of FedAvg is read at exactly this budget."""
UNITS: Final = ("rounds", "steps", "bytes")


class Work:
    """The tuned methods of a setting within the work of `BUDGET` rounds of FedAvg.

    Args:
        name: Name of the setting.
        counts: Optimizer steps of each method until the rounds READ.
    """

    def __init__(self, name: str, counts: dict[str, list[float]]) -> None:
        self.setting = board.setting(name)
        self.name = name
        # In rounds of FedAvg with the same cohorts, which have different numbers of samples.
        until = {
            (one, n): n * all_[k] / counts["fedavg"][k]
            for one, all_ in counts.items()
            for k, n in enumerate(READ)
        }
        self.steps = {one: counts[one][-1] / counts["fedavg"][-1] for one in self.setting.methods}
        long = self.setting.long
        tuned = [one + TUNED for one in self.setting.methods]
        is_own = (long["metric"] == "accuracy") & (long["deployment"] == "personal")
        rows = long[is_own & long["method"].isin(tuned)]
        rows = rows[rows["split"] == "test"].rename(columns={"value": "test"})
        self.rows = rows.assign(method=rows["method"].str.removesuffix(TUNED)).sort_values("round")
        self.rows["rounds"] = self.rows["round"].astype(float)
        both = zip(self.rows["method"], self.rows["round"], strict=True)
        self.rows["steps"] = [until.get(one, np.nan) for one in both]
        self.seen = {unit: self._within(unit) for unit in UNITS}
        self.gaps = {unit: self._against(unit) for unit in UNITS}

    def _within(self, unit: str) -> pd.DataFrame:
        """Return test accuracies [repetitions, methods] when the budget is spent.

        Between two evaluations they lie on a straight line; before the first one they are NaN.
        """
        own = self.rows[(self.rows["method"] == "fedavg") & (self.rows["round"] == BUDGET)]
        budgets = own.set_index("repetition")[unit]
        found = {
            (k, method): np.interp(budgets[k], rows[unit], rows["test"], left=np.nan)
            for (k, method), rows in self.rows.dropna(subset=[unit]).groupby(
                ["repetition", "method"]
            )
        }
        return pd.Series(found).unstack().dropna(axis="columns")

    def _against(self, unit: str) -> dict[tuple[str, str], Gap]:
        """Return how each method differs from the references, as on the page of the setting."""
        seen = self.seen[unit]
        there = [one for one in REFERENCES if one in seen]
        pairs = [(name, one) for one in there for name in seen if name not in REFERENCES]
        found = differences(seen, pairs, overlap=self.setting.overlap)
        return corrected(
            {
                (row.first, row.second): Gap(row.difference, row.low, row.high, row.p)
                for row in found.itertuples()
            }
        )

    @cached_property
    def means(self) -> pd.DataFrame:
        """Mean accuracies [methods, units]; NaN where a method has none within the budget."""
        means = {unit: self.seen[unit].mean().round(9) for unit in UNITS}
        return pd.DataFrame(means).sort_values("rounds", ascending=False, kind="stable")

    @cached_property
    def ranks(self) -> pd.DataFrame:
        """Ranks [methods, units] of the means."""
        return self.means.rank(ascending=False)

    def best(self, unit: str) -> str:
        """Return the best method with its mean."""
        name = str(self.means[unit].idxmax())
        return f"{code(name)} {percent(self.means.loc[name, unit])}"

    def count(self, unit: str, reference: str, verdict: str) -> int:
        """Return how many methods have a verdict against a reference."""
        gaps = self.gaps[unit]
        return sum(other == reference and gaps[_, other].verdict == verdict for _, other in gaps)

    def tau(self, unit: str) -> float:
        """Return Kendall's tau of the orders at equal rounds and at equal work."""
        both = self.means[["rounds", unit]].dropna()
        return float(kendalltau(both["rounds"], both[unit]).statistic)

    def lines(self) -> Iterator[list[str]]:
        """Yield the rows of the table of the methods."""
        for name, means in self.means.iterrows():
            cells = [
                "-" if pd.isna(means[unit]) else f"{percent(means[unit])} ({rank:g})"
                for unit, rank in self.ranks.loc[name].items()
            ]
            yield [code(str(name)), f"{self.steps[str(name)]:.2f}", *cells]


def page() -> str:
    """Return the page of the board at equal work."""
    counts = json.loads(COUNTS.read_text("utf-8"))
    works = [Work(name, counts[name]) for name in board.names()]
    settings = [one for one in works if not one.setting.is_new]
    kinds = {one.name: one.setting.kind for one in settings}
    means = {
        unit: pd.DataFrame({one.name: one.means[unit] for one in settings}) for unit in UNITS[:2]
    }
    ranks = {unit: across(found.dropna().T, kinds) for unit, found in means.items()}
    return render(
        "board-work", works=works, settings=settings, units=UNITS, budget=BUDGET, ranks=ranks
    )
