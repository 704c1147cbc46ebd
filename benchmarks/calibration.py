"""Measures how often the claims of reports are wrong, and how often they are made when true.

    python benchmarks/calibration.py OUT_DIR [--comparisons 200] [--jobs 2]

Each comparison is trained with flbench and analysed by its own report: FedAvg on the digits of
scikit-learn, 5 clients, a small net. `twin` and `other` are FedAvg with initial weights of their
own, drawn from the same distribution: they are equal, and a report that calls one of them better is
wrong. `more` is FedAvg with two local epochs instead of one, and `fedper` has personal heads.

OUT_DIR/comparisons.jsonl has a line for each comparison, and is continued if the script was
stopped; OUT_DIR/table.md has the rates, with 95 % intervals of Clopper and Pearson.
"""

import argparse
import json
import sys
import tempfile
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import replace
from multiprocessing import get_context
from pathlib import Path
from typing import Any, Final
from zlib import crc32

import numpy as np
import torch
from scipy.stats import binomtest
from shown import table
from sklearn.datasets import load_digits
from torch import Tensor

import flbench as fl
from flbench.algorithms import Dispatch, State
from flbench.algorithms.fedavg import FedAvg
from flbench.analysis import statistics
from flbench.core.registry import ALGORITHMS
from flbench.core.types import Tree
from flbench.reports import run as pages

REPETITIONS: Final = 5
IN_FULL: Final = ("both", "training", "partition", "both, IID")
"""Designs with as many comparisons as are asked for; the others have a quarter."""
EQUAL: Final = ("twin", "other")
TRUE: Final = (("more", "twin"), ("fedper", "twin"))
"""Pairs with a true difference."""
NUMBERS: Final = (3, 5, 10, 20)
"""Numbers of repetitions of which the power is measured."""
RESAMPLES: Final = 2000
TRAIN: Final = {"rounds": 3, "local_epochs": 1, "optimizer": {"lr": 0.2}}


class OwnWeights(FedAvg):
    """FedAvg from other initial weights of the same distribution."""

    def init(self, start: Tree) -> tuple[Tree, Tree]:
        server, clients = super().init(start)
        for name, leaf in server.items():
            salt = crc32(leaf.numpy().tobytes() + type(self).__name__.encode())
            order = torch.randperm(leaf.numel(), generator=torch.Generator().manual_seed(salt))
            server[name] = leaf.flatten()[order].reshape(leaf.shape)
        return server, clients

    def dispatch(self, state: State, ids: Tensor) -> Dispatch:
        return super().dispatch(replace(state, is_initial=False), ids)


@ALGORITHMS.register("twin")
class Twin(OwnWeights):
    """One of two equal methods."""


@ALGORITHMS.register("other")
class Other(OwnWeights):
    """The other one."""


# The code of a user is tried before each run, which takes longer than these runs.
OwnWeights.__module__ = Twin.__module__ = Other.__module__ = FedAvg.__module__

METHODS: Final[dict[str, Any]] = {
    "twin": {"algorithm": "twin"},
    "other": {"algorithm": "other"},
    "more": {"algorithm": "fedavg", "train": {"local_epochs": 2}},
    "fedper": {"algorithm": "fedper"},
}


DIRICHLET: Final = {"scheme": "dirichlet", "alpha": 0.5, "clients": 5}
DESIGNS: Final[dict[str, tuple[dict[str, Any], str, tuple[str, ...]]]] = {
    "both": (DIRICHLET, "both", tuple(METHODS)),
    "training": (DIRICHLET, "training", EQUAL),
    "partition": (DIRICHLET, "partition", EQUAL),
    "both, IID": ({"scheme": "iid", "clients": 5}, "both", EQUAL),
    "both, fixed clients": ({"scheme": "natural"}, "both", EQUAL),
}
"""Section `partition`, what differs between repetitions, and the methods of each design."""


def compared(name: str, number: int) -> dict[str, Any]:
    """Train a comparison, and return what its report says."""
    partition, vary, methods = DESIGNS[name]
    pages.render = lambda *_, **__: ""  # the pages of the runs take longer than their training
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder:
        is_fixed = partition["scheme"] == "natural"
        data = {"path": with_clients(Path(folder))} if is_fixed else "digits"
        paths: dict[str, list[Path]] = {method: [] for method in methods}
        values: dict[str, list[float]] = {method: [] for method in methods}
        for own in range(number * REPETITIONS, (number + 1) * REPETITIONS):
            for method in methods:
                keys = dict(METHODS[method])
                train = {**TRAIN, **keys.pop("train", {})}
                done = fl.run(
                    **keys,
                    data=data,
                    partition={**partition, "seed": number if vary == "training" else own},
                    model={"name": "mlp", "hidden": [32]},
                    train=train,
                    evaluation={"every": TRAIN["rounds"]},
                    seed=number if vary == "partition" else own,
                    output={"dir": f"{folder}/{method}"},
                    progress=False,
                )
                paths[method].append(done.path)
                values[method].append(done.summary["best"]["test"]["accuracy"])
        report = fl.report([path for method in EQUAL for path in paths[method]])
        [pair] = report.pairs.to_dict("records")
        first = report.leaderboard.set_index("method").loc[pair["first"]]
        kept = {key: pair[key] for key in ("difference", "low", "high", "p", "p_holm", "verdict")}
        mean = {key: float(first[key]) for key in ("mean", "low", "high")}
        return {"design": name, "number": number, "values": values, "pair": kept, "mean": mean}


