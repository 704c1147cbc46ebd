"""FedAvg with flbench: the command `flbench run`, and what it writes.

    python benchmarks/peers/peer_flbench.py JOB_FILE
    python benchmarks/peers/peer_flbench.py SETTING [--device cuda] [--scale S] [key=value ...]

The first form is that of `run.py`. The variant is the engine: `sequential` and `vectorized` in one
process, `ray` with several workers; `default` names neither an engine nor a number of workers.

The second one trains a published setting, and prints one JSON document: steps, seconds of the
rounds and of the whole process, accuracy of the global model, and whether the images are random.
With `--scale 0.01` it takes a hundredth of the steps.
"""

import argparse
import csv
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from settings import PUBLISHED, SHAPES, Job, Setting


def arguments(job: Job, folder: Path) -> list[str]:
    """Return the arguments of `flbench` for a job."""
    setting = job.setting
    engine = []
    if job.variant != "default":
        workers = job.workers if job.variant == "ray" else 1
        engine = [f"engine.name={job.variant}", f"engine.workers={workers}"]
    # Published settings evaluate the global model on all test samples; models of clients get one.
    of_server = [f"evaluation.common.every={setting.every}", "evaluation.common.limit=1"]
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
        f"evaluation.every={setting.every or job.rounds}",
        *(of_server if setting.every else []),
        *engine,
        *setting.keys,
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
    job.report(
        steps=summary["steps"],
        seconds=summary["seconds"]["train"],
        accuracy=float(found[-1]["value"]),
        notes=(f"seconds of the run by purpose: {summary['seconds']}",),
    )


def run(job: Job) -> None:
    """Train and evaluate, and write the result of a job."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        command = [sys.executable, "-m", "flbench", *arguments(job, folder)]
        process = subprocess.run(
            command, cwd=folder, stdout=subprocess.PIPE, text=True, check=False
        )
        if process.returncode:
            sys.exit(process.returncode)
        report(job, process.stdout, folder)


def samples(setting: Setting, scale: float, root: Path, folder: Path) -> tuple[Path, bool]:
    """Write the NPZ file of a published setting; return it, and whether its images are random.

    They are if the data set is not in the folder `root`. Their test samples are scaled, too.
    """
    from run import export, write

    from flbench.core.errors import DataError

    path = folder / f"{setting.name}.npz"
    with suppress(DataError):
        return export(setting, root, folder), False
    tests, shape, classes = SHAPES[setting.data]
    draw = np.random.default_rng(0)
    parts = [
        (draw.integers(0, 256, (n, *shape), dtype=np.uint8), draw.permutation(n) % classes)
        for n in (int(setting.sizes().sum()), max(100, round(tests * min(1.0, scale))))
    ]
    return write(setting, *parts, path), True


def published(argv: Sequence[str]) -> dict[str, Any]:
    """Train the published setting that a command line names, and return what was measured."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("setting", choices=[*PUBLISHED])
    parser.add_argument("--device", default="auto", help="auto, cpu or cuda (default: auto)")
    parser.add_argument("--scale", type=float, default=1.0, help="factor on the steps")
    parser.add_argument("--data-root", type=Path, default=Path("data"), help="default: data")
    parser.add_argument("keys", nargs="*", metavar="key=value")
    asked = parser.parse_intermixed_args(argv)
    setting = PUBLISHED[asked.setting].scaled(asked.scale)
    keys = *setting.keys, f"engine.device={asked.device}", *asked.keys
    with tempfile.TemporaryDirectory() as name:
        task, is_random = samples(setting, asked.scale, asked.data_root, Path(name))
        job = Job(replace(setting, keys=keys), "default", task, setting.rounds, 0, 1, 1, task)
        job = replace(job, result=Path(name) / "result.json")
        begin = time.perf_counter()
        run(job)
        measured = json.loads(job.result.read_text(encoding="utf-8"))
        measured["process_seconds"] = time.perf_counter() - begin
    kind = "random images of its shape" if is_random else setting.data
    return {"setting": setting.name, "title": setting.title, "samples": kind, **measured}


if __name__ == "__main__":
    if sys.argv[1:2] and sys.argv[1] in PUBLISHED:
        print(json.dumps(published(sys.argv[1:])))
    else:
        run(Job.read(sys.argv[1]))
