"""Measures whether IFCA and CFL find groups of clients whose samples are shifted alike.

    python benchmarks/shifts.py DATA_DIR OUT_DIR [--seeds 3] [--first 0] [--starts 10]
        [--cases ifca]

DATA_DIR has mnist.npz. IFCA gets four rotations of MNIST, as in its paper (Ghosh et al., 2020), CFL
four permutations of the labels (Sattler et al., 2021). The clusters that the method has found are
compared with the groups by the adjusted Rand index: 1 if they are equal, about 0 for clusters drawn
at random. IFCA's clusters depend on its initial models, so IFCA is started `--starts` times with
other initial models on the same clients, as in its paper, and the start with the lowest training
loss in its last round counts. Neither the groups nor test samples are used to choose it. The output
has loss and index of every start.
"""

import argparse
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
from sklearn.metrics import adjusted_rand_score

import flbench as fl
from flbench.results import learned

GROUPS: Final = 4
CLIENTS: Final = 16
SAMPLES: Final = {"ifca": 4800, "cfl": 3200}
CASES: Final[dict[str, tuple[dict[str, Any], dict[str, Any], dict[str, Any]]]] = {
    "IFCA, rotated images": (
        {"name": "ifca", "clusters": GROUPS},
        {"rotation": [0, 90, 180, 270]},
        {"rounds": 12, "local_epochs": 2, "optimizer": {"lr": 0.1}},
    ),
    "CFL, permuted labels": (
        {
            "name": "cfl",
            "thresholds": "relative",
            "eps1": 0.5,
            "eps2": 0.6,
            "start_round": 5,
            "min_size": CLIENTS // GROUPS,
        },
        {"labels": True, "groups": GROUPS},
        {"rounds": 20, "local_epochs": 2, "optimizer": {"lr": 0.1}},
    ),
}
"""Method, section `shift` and section `train` of each case."""


@dataclass(frozen=True)
class Start:
    """What one training of a case gives.

    Attributes:
        loss: Mean training loss of the clients in the last round.
        accuracy: Test accuracy of the clients' models.
        index: Adjusted Rand index of the clusters.
    """

    loss: float
    accuracy: float
    index: float


def trained_once(case: str, data: Path, out: Path, seed: int, start: int) -> Start:
    """Train a case.

    Args:
        case: Name of the case.
        data: Folder with mnist.npz.
        out: Folder for the run folders.
        seed: Seed of the partition; that of the run with `start` 0.
        start: Number of the start; each has other initial models.
    """
    method, shift, train = CASES[case]
    run = fl.run(
        method,
        seed=seed + 1000 * start,
        data={"name": "mnist", "root": data},
        partition=fl.IID(clients=CLIENTS, samples=SAMPLES[method["name"]], seed=seed),
        model="mlp",
        train=train,
        evaluation={"every": train["rounds"]},
        output={"dir": out},
        engine={"threads": 1, "workers": 1},
        progress=False,
        shift=shift,
    )
    table = learned.read(run.path, 10)[0]
    clusters = np.asarray(table.values).argmax(axis=0)  # [clusters, N] -> [N]
    rows = run.metrics
    losses = rows[(rows["split"] == "train") & (rows["metric"] == "loss")]
    groups = np.arange(CLIENTS) % GROUPS
    return Start(
        loss=float(losses.sort_values("round")["value"].iloc[-1]),
        accuracy=float(run.summary["test"]["accuracy"]),
        index=float(adjusted_rand_score(groups, clusters)),
    )


def main() -> None:
    """Print the index of each case and seed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("data", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--starts", type=int, default=10)
    parser.add_argument("--cases", default="ifca,cfl")
    given = parser.parse_args()
    for case, (method, *_) in CASES.items():
        if method["name"] not in given.cases.split(","):
            continue
        count = given.starts if method["name"] == "ifca" else 1
        for seed in range(given.first, given.first + given.seeds):
            starts = []
            for number in range(count):
                starts.append(one := trained_once(case, given.data, given.out, seed, number))
                print(
                    f"  seed {seed}, start {number}: training loss {one.loss:.4f}, adjusted Rand"
                    f" index {one.index:.2f}, test accuracy {one.accuracy:.3f}",
                    flush=True,
                )
            best = min(starts, key=lambda one: one.loss)
            found = sum(one.index == 1.0 for one in starts)
            print(
                f"{case}, seed {seed}: adjusted Rand index {best.index:.2f}, test accuracy"
                f" {best.accuracy:.3f} (start {starts.index(best)}, the lowest training loss);"
                f" {found} of {count} starts find the groups",
                flush=True,
            )


if __name__ == "__main__":
    main()
