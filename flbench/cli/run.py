"""`flbench run`: train and evaluate one method, or several one after the other."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from flbench.api.caller import Caller
from flbench.cli import console
from flbench.cli.show import show
from flbench.cli.tables import estimates, partitions
from flbench.config.resolve import resolve
from flbench.config.sources import Layer
from flbench.core.errors import PrintableError, UserError, combined
from flbench.core.plain_yaml import to_yaml

if TYPE_CHECKING:
    from flbench.api.running import RunsEnding


def refuse_with_resume(options: Mapping[str, object]) -> None:
    """Raise a UserError if one of these options, by its name, was given beside `--resume`."""
    if given := [name for name, value in options.items() if value]:
        raise UserError(
            f"{', '.join(given)} cannot be used with --resume: a resumed run keeps its"
            " configuration and its folder. Leave this out, or start a new run."
        )


def run(runs: Sequence[list[Layer]], *, as_json: bool) -> None:
    """Train one run after the other, and print their tables, also if one of them fails.

    Args:
        runs: Configuration layers of each run, see `flbench.cli.layers`.
        as_json: Whether to print JSON: what `flbench show --json` prints of the runs.
    """
    resolved = [resolve(layers) for layers in runs]
    from flbench.api import running

    ending = running.start(resolved, Caller())
    _finish(ending, as_json=as_json)


def resume(path: Path, changed: Layer, *, as_json: bool) -> None:
    """Resume an interrupted run, and print its tables.

    Args:
        path: The run folder.
        changed: New values of keys that may change on resume.
        as_json: Whether to print JSON, as `run` does.
    """
    from flbench.api import resuming

    ending = resuming.carry_on(path, changed, Caller())
    _finish(ending, as_json=as_json)


def print_config(runs: Sequence[list[Layer]], *, as_json: bool) -> None:
    """Print the resolved configurations, with the origin of each value as a comment.

    Args:
        runs: Configuration layers of each run.
        as_json: Whether to print JSON: a list with `config`, the sections, and `origins`, the
            origin of each value by its dotted key.
    """
    resolved = [resolve(layers) for layers in runs]
    if as_json:
        console.json([{"config": config.tree(), "origins": place} for config, place in resolved])
        return
    for config, origins in resolved:
        console.text(to_yaml(config.tree(), origins))


def dry_run(runs: Sequence[list[Layer]], *, as_json: bool) -> None:
    """Print configuration, partition, and estimates of size, time and memory.

    Args:
        runs: Configuration layers of each run.
        as_json: Whether to print JSON: a list with `config`, `notes`, `partition` (as `flbench data
            --json` prints it) and `estimate`, the fields of `flbench.experiment.estimate.Estimate`.

    Raises:
        UserError: A method was refused. The others are printed before that.
    """
    resolved = [resolve(layers) for layers in runs]
    from flbench.data import catalogue
    from flbench.experiment import assembly, estimate

    entries, refused = [], {}
    for config, origins in resolved:
        try:
            built = assembly.build(config)
        except PrintableError as error:
            refused[config.algorithm.name] = error
            continue
        try:
            if not as_json:
                console.text(to_yaml(built.config.tree(), origins))
                console.notes(built.notes)
                partitions.print_partition(built.federation)
            measured = estimate.measure(built)
        finally:
            built.engine.close()
        if not as_json:
            estimates.print_estimate(measured)
        entries.append(
            {
                "config": built.config.tree(),
                "notes": list(built.notes),
                "partition": catalogue.partition(built.federation),
                "estimate": vars(measured),
            }
        )
    if as_json and entries:
        console.json(entries)
    if len(resolved) == 1 and refused:
        raise next(iter(refused.values()))
    if refused:
        raise combined(refused)


def _finish(ending: "RunsEnding", *, as_json: bool) -> None:
    """Print the tables of finished runs, and wait until MLflow has them.

    Raises:
        UserError: One of several runs was refused.
        RunError: One of several runs failed, or in one no client finished a training.
    """
    if ending.paths:
        show(ending.paths, as_json=as_json)
    console.notes(ending.unsent())
    ending.check()
