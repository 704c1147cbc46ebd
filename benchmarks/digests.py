"""Compares what two versions of flbench compute.

    python benchmarks/digests.py FILE
    python benchmarks/digests.py --against REVISION [FOLDER]
    python benchmarks/digests.py --compare FILE OTHER_FILE

The first command computes a reference with the version of flbench that Python imports. It trains
all methods for three rounds, on the sequential and the vectorized engine, and some further
settings, and keeps the digest of the weights, `config_hash`, and the SHA-256 of `metrics.csv` of
each run. It carries out a comparison, a study and a part of a paper's table by the command line,
and keeps the same of each of their runs, the numbers of their reports, and what MLflow has of a
comparison and a study. It reads two archives of the board, and keeps the numbers of `report.json`
and of the tables.

The second one computes a reference with the package of an older revision of the repository, which
stays in the folder, and one with this version, and compares both as the third one does: weights and
`metrics.csv` bit by bit, and numbers to 1e-12; `config_hash` is shown where the weights differ.
The exit code is 1 if anything differs.
"""

import csv
import hashlib
import json
import math
import os
import sqlite3
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import closing
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final

Row = dict[str, str]
Rows = dict[str, Row]

HERE: Final = Path(__file__).resolve().parents[1]
ARCHIVES: Final = ("digits-dir05", "heart")
"""Archives of the board whose reports are compared."""
SMALL: Final = (
    *("partition.clients=5", "partition.alpha=0.5", "partition.samples=600"),
    *("train.rounds=3", "train.local_epochs=1", "engine.name=sequential", "engine.threads=1"),
    "tracking.mlflow=false",
)
ONE: Final = ("model.name=mlp", *SMALL)
CAMPAIGNS: Final = {
    "comparison": (
        *("compare", "hfcd", "fedavg", "ft", "--seeds", "3", "--jobs", "1", "--out", "."),
        *ONE,
    ),
    "study": (
        *("tune", "hfcd", "fedper", "--trials", "3", "--seeds", "3", "--jobs", "1"),
        *("--scheduler", "none", "--seed", "3", "--out", ".", *ONE),
    ),
    "paper": (
        *("reproduce", "hfcd", "--dataset", "digits", "--algo", "hfcd,fedavg"),
        *("--seeds", "2", "--jobs", "1", "--out", ".", "--json", "partition.samples=1000", *SMALL),
    ),
}
"""Arguments of the command line, by the kind of what they carry out in the current folder."""
LEFT_OUT: Final = ("second", "time", "folder", "path", "memory", "version", "created", "report")
"""Parts of the names of values that differ between two equal campaigns."""


def main(arguments: list[str]) -> int:
    """Train all runs, or compare two files; return the exit code."""
    match arguments:
        case ["--against", revision, *folder] if len(folder) < 2:
            return against(revision, Path(*folder))
        case ["--compare", one, other]:
            return compare(Path(one), Path(other))
        case [file] if not file.startswith("-"):
            reference(Path(file))
            return 0
    print(__doc__, file=sys.stderr)
    return 2


def reference(file: Path) -> None:
    """Write what this version computes."""
    parts: dict[str, Callable[[], Rows]] = {
        name: partial(lambda name, keys: {name: row(keys)}, name, keys) for name, keys in settings()
    }
    parts |= {name: partial(campaign, name) for name in CAMPAIGNS}
    parts |= {f"mlflow {name}": partial(mirrored, name) for name in ("comparison", "study")}
    parts |= {f"archive {name}": partial(archived, name) for name in ARCHIVES}
    rows: Rows = {}
    for name, part in parts.items():
        rows |= (found := part())
        print(f"{name}: {' '.join(found.get(name, {}).values()) or len(found)}", flush=True)
    file.write_text(json.dumps(rows, indent=1) + "\n", encoding="utf-8")


def against(revision: str, folder: Path) -> int:
    """Compare this version with a revision, whose reference is computed unless the folder has it.

    Raises:
        subprocess.CalledProcessError: git does not know the revision, or a computation failed.
    """
    folder.mkdir(parents=True, exist_ok=True)
    run = partial(subprocess.run, check=True)
    found = run(
        ["git", "rev-parse", "--short", revision], cwd=HERE, stdout=subprocess.PIPE, text=True
    )
    name = found.stdout.strip()
    old, new = folder / f"digests-{name}.json", folder / "digests-now.json"
    command = [sys.executable, str(Path(__file__).resolve())]
    if not old.exists():
        with TemporaryDirectory() as checkout:
            tree = run(["git", "archive", name], cwd=HERE, stdout=subprocess.PIPE).stdout
            run(["tar", "-x", "-C", checkout], input=tree)
            run([*command, str(old.resolve())], env=os.environ | {"PYTHONPATH": checkout})
    run([*command, str(new.resolve())], env=os.environ | {"PYTHONPATH": str(HERE)})
    return compare(old, new)


def settings() -> Iterator[tuple[str, tuple[str, ...]]]:
    """Return the name and the overrides of each run."""
    from flbench.algorithms import ALGORITHMS
    from flbench.testing.setting import NET

    for method in ALGORITHMS.load():
        needs = ALGORITHMS.find(method).example()
        name = f"algorithm.name={method}"
        for engine in ("sequential", "vectorized"):
            yield f"{method} {engine} lenet5", (name, *needs, f"engine.name={engine}", *NET)
        if method != "slapfl":  # which needs convolutions
            yield f"{method} mlp", (name, *needs, "train.local_epochs=2")
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
    """Train one run; return its digests and hashes, or the error that it ends with."""
    from flbench.core.errors import RunError, UserError
    from flbench.testing.setting import run

    with TemporaryDirectory() as folder:
        try:
            path, _ = run(Path(folder), *overrides)
        except (UserError, RunError) as error:
            return {"error": str(error)}
        return row_of(path)


