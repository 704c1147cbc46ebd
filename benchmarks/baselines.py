"""Writes the page "Which baselines should I compare with?" from the figures of the board.

usage: python benchmarks/baselines.py [FOLDER] (default: docs/board)

The figures are those of the pages FOLDER/SETTING.md, which `board_pages.py` has written from
FOLDER/SETTING.tar.xz. The page is FOLDER/baselines.md; which methods it names follows from the
figures by the rules that it states.
"""

import re
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Final

import pandas as pd
from board_pages import NEW

from flbench.algorithms.catalogue import method as described
from flbench.core.text import in_code

ALWAYS: Final = {
    "local": "whether federated learning is worth its cost at all",
    "fedavg": "the single model that the others personalize",
    "ft": "the simplest personalization: FedAvg's model, fine-tuned by each client",
}
FAMILIES: Final = {
    "One model for all clients": (
        *("fedprox", "scaffold", "fedavgm", "feddyn", "moon"),
        *("fedadam", "fedyogi", "fedadagrad"),
    ),
    "Some layers stay with the client": (
        *("fedper", "fedrep", "fedbabu", "fedbn", "fedap", "fedcmd", "fedcpmd", "slapfl"),
        *("lgfedavg", "fedrod", "fedas", "fedcac", "gpfl", "fedcp"),
    ),
    "A personal model beside the shared one, or adapted from it": (
        *("ditto", "pfedme", "apfl", "fedala"),
        *("perfedavg", "floco", "knnper"),
    ),
    "Features and prototypes": (
        *("fedproto", "hfcd", "fedpc", "fednh"),
        *("fedpac", "feddbe", "fedtgp", "pfedfda"),
    ),
    "Similar clients learn from each other": (
        *("pfedsim", "ifca", "cfl", "fedfomo"),
        *("fedamp",),
    ),
    "Weights from a hypernetwork": ("dfedhp", "dispfl-hp", "pfedhn"),
    "Without a server": ("dfedavg", "dfedavgm", "dfedalt", "dfedsalt", "dispfl"),
}
"""Methods by what is personal in them; those of the archives SETTING-new come last."""
BROAD: Final = 5  # settings from which on a method counts as broadly measured


def figures(page: Path) -> list[dict[str, Any]]:
    """Return the figures on a page of the board, a dict for each method.

    Args:
        page: Page that `board_pages.py` has written.

    Returns:
        `accuracy` and `default` (shares) with tuned and default parameters, `bytes`, `minus_local`
        and `minus_ft` of tuned methods (shares), and `verdict_local` and `verdict_ft`: better,
        worse or empty, after Holm's correction. Methods that are not tuned are left out.
    """
    first, second = tables(page.read_text("utf-8"))
    rows = {}
    for cells in first:
        if number(cells["accuracy, tuned"]) is not None:
            rows[cells["method"]] = {
                "setting": page.stem,
                "method": cells["method"],
                "accuracy": number(cells["accuracy, tuned"]) / 100,
                "default": number(cells["accuracy, default"]) / 100,
                "bytes": 1e6 * number(cells["MB, tuned"].replace(",", "")),
            }
    for other in ("local", "ft"):
        for row in rows.values():  # the references have no tested difference
            row[f"minus_{other}"] = row["accuracy"] - rows[other]["accuracy"]
            row[f"verdict_{other}"] = ""
        for cells in second:
            gap = cells[f"minus `{other}`, tuned"]
            if cells["method"] in rows and number(gap) is not None:
                mean = number(gap)
                verdict = ("better" if mean > 0 else "worse") if gap.startswith("**") else ""
                rows[cells["method"]] |= {
                    f"minus_{other}": mean / 100,
                    f"verdict_{other}": verdict,
                }
    return list(rows.values())