def with_clients(folder: Path) -> str:
    """Write the digits with five clients of their own, and return the path of the file."""
    x, y = load_digits(return_X_y=True)
    owners = np.random.default_rng(0).integers(0, 5, len(y))
    file = folder / "clients.npz"
    images = (x.reshape(-1, 8, 8) * 15).astype(np.uint8)
    np.savez(file, train_images=images, train_labels=y, train_groups=owners)
    return str(file)


def main() -> None:
    """Train what is missing, and write the table."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("out", type=Path)
    parser.add_argument("--comparisons", type=int, default=200)
    parser.add_argument("--jobs", type=int, default=2)
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    file = options.out / "comparisons.jsonl"
    lines = file.read_text().splitlines() if file.exists() else []
    done = [json.loads(line) for line in lines]
    there = {(one["design"], one["number"]) for one in done}
    missing = [
        (name, number)
        for number in range(options.comparisons)
        for name in DESIGNS
        if (name, number) not in there and (name in IN_FULL or 4 * number < options.comparisons)
    ]
    workers = ProcessPoolExecutor(options.jobs, mp_context=get_context("spawn"))
    with workers, file.open("a") as output:
        for future in as_completed([workers.submit(compared, *each) for each in missing]):
            done.append(future.result())
            output.write(json.dumps(done[-1]) + "\n")
            output.flush()
            sys.stderr.write(f"\r{len(done)} of {len(there) + len(missing)} ")
    table = "\n\n".join((claims(done), power(done))) + "\n"
    (options.out / "table.md").write_text(table)
    sys.stdout.write(table)


def claims(done: Sequence[dict[str, Any]]) -> str:
    """Return the table of how often claims about equal methods are wrong."""
    rows = []
    for name, (_, vary, _) in DESIGNS.items():
        mine = [one for one in done if one["design"] == name]
        gaps, means = ([one[key] for one in mine] for key in ("pair", "mean"))
        said = sum(one["verdict"] in ("better", "worse") for one in gaps)
        counts = {
            "a report calls one of two equal methods better": said,
            "the interval of their difference does not contain 0": missing(gaps, 0.0),
        }
        if vary == "both" and mine:
            every = float(np.mean([one["values"][EQUAL[0]] for one in mine]))
            claim = "the interval of a mean does not contain the mean over all repetitions"
            counts[claim] = missing(means, every)
        for claim, count in counts.items() if mine else ():
            ends = binomtest(count, len(mine)).proportion_ci(0.95, "exact")
            rate = f"{count / len(mine):.3f} [{ends.low:.3f}, {ends.high:.3f}]"
            rows.append([name, claim, "0.05", rate, len(mine)])
    return table(["repetitions", "claim", "nominal", "wrong", "of"], rows)


def missing(intervals: Sequence[dict[str, float]], value: float) -> int:
    """Return how many intervals do not contain a value."""
    return sum(one["low"] > value or one["high"] < value for one in intervals)


def power(done: Sequence[dict[str, Any]]) -> str:
    """Return the table of how often a true difference is claimed, by number of repetitions."""
    rows = []
    rng = np.random.default_rng(0)
    for first, second in TRUE:
        values = [one["values"] for one in done if one["design"] == "both"]
        gaps = np.concatenate([np.subtract(one[first], one[second]) for one in values])
        rates = []
        for n in NUMBERS:
            drawn = rng.choice(gaps, size=(n, RESAMPLES))
            means = drawn.mean(axis=0)
            half = statistics.half_interval(n, means, drawn.std(axis=0, ddof=1), 0.0)
            rates.append(f"{np.mean(abs(means) > half):.2f}")
        spread = f"{gaps.mean():+.4f}", f"{gaps.std(ddof=1):.4f}"
        rows.append([f"{first} - {second}", *spread, *rates])
    numbers = [f"n = {n}" for n in NUMBERS]
    return table(["true difference", "its mean", "standard deviation", *numbers], rows)


if __name__ == "__main__":
    main()
