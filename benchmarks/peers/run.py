"""Measure flbench beside other platforms and a bare PyTorch loop: `python benchmarks/peers/run.py`.

All platforms train the same federation with the same settings, one after the other, repeat after
repeat. Each measurement is a process of its own. See benchmarks/README.md.
"""

import argparse
import json
import os
import platform
import re
import resource
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import table
from settings import SETTINGS, Job, Setting

from flbench.config.schema import DataConfig
from flbench.core.errors import DataError, UserError
from flbench.data import sources

HERE = Path(__file__).parent
VARIANTS = {
    "bare": ("",),
    "flbench": ("default", "sequential", "vectorized", "ray"),
    "fluke": ("",),
    "flower": ("",),
    "pfl": ("", "torchrun"),
}
PACKAGES = ("flbench", "fluke-fl", "flwr", "pfl", "torch", "numpy", "lightning", "ray")
VERSIONS = """
import platform, sys
from importlib import metadata
print("python", platform.python_version())
for name in sys.argv[1:]:
    try: print(name, metadata.version(name))
    except metadata.PackageNotFoundError: pass
"""
PARTITION_SEED = 0
Samples = tuple[np.ndarray, np.ndarray]
"""Images in the layout of NPZ files, and labels."""


def main(argv: Sequence[str] | None = None) -> int:
    """Measure what the command line asks for; return 1 if a platform has no comparable figures."""
    options = _options(argv)
    folder: Path = options.folder.resolve()
    folder.mkdir(parents=True, exist_ok=True)
    file = folder / "results.json"
    results = json.loads(file.read_text()) if options.append and file.exists() else {}
    measured: list[dict[str, Any]] = results.setdefault("measurements", [])
    results["machine"] = _machine()
    results.setdefault("commands", []).append(sys.argv)
    results.setdefault("versions", {})
    rounds = {name: max(1, round(SETTINGS[name].rounds * options.scale)) for name in SETTINGS}
    here = [one for one in measured if one["setting"] in options.setting]
    if other := {one["rounds"] for one in here if one["rounds"] != rounds[one["setting"]]}:
        raise UserError(
            f"{file} has {min(other)} rounds of a setting, but --scale {options.scale:g} gives"
            " another number. Use the same --scale or another --folder."
        )
    jobs = {
        name: Job(
            setting=SETTINGS[name],
            variant="",
            task=export(SETTINGS[name], options.data_root, folder / "tasks"),
            rounds=rounds[name],
            seed=0,
            threads=options.threads,
            workers=options.workers,
            result=folder / "result.json",
        )
        for name in options.setting
    }
    pythons: dict[str, Path | str] = {}
    for peer in options.peers:
        has_own = (HERE / "requirements" / f"{peer}.txt").exists()
        own = folder / "environments" / peer / "bin" / "python"
        pythons[peer] = python = own if has_own else Path(sys.executable)
        if python.exists():
            results["versions"][peer] = _versions(python)
        else:
            pythons[peer] = f"{python} does not exist; see Environments in benchmarks/README.md"

    first = 1 + max(
        (x["repeat"] for x in here if x["label"].split()[0] in options.peers), default=-1
    )
    cells = [(peer, variant) for peer in options.peers for variant in VARIANTS[peer]]
    for repeat in range(first, first + options.repeats):
        shift = repeat % len(cells)  # nobody is always first
        for name, (peer, variant) in (
            (name, cell) for name in options.setting for cell in cells[shift:] + cells[:shift]
        ):
            job = replace(jobs[name], variant=variant, seed=repeat)
            cell = {"setting": name, "label": f"{peer} {variant}".strip(), "repeat": repeat}
            cell |= {"rounds": job.rounds, "seed": job.seed, "load_before": os.getloadavg()[0]}
            cell |= _measure(peer, job, pythons[peer], folder, options.timeout)
            measured.append(cell)
            part = file.with_suffix(".part")  # an interruption leaves a whole file
            part.write_text(json.dumps(results, indent=1), encoding="utf-8")
            part.replace(file)
            print(_line(cell), flush=True)
    text = table.markdown(measured)
    (folder / "table.md").write_text(text, encoding="utf-8")
    print(text, flush=True)
    found = (table.compare(measured, setting) for setting in SETTINGS.values())
    return int(any(one.problems for one in found if one is not None))


def _versions(python: Path) -> dict[str, str]:
    """Return the versions of Python and of those packages that a Python has."""
    command = [str(python), "-c", VERSIONS, *PACKAGES]
    output = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    return dict(line.split(maxsplit=1) for line in output.splitlines())


def _options(argv: Sequence[str] | None) -> argparse.Namespace:
    """Parse the command line."""
    cores = len(os.sched_getaffinity(0))
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])

    add = parser.add_argument
    add("--setting", nargs="+", choices=[*SETTINGS], default=[*SETTINGS], help="default: all")
    add("--peers", nargs="+", choices=[*VARIANTS], default=[*VARIANTS], help="default: all")
    add("--repeats", type=int, default=1, help="measurements of each platform (default: 1)")
    add("--scale", type=float, default=1.0, help="factor on the rounds (default: 1)")
    add("--folder", type=Path, default=Path("build/peers"), help="default: build/peers")
    add("--data-root", type=Path, default=Path("data"), help="folder of the data sets")
    add("--append", action="store_true", help="add to the results in the folder")
    add("--threads", type=int, default=cores, help=f"of one process (default: {cores}, the cores)")
    add("--workers", type=int, default=2, help="processes of Ray and torchrun (default: 2)")
    add("--timeout", type=float, default=600, help="seconds of one measurement (default: 600)")
    return parser.parse_args(argv)


