"""Compares what two versions of flbench compute, and what different numbers of processes compute.

    python benchmarks/digests.py --against REVISION [FOLDER]
    python benchmarks/digests.py FILE
    python benchmarks/digests.py --compare FILE OTHER_FILE
    python benchmarks/digests.py --workers FILE

The first command does all: it computes the reference with the package of an older revision of the
repository, computes the same with this one, and compares both. The reference stays in the folder,
so that it is computed once.

The second command writes such a reference with the version of flbench that Python imports. It
trains all methods for three rounds, on the sequential and the vectorized engine, and some further
settings, and keeps the digest of the weights, `config_hash`, and the SHA-256 of `metrics.csv` of
each run. It carries out a comparison, a study and a part of a paper's table by the command line,
and keeps the same of each of their runs, the numbers of their reports, and what MLflow has of a
comparison and a study. It reads two archives of the board, and keeps the numbers of `report.json`
and of the tables. Weights and `metrics.csv` are compared bit by bit, and numbers to 1e-12;
`config_hash` is shown where the weights differ. The exit code is 1 if anything differs.

The last command trains all methods with one, two and three processes, with the sequential and the
vectorized engine, and with one and two workers of Ray, and carries out `run`, `compare` and `tune`
with one configuration. It writes all digests, prints a line for each method, and names those that
differ; its exit code is 1 if there are any.
"""

from __future__ import annotations

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
from contextlib import closing, contextmanager
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, ClassVar, Final

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

LOCAL: Final = {"sequential": (1, 2, 3), "vectorized": (1, 2, 3)}
"""Numbers of processes that train, by engine."""
ON_RAY: Final = (1, 2)
"""Numbers of Ray's workers. They must give the bits of the sequential engine."""
BLOCKS: Final = {"vectorized": ("engine.block=2",)}
"""Overrides of an engine. The vectorized engine distributes whole blocks."""

LEFT_OUT: Final = ("second", "time", "folder", "path", "memory", "version", "created", "report")
"""Parts of the names of values that differ between two equal campaigns."""


def main(arguments: list[str]) -> int:
    """Train all runs, or compare two files; return the exit code."""
    if arguments[:1] == ["--against"] and len(arguments) in (2, 3):
        return against(arguments[1], Path(*arguments[2:]))
    if arguments[:1] == ["--compare"] and len(arguments) == 3:
        return compare(*(Path(one) for one in arguments[1:]))
    if arguments[:1] == ["--workers"] and len(arguments) == 2:
        return workers(Path(arguments[1]))
    if len(arguments) != 1 or arguments[0].startswith("-"):
        print(__doc__, file=sys.stderr)
        return 2
    rows: Rows = {}
    for name, overrides in settings():
        rows[name] = row(overrides)
        print(f"{name}: {' '.join(rows[name].values())}", flush=True)
    parts = {name: partial(campaign, name, words) for name, words in CAMPAIGNS.items()}
    parts |= {f"mlflow {name}": partial(mirrored, name) for name in ("comparison", "study")}
    parts |= {f"archive {name}": partial(archived, name) for name in ARCHIVES}
    for name, part in parts.items():
        found = part()
        rows |= found
        print(f"{name}: {len(found)} values", flush=True)
    Path(arguments[0]).write_text(json.dumps(rows, indent=1) + "\n", encoding="utf-8")
    return 0


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
    script = str(Path(__file__).resolve())
    if not old.exists():
        with TemporaryDirectory() as checkout:
            tree = run(["git", "archive", name], cwd=HERE, stdout=subprocess.PIPE).stdout
            run(["tar", "-x", "-C", checkout], input=tree)
            environment = os.environ | {"PYTHONPATH": checkout}
            run([sys.executable, script, str(old.resolve())], env=environment)
    environment = os.environ | {"PYTHONPATH": str(HERE)}
    run([sys.executable, script, str(new.resolve())], env=environment)
    return compare(old, new)


def settings() -> Iterator[tuple[str, tuple[str, ...]]]:
    """Return the name and the overrides of each run."""
    from flbench.algorithms import ALGORITHMS
    from flbench.testing.setting import NET

    for method in ALGORITHMS.load():
        kind = ALGORITHMS.find(method)
        # Older versions have the overrides themselves in `needs`, or nothing.
        needs = kind.example() if hasattr(kind, "example") else getattr(kind, "needs", ())
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


def row(overrides: tuple[str, ...], read: Callable[[Path], Row] | None = None) -> Row:
    """Train one run; return its digest and hashes, or the error that it ends with.

    Args:
        overrides: Overrides of the run.
        read: Function that reads the run folder; None for `row_of`.
    """
    from flbench.core.errors import RunError, UserError
    from flbench.testing.setting import run

    with TemporaryDirectory() as folder:
        try:
            path, _ = run(Path(folder), *overrides)
        except (UserError, RunError) as error:
            return {"error": str(error)}
        return (read or row_of)(path)


