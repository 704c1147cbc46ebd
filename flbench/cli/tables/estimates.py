"""The estimate of `flbench run --dry-run`."""

from typing import TYPE_CHECKING

from flbench.cli.console import line
from flbench.reports.tables import size
from flbench.reports.terminal import duration

if TYPE_CHECKING:
    from flbench.experiment.estimate import Estimate


def print_estimate(estimate: "Estimate") -> None:
    """Print the estimated communication, time and memory of a run."""
    lines = {
        "parameters": f"{estimate.parameters:,}",
        "down": f"{size(estimate.down)} to each client and round",
        "up": f"{size(estimate.up)} from each client and round",
        "cohort": f"{estimate.cohort} clients, {estimate.steps} steps in a round",
        "time": f"{estimate.round:.3g} s a round in one process,"
        f" {duration(estimate.evaluate)} an evaluation, {duration(estimate.common)} on the common"
        f" test set; about {duration(estimate.total)} in all",
        "memory": f"samples {size(estimate.data)}, state {size(estimate.state)}, results of a round"
        f" {size(estimate.results)}; about {size(estimate.memory)} for the process",
    }
    for name, content in lines.items():
        line(f"{name:>10}: {content}")
