"""The page about clients that join after the training, and its picture."""

from collections.abc import Sequence
from pathlib import Path
from typing import Final, Self

import pandas as pd
from board import BOARD, about, trained_with
from matplotlib.figure import Figure
from scipy.stats import kendalltau
from shown import ROOT, render

import flbench as fl

FLOOR, BAR = "local", "ft"
TITLES: Final = {"emnist": "EMNIST by class", "har": "UCI HAR"}
COLORS: Final = {"o": "#b8c4d6", "^": "#6f8fbf", "s": "#1f3f77"}
"""Color by marker, from the fewest epochs to the most."""


class Federation:
    """The results on one federation. Methods that lack a repetition are left out.

    Args:
        name: Name of its configuration.
        table: `fl.report(...).new_clients`.
        runs: Number of runs.
        versions: What `trained_with` says of them.
    """

    def __init__(self, name: str, table: pd.DataFrame, runs: int, versions: str) -> None:
        self.runs, self.versions, self.title = runs, versions, TITLES.get(name, name)
        self.description = about(
            ROOT / "configs" / "clients" / f"{name}.yaml", "Clients that join later, "
        )
        self.repetitions = int(table["n"].max())
        is_complete = table.groupby("method")["n"].transform("min") == self.repetitions
        table, every = table[is_complete], {*table["method"]}
        self.left_out = sorted(every - {*table["method"]})
        self.epochs = sorted(set(table["epochs"]))
        means = table.pivot(index="method", columns="epochs", values="mean")
        self.means = means.sort_values(self.epochs[-1], ascending=False)
        self.others = self.means.drop(index=[FLOOR, BAR])
        last = table[table["epochs"] == self.epochs[-1]].set_index("method")
        self.last = last.loc[self.means.index]
        self.tau = kendalltau(self.last["mean"], self.last["seen"]).statistic

    @classmethod
    def read(cls, archive: Path) -> Self:
        """Return the results in an archive that `flbench pack` wrote."""
        found = fl.report(archive, force=True)  # which versions is said on the page
        name = archive.name.removesuffix(".tar.xz")
        return cls(name, found.new_clients, len(found.runs), trained_with(archive))

    def above(self, place: int, reference: str) -> int:
        """Return how many methods are above a reference after its last epochs."""
        bar = self.means.loc[reference, self.epochs[-1]]
        return int((self.others[self.epochs[place]] > bar).sum())


def picture(federations: Sequence[Federation]) -> Figure:
    """Draw the accuracy of all methods after each number of epochs."""
    most = max(len(one.means) for one in federations)
    figure = Figure(figsize=(5.2 * len(federations), 1.2 + 0.17 * most), layout="constrained")
    grid = figure.subplots(1, len(federations), squeeze=False)[0]
    for axes, one in zip(grid, federations, strict=True):
        places = range(len(one.means))[::-1]
        last = one.epochs[-1]
        axes.hlines(places, one.means.min(axis=1), one.means.max(axis=1), color="0.8", lw=1.5)
        for epochs, (marker, color) in zip(one.epochs, COLORS.items(), strict=False):
            label = f"{epochs} epoch{'' if epochs == 1 else 's'}"
            axes.scatter(one.means[epochs], places, marker=marker, s=22, color=color, label=label)
        for name, style in ((FLOOR, ":"), (BAR, "--")):
            value = one.means.loc[name, last]
            axes.axvline(value, color="#a03030", ls=style, lw=1, label=f"{name}, {last} epochs")
        axes.set_yticks(list(places), list(one.means.index), fontsize=7)
        axes.set(xlabel="test accuracy of the new clients", title=one.title, ylim=(-1, most))
        axes.spines[["top", "right"]].set_visible(False)
        axes.legend(fontsize=7, loc="upper left", frameon=False)
    return figure


def text(federations: Sequence[Federation]) -> str:
    """Return the page."""
    return render("new-clients", federations=federations, floor=FLOOR, bar=BAR)


def page() -> str:
    """Return the page, and write its picture."""
    found = [Federation.read(file) for file in sorted((BOARD / "clients").glob("*.tar.xz"))]
    picture(found).savefig(BOARD / "new-clients.png", dpi=110)
    return text(found)