def row_of(path: Path) -> Row:
    """Return the digest and the hashes of a finished run."""
    summary = json.loads((path / "summary.json").read_text(encoding="utf-8"))
    metrics = hashlib.sha256((path / "metrics.csv").read_bytes()).hexdigest()
    return {
        "weights": summary["weights_digest"][:16],
        "config": summary["config_hash"][:16],
        "metrics": metrics[:16],
    }


def state_of(path: Path) -> Row:
    """Return the hash of the configuration, and the digest of all tensors of the last round."""
    from flbench.config.resolve import resolve
    from flbench.config.sources import from_file
    from flbench.core.tree import digest
    from flbench.experiment import checkpoint

    config, _ = resolve([from_file(path / "config.yaml")])
    state, _ = checkpoint.load(path / "checkpoints" / "last.safetensors", config.hash())
    count = state.participation_count
    return {
        "config": config.hash()[:16],
        "state": digest([state.server, state.clients, {"count": count}])[:16],
    }


def whole_row_of(path: Path) -> Row:
    """Return all digests of a finished run, and how many processes have trained it."""
    summary = json.loads((path / "summary.json").read_text(encoding="utf-8"))
    count = str(int(summary["engine"].get("workers", 1)))
    return row_of(path) | state_of(path) | {"workers": count}


def workers(file: Path) -> int:
    """Train all methods with different numbers of processes; return 1 if any result differs.

    One cluster of Ray serves all runs on it.

    Args:
        file: File for all digests, and the sentences about those that differ. Runs that it has
            already, from a call that was interrupted, are not trained again.
    """
    import ray

    before = json.loads(file.read_text(encoding="utf-8")) if file.exists() else {}
    rows: Rows = before.get("rows", {})
    differences: list[str] = before.get("differences", [])

    def compare_with(first: str, found: Rows) -> None:
        """Note the rows of runs that must have the result of a first one."""
        rows.update(found)
        wrong = differing({first: rows[first], **found})
        differences.extend(wrong)
        content = {"differences": differences, "rows": rows}
        file.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")
        said = rows[first].get("weights", rows[first].get("state", "refused"))
        print(f"{', '.join(found)}: {said} {'DIFFERENT' if wrong else 'equal'}", flush=True)

    with no_pictures():
        for method in by_needs():
            for engine, counts in LOCAL.items():
                if f"{method} {engine} {counts[-1]}" not in rows:
                    compare_with(f"{method} {engine} 1", runs_of(method, engine, counts))
    ray.init("local", num_cpus=sum(ON_RAY), include_dashboard=False, log_to_driver=False)
    try:
        with shared_actors(), no_pictures():
            for method in by_needs():
                if f"{method} ray {ON_RAY[-1]}" not in rows:
                    compare_with(f"{method} sequential 1", runs_of(method, "ray", ON_RAY))
    finally:
        ray.shutdown()
    for found in commands():
        compare_with(next(iter(found)), found)
    print(*differences, sep="\n")
    refused = sum("error" in one for one in rows.values())
    print(f"{len(rows)} runs, {refused} of them refused; {len(differences)} differences.")
    return 1 if differences else 0


def by_needs() -> list[str]:
    """Return the names of all methods; those that train the same net follow each other."""
    from flbench.algorithms import ALGORITHMS

    return sorted(ALGORITHMS.load(), key=lambda name: (ALGORITHMS.find(name).example(), name))


def runs_of(method: str, engine: str, counts: tuple[int, ...]) -> Rows:
    """Return the rows of a method's runs with an engine and some numbers of workers."""
    from flbench.testing.setting import with_method

    found = {}
    for count in counts:
        keys = (f"engine.name={engine}", f"engine.workers={count}", *BLOCKS.get(engine, ()))
        overrides = with_method(method, "train.participation=1", *keys)
        found[f"{method} {engine} {count}"] = row(overrides, whole_row_of)
    return found


def differing(rows: Rows) -> list[str]:
    """Return a sentence for each run that has another result than the first one, or other workers.

    A cohort has work for three processes. A run that was trained by fewer would show nothing.
    """
    first, *others = rows
    found = []
    for name in others:
        one, other = rows[first], rows[name]
        keys = {"error", *one} if "error" in other else {"error", *(one.keys() & other.keys())}
        for key in sorted(keys - {"workers"}):
            if one.get(key) != other.get(key):
                found.append(f"{name}: {key} {other.get(key)}; {first}: {one.get(key)}")
    for name, one in rows.items():
        if "workers" in one and one["workers"] != name.split()[-1]:
            found.append(f"{name}: the number of processes that have trained is {one['workers']}")
    return found


