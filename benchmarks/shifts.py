"""Measures whether IFCA and CFL find groups of clients whose samples are shifted alike.

    python benchmarks/shifts.py DATA_DIR OUT_DIR [--seeds 3]

DATA_DIR has mnist.npz. IFCA gets four rotations of MNIST, as in its paper (Ghosh et al., 2020), CFL
four permutations of the labels (Sattler et al., 2021). The clusters that the method has found are
compared with the groups by the adjusted Rand index: 1 if they are equal, about 0 for clusters drawn
at random. IFCA's clusters depend on its initial models, so IFCA is started several times, and the
run with the highest validation accuracy counts; the groups are not used to choose it.
"""

import argparse
from pathlib import Path
from typing import Any, Final

import numpy as np
from sklearn.metrics import adjusted_rand_score

import flbench as fl
from flbench.experiment import trained

GROUPS: Final = 4
CLIENTS: Final = 16
SAMPLES: Final = {"ifca": 4800, "cfl": 3200}
CASES: Final[dict[str, tuple[dict[str, Any], dict[str, Any], dict[str, Any], int]]] = {
    "IFCA, rotated images": (
        {"name": "ifca", "clusters": GROUPS},
        {"rotation": [0, 90, 180, 270]},
        {"rounds": 12, "local_epochs": 2, "optimizer": {"lr": 0.1}},
        4,
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
        1,
    ),
}
"""Method, section `shift`, section `train` and number of starts of each case."""


def index(case: str, data: Path, out: Path, seed: int) -> tuple[float, float]:
    """Return the adjusted Rand index of the clusters of a case, and its test accuracy.

    Args:
        case: Name of the case.
        data: Folder with mnist.npz.
        out: Folder for the run folders.
        seed: Seed of the partition; that of the first start.
    """
    method, shift, train, starts = CASES[case]
    runs = [
        fl.run(
            method,
            seed=seed + 1000 * start,
            data={"name": "mnist", "root": data},
            partition=fl.IID(clients=CLIENTS, samples=SAMPLES[method["name"]], seed=seed),
            model="mlp",
            train=train,
            evaluation={"every": train["rounds"]},
            output={"dir": out},
            engine={"threads": 1},
            progress=False,
            shift=shift,
        )
        for start in range(starts)
    ]
    best = max(runs, key=lambda run: float(run.summary["validation"]["accuracy"]))
    (table, *_), _ = trained.learned(best.path)
    found = np.asarray(table.values).argmax(axis=0)  # [clusters, N] -> [N]
    groups = np.arange(CLIENTS) % GROUPS
    return adjusted_rand_score(groups, found), best.summary["test"]["accuracy"]


def main() -> None:
    """Print the index of each case and seed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("data", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("--seeds", type=int, default=3)
    arguments = parser.parse_args()
    for case in CASES:
        for seed in range(arguments.seeds):
            found, accuracy = index(case, arguments.data, arguments.out, seed)
            print(
                f"{case}, seed {seed}: adjusted Rand index {found:.2f},"
                f" test accuracy {accuracy:.3f}",
                flush=True,
            )


if __name__ == "__main__":
    main()
