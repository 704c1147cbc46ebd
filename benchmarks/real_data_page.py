"""Writes the tables of docs/real-data.md from the runs that `benchmarks/real_data.py` has trained.

usage: python benchmarks/real_data_page.py [--from OUT_DIR] [--sets har,...] [FOLDER]

The default of FOLDER is docs/real-data, and that of --sets all data sets.

FOLDER has the archives SET.tar.xz and SET-central.tar.xz of each data set, and `search.json`. With
--from, they are copied from OUT_DIR first. The page is FOLDER.md: what stands between its comments
`begin SET` and `end SET` is replaced, and the rest stays. All figures come from `flbench.report`;
nothing is trained. A method without runs, or a data set without archives, is `not measured`.
"""

import argparse
import json
import re
import shutil
from functools import cache
from math import isnan
from pathlib import Path
from typing import Any, Final

import pandas as pd
from real_data import CENTRAL, METHODS, SETS

import flbench as fl

BASELINE: Final = "ft"
UNMEASURED: Final = "not measured"
HEADER: Final = (
    *("method", "runs", "accuracy, %", "mean of the clients, %", "worst tenth, %"),
    *("minus ft, points", "MB", "seconds"),
)


def spread(mean: float, low: float, high: float, sign: str = "") -> str:
    """Return a share with its 95 % interval in percent.

    >>> spread(0.912, 0.899, 0.925)
    '91.2 (89.9 to 92.5)'
    """
    if isnan(mean):
        return "-"
    middle = f"{100 * mean:{sign}.1f}"
    if isnan(low):
        return middle
    return f"{middle} ({100 * low:{sign}.1f} to {100 * high:{sign}.1f})"


def score(scores: pd.DataFrame, method: str, metric: str) -> str:
    """Return a test metric of a method with its interval, in percent."""
    rows = scores[(scores["method"] == method) & (scores["metric"] == metric)]
    if rows.empty:
        return "-"
    [(_, row)] = rows.iterrows()
    return spread(row["mean"], row["low"], row["high"])


def difference(pairs: pd.DataFrame, method: str) -> str:
    """Return the difference of a method's accuracy from that of `BASELINE`; `*` if significant."""
    rows = pairs[(pairs["first"] == method) & (pairs["second"] == BASELINE)]
    if rows.empty:
        return "-"
    [(_, row)] = rows.iterrows()
    mark = " *" if row["p_holm"] < 0.05 else ""
    return spread(row["difference"], row["low"], row["high"], sign="+") + mark


@cache
def report(archive: Path) -> fl.Comparison | None:
    """Return the report of an archive; None if there is no archive."""
    if not archive.exists():
        return None
    error = None
    # There may be no runs of the baseline; runs of several versions are compared with a warning.
    for options in ({"baseline": BASELINE}, {"baseline": BASELINE, "force": True}, {"force": True}):
        try:
            return fl.report(archive, **options)
        except fl.UserError as caught:
            error = caught
    raise error


def rows_of(name: str, folder: Path) -> list[list[str]]:
    """Return the rows of the table of a data set."""
    rows = []
    for suffix, methods in (("", SETS[name].methods), ("-central", ("fedavg",))):
        found = report(folder / f"{name}{suffix}.tar.xz")
        for method in methods:
            title = CENTRAL if suffix else method
            board = None if found is None else found.leaderboard.set_index("method")
            if found is None or board is None or method not in board.index:
                rows.append([title, "0", UNMEASURED, *["-"] * (len(HEADER) - 3)])
                continue
            line = board.loc[method]
            per_client = [score(found.scores, method, key) for key in ("accuracy_mean",)]
            rows.append(
                [
                    title,
                    str(int(line["n"])),
                    spread(line["mean"], line["low"], line["high"]),
                    *(["-", "-"] if suffix else per_client),
                    *([] if suffix else [score(found.scores, method, "worst10_accuracy")]),
                    "-" if suffix or method == BASELINE else difference(found.pairs, method),
                    "0" if suffix else f"{line['bytes'] / 1e6:,.0f}",
                    f"{line['seconds']:.0f}",
                ]
            )
    return rows


