"""`flbench run`: train and evaluate one method, or several one after the other."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from flbench.api.caller import Caller
from flbench.cli import console, tables
from flbench.cli.show import show
from flbench.config.resolve import resolve
from flbench.config.sources import Layer
from flbench.core.errors import PrintableError, UserError, combined
from flbench.core.plain_yaml import to_yaml

if TYPE_CHECKING:
    from flbench.api.running import RunsEnding


def run(runs: Sequence[list[Layer]], *, as_json: bool) -> None:
    """Train one run after the other, and print their tables, also if one of them fails."""
    resolved = [resolve(layers) for layers in runs]
    from flbench.api import running

    _finish(running.start(resolved, Caller()), as_json=as_json)


def resume(path: Path, changed: Layer, refused: Mapping[str, object], *, as_json: bool) -> None:
    """Resume an interrupted run, and print its tables.

    Args:
        path: The run folder.
        changed: New values of keys that may change on resume.
        refused: What a resumed run does not take, by the words for it.
        as_json: Whether to print JSON.

    Raises:
        UserError: Something was given that a resumed run does not take.
    """
    if given := [name for name, value in refused.items() if value]:
        raise UserError(
            f"{', '.join(given)} cannot be used with --resume: a resumed run keeps its"
            " configuration and its folder. Leave this out, or start a new run."
        )
    from flbench.api import resuming

    _finish(resuming.carry_on(path, changed, Caller()), as_json=as_json)


def print_config(runs: Sequence[list[Layer]], *, as_json: bool) -> None:
    """Print the resolved configurations, with the origin of each value as a comment.

    With `as_json` it is a list with `config`, the sections, and `origins` by dotted key.
    """
    resolved = [resolve(layers) for layers in runs]
    if as_json:
        console.json([{"config": config.tree(), "origins": place} for config, place in resolved])
        return
    for config, origins in resolved:
        console.text(to_yaml(config.tree(), origins))


def dry_run(runs: Sequence[list[Layer]], *, as_json: bool) -> None:
    """Print configuration, partition, and estimates of size, time and memory.

    With `as_json` it is a list with `config`, `notes`, `partition` (as `flbench data --json` prints
    it) and `estimate`, the fields of `flbench.experiment.estimate.Estimate`.

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
                tables.print_partition(built.federation)
            measured = estimate.measure(built)
        finally:
            built.engine.close()
        if not as_json:
            tables.print_estimate(measured)
        about = {"config": built.config.tree(), "notes": list(built.notes)}
        partition = catalogue.partition(built.federation)
        entries.append({**about, "partition": partition, "estimate": vars(measured)})
    if as_json and entries:
        console.json(entries)
    if refused:
        raise next(iter(refused.values())) if len(resolved) == 1 else combined(refused)


def _finish(ending: "RunsEnding", *, as_json: bool) -> None:
    """Print the tables of finished runs, and wait until MLflow has them."""
    if ending.paths:
        show(ending.paths, as_json=as_json)
    console.notes(ending.unsent())
    ending.check()
