"""Measures how the time of a round grows with the number of clients, and with the cohort.

    python benchmarks/measure.py OUT_DIR [--clients 10,...] [--cohorts 1,10,100]
        [--engines sequential,vectorized] [--method fedavg]

The data are random: six samples of 64 numbers for each client, so that all clients take the same
number of steps. A checkpoint is written after each round. OUT_DIR/growth.json has the seconds of a
round's training, of one evaluation of all clients, of writing and of start-up, without imports, the
bytes of the checkpoints in the end, and those of the largest memory of the process.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Final

import numpy as np
from shown import table

SAMPLES, ROUNDS, FEATURES, CLASSES = 6, 10, 64, 10
"""Samples of a client, rounds, numbers of a sample and classes."""
GROWTH: Final = {
    "a round's training, s": ("train", 1 / ROUNDS, ".4f"),
    "an evaluation, s": ("evaluate", 1, ".3f"),
    "all checkpoints and tables, s": ("write", 1, ".2f"),
    "checkpoints, MB": ("disk", 1e-6, ".0f"),
    "memory, MB": ("memory", 1e-6, ".0f"),
}
"""Columns: what is measured, its factor and its format."""


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


def main() -> None:
    """Measure what the command line asks for."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("out", type=Path)
    parser.add_argument("--clients", default="10,100,1000,10000")
    parser.add_argument("--cohorts", default="1,10,100")
    parser.add_argument("--engines", default="sequential,vectorized")
    parser.add_argument("--method", default="fedavg")
    growth(parser.parse_args())


if __name__ == "__main__":
    main()
