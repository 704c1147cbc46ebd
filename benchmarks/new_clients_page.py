"""Writes the page about clients that join after the training from the raw results.

usage: python benchmarks/new_clients_page.py [FOLDER] (default: docs/board)

FOLDER/clients/NAME.tar.xz has the runs of configs/clients/NAME.yaml. The page is
FOLDER/new-clients.md, its picture FOLDER/new-clients.png. Nothing is trained.
"""

import sys
from itertools import takewhile
from math import isnan
from pathlib import Path
from typing import Any, Final, Self

import pandas as pd
from matplotlib.figure import Figure
from scipy.stats import kendalltau
from trained_with import trained_with

import flbench as fl
from flbench.core.text import in_code
from flbench.reports.shown import size

CONFIGS: Final = Path(__file__).resolve().parents[1] / "configs" / "clients"
FLOOR, BAR = "local", "ft"
TITLES: Final = {"emnist": "EMNIST by class", "har": "UCI HAR"}


class Federation:
    """The results on one federation.

    Args:
        name: Name of its configuration.
        table: `fl.report(...).new_clients`.
        runs: Number of runs.
        versions: What `trained_with` says of them.
    """

    def __init__(self, name: str, table: pd.DataFrame, runs: int, versions: str) -> None:
        self.name, self.runs, self.versions = name, runs, versions
        self.title = TITLES.get(name, name)
        self.repetitions = int(table["n"].max())
        complete = table.groupby("method")["n"].transform("min") == self.repetitions
        self.left_out = sorted(set(table["method"]) - set(table[complete]["method"]))
        self.table = table[complete]
        self.epochs = sorted(set(self.table["epochs"]))
        means = self.table.pivot(index="method", columns="epochs", values="mean")
        self.means = means.sort_values(self.epochs[-1], ascending=False)

    @classmethod
    def read(cls, archive: Path) -> Self:
        """Return the results in an archive that `flbench pack` wrote."""
        comparison = fl.report(archive, force=True)  # which versions is said on the page
        name = archive.name.removesuffix(".tar.xz")
        about = comparison.new_clients, len(comparison.runs), trained_with(archive)
        return cls(name, *about)

    @property
    def description(self) -> str:
        """The sentence of the comment at the beginning of the configuration."""
        lines = (CONFIGS / f"{self.name}.yaml").read_text("utf-8").splitlines()
        comment = takewhile(lambda line: line.startswith("#"), lines)
        text = " ".join(line.removeprefix("#").strip() for line in comment)
        return text.removeprefix("Clients that join later, ")

    def row(self, method: str, epochs: int) -> "pd.Series[Any]":
        """Return the figures of a method after some epochs."""
        mine = self.table
        return mine[(mine["method"] == method) & (mine["epochs"] == epochs)].iloc[0]

    def lines(self) -> list[str]:
        """Return the table in Markdown, best method first."""
        last = self.epochs[-1]
        head = ["method", *(f"{k} epochs" if k != 1 else "1 epoch" for k in self.epochs)]
        head += [f"gap, {last} epochs", "worst tenth", "bytes to join", "steps"]
        lines = [f"| {' | '.join(head)} |", f"|{'---|' * len(head)}"]
        for method in self.means.index:
            row = self.row(method, last)
            cells = [in_code(method), *(percent(self.means.loc[method, k]) for k in self.epochs)]
            cells += [points(row["gap"]), percent(row["worst10"])]
            cells += ["-" if isnan(row["received_bytes"]) else size(row["received_bytes"])]
            cells += [f"{row['steps']:.0f}"]
            lines.append(f"| {' | '.join(cells)} |")
        return lines

    def sentences(self) -> list[str]:
        """Return what the figures support."""
        first, last = self.epochs[0], self.epochs[-1]
        floor, bar = (self.means.loc[name, last] for name in (FLOOR, BAR))
        others = self.means.drop(index=[FLOOR, BAR])
        at_once = others[others[first] > floor]
        above_floor, above_bar = others[others[last] > floor], others[others[last] > bar]
        seen = self.table[self.table["epochs"] == last].set_index("method")["seen"]
        order = kendalltau(self.means[last], seen.loc[self.means.index]).statistic
        gaps = pd.Series({name: self.row(name, last)["gap"] for name in self.means.index})
        best = ", ".join(
            f"{in_code(name)} {percent(value)}" for name, value in others[last].head(3).items()
        )
        return [
            f"1. What the server sends to a new client is worth more than {last} epochs of its own"
            f" with {len(at_once)} of {len(others)} methods: before any training their new clients"
            f" are above the {percent(floor)} % that `{FLOOR}` reaches after {last} epochs.",
            f"2. After {last} epochs, {len(above_floor)} of {len(others)} methods are above"
            f" `{FLOOR}`, and {len(above_bar)} above the {percent(bar)} % of fine-tuned FedAvg"
            f" (`{BAR}`); the largest means are those of {best}.",
            f"3. The order of the methods on clients that trained says"
            f" {'much' if order > 0.6 else 'something' if order > 0.3 else 'little'} about their"
            f" order on new ones (Kendall's tau {order:.2f}); after as many epochs, the accuracy of"
            f" new clients minus that of the others is {points(gaps.median())} points in the"
            f" median over the methods ({points(gaps.min())} to {points(gaps.max())}).",
        ]