def tables(text: str) -> list[list[dict[str, str]]]:
    """Return the first two tables of a page in Markdown: the cells of each row by column."""
    found: list[list[dict[str, str]]] = []
    head: list[str] | None = None
    for line in text.splitlines():
        if not line.startswith("|"):
            head = None
        elif head is None:
            head = [cell.strip() for cell in line.strip("|").split("|")]
            found.append([])
        elif not line.startswith("|---"):
            cells = [cell.strip() for cell in line.strip("|").split("|")]
            row = dict(zip(head, cells, strict=True))
            found[-1].append({**row, "method": row["method"].strip("`")})
    return found[:2]


def number(cell: str) -> float | None:
    """Return the number at the beginning of a cell, which may be bold; None if there is none."""
    match = re.match(r"(?:\*\*)?([-+]?\d+(?:\.\d+)?)", cell)
    return None if match is None else float(match[1])


def known(folder: Path) -> pd.DataFrame:
    """Return the figures of all settings in a folder."""
    rows = [
        row
        for archive in sorted(folder.glob("*.tar.xz"))
        for row in figures(folder / f"{archive.name.removesuffix('.tar.xz')}.md")
    ]
    return pd.DataFrame(rows)


class Board:
    """The figures of the board.

    Args:
        table: Rows of `figures`.
    """

    def __init__(self, table: pd.DataFrame) -> None:
        self.table = table
        recent = table["setting"].str.endswith(NEW) & ~table["method"].isin(ALWAYS)
        self.recent = set(table[recent]["method"])

    def rows(self, method: str) -> pd.DataFrame:
        """Return the rows of a method; the references of the new methods count once."""
        mine = self.table[self.table["method"] == method]
        is_again = mine["setting"].str.endswith(NEW) & (method in ALWAYS)
        return mine[~is_again]

    def score(self, method: str) -> float:
        """Return the mean difference to `ft` over the settings of a method."""
        return float(self.rows(method)["minus_ft"].mean())

    def chosen(self, methods: Iterable[str]) -> list[tuple[str, str]]:
        """Return the two methods of a family that a paper should include, each with the rule."""
        there = [name for name in methods if len(self.rows(name))]
        old = [name for name in there if name not in self.recent]
        broad = [name for name in old if len(self.rows(name)) >= BROAD]
        recent = [name for name in there if name in self.recent]
        few = [name for name in old if name not in broad]
        found: list[tuple[str, str]] = []
        for group, why in (
            (broad, f"best of those measured in {BROAD} settings or more"),
            (recent, "best of the methods of 2020 to 2025"),
            (broad, "second of those measured broadly"),
            (few, "best of those measured in fewer settings"),
            (recent, "second of the methods of 2020 to 2025"),
        ):
            names = {name for name, _ in found}
            left = [name for name in group if name not in names]
            if left and len(found) < 2:
                found.append((max(left, key=self.score), why))
        return found

    def line(self, family: str, method: str, why: str) -> str:
        """Return the line of a method in the table."""
        rows = self.rows(method)
        fedavg = self.table[self.table["method"] == "fedavg"].set_index("setting")["bytes"]
        traffic = (rows["bytes"] / rows["setting"].map(fedavg)).median()
        tuning = 100 * (rows["accuracy"] - rows["default"]).mean()
        year = described(method)["paper"]["venue"]
        cells = [
            family,
            in_code(method),
            why,
            spread(rows["minus_ft"]),
            spread(rows["minus_local"]),
            counts(rows, "local"),
            counts(rows, "ft"),
            f"{traffic:.2f}",
            f"{tuning:+.0f}",
            year,
        ]
        return f"| {' | '.join(cells)} |"


def spread(values: "pd.Series[float]") -> str:
    """Return differences in points: the mean and, of several, their range."""
    points = 100 * values
    if len(points) == 1:
        return f"{points.iloc[0]:+.1f}"
    return f"{points.mean():+.1f} ({points.min():+.1f} to {points.max():+.1f})"


