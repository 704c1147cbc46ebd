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
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass, replace
from functools import partial
from multiprocessing import get_context
from pathlib import Path
from typing import Any, Final
from zlib import crc32

import numpy as np
import torch
from numpy.typing import NDArray
from sklearn.datasets import load_digits
from statsmodels.stats.proportion import proportion_confint
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


@dataclass(frozen=True)
class Design:
    """How the repetitions of a comparison are drawn.

    Attributes:
        partition: Section `partition`.
        vary: What differs between repetitions, as in `flbench compare --vary`.
        methods: The methods to train.
    """

    partition: Mapping[str, Any]
    vary: str
    methods: tuple[str, ...] = EQUAL

    def seeds(self, number: int) -> Iterator[tuple[int, int]]:
        """Yield the seed of the training and that of the partition of each repetition."""
        for k in range(REPETITIONS):
            own = number * REPETITIONS + k
            yield (
                number if self.vary == "partition" else own,
                number if self.vary == "training" else own,
            )


DIRICHLET: Final = {"scheme": "dirichlet", "alpha": 0.5, "clients": 5}
DESIGNS: Final = {
    "both": Design(DIRICHLET, "both", (*EQUAL, "more", "fedper")),
    "training": Design(DIRICHLET, "training"),
    "partition": Design(DIRICHLET, "partition"),
    "both, IID": Design({"scheme": "iid", "clients": 5}, "both"),
    "both, fixed clients": Design({"scheme": "natural"}, "both"),
}


def compared(name: str, number: int) -> dict[str, Any]:
    """Train a comparison, and return what its report says.

    Args:
        name: Design.
        number: Number of the comparison, which gives its seeds.
    """
    design = DESIGNS[name]
    pages.render = lambda *_, **__: ""  # the pages of the runs take longer than their training
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder:
        is_fixed = design.partition["scheme"] == "natural"
        data = {"path": with_clients(Path(folder))} if is_fixed else "digits"
        paths: dict[str, list[Path]] = {method: [] for method in design.methods}
        values: dict[str, list[float]] = {method: [] for method in design.methods}
        for seed, partition_seed in design.seeds(number):
            for method in design.methods:
                keys = dict(METHODS[method])
                train = {**TRAIN, **keys.pop("train", {})}
                done = fl.run(
                    **keys,
                    data=data,
                    partition={**design.partition, "seed": partition_seed},
                    model={"name": "mlp", "hidden": [32]},
                    train=train,
                    evaluation={"every": TRAIN["rounds"]},
                    seed=seed,
                    output={"dir": f"{folder}/{method}"},
                    progress=False,
                )
                paths[method].append(done.path)
                values[method].append(done.summary["best"]["test"]["accuracy"])
        report = fl.report([path for method in EQUAL for path in paths[method]])
        [pair] = report.pairs.to_dict("records")
        first = report.leaderboard.set_index("method").loc[pair["first"]]
        keep = ("difference", "low", "high", "p", "p_holm", "paired_t", "corrected", "verdict")
        return {
            "design": name,
            "number": number,
            "values": values,
            "pair": {key: pair[key] for key in keep},
            "mean": {key: float(first[key]) for key in ("mean", "low", "high")},
        }


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
    rows = ["| repetitions | claim | nominal | wrong | of | before |", "|---|---|---|---|---|---|"]
    for name, design in DESIGNS.items():
        mine = [one for one in done if one["design"] == name]
        if not mine:
            continue
        tried = [
            ("a report calls one of two equal methods better", _says_better, _missed_zero),
            ("the interval of their difference does not contain 0", _misses_zero, _missed_zero),
        ]
        if design.vary == "both":
            every = float(np.mean([one["values"][EQUAL[0]] for one in mine]))
            tried.append(
                (
                    "the interval of a mean does not contain the mean over all repetitions",
                    partial(_misses_mean, every=every),
                    partial(_missed_mean, every=every),
                )
            )
        for claim, wrong, before in tried:
            counts = [sum(map(one, mine)) for one in (wrong, before)]
            rates = [_rate(count, len(mine)) for count in counts]
            rows.append(f"| {name} | {claim} | 0.05 | {rates[0]} | {len(mine)} | {rates[1]} |")
    return "\n".join(rows)


def _rate(count: int, of: int) -> str:
    """Return a rate with its 95 % interval."""
    low, high = proportion_confint(count, of, 0.05, "beta")
    return f"{count / of:.3f} [{low:.3f}, {high:.3f}]"


def _says_better(one: dict[str, Any]) -> bool:
    return one["pair"]["verdict"] in ("better", "worse")


def _gaps(one: dict[str, Any]) -> NDArray[np.float64]:
    first, second = (np.array(one["values"][name]) for name in EQUAL)
    gaps: NDArray[np.float64] = first - second
    return gaps


def _earlier_overlap(one: dict[str, Any]) -> float:
    """Return what earlier versions added to 1 / n: n_test / n_train where partitions differ."""
    return 0.0 if DESIGNS[one["design"]].vary == "training" else 0.2 / 0.6


def _misses_zero(one: dict[str, Any]) -> bool:
    """Return whether the interval of the difference of equal methods does not contain 0."""
    return bool(one["pair"]["low"] > 0 or one["pair"]["high"] < 0)


def _missed_zero(one: dict[str, Any]) -> bool:
    """Return the same for the test of earlier versions, by which reports made their claims."""
    low, high = _interval(_gaps(one), _earlier_overlap(one))
    return bool(low > 0 or high < 0)


def _misses_mean(one: dict[str, Any], every: float) -> bool:
    """Return whether the interval of a mean does not contain the mean over all repetitions."""
    return bool(one["mean"]["low"] > every or one["mean"]["high"] < every)


def _missed_mean(one: dict[str, Any], every: float) -> bool:
    """Return the same for the interval of earlier versions, that of Student's t."""
    low, high = _interval(np.array(one["values"][EQUAL[0]]))
    return bool(low > every or high < every)


def _interval(values: Any, overlap: float = 0.0) -> tuple[Any, Any]:
    """Return the ends of the intervals of means over the first axis."""
    means = values.mean(axis=0)
    half = statistics.half_interval(len(values), means, values.std(axis=0, ddof=1), overlap)
    return means - half, means + half


def power(done: Sequence[dict[str, Any]]) -> str:
    """Return the table of how often a true difference is claimed, by number of repetitions."""
    mine = [one for one in done if one["design"] == "both"]
    rows = [
        "| true difference | its mean | standard deviation | rule |"
        + "".join(f" n = {n} |" for n in NUMBERS),
        "|---|---|---|---|" + "---|" * len(NUMBERS),
    ]
    rng = np.random.default_rng(0)
    for first, second in TRUE:
        gaps = np.concatenate(
            [np.subtract(one["values"][first], one["values"][second]) for one in mine]
        )
        for rule, overlap in (("now", 0.0), ("before", 0.2 / 0.6)):
            rates = []
            for n in NUMBERS:
                drawn = rng.choice(gaps, size=(n, RESAMPLES))
                low, high = _interval(drawn, overlap)
                rates.append(f"{np.mean((low > 0) | (high < 0)):.2f}")
            rows.append(
                f"| {first} - {second} | {gaps.mean():+.4f} | {gaps.std(ddof=1):.4f} | {rule} |"
                + "".join(f" {rate} |" for rate in rates)
            )
    return "\n".join(rows)


if __name__ == "__main__":
    main()