def percent(value: float) -> str:
    """Return a share in %."""
    return "-" if isnan(value) else f"{100 * value:.1f}"


def points(value: float) -> str:
    """Return a difference in points."""
    return "-" if isnan(value) else f"{100 * value:+.1f}"


def picture(federations: list[Federation]) -> Figure:
    """Draw the accuracy of all methods after each number of epochs."""
    most = max(len(one.means) for one in federations)
    figure = Figure(figsize=(5.2 * len(federations), 1.2 + 0.17 * most), layout="constrained")
    grid = figure.subplots(1, len(federations), squeeze=False)[0]
    for axes, one in zip(grid, federations, strict=True):
        places = range(len(one.means))[::-1]
        last = one.epochs[-1]
        axes.hlines(places, one.means.min(axis=1), one.means.max(axis=1), color="0.8", lw=1.5)
        marks = zip(one.epochs, ("o", "^", "s"), ("#b8c4d6", "#6f8fbf", "#1f3f77"), strict=False)
        for epochs, marker, color in marks:
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


def page(federations: list[Federation]) -> str:
    """Return the page."""
    lines = [
        "# Clients that join after the training",
        "",
        "Written by `benchmarks/new_clients_page.py` from the runs in `docs/board/clients/`, which"
        " `benchmarks/new_methods.py` trains; the",
        "configurations are `configs/clients/*.yaml`. New clients are in no round, no statistic and"
        " no choice; after the training each of",
        "them gets what the method sends to a client that it has never seen, and trains it for 0, 1"
        " or 5 epochs on its own training part",
        "([how](../guides/compare.md#clients-that-join-after-the-training)). All methods have"
        " default parameters and the same learning rate,",
        "batches and new clients. Accuracies on the test parts of the new clients, in %. The *gap*"
        " is the accuracy of new clients minus",
        "that of clients that trained, with as many further epochs, in points. `local` is training"
        " from scratch, `ft` fine-tuned FedAvg.",
        "Methods are sorted by the last column of epochs.",
        "",
        "![Accuracy of new clients by method and epochs](new-clients.png)",
        "",
    ]
    for one in federations:
        seeds = f"{one.repetitions} seeds" if one.repetitions > 1 else "one seed"
        lines += [
            f"## {one.title}",
            "",
            one.description,
            f"{len(one.means)} methods, {seeds}, {one.runs} runs."
            + ("" if one.repetitions > 2 else " No difference between two methods is claimed."),
            "",
            *one.sentences(),
            "",
            *one.lines(),
            "",
        ]
        if one.versions:
            lines += [one.versions, ""]
        if one.left_out:
            lines += [f"Not finished: {', '.join(map(in_code, one.left_out))}.", ""]
    return "\n".join(lines)


def main() -> None:
    """Write the page and its picture."""
    folder = Path(sys.argv[1] if len(sys.argv) > 1 else "docs/board")
    federations = [Federation.read(file) for file in sorted((folder / "clients").glob("*.tar.xz"))]
    (folder / "new-clients.md").write_text(page(federations), "utf-8")
    picture(federations).savefig(folder / "new-clients.png", dpi=110)


if __name__ == "__main__":
    main()
