"""Measures whether IFCA and CFL find groups of clients whose samples are shifted alike.

    python benchmarks/shifts.py DATA_DIR OUT_DIR [--seeds 3]

DATA_DIR has mnist.npz. IFCA gets four rotations of MNIST, as in its paper (Ghosh et al., 2020), CFL
four permutations of the labels (Sattler et al., 2021). The clusters that the method has found are
compared with the groups by the adjusted Rand index: 1 if they are equal, about 0 for clusters drawn
at random.
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
SAMPLES: Final = 4800
CASES: Final[dict[str, tuple[dict[str, Any], dict[str, Any], dict[str, Any]]]] = {
    "IFCA, rotated images": (
        {"name": "ifca", "clusters": GROUPS},
        {"rotation": [0, 90, 180, 270]},
        {"rounds": 10, "local_epochs": 2, "optimizer": {"lr": 0.1}},
    ),
    "CFL, permuted labels": (
        {"name": "cfl", "thresholds": "relative", "eps1": 0.4, "eps2": 0.5, "start_round": 3},
        {"labels": True, "groups": GROUPS},
        {"rounds": 12, "local_epochs": 2, "optimizer": {"lr": 0.1}},
    ),
}
"""Method, section `shift` and section `train` of each case."""


def index(case: str, data: Path, out: Path, seed: int) -> tuple[float, float]:
    """Return the adjusted Rand index of the clusters of a run, and its test accuracy.

    Args:
        case: Name of the case.
        data: Folder with mnist.npz.
        out: Folder for the run folder.
        seed: Seed of the run and the partition.
    """
    method, shift, train = CASES[case]
    run = fl.run(
        method,
        seed=seed,
        data={"name": "mnist", "root": data},
        partition=fl.IID(clients=CLIENTS, samples=SAMPLES),
        model="mlp",
        train=train,
        evaluation={"every": train["rounds"]},
        output={"dir": out},
        engine={"threads": 1},
        progress=False,
        shift=shift,
    )
    (table, *_), _ = trained.learned(run.path)
    found = np.asarray(table.values).argmax(axis=0)  # [clusters, N] -> [N]
    groups = np.arange(CLIENTS) % GROUPS
    return adjusted_rand_score(groups, found), run.summary["test"]["accuracy"]


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
