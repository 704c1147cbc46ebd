"""Compares what two versions of flbench compute: runs, comparisons, studies, papers' tables.

    python benchmarks/digests.py FILE
    PYTHONPATH=OTHER_CHECKOUT python benchmarks/digests.py OTHER_FILE
    python benchmarks/digests.py --compare FILE OTHER_FILE

The first two commands train all methods for three rounds, on the sequential and the vectorized
engine, and some further settings, each with the version of flbench that Python imports. They write
the digest of the weights, `config_hash`, and the SHA-256 of `metrics.csv` of each run. Then they
carry out a comparison, a study and a part of a paper's table by the command line, and write the
same for each of their runs, and the numbers of their reports. The last command names the runs and
the numbers that differ, and its exit code is 1 if there are any.
"""

import hashlib
import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final

Row = dict[str, str]

SMALL: Final = (
    *("partition.clients=5", "partition.alpha=0.5", "partition.samples=600"),
    *("train.rounds=3", "train.local_epochs=1", "engine.name=sequential", "engine.threads=1"),
    "tracking.mlflow=false",
)
CAMPAIGNS: Final = {
    "comparison": (
        *("compare", "hfcd", "fedavg", "ft", "--seeds", "3", "--jobs", "1", "--out", "."),
        *("model.name=mlp", *SMALL),
    ),
    "study": (
        *("tune", "hfcd", "fedper", "--trials", "3", "--seeds", "3", "--concurrent", "1"),
        *("--scheduler", "none", "--seed", "3", "--out", ".", "model.name=mlp", *SMALL),
    ),
    "paper": (
        *("reproduce", "hfcd", "--dataset", "CIFAR-100=digits", "--algos", "hfcd,fedavg"),
        *("--seeds", "2", "--output", ".", "--json", *SMALL),
    ),
}
"""Arguments of the command line, by the kind of what they carry out in the current folder."""

LEFT_OUT: Final = ("second", "time", "folder", "path", "memory", "version", "created", "report")
"""Parts of the names of values that differ between two equal campaigns."""


def main(arguments: list[str]) -> int:
    """Train all runs, or compare two files; return the exit code."""
    if arguments[:1] == ["--compare"] and len(arguments) == 3:
        return compare(*(Path(one) for one in arguments[1:]))
    if len(arguments) != 1 or arguments[0].startswith("-"):
        print(__doc__, file=sys.stderr)
        return 2
    rows = {}
    for name, overrides in settings():
        rows[name] = row(overrides)
        print(f"{name}: {' '.join(rows[name].values())}", flush=True)
        Path(arguments[0]).write_text(json.dumps(rows, indent=1) + "\n", encoding="utf-8")
    for name, words in CAMPAIGNS.items():
        rows |= campaign(name, words)
        print(f"{name}: {len([one for one in rows if one.startswith(name)])} values", flush=True)
        Path(arguments[0]).write_text(json.dumps(rows, indent=1) + "\n", encoding="utf-8")
    return 0


def settings() -> Iterator[tuple[str, tuple[str, ...]]]:
    """Return the name and the overrides of each run."""
    from flbench.algorithms import ALGORITHMS
    from flbench.testing.setting import NET

    for method in ALGORITHMS.load():
        needs = ALGORITHMS.find(method).needs
        for engine in ("sequential", "vectorized"):
            name = (f"algorithm.name={method}", *needs, f"engine.name={engine}")
            yield f"{method} {engine} lenet5", (*name, *NET)
        if method != "slapfl":  # which needs convolutions
            yield f"{method} mlp", (name[0], *needs, "train.local_epochs=2")
    for policy in ("average", "local", "drop"):
        norm = ("model.name=lenet5", "model.norm=batch", f"train.batchnorm={policy}")
        yield f"fedavg batchnorm {policy}", ("algorithm.name=fedavg", *norm)
    for method in ("fedavg", "hfcd"):
        ray = (f"algorithm.name={method}", "engine.name=ray", "engine.workers=2")
        yield f"{method} ray", ray
    terms = 'train.terms=[{"name": "focal", "weight": 0.5}]'
    yield "fedavg terms", ("algorithm.name=fedavg", terms)
    momentum = ("train.optimizer.momentum=0.9", "train.optimizer.weight_decay=0.001")
    yield "ft momentum", ("algorithm.name=ft", *momentum)


def row(overrides: tuple[str, ...]) -> Row:
    """Train one run; return its digest and hashes, or the error that it ends with."""
    from flbench.core.errors import RunError, UserError
    from flbench.testing.setting import run

    with TemporaryDirectory() as folder:
        try:
            path, summary = run(Path(folder), *overrides)
        except (UserError, RunError) as error:
            return {"error": str(error)}
        metrics = hashlib.sha256((path / "metrics.csv").read_bytes()).hexdigest()
        return {
            "weights": summary["weights_digest"][:16],
            "config": summary["config_hash"][:16],
            "metrics": metrics[:16],
        }


def campaign(name: str, words: tuple[str, ...]) -> dict[str, Row]:
    """Carry out a campaign; return the hashes of its runs, and the numbers of its report."""
    with TemporaryDirectory() as folder:
        printed = flbench(folder, *words)
        rows = {}
        for file in sorted(Path(folder).rglob("summary.json")):
            summary = json.loads(file.read_text(encoding="utf-8"))
            metrics = hashlib.sha256((file.parent / "metrics.csv").read_bytes()).hexdigest()
            key = f"{name} {summary['algorithm']} {summary['config_hash'][:16]}"
            rows[key] = {"weights": summary["weights_digest"][:16], "metrics": metrics[:16]}
        if name == "paper":
            report = json.loads(printed)
        else:
            report = json.loads(flbench(folder, "report", ".", "--out", "report", "--json"))
        return rows | {f"{name} {key}": {"value": value} for key, value in numbers(report)}


def flbench(folder: str, *words: str) -> str:
    """Return what flbench prints in a folder.

    Raises:
        subprocess.CalledProcessError: flbench failed.
    """
    command = [sys.executable, "-m", "flbench", *words]
    return subprocess.run(command, cwd=folder, check=True, stdout=subprocess.PIPE, text=True).stdout


def numbers(tree: Any, name: str = "") -> Iterator[tuple[str, str]]:
    """Return the name and the text of each number in a JSON value that no clock determines."""
    if isinstance(tree, dict | list):
        for key, value in tree.items() if isinstance(tree, dict) else enumerate(tree):
            if not any(word in str(key) for word in LEFT_OUT):
                yield from numbers(value, f"{name}/{key}")
    elif isinstance(tree, int | float):
        yield name, repr(tree)


def compare(first: Path, second: Path) -> int:
    """Print the runs that differ between two files; return 1 if there are any."""
    one, two = (json.loads(file.read_text(encoding="utf-8")) for file in (first, second))
    different = [name for name in one if name in two and one[name] != two[name]]
    for name in different:
        print(f"{name}: {one[name]} and {two[name]}")
    for name in sorted(one.keys() ^ two.keys()):
        print(f"{name}: only in {first if name in one else second}")
    equal = len(one.keys() & two.keys()) - len(different)
    print(f"{equal} runs and numbers are equal, {len(different)} differ.")
    return 1 if different or not equal else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
