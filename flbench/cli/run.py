"""`flbench run`: train and evaluate one method, or several one after the other."""

import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from flbench.api.caller import Caller
from flbench.cli import console, tables
from flbench.cli.show import show
from flbench.cli.words import layers, layers_of_each, methods
from flbench.config.resolve import resolve
from flbench.config.schema import Config
from flbench.config.sources import merge
from flbench.core.errors import PrintableError, UserError, combined
from flbench.core.plain_yaml import to_yaml


def run(
    words: Sequence[str] | None,
    *,
    algo: Sequence[str] | None,
    out: str | None,
    resume: Path | None,
    dry_run: bool,
    print_config: bool,
    as_json: bool,
    asked: Mapping[str, Any],
    aliases: Mapping[str, str],
) -> None:
    """Train runs one after the other, or resume one, and print their tables.

    With `print_config` and `as_json`, a list with `config`, the sections, and `origins` by dotted
    key is printed instead.

    Raises:
        UserError: The configuration is wrong, or a method was refused; the others are trained.
    """
    names, overrides = methods([*(words or []), *(algo or [])])
    given = layers(overrides, aliases, asked["config"], out)
    if resume is not None:
        refused: dict[str, object] = {"--dry-run": dry_run, "--print-config": print_config}
        refused |= {"a method": names, "--config": asked["config"], "--out": out}
        if wrong := [name for name, value in refused.items() if value]:
            raise UserError(
                f"{', '.join(wrong)} cannot be used with --resume: a resumed run keeps its"
                " configuration and its folder. Leave this out, or start a new run."
            )
        from flbench.api import resuming

        ending = resuming.carry_on(resume, merge(given), Caller())
    else:
        of_each = [*layers_of_each(names, given).values()] if names else [given]
        resolved = [resolve(one) for one in of_each]
        if print_config and as_json:
            console.json([{"config": one.tree(), "origins": places} for one, places in resolved])
        elif print_config:
            for config, origins in resolved:
                console.text(to_yaml(config.tree(), origins))
        elif dry_run:
            _dry_run(resolved, as_json=as_json)
        if print_config or dry_run:
            return
        from flbench.api import running

        ending = running.start(resolved, Caller())
    if ending.paths:
        show(ending.paths, as_json=as_json)
    console.notes(ending.unsent())
    ending.check()


def _dry_run(resolved: Sequence[tuple[Config, Mapping[str, str]]], *, as_json: bool) -> None:
    """Print configuration, partition, and estimates of size, time and memory.

    With `as_json` it is a list with `config`, `notes`, `partition` (as `flbench data --json` prints
    it) and `estimate`, the fields of `flbench.experiment.estimate.Estimate`, whose `total` contains
    the time until now, such as that of imports, and that of MLflow.
    """
    from flbench.data import catalogue
    from flbench.experiment import assembly, estimate

    entries, refused, begun = [], {}, 0.0
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
            preparing = time.process_time() - begun
            measured, begun = estimate.measure(built), time.process_time()
            mirrored = config.tracking.mlflow is not False and find_spec("mlflow") is not None
            total = preparing + max(measured.total, estimate.MIRROR * mirrored)
            measured = replace(measured, total=total)
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