@contextmanager
def no_pictures() -> Iterator[None]:
    """Context manager in which pages of runs have no pictures, which take longer than trainings."""
    from flbench.reports import picture

    before, picture.encode = picture.encode, lambda *_: b""
    try:
        yield
    finally:
        picture.encode = before


@contextmanager
def shared_actors() -> Iterator[None]:
    """Context manager in which runs on Ray that train the same net have the same actors.

    An actor imports PyTorch for some seconds. An engine knows net and samples, and no method.
    """
    from flbench.core.tree import digest
    from flbench.engine import ray
    from flbench.models.base import net_leaves

    class Shared(ray.RayEngine):
        """An engine that takes the actors of one with the same net, which stays open."""

        open: ClassVar[dict[int, tuple[str, Shared]]] = {}  # by number of workers

        def __init__(self, net: Any, federation: Any, config: Any, tell: Any = None) -> None:
            about = f"{digest([net_leaves(net)])} {net} {federation.partition.hash()}"
            known = self.open.get(config.workers)
            if known is None or known[0] != about:
                if known is not None:
                    super(Shared, known[1]).close()
                super().__init__(net, federation, config, tell)
                self.open[config.workers] = about, self
            else:
                vars(self).update(vars(known[1]))

        def close(self) -> None:
            """Do nothing: another run may have the same net."""

    before, ray.RayEngine = ray.RayEngine, Shared  # type: ignore[misc]
    try:
        yield
    finally:
        ray.RayEngine = before  # type: ignore[misc]
        for _, engine in Shared.open.values():
            super(Shared, engine).close()


def commands() -> Iterator[Rows]:
    """Yield the rows of one configuration that a study, a run and a comparison have trained.

    The study has two configurations: that of its trial, and that of the final training with default
    parameters, which has another seed.
    """
    with TemporaryDirectory() as folder:
        options = ("--trials", "1", "--seeds", "1", "--jobs", "1", "--scheduler", "none")
        flbench(folder, "tune", "fedavg", *options, "--out", "tune", *ONE)
        for kind in ("trials/*/*", "cells/*"):
            (path,) = Path(folder, "tune").rglob(kind)
            name = kind.partition("/")[0]
            given = ("fedavg", "--config", str(path / "config.yaml"))
            flbench(folder, "run", *given, "--out", f"run/{name}")
            flbench(folder, "compare", *given, "--seeds", "1", "--out", f"compare/{name}")
            found = {f"{name} of tune": state_of(path)}
            for command in ("run", "compare"):
                (file,) = Path(folder, command, name).rglob("last.safetensors")
                found[f"{name} by {command}"] = state_of(file.parents[1])
            yield found


def campaign(name: str, words: tuple[str, ...]) -> dict[str, Row]:
    """Carry out a campaign; return the hashes of its runs, and the numbers of its report."""
    with TemporaryDirectory() as folder:
        printed = flbench(folder, *words)
        runs = sorted(
            (
                row_of(file.parent)
                | {"algorithm": json.loads(file.read_text("utf-8"))["algorithm"]}
                for file in Path(folder).rglob("summary.json")
            ),
            key=lambda one: (one["algorithm"], one["weights"]),
        )
        rows = {f"{name} run {k} {one['algorithm']}": one for k, one in enumerate(runs)}
        if name == "paper":
            report = json.loads(printed)
        else:
            report = json.loads(flbench(folder, "report", ".", "--out", "report", "--json"))
        return rows | {f"{name} {key}": {"value": value} for key, value in numbers(report)}


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
        rows = {f"{name} {key}": {"value": value} for key, value in numbers(json.loads(report))}
        for table in sorted(Path(folder, "report", "tables").glob("*.csv")):
            columns, *lines = csv.reader(table.read_text("utf-8").splitlines())
            for k, line in enumerate(lines):
                for column, value in zip(columns, line, strict=True):
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


def numbers(tree: Any, name: str = "") -> Iterator[tuple[str, str]]:
    """Return the name and the text of each number in a JSON value that no clock determines."""
    if isinstance(tree, dict | list):
        for key, value in tree.items() if isinstance(tree, dict) else enumerate(tree):
            if not any(word in str(key) for word in LEFT_OUT):
                yield from numbers(value, f"{name}/{key}")
    elif isinstance(tree, int | float):
        yield name, repr(tree)


def compare(first: Path, second: Path) -> int:
    """Print the runs and numbers that differ between two files; return 1 if there are any."""
    one, two = (json.loads(file.read_text(encoding="utf-8")) for file in (first, second))
    common = one.keys() & two.keys()
    different = [name for name in one if name in common and not equal(one[name], two[name])]
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
        return math.isclose(
            float(one["value"]), float(other["value"]), rel_tol=1e-12, abs_tol=1e-12
        )
    except ValueError:
        return one == other


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
