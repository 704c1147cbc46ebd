"""Measures how much CPU time traced steps save (`engine.trace`), with one thread.

    python benchmarks/tracing.py [--data FOLDER] [--repeats 41] [--profiles digits,fashion,cifar]

The rounds of a profile are trained with and without traces in turn, in one process, after some
rounds of each in which traces are recorded. A line of the table has the median CPU time of a step
of one client without traces, and the median and the quartiles of the ratios of the pairs: the time
without traces divided by the time with traces. FOLDER contains fashionmnist.npz and cifar100.zip.
"""

import argparse
import sys
from pathlib import Path
from statistics import median, quantiles
from time import perf_counter, process_time

from flbench.config.resolve import resolve
from flbench.config.sources import from_overrides
from flbench.core.tree import digest
from flbench.experiment import assembly, rounds

COMMON = ("algorithm=fedavg", "engine.threads=1", "engine.device=cpu")
PROFILES = {
    "digits": ("digits", "mlp", ("partition.clients=20", "partition.alpha=0.1")),
    "fashion": (
        "fashionmnist.npz",
        "lenet5",
        ("partition.clients=100", "partition.alpha=0.5", "train.participation=0.1"),
    ),
    "cifar": (
        "cifar100.zip",
        "resnet18",
        (
            "partition.clients=10",
            "partition.samples=700",
            "train.participation=0.2",
            "train.local_epochs=1",
        ),
    ),
}
"""Data, net and further keys of each profile."""
WARM_UP = 3.0
"""Least seconds of the rounds before the first measurement."""


def main() -> None:
    """Measure the profiles with both engines, and print a table."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--data", type=Path, default=Path("../shared/data"))
    parser.add_argument("--repeats", type=int, default=41)
    parser.add_argument("--profiles", default=",".join(PROFILES))
    options = parser.parse_args()
    sys.stdout.write("| profile | engine | steps | step, ms | CPU off / on | wall off / on |\n")
    sys.stdout.write("|---|---|---|---|---|---|\n")
    for name in options.profiles.split(","):
        for engine in ("sequential", "vectorized"):
            data, net, keys = PROFILES[name]
            path = "data=digits" if data == "digits" else f"data.path={options.data / data}"
            keys = (*COMMON, path, f"model={net}", f"engine={engine}", *keys)
            sys.stdout.write(f"| {data}, {net} | {engine} | {measured(keys, options.repeats)} |\n")
            sys.stdout.flush()


def measured(keys: tuple[str, ...], repeats: int) -> str:
    """Return steps, milliseconds of a step, and the ratios of CPU and wall time, as cells."""
    built = {on: build(*keys, f"engine.trace={str(on).lower()}") for on in (False, True)}
    ends = {}
    for on, experiment in built.items():
        begin, number = perf_counter(), 0
        while number < 2 or perf_counter() - begin < WARM_UP:
            *_, ends[on] = train(experiment)
            number += 1
    if ends[False] != ends[True]:
        sys.exit("the weights with and without traces differ")
    found: dict[bool, list[tuple[float, float]]] = {False: [], True: []}
    steps = 0
    for k in range(repeats):
        for on in (False, True) if k % 2 else (True, False):
            cpu, wall, steps, _ = train(built[on])
            found[on].append((cpu, wall))
    step = median(cpu for cpu, _ in found[False]) / steps
    cells = [f"{steps}", f"{1000 * step:.2f}"]
    for kind in (0, 1):
        pairs = zip(found[False], found[True], strict=True)
        low, middle, high = quantiles(off[kind] / on[kind] for off, on in pairs)
        cells.append(f"{middle:.2f} ({low:.2f} to {high:.2f})")
    return " | ".join(cells)


def build(*keys: str) -> assembly.Experiment:
    """Return the experiment of a configuration."""
    return assembly.build(resolve([from_overrides(keys)])[0])


def train(built: assembly.Experiment) -> tuple[float, float, int, str]:
    """Train the first round; return CPU and wall seconds, the number of steps, and a digest."""
    state = built.start()
    settings = rounds.settings_of(built.algorithm, state)
    begin, wall = process_time(), perf_counter()
    results = rounds.train(built.algorithm, built.engine, state, settings).results
    seconds = process_time() - begin, perf_counter() - wall
    return *seconds, int(results.steps.sum()), digest([results.sent.values])


if __name__ == "__main__":
    main()
