"""FedAvg with flbench: the command `flbench run`, and what it writes.

The variant is the engine: `sequential` and `vectorized` in one process, `ray` with several workers.
The variant `default` names neither an engine nor a number of workers.
"""

import csv
import json
import subprocess
import sys
import tempfile
from pathlib import Path

from settings import Job


def arguments(job: Job, folder: Path) -> list[str]:
    """Return the arguments of `flbench` for a job."""
    setting = job.setting
    engine = []
    if job.variant != "default":
        workers = job.workers if job.variant == "ray" else 1
        engine = [f"engine.name={job.variant}", f"engine.workers={workers}"]
    normalization = ["model.norm=none"] if setting.net == "lenet5" else []
    return [
        *("run", "fedavg", "--json", "--out", str(folder)),
        f"data.path={job.task}",
        "partition.scheme=natural",
        "partition.split=[1,0,0]",
        f"model.name={setting.net}",
        *normalization,
        f"train.rounds={job.rounds}",
        f"train.participation={setting.cohort / setting.clients}",
        f"train.local_epochs={setting.epochs}",
        f"train.batch_size={setting.batch}",
        f"train.optimizer.lr={setting.lr}",
        f"evaluation.every={job.rounds}",
        *engine,
        "tracking.mlflow=false",
        f"seed={job.seed}",
    ]


def report(job: Job, printed: str, folder: Path) -> None:
    """Write the result of a job from what `flbench run --json` printed and wrote."""
    summary = json.loads(printed)["runs"][0]
    run = folder / summary["path"]
    with (run / "metrics.csv").open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    wanted = ("common", "gm", "accuracy")
    found = [row for row in rows if (row["split"], row["protocol"], row["metric"]) == wanted]
    sizes = json.loads((run / "partition.json").read_text(encoding="utf-8"))["samples"]["train"]
    setting = job.setting
    client_steps = {setting.epochs * -(-size // setting.batch) for size in sizes}
    if len(client_steps) != 1:
        raise ValueError(f"clients take different numbers of steps: {sorted(client_steps)}")
    job.report(
        steps=summary["client_trainings"] * client_steps.pop(),
        seconds=summary["seconds"]["train"],
        accuracy=float(found[-1]["value"]),
        notes=(f"seconds of the run by purpose: {summary['seconds']}",),
    )


def run(job: Job) -> None:
    """Train and evaluate, and write the result of a job."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        command = [sys.executable, "-m", "flbench", *arguments(job, folder)]
        process = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=False)
        if process.returncode:
            sys.exit(process.returncode)
        report(job, process.stdout, folder)


if __name__ == "__main__":
    run(Job.read(sys.argv[1]))