def row_of(path: Path) -> Row:
    """Return the digest and the hashes of a finished run."""
    summary = json.loads((path / "summary.json").read_text(encoding="utf-8"))
    metrics = hashlib.sha256((path / "metrics.csv").read_bytes()).hexdigest()
    return {
        "weights": summary["weights_digest"][:16],
        "config": summary["config_hash"][:16],
        "metrics": metrics[:16],
    }


def campaign(name: str) -> Rows:
    """Carry out a campaign; return the hashes of its runs, and the numbers of its report."""
    with TemporaryDirectory() as folder:
        printed = flbench(folder, *CAMPAIGNS[name])
        runs = []
        for file in Path(folder).rglob("summary.json"):
            method = json.loads(file.read_text("utf-8"))["algorithm"]
            runs.append(row_of(file.parent) | {"algorithm": method})
        runs.sort(key=lambda one: (one["algorithm"], one["weights"]))
        rows = {f"{name} run {k} {one['algorithm']}": one for k, one in enumerate(runs)}
        if name != "paper":
            printed = flbench(folder, "report", ".", "--out", "report", "--json")
        return rows | numbers(json.loads(printed), name)


def mirrored(name: str) -> Rows:
    """Carry out a campaign with its mirror; return what MLflow has of its runs."""
    words = [one for one in CAMPAIGNS[name] if one != "tracking.mlflow=false"]
    with TemporaryDirectory() as folder:
        file = f"{folder}/mlflow.db"
        flbench(folder, *words, "tracking.mlflow=true", f"tracking.uri=sqlite:///{file}")
        with closing(sqlite3.connect(file)) as database:
            found = database.execute(
                "select case when runs.name like '%-digits-2%' then 'all' else runs.name end, key,"
                " step, value from metrics join runs using (run_uuid) order by 1, 2, 3, 4"
            ).fetchall()
    counts: Counter[str] = Counter()
    rows = {}
    for run, key, step, value in found:
        if any(word in key for word in LEFT_OUT):
            continue
        point = f"mlflow {name} {run} {key} {step}"  # trials of two methods have one name
        counts[point] += 1
        rows[f"{point} {counts[point]}"] = {"value": repr(value)}
    return rows


def archived(name: str) -> Rows:
    """Return the numbers of the report of an archive of the board, in JSON and in the tables."""
    with TemporaryDirectory() as folder:
        file = HERE / "docs" / "board" / f"{name}.tar.xz"
        report = flbench(folder, "report", str(file), "--out", "report", "--json")
        rows = numbers(json.loads(report), name)
        for table in sorted(Path(folder, "report", "tables").glob("*.csv")):
            lines = csv.DictReader(table.read_text("utf-8").splitlines())
            for k, line in enumerate(lines):
                for column, value in line.items():
                    if not any(word in column for word in LEFT_OUT):
                        rows[f"{name} {table.name} {k} {column}"] = {"value": value}
    return rows


def flbench(folder: str, *words: str) -> str:
    """Return what flbench prints in a folder.

    Raises:
        subprocess.CalledProcessError: flbench failed.
    """
    command = [sys.executable, "-m", "flbench", *words]
    return subprocess.run(command, cwd=folder, check=True, stdout=subprocess.PIPE, text=True).stdout


def numbers(tree: Any, name: str) -> Rows:
    """Return the numbers in a JSON value that no clock determines, by the names of their places."""
    if isinstance(tree, dict | list):
        rows: Rows = {}
        if isinstance(tree, dict) and "second" in str(tree.get("metric")):
            return rows  # scores of a metric that is a time
        for key, value in tree.items() if isinstance(tree, dict) else enumerate(tree):
            if not any(word in str(key) for word in LEFT_OUT):
                rows |= numbers(value, f"{name}/{key}")
        return rows
    return {name: {"value": repr(tree)}} if isinstance(tree, int | float) else {}


def compare(first: Path, second: Path) -> int:
    """Print the runs and numbers that differ between two files; return 1 if there are any."""
    one, two = (json.loads(file.read_text(encoding="utf-8")) for file in (first, second))
    common = [name for name in one if name in two]
    different = [name for name in common if not equal(one[name], two[name])]
    for name in different:
        print(f"{name}: {one[name]} and {two[name]}")
    for name in sorted(one.keys() ^ two.keys()):
        print(f"{name}: only in {first if name in one else second}")
    print(f"{len(common) - len(different)} runs and numbers are equal, {len(different)} differ.")
    return 1 if different or not common else 0


def equal(one: Row, other: Row) -> bool:
    """Return whether weights and files are equal, and numbers to 1e-12."""
    if "value" not in one:
        return {**one, "config": ""} == {**other, "config": ""}
    try:
        pair = float(one["value"]), float(other["value"])
        return math.isclose(*pair, rel_tol=1e-12, abs_tol=1e-12) or all(map(math.isnan, pair))
    except ValueError:
        return one == other


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
