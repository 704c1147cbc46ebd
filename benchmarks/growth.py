"""Measures how the time of a round grows with the number of clients, and with the cohort.

    python benchmarks/growth.py OUT_DIR [--clients 10,100,1000,10000] [--cohorts 1,10,100]

The data are random: six samples of 64 numbers for each client, so that all clients take the same
number of steps. A checkpoint is written after each round. A line of OUT_DIR/growth.json has the
clients, the cohort, the engine, the seconds of a round's training, of one evaluation of all
clients, of writing and of start-up, without imports, the bytes of the checkpoints in the end, and
those of the largest memory of the process.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np

SAMPLES = 6
ROUNDS = 10
FEATURES = 64
CLASSES = 10


def main() -> None:
    """Measure all sizes, and print and write a table."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("out", type=Path)
    parser.add_argument("--clients", default="10,100,1000,10000")
    parser.add_argument("--cohorts", default="1,10,100")
    parser.add_argument("--engines", default="sequential,vectorized")
    parser.add_argument("--method", default="fedavg", help="fedavg: one model; ditto: personal")
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    numbers = [int(text) for text in options.clients.split(",")]
    cohorts = [int(text) for text in options.cohorts.split(",")]
    cases = [(clients, 10) for clients in numbers]
    cases += [(1000, cohort) for cohort in cohorts if (1000, cohort) not in cases]
    lines = []
    sys.stdout.write(
        "| engine | clients | cohort | a round's training, s | an evaluation, s"
        " | all checkpoints and tables, s | checkpoints, MB | memory, MB |\n"
    )
    sys.stdout.write("|---|---|---|---|---|---|---|---|\n")
    for engine in options.engines.split(","):
        for clients, cohort in cases:
            line = {"engine": engine, "clients": clients, "cohort": cohort}
            line |= measure(engine, clients, cohort, options.method)
            lines.append(line)
            sys.stdout.write(
                f"| {engine} | {clients:,} | {cohort} | {line['train']:.4f}"
                f" | {line['evaluate']:.3f} | {line['write']:.2f} | {line['disk'] / 1e6:.0f}"
                f" | {line['memory'] / 1e6:.0f} |\n"
            )
            sys.stdout.flush()
            (options.out / "growth.json").write_text(json.dumps(lines, indent=1) + "\n")


def measure(engine: str, clients: int, cohort: int, method: str) -> dict[str, float]:
    """Return seconds of parts of a run, and the bytes of its checkpoints and of its memory."""
    with tempfile.TemporaryDirectory() as folder:
        draw = np.random.default_rng(0)
        count = SAMPLES * clients
        labels = draw.integers(0, CLASSES, count)
        values = draw.normal(size=(count, FEATURES)).astype(np.float32)
        file = Path(folder) / "random.npz"
        owners = np.repeat(np.arange(clients), SAMPLES)
        np.savez(file, train_images=values, train_labels=labels, train_groups=owners)
        command = [sys.executable, "-m", "flbench", "run", method, "--json", "--out", folder]
        command += [f"data.path={file}", "partition.scheme=natural", "partition.min_samples=1"]
        command += ["partition.split=[0.67, 0.0, 0.33]", f"train.rounds={ROUNDS}"]
        command += [f"train.participation={cohort / clients}", f"engine.name={engine}"]
        command += [f"evaluation.every={ROUNDS}", "tracking.mlflow=false", "engine.threads=1"]
        command += ["output.checkpoint_every=1"]
        with (Path(folder) / "said").open("w+") as said:
            process = subprocess.Popen(command, stdout=said, stderr=said)
            _, status, used = os.wait4(process.pid, 0)
            process.returncode = os.waitstatus_to_exitcode(status)
            if process.returncode:
                said.seek(0)
                sys.exit(said.read())
        [summary] = Path(folder).glob("*/*/summary.json")
        seconds = json.loads(summary.read_text())["seconds"]
        files = {file.stat().st_ino: file.stat() for file in summary.parent.glob("checkpoints/*")}
    known = ("train", "evaluate", "write")
    return {
        "train": seconds["train"] / ROUNDS,
        "evaluate": seconds["evaluate"],
        "write": seconds["write"],
        "other": seconds["total"] - sum(seconds[name] for name in known),
        "disk": sum(file.st_blocks * 512 for file in files.values()),
        "memory": used.ru_maxrss * 1024,
    }


if __name__ == "__main__":
    main()