def counts(rows: pd.DataFrame, other: str) -> str:
    """Return in how many settings a method is significantly better, and worse."""
    verdicts = rows[f"verdict_{other}"]
    return f"{(verdicts == 'better').sum()} / {(verdicts == 'worse').sum()} of {len(rows)}"


def page(table: pd.DataFrame) -> str:
    """Return the page."""
    board = Board(table)
    settings = sorted(set(board.table["setting"]))
    ft, local = board.rows("ft"), board.rows("local")
    gain = 100 * ft["minus_local"]
    best = sum(
        not (board.table[board.table["setting"] == name]["verdict_ft"] == "better").any()
        for name in set(ft["setting"])
    )
    close = 100 * board.rows("fedavg")["minus_ft"]
    lines = [
        "# Which baselines should I compare with?",
        "",
        "Written by `benchmarks/baselines.py` from the figures on the pages of [the"
        f" board](../board.md): {len(settings)} pages,",
        f"{len(set(board.table['method']))} methods with tuned hyper-parameters and equal budgets"
        " of search. Differences are in points of accuracy on test",
        "samples of all clients; significantly better or worse means after Holm's correction for"
        " all methods of a setting and both",
        "references.",
        "",
        "## Always",
        "",
        *(f"- {in_code(name)}: {why}." for name, why in ALWAYS.items()),
        "",
        f"In {best} of the {len(ft)} settings in which `ft` was compared, no method is"
        f" significantly better than `ft`. It differs from `local` by {gain.mean():+.1f} points",
        f"in the mean over the settings ({gain.min():+.1f} to {gain.max():+.1f}), while `fedavg`"
        f" without fine-tuning differs from `ft` by {close.mean():+.1f} points",
        f"({close.min():+.1f} to {close.max():+.1f}). A paper that leaves out tuned `ft` or"
        " `local` does not show that its method is needed; tuning alone moves `local` by"
        f" {100 * (local['accuracy'] - local['default']).mean():+.1f} points.",
        "",
        "## Two of each family",
        "",
        f"The first method of a family is the one with the highest mean difference to `ft` among"
        f" those measured in {BROAD} settings or more; the",
        "second is the best of the methods of 2020 to 2025, or the next one by the same rules. The"
        " column of the",
        "rule says which. Methods of one family were not all measured in the same settings, so"
        " that `ft` of the same setting is the",
        "common measure; a mean over one or two settings is weak evidence.",
        "",
    ]
    head = ["family", "include", "rule", "minus `ft` (range over settings)", "minus `local`"]
    head += ["better / worse than `local`", "better / worse than `ft`"]
    head += ["bytes / FedAvg's", "tuning, points", "published"]
    lines += [f"| {' | '.join(head)} |", f"|{'---|' * len(head)}"]
    others = []
    for family, methods in FAMILIES.items():
        chosen = board.chosen(methods)
        for place, (name, why) in enumerate(chosen):
            lines.append(board.line("" if place else family, name, why))
        names = {name for name, _ in chosen}
        rest = [name for name in methods if name not in names and len(board.rows(name))]
        rest.sort(key=board.score, reverse=True)
        shown = [
            f"{in_code(name)} {100 * board.score(name):+.1f} ({len(board.rows(name))})"
            for name in rest
        ]
        others.append(f"- {family}: {', '.join(shown) or 'none'}.")
    return "\n".join(
        [
            *lines,
            "",
            "## The others",
            "",
            "Mean difference to `ft` in points, with the number of settings in brackets:",
            "",
            *others,
            "",
            "What follows is not a ranking of methods in general: the board has small nets, few"
            " rounds and small data sets. Choose the",
            "settings of your own paper, and [let each method be tuned"
            " equally](../guides/tune.md).",
            "",
        ]
    )


def main() -> None:
    """Write the page."""
    folder = Path(sys.argv[1] if len(sys.argv) > 1 else "docs/board")
    (folder / "baselines.md").write_text(page(known(folder)), "utf-8")


if __name__ == "__main__":
    main()
