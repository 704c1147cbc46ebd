"""The page of the tables of real data: activities, roles of Shakespeare, domains of PACS.

    python benchmarks/real_data.py UCI_HAR.npz har.npz

writes the windows of UCI HAR that `real_data.sh` trains on. The page is made by `pages.py`, from
the runs in docs/real-data. All methods of a data set have one optimizer, which was chosen by
the validation accuracy of FedAvg, with a seed and a partition that no other run has; search.json
has what was tried. `central` is one client that has the training samples of all clients.
"""

import json
import re
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any, Final

import numpy as np
from shown import ROOT, percent, render, spread, table

import flbench as fl

METHODS: Final = ("local", "fedavg", "ft", "fedbn", "fedper", "ditto", "hfcd")
WITH_NORM: Final = ("pacs", "pacs-resnet18")
"""Data sets whose net has trained BatchNorm layers; without them FedBN is FedAvg."""
CENTRAL: Final = "central"
BASELINE: Final = "ft"
UNMEASURED: Final = "not measured"
WINDOW_HALF: Final = 64  # two windows of UCI HAR overlap by this number of values
HEADER: Final = (
    *("method", "runs", "accuracy, %", "mean of the clients, %", "worst tenth, %"),
    *("minus ft, points", "MB", "seconds"),
)
ARCHIVES: Final = ROOT / "docs" / "real-data"


def write_activities(source: Path, file: Path) -> None:
    """Write the windows of UCI HAR without those that overlap with another one that is written.

    The second half of a window is the first half of the next one, by which windows that follow each
    other are found. Every second window of such a sequence is kept, so that no value of a test
    window is in a training window.
    """
    arrays = dict(np.load(source))
    windows, persons = arrays["windows"], arrays["subject"]
    begins = {
        (person, window[:, :WINDOW_HALF].tobytes()): row
        for row, (person, window) in enumerate(zip(persons, windows, strict=True))
    }
    following = [
        begins.get((person, window[:, WINDOW_HALF:].tobytes()))
        for person, window in zip(persons, windows, strict=True)
    ]
    kept = np.zeros(len(windows), dtype=bool)
    for first in set(range(len(windows))) - set(following):
        row, is_kept = first, True
        while row is not None:
            kept[row] = is_kept
            row, is_kept = following[row], not is_kept
    np.savez_compressed(
        file,
        train_images=windows[kept],
        train_labels=arrays["labels"][kept],
        train_groups=persons[kept] + 1,
        class_names=arrays["class_names"],
    )


@cache
def report(archive: Path) -> fl.Comparison | None:
    """Return the report of an archive; None if there is no archive."""
    baseline = None if archive.name.endswith(f"-{CENTRAL}.tar.xz") else BASELINE
    # Runs of several versions are compared with a warning.
    return fl.report(archive, baseline=baseline, force=True) if archive.exists() else None


def rows(name: str, folder: Path) -> Iterator[list[Any]]:
    """Yield the rows of the table of a data set."""
    there = [one for one in METHODS if one != "fedbn" or name in WITH_NORM]
    methods = [(one, one, f"{name}.tar.xz") for one in there]
    for title, method, file in [*methods, (CENTRAL, "fedavg", f"{name}-{CENTRAL}.tar.xz")]:
        found = report(folder / file)
        if found is None or method not in set(found.leaderboard["method"]):
            yield [title, "0", UNMEASURED, *["-"] * (len(HEADER) - 3)]
            continue
        line = found.leaderboard.set_index("method").loc[method]
        scores = found.scores.set_index(["metric", "method"])
        pairs = found.pairs.set_index(["first", "second"])
        of_clients, gap = ["-", "-"], "-"
        if title != CENTRAL:
            clients = ("accuracy_mean", "worst10_accuracy")
            of_clients = [spread(scores.loc[one, method]) for one in clients]
        if title not in (CENTRAL, BASELINE):
            pair = pairs.loc[method, BASELINE]
            gap = spread({**pair, "mean": pair["difference"]}, "+")
            gap += " *" if pair["p_holm"] < 0.05 else ""
        size = "0" if title == CENTRAL else f"{line['bytes'] / 1e6:,.0f}"
        yield [title, line["n"], spread(line), *of_clients, gap, size, f"{line['seconds']:.0f}"]


def clients(found: fl.Comparison) -> list[str]:
    """Return the table of the clients' accuracies, if there are at most eight clients."""
    scores = found.client_scores
    names = list(dict.fromkeys(scores["name"]))
    if not 1 < len(names) <= 8:
        return []
    lines = []
    for method in (one for one in METHODS if one in set(scores["method"])):
        mine = scores[scores["method"] == method].set_index("name")
        ends = {"mean": "accuracy", "low": "accuracy_low", "high": "accuracy_high"}
        cells = [{key: mine.loc[one, of] for key, of in ends.items()} for one in names]
        lines.append([method, *map(spread, cells)])
    return ["Accuracy by client:", table(["method", *(f"{one}, %" for one in names)], lines)]


def block(name: str, folder: Path = ARCHIVES) -> str:
    """Return what the page has about a data set."""
    found = report(folder / f"{name}.tar.xz")
    if found is None:
        return f"{UNMEASURED.capitalize()}."
    parts = [table(HEADER, rows(name, folder)), *clients(found)]
    warnings = [re.sub(r", in \S+ and \S+\.$", ".", one) for one in found.warnings]
    parts.append("\n".join(f"- {sentence}" for sentence in (*found.answer, *warnings)))
    if name in (known := json.loads((folder / "search.json").read_text())):
        tried = [(one["optimizer"], one["validation"]) for one in known[name]["tried"]]
        best = known[name]["optimizer"]
        parts.append(
            "Search, validation accuracy of FedAvg in % by optimizer and learning rate: "
            + ", ".join(f"{one['name']} {one['lr']:g} {percent(score)}" for one, score in tried)
            + f". Chosen: {best['name']} {best['lr']:g}."
        )
    return "\n\n".join(parts)


def page() -> str:
    """Return the page about real data."""
    return render("real-data", block=block)


if __name__ == "__main__":
    write_activities(*map(Path, sys.argv[1:]))