def clients_of(name: str, folder: Path) -> list[str]:
    """Return the table of the clients' accuracies, if there are at most eight clients."""
    found = report(folder / f"{name}.tar.xz")
    if found is None:
        return []
    scores = found.client_scores
    names = list(dict.fromkeys(scores["name"]))
    if not 1 < len(names) <= 8:
        return []
    lines = [["method", *(f"{one}, %" for one in names)]]
    for method in METHODS:
        mine = scores[scores["method"] == method].set_index("name")
        if not mine.empty:
            cells = [mine.loc[one] for one in names]
            lines.append(
                [
                    method,
                    *(spread(c["accuracy"], c["accuracy_low"], c["accuracy_high"]) for c in cells),
                ]
            )
    return ["", "Accuracy by client:", "", *table(lines[0], lines[1:])]


def table(header: list[str] | tuple[str, ...], rows: list[list[str]]) -> list[str]:
    """Return the lines of a table in Markdown."""
    lines = [f"| {' | '.join(header)} |", f"|{'---|' * len(header)}"]
    return lines + [f"| {' | '.join(row)} |" for row in rows]


def label(optimizer: dict[str, Any]) -> str:
    """Return an optimizer as the page names it.

    >>> label({"name": "sgd", "lr": 0.1})
    'sgd 0.1'
    """
    return f"{optimizer['name']} {optimizer['lr']:g}"


def block(name: str, folder: Path) -> str:
    """Return what the page says about a data set between its comments."""
    if any((folder / f"{name}{suffix}.tar.xz").exists() for suffix in ("", "-central")):
        lines = table(HEADER, rows_of(name, folder))
        lines += clients_of(name, folder)
    else:
        lines = [f"{UNMEASURED.capitalize()}."]
    found = report(folder / f"{name}.tar.xz")
    if found is not None:
        warnings = [re.sub(r", in \S+ and \S+\.$", ".", one) for one in found.warnings]
        lines += ["", *(f"- {sentence}" for sentence in (*found.answer, *warnings))]
    file = folder / "search.json"
    searched: dict[str, Any] = json.loads(file.read_text()) if file.exists() else {}
    if name in searched:
        tried = ", ".join(
            f"{label(one['optimizer'])} {100 * one['validation']:.1f}"
            for one in searched[name]["tried"]
        )
        chosen = label(searched[name]["optimizer"])
        lines += [
            "",
            f"Search, validation accuracy of FedAvg in % by optimizer and learning rate: {tried}."
            f" Chosen: {chosen}.",
        ]
    return "\n".join(lines)


def main() -> None:
    """Write the tables into the page."""
    parser = argparse.ArgumentParser(description=__doc__)
    default = Path(__file__).resolve().parents[1] / "docs" / "real-data"
    parser.add_argument("folder", type=Path, nargs="?", default=default)
    parser.add_argument("--from", dest="out", type=Path)
    parser.add_argument("--sets", default=",".join(SETS), help="data sets whose tables are written")
    given = parser.parse_args()
    given.folder.mkdir(exist_ok=True)
    if given.out is not None:
        for file in given.out.glob("*.tar.xz"):
            shutil.copy(file, given.folder)
        found = given.folder / "search.json"
        old = json.loads(found.read_text()) if found.exists() else {}
        new = json.loads((given.out / "search.json").read_text())
        found.write_text(json.dumps(old | new, indent=1) + "\n")
    page = given.folder.with_suffix(".md")
    text = page.read_text("utf-8")
    for name in given.sets.split(","):
        begin, end = f"<!-- begin {name} -->", f"<!-- end {name} -->"
        if begin not in text:
            raise SystemExit(f"{page} has no comment `{begin}`.")
        pattern = re.compile(f"{re.escape(begin)}.*?{re.escape(end)}", re.DOTALL)
        content = f"{begin}\n{block(name, given.folder)}\n{end}"
        text = pattern.sub(lambda _, new=content: new, text)
    page.write_text(text, "utf-8")


if __name__ == "__main__":
    main()
