"""Measures readings of FedCPMD's and FedPC's papers that no single run of flbench compares.

usage: python benchmarks/paper_readings.py DATA_DIR [fedcpmd] [fedpc] [--seeds 3] [--out DIR]

fedcpmd: share of the clients that elect the same layer with scaled and with raw inputs, outputs and
labels, for each distance. The models are the same in both runs, because votes change no model of
phase 1. fedpc: accuracy with and without the pull in the first round. The docstring of each
function has the setting; both use Fashion-MNIST.
"""

import argparse
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
from torch import Tensor

import flbench as fl
from flbench.algorithms import ALGORITHMS
from flbench.algorithms.fedcpmd import elected
from flbench.algorithms.fedpc import (
    INTRA,
    TABLE,
    FedPc,
    group_weights,
    intra_group_means,
    mix_groups,
)
from flbench.algorithms.shared.prefixes import prefixed, stripped
from flbench.algorithms.shared.shift import DISTANCES
from flbench.core.types import Results, State, Update
from flbench.experiment import checkpoint

PRESETS = Path(__file__).resolve().parents[1] / "configs" / "papers"
VOTING_ROUNDS = 12
PULL_ROUNDS = (1, 2, 5, 10)


class FirstPull(FedPc):
    """FedPC with L_p in the first round of training too.

    The prototypes of the set-up, which belong to the seeded net, are averaged within groups and
    mixed between them by eq. 5-8, as those of later rounds are.
    """

    def aggregate(self, state: State, results: Results) -> Update:
        """Give the groups prototypes as soon as the clients are grouped."""
        update = super().aggregate(state, results)
        if self.stages()[state.stage].name != "cluster":
            return update
        groups = torch.arange(len(state.server[TABLE[0]]))[:, None]  # [J, 1]
        members = update.server["groups"] == groups  # [J, N]
        weights = members[:, results.ids].double()
        intra = intra_group_means(stripped(INTRA, state.server), results.sent, weights)
        inter = mix_groups(intra, group_weights(intra))
        return replace(update, server=update.server | inter | prefixed(INTRA, intra))


def elections(data: dict[str, Any], out: Path, seed: int, **keys: Any) -> Tensor:
    """Return the number of the layer that each client elects, [50].

    FedCPMD's preset with 50 clients, 5,000 samples and five clients in each of twelve rounds.

    Args:
        data: Section `data` of the configuration.
        out: Folder of the run.
        seed: Seed of the run.
        **keys: Keys of FedCPMD.
    """
    run = fl.run(
        {"name": "fedcpmd", "k_p": VOTING_ROUNDS, **keys},
        config=PRESETS / "fedcpmd.yaml",
        seed=seed,
        data=data,
        partition={"clients": 50, "samples": 5000},
        train={"rounds": VOTING_ROUNDS, "participation": 0.1},
        engine={"name": "sequential", "threads": 1},
        evaluation={"every": VOTING_ROUNDS},
        output={"dir": str(out)},
        progress=False,
    )
    last = run.path / "checkpoints" / "last.safetensors"
    state, _ = checkpoint.load(last, run.summary["config_hash"])
    return elected(state.server)


def accuracies(algorithm: str, data: dict[str, Any], out: Path, seed: int) -> list[float]:
    """Return the mean accuracy of the clients in % after each of `PULL_ROUNDS`.

    FedPC's preset (Dirichlet 0.3) with LeNet-5, ten clients, 1,500 samples and ten rounds.

    Args:
        algorithm: Name of the method.
        data: Section `data` of the configuration.
        out: Folder of the run.
        seed: Seed of the run.
    """
    run = fl.run(
        algorithm,
        config=PRESETS / "fedpc.yaml",
        seed=seed,
        data=data,
        model="lenet5",
        partition={"clients": 10, "samples": 1500},
        train={"rounds": max(PULL_ROUNDS)},
        engine={"name": "vectorized", "threads": 1},
        evaluation={"every": 1, "common": {"every": max(PULL_ROUNDS), "limit": 500}},
        output={"dir": str(out)},
        progress=False,
    )
    rows = run.metrics.query(
        "split == 'test' and protocol == 'personal' and metric == 'accuracy_mean'"
    ).set_index("round")
    return [100 * float(rows.loc[number, "value"]) for number in PULL_ROUNDS]


def main() -> None:
    """Print what the papers in the arguments measure."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("data", type=Path, help="folder with fashionmnist.npz")
    parser.add_argument("papers", nargs="*", help="fedcpmd, fedpc (default: both)")
    parser.add_argument("--seeds", type=int, default=3, help="number of seeds")
    parser.add_argument("--out", type=Path, help="folder of the runs (default: they are removed)")
    options = parser.parse_args()
    papers = options.papers or ["fedcpmd", "fedpc"]
    if unknown := set(papers) - {"fedcpmd", "fedpc"}:
        parser.error(f"there is no `{min(unknown)}`; choose from fedcpmd and fedpc")

    data = {"name": "fashionmnist", "root": str(options.data)}
    with TemporaryDirectory() as temporary:
        out = options.out or Path(temporary)
        if "fedcpmd" in papers:
            for distance in DISTANCES:
                shares = []
                for seed in range(options.seeds):
                    scaled, raw = (
                        elections(data, out, seed, distance=distance, inputs=inputs)
                        for inputs in ("channels", "raw")
                    )
                    shares.append(f"{100 * float((scaled == raw).double().mean()):.0f} %")
                print(f"fedcpmd, {distance}: {', '.join(shares)}", flush=True)
        if "fedpc" in papers:
            ALGORITHMS.register("fedpc-first")(FirstPull)
            for seed in range(options.seeds):
                for name in ("fedpc", "fedpc-first"):
                    found = " ".join(f"{each:.1f}" for each in accuracies(name, data, out, seed))
                    print(f"{name}, seed {seed}, rounds {PULL_ROUNDS}: {found}", flush=True)


if __name__ == "__main__":
    main()
