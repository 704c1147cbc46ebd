"""Compares what two versions of flbench compute, run by run.

    python benchmarks/digests.py FILE
    PYTHONPATH=OTHER_CHECKOUT python benchmarks/digests.py OTHER_FILE
    python benchmarks/digests.py --compare FILE OTHER_FILE

The first two commands train all methods for three rounds, on the sequential and the vectorized
engine, and some further settings, each with the version of flbench that Python imports. They write
the digest of the weights, `config_hash`, and the SHA-256 of `metrics.csv` of each run. The last one
names the runs that differ, and its exit code is 1 if there are any. Three minutes on two cores.
"""

import hashlib
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

Row = dict[str, str]


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
    return 0


def settings() -> Iterator[tuple[str, tuple[str, ...]]]:
    """Return the name and the overrides of each run."""
    from flbench.algorithms import ALGORITHMS
    from flbench.testing.setting import NET

    for method in ALGORITHMS.load():
        for engine in ("sequential", "vectorized"):
            name = (f"algorithm.name={method}", f"engine.name={engine}")
            yield f"{method} {engine} lenet5", (*name, *NET)
        if method != "slapfl":  # which needs convolutions
            yield f"{method} mlp", (name[0], "train.local_epochs=2")
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


def compare(first: Path, second: Path) -> int:
    """Print the runs that differ between two files; return 1 if there are any."""
    one, two = (json.loads(file.read_text(encoding="utf-8")) for file in (first, second))
    different = [name for name in one if name in two and one[name] != two[name]]
    for name in different:
        print(f"{name}: {one[name]} and {two[name]}")
    for name in sorted(one.keys() ^ two.keys()):
        print(f"{name}: only in {first if name in one else second}")
    equal = len(one.keys() & two.keys()) - len(different)
    print(f"{equal} runs are equal, {len(different)} differ.")
    return 1 if different or not equal else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