def export(setting: Setting, root: Path, folder: Path) -> Path:
    """Write the samples and clients of a setting to an NPZ file, and return its path.

    Args:
        setting: The setting.
        root: Folder of the data sets, as `data.root` of flbench.
        folder: Folder for the file; a file that is there is used again.
    """
    path = folder / f"{setting.name}.npz"
    if path.exists():
        return path
    data = sources.load(DataConfig(name=setting.data, root=root))
    x, y = _channels_last(data.x), np.asarray(data.y)
    return write(
        setting, (x[: data.train], y[: data.train]), (x[data.train :], y[data.train :]), path
    )


def write(setting: Setting, train: Samples, test: Samples, path: Path) -> Path:
    """Deal training samples to clients, write an NPZ file, and return its path.

    Raises:
        DataError: There are too few training samples.
    """
    (x, y), sizes, draw = train, setting.sizes(), np.random.default_rng(PARTITION_SEED)
    if len(y) < sizes.sum():
        raise DataError(
            f"setting {setting.name} needs {sizes.sum()} training samples, but {setting.data} has"
            f" {len(y)}."
        )
    rows = draw.permutation(len(y))[: sizes.sum()]
    if setting.shards:
        rows = rows[y[rows].argsort(kind="stable")].reshape(setting.clients * setting.shards, -1)
        rows = draw.permutation(rows).ravel()
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_suffix(".part.npz")
    np.savez(
        part,
        train_images=x[rows],
        train_labels=y[rows],
        train_groups=np.repeat(np.arange(setting.clients), sizes),
        test_images=test[0],
        test_labels=test[1],
    )
    return part.rename(path)


def _channels_last(x: np.ndarray) -> np.ndarray:
    """Return images [n, channels, height, width] in the layout of NPZ files."""
    return x[:, 0] if x.shape[1] == 1 else x.transpose(0, 2, 3, 1)


def _measure(
    peer: str, job: Job, python: Path | str, folder: Path, timeout: float
) -> dict[str, Any]:
    """Run one script, and return what was measured, or the reason why it failed."""
    if isinstance(python, str):
        return {"error": python}
    file, log = folder / "job.json", folder / f"{peer}.log"
    job.write(file)
    job.result.unlink(missing_ok=True)
    command = [str(python), str(HERE / f"peer_{peer}.py"), str(file)]
    parallel = job.variant in ("ray", "torchrun") or peer == "flower"
    threads = str(1 if parallel else job.threads)
    variables = os.environ | {"OMP_NUM_THREADS": threads, "MKL_NUM_THREADS": threads}
    if python != Path(sys.executable):
        variables["PYTHONPATH"] = str(HERE)  # for processes that Ray starts
    used, begin = _children_seconds(), time.perf_counter()
    with log.open("w", encoding="utf-8") as output:
        try:
            process = subprocess.run(
                command, stdout=output, stderr=output, env=variables, timeout=timeout, check=False
            )
        except subprocess.TimeoutExpired:
            return {"error": f"not finished after {timeout:.0f} s"}
    seconds = time.perf_counter() - begin
    if process.returncode or not job.result.exists():
        lines = log.read_text(encoding="utf-8", errors="replace").split("\n")
        # a line of text, not the frame that some programs print around it
        last = next((line for line in reversed(lines) if re.search("[a-z]", line)), "no message")
        return {"error": f"exit code {process.returncode}: {last.strip()[:300]}"}
    measured = json.loads(job.result.read_text(encoding="utf-8"))
    if job.variant != "ray" and peer != "flower":  # whose processes Ray has started
        measured["cpu_seconds"] = _children_seconds() - used
    measured |= {"process_seconds": seconds, "command": command}
    return measured | {"finished": datetime.now(UTC).isoformat(timespec="seconds")}


def _children_seconds() -> float:
    """Return the time that all finished child processes have spent on all cores."""
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime


def _machine() -> dict[str, Any]:
    """Describe the machine."""
    info = Path("/proc/cpuinfo")
    lines = info.read_text().splitlines() if info.exists() else []
    models = [line.split(":")[1].strip() for line in lines if line.startswith("model name")]
    cores = len(os.sched_getaffinity(0))
    model = (models or [platform.processor()])[0]
    return {"cpu": model, "cores": cores, "system": platform.platform()}


def _line(cell: dict[str, Any]) -> str:
    """Return one line about a measurement."""
    head = f"({cell['setting']}) repeat {cell['repeat']} {cell['label']}:"
    if "error" in cell:
        return f"{head} {cell['error']}"
    return (
        f"{head} training {cell['seconds']:.2f} s, process {cell['process_seconds']:.2f} s,"
        f" {cell['steps']} steps, accuracy {cell['accuracy']:.4f}, load {cell['load_before']:.1f}"
    )


if __name__ == "__main__":
    try:
        sys.exit(main())
    except UserError as error:
        sys.stderr.write(f"{error}\n")
        sys.exit(2)
