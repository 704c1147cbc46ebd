"""Tables of `flbench bench`."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from flbench.cli.console import titled_table
from flbench.reports.tables import size
from flbench.reports.terminal import duration, open_console

if TYPE_CHECKING:
    from flbench.bench.measure import Case

PURPOSES = ("train", "evaluate", "other")


def print_cases(cases: "Sequence[Case]") -> None:
    """Print the speed of each engine, and the seconds of a complete run where it was measured."""
    console = open_console()
    table = titled_table("Engines beside a bare PyTorch loop with all cores (in turn, medians)")
    table.add_column("engine")
    for title in (
        "client\nsteps/s",
        "engine /\nbare loop",
        "of best\narithmetic",
        "of best\nbandwidth",
        "ready\nafter",
        "memory",
    ):
        table.add_column(title, justify="right")
    for case in cases:
        table.add_row(
            case.title,
            f"{case.speed:,.0f}",
            f"{case.ratio:.3f}",
            f"{100 * case.arithmetic:.1f} %",
            f"{100 * case.bandwidth:.1f} %",
            duration(case.startup),
            size(case.memory),
        )
    console.print(table)
    for case in cases:
        if case.chosen != case.engine:
            console.print(f"{case.engine} chose {case.chosen}.")
    if all(case.run for case in cases):
        _print_complete_runs(cases)


def _print_complete_runs(cases: "Sequence[Case]") -> None:
    table = titled_table("A complete run (bare loop: its time for the local epochs alone)")
    table.add_column("engine")
    for title in (*PURPOSES, "bare loop", "all /\nbare loop"):
        table.add_column(title, justify="right")
    for case in cases:
        seconds = [duration(case.run[key]) for key in (*PURPOSES, "bare")]
        table.add_row(case.title, *seconds, f"{case.whole:.3f}")
    open_console().print(table)
