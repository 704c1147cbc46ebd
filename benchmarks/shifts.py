"""Measures whether IFCA and CFL find groups of clients whose samples are shifted alike.

    python benchmarks/shifts.py DATA_DIR OUT_DIR [--seeds 3] [--first 0] [--starts 4] [--cases ifca]

DATA_DIR has mnist.npz. IFCA gets four rotations of MNIST, as in its paper (Ghosh et al., 2020), CFL
four permutations of the labels (Sattler et al., 2021). The clusters that the method has found are
compared with the groups by the adjusted Rand index: 1 if they are equal, about 0 for clusters drawn
at random. IFCA's clusters depend on its initial models, so IFCA is started several times, as in its
paper, and the run with the highest validation accuracy counts; the groups are not used to choose
it. `--starts` is the number of these runs. The output also has the index of each of them.
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


def indices(case: str, data: Path, out: Path, seed: int, starts: int) -> list[tuple[float, ...]]:
    """Return what each start of a case gives, the one with the highest validation accuracy first.

    Args:
        case: Name of the case.
        data: Folder with mnist.npz.
        out: Folder for the run folders.
        seed: Seed of the partition; that of the first start.
        starts: Number of runs with other initial models.

    Returns:
        The validation accuracy, the test accuracy and the adjusted Rand index of the clusters.
    """
    method, shift, train = CASES[case]
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
    groups, found = np.arange(CLIENTS) % GROUPS, []
    for run in runs:
        (table, *_), _ = trained.learned(run.path)
        clusters = np.asarray(table.values).argmax(axis=0)  # [clusters, N] -> [N]
        accuracies = [float(run.summary[part]["accuracy"]) for part in ("validation", "test")]
        found.append((*accuracies, adjusted_rand_score(groups, clusters)))
    return sorted(found, key=lambda one: -one[0])


def main() -> None:
    """Print the index of each case and seed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("data", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--starts", type=int, default=4)
    parser.add_argument("--cases", default="ifca,cfl")
    given = parser.parse_args()
    for case, (method, *_) in CASES.items():
        if method["name"] not in given.cases.split(","):
            continue
        starts = given.starts if method["name"] == "ifca" else 1
        for seed in range(given.first, given.first + given.seeds):
            results = indices(case, given.data, given.out, seed, starts)
            (_, accuracy, index), all_indices = results[0], [one[2] for one in results]
            each = ", ".join(f"{one:.2f}" for one in all_indices)
            print(
                f"{case}, seed {seed}: adjusted Rand index {index:.2f}, test accuracy"
                f" {accuracy:.3f}; all starts, by validation accuracy: {each}",
                flush=True,
            )


if __name__ == "__main__":
    main()
