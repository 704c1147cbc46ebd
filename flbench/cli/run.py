"""`flbench run`: train and evaluate one method, or several one after the other."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from flbench.api.caller import Caller
from flbench.cli import console
from flbench.cli.show import show
from flbench.cli.tables import estimates, partitions
from flbench.config.resolve import resolve
from flbench.config.sources import Layer, from_overrides
from flbench.config.yaml_text import to_yaml
from flbench.core.errors import RunError, UserError

if TYPE_CHECKING:
    from flbench.api.running import Ending


def refuse_with_resume(options: Mapping[str, object]) -> None:
    """Raise a UserError if one of these options, by its name, was given beside `--resume`."""
    if given := [name for name, value in options.items() if value]:
        raise UserError(
            f"{', '.join(given)} cannot be used with --resume: a resumed run keeps its"
            " configuration and its folder. Leave this out, or start a new run."
        )


def run(runs: Sequence[list[Layer]]) -> None:
    """Train one run after the other, and print their tables.

    Args:
        runs: Configuration layers of each run, see `flbench.cli.layers`.
    """
    resolved = [resolve(layers) for layers in runs]
    from flbench.api import running

    _finish(running.start(resolved, Caller()))


def resume(path: Path, overrides: Sequence[str]) -> None:
    """Resume an interrupted run, and print its tables."""
    from flbench.api import running

    _finish(running.carry_on(path, from_overrides(overrides), Caller()))


def print_config(runs: Sequence[list[Layer]]) -> None:
    """Print the resolved configurations, with the origin of each value as a comment."""
    for layers in runs:
        config, origins = resolve(layers)
        console.text(to_yaml(config.tree(), origins))


def dry_run(runs: Sequence[list[Layer]]) -> None:
    """Print configuration, partition, and estimates of size, time and memory."""
    resolved = [resolve(layers) for layers in runs]
    from flbench.experiment import assembly, estimate

    for config, origins in resolved:
        built = assembly.build(config)
        console.text(to_yaml(built.config.tree(), origins))
        console.notes(built.messages())
        partitions.print_partition(built.federation)
        try:
            estimates.print_estimate(estimate.measure(built))
        finally:
            built.engine.close()


def _finish(ending: "Ending") -> None:
    """Print the tables of finished runs, and wait until MLflow has them.

    Raises:
        RunError: In one of the runs no client finished a training.
    """
    show(ending.paths)
    console.notes(ending.unsent())
    if failures := ending.failures():
        raise RunError("\n".join(failures))
