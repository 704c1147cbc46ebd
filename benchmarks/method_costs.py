"""Measures what a round of the methods of 2020 to 2025 costs; `pages.py` makes a page of it.

usage: python benchmarks/method_costs.py --measure [--repeats 3] [--rounds 6] [--methods NAME,...]
       python benchmarks/method_costs.py --loops

Method and FedAvg are trained in turn on the board's setting digits-dir05 in this process. The
seconds are CPU seconds of a round, without the first round, so that other programs on the machine
change them little. The measurements are added to docs/board/method-costs.json.

`--loops` runs the tests that compare methods with loops over clients, batches and samples, and
writes the largest difference of each method to docs/board/method-loops.json, which the page of the
methods shows.
"""

import argparse
import json
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from statistics import geometric_mean, median
from typing import Any, Final
from unittest import mock

import pytest
import torch
from shown import ROOT, code, render

import flbench as fl
from flbench.algorithms import ALGORITHMS

MEASURED: Final = ROOT / "docs" / "board" / "method-costs.json"
LOOPS: Final = ROOT / "docs" / "board" / "method-loops.json"
CONFIG: Final = ROOT / "configs" / "board" / "digits-dir05.yaml"
METHODS: Final = (
    *("fedadam", "fedyogi", "fedadagrad", "lgfedavg", "perfedavg", "fedrod", "fedamp", "fedpac"),
    *("feddbe", "gpfl", "fedcp", "fedas", "fedcac", "floco", "pfedfda", "fedtgp", "knnper"),
    "pfedhn",
)


class Clock(fl.Callback):
    """Notes the CPU time after each round."""

    def __init__(self) -> None:
        self.times: list[float] = []

    def on_round_end(self, run: Any, metrics: Mapping[str, float]) -> None:
        self.times.append(time.process_time())


def measure(method: str, rounds: int) -> dict[str, Any]:
    """Train a method, and return the CPU seconds and the bytes of a round."""
    clock = Clock()
    with tempfile.TemporaryDirectory() as folder:
        run = fl.run(
            method,
            config=CONFIG,
            train={"rounds": rounds},
            evaluation={"every": rounds},
            engine={"workers": 1},
            output={"dir": folder, "predictions": False},
            tracking={"mlflow": False},
            callbacks=[clock],
            progress=False,
        )
        table = run.metrics
    seconds = [after - before for before, after in zip(clock.times, clock.times[1:], strict=False)]
    kinds = ("up_bytes", "down_bytes", "peer_bytes")
    # In the first round the server has nothing to send: all clients have the seeded net.
    later = table[table["metric"].isin(kinds) & (table["round"] > 1)]
    setup = table[table["metric"] == "setup_bytes"]["value"].sum()
    return {
        "method": method,
        "seconds": median(seconds),
        "bytes": float(later["value"].sum()) / (rounds - 1),
        "setup": float(setup),
    }


def add(methods: list[str], repeats: int, rounds: int) -> None:
    """Measure methods and FedAvg in turn, and add the measurements to the file."""
    torch.set_num_threads(1)
    measure("fedavg", 2)  # imports and compilations
    for repeat in range(repeats):
        for method in methods:
            order = ("fedavg", method) if repeat % 2 else (method, "fedavg")
            pair = {name: measure(name, rounds) for name in order}
            known = json.loads(MEASURED.read_text("utf-8")) if MEASURED.is_file() else []
            known.append({"method": method, "fedavg": pair["fedavg"], "own": pair[method]})
            MEASURED.write_text(json.dumps(known, indent=1) + "\n", "utf-8")
            ratio = pair[method]["seconds"] / pair["fedavg"]["seconds"]
            print(f"{method}: {ratio:.2f}", flush=True)


class Differences:
    """Plugin of pytest that notes the largest difference of each method to its loops.

    Attributes:
        largest: The difference by the name of the method.
    """

    def __init__(self) -> None:
        self.largest: dict[str, float] = {}

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_call(self, item: pytest.Function) -> Iterator[None]:
        """Note the differences of float64 tensors that a test finds to be close.

        The method is the parameter `method` of the test, or that of its file, test_METHOD.py.
        """
        parameters = item.callspec.params if hasattr(item, "callspec") else {}
        stem = item.path.stem.removeprefix("test_").removesuffix("_loops").replace("_", "-")
        method = parameters.get("method", "dfedavg" if stem == "gossip" else stem)

        def note(found: Any, expected: Any) -> None:
            if isinstance(found, Mapping):
                for name in found:
                    note(found[name], expected[name])
            elif torch.is_tensor(found) and found.dtype == torch.float64 and found.numel():
                difference = float((found - expected).abs().max())
                self.largest[method] = max(self.largest.get(method, 0.0), difference)

        def noting(function: Callable[..., Any]) -> Callable[..., Any]:
            def call(found: Any, expected: Any, *args: Any, **options: Any) -> Any:
                if (said := function(found, expected, *args, **options)) is not False:
                    note(found, expected)
                return said

            return call

        with (
            mock.patch.object(torch.testing, "assert_close", noting(torch.testing.assert_close)),
            mock.patch.object(torch, "allclose", noting(torch.allclose)),
        ):
            yield


def compare_with_loops() -> None:
    """Run the tests that compare with loops, and write the largest difference of each method.

    Raises:
        SystemExit: A test fails.
    """
    found = Differences()
    tests = ROOT / "tests" / "algorithms"
    options = ("-q", "-n0", "-k", "loop", f"--rootdir={ROOT}", f"--ignore={tests / 'shared'}")
    if pytest.main([*options, str(tests)], [found]):
        sys.exit(f"{LOOPS.name} is not written, because a test has failed.")
    largest = {name: found.largest[name] for name in ALGORITHMS.load() if name in found.largest}
    LOOPS.write_text(json.dumps(largest, indent=1) + "\n", "utf-8")


def page() -> str:
    """Return the page about the methods."""
    known = json.loads(MEASURED.read_text("utf-8"))
    rows = []
    for method in METHODS:
        mine = [row for row in known if row["method"] == method]
        ratios = [row["own"]["seconds"] / row["fedavg"]["seconds"] for row in mine]
        if mine:
            own, fedavg = mine[0]["own"], mine[0]["fedavg"]
            spread = f" ({min(ratios):.2f} to {max(ratios):.2f})" if len(ratios) > 1 else ""
            setup = f" and once {own['setup'] / 1e6:.2f}" if own["setup"] else ""
            size = f"{own['bytes'] / 1e6:.2f}{setup} ({own['bytes'] / fedavg['bytes']:.2f})"
            rows.append([code(method), f"{geometric_mean(ratios):.2f}{spread}", size])
    return render("method-costs", rows=rows)


def main() -> None:
    """Measure what is asked for."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--measure", action="store_true", help="measure, and add to the file")
    parser.add_argument("--loops", action="store_true", help="compare with the loops of the tests")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--rounds", type=int, default=6)
    parser.add_argument("--methods", default=",".join(METHODS))
    asked = parser.parse_args()
    if asked.measure:
        add(asked.methods.split(","), asked.repeats, asked.rounds)
    elif asked.loops:
        compare_with_loops()


if __name__ == "__main__":
    main()
