"""`flbench run`: train and evaluate a method."""

import shlex
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from flbench.api.progress import Caller
from flbench.cli import console, tables
from flbench.cli.words import layers, methods
from flbench.config.resolve import resolve
from flbench.config.schema import Config
from flbench.config.sources import merge
from flbench.core.errors import UserError
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
    """Train a run, or resume one, and print its tables.

    With `print_config` and `as_json`, a dict with `config`, the sections, and `origins` by dotted
    key is printed instead.

    Raises:
        UserError: The configuration is wrong, or several methods are named.
    """
    names, overrides = methods([*(words or []), *(algo or [])])
    if len(names) > 1:
        raise UserError(
            "flbench run trains one method. To compare several: flbench compare"
            f" {shlex.join(names)} --seeds 1, with the same keys."
        )
    given = layers(overrides, aliases, asked["config"], out, *names)
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
        config, origins = resolve(given)
        if print_config and as_json:
            console.json({"config": config.tree(), "origins": origins})
        elif print_config:
            console.text(to_yaml(config.tree(), origins))
        elif dry_run:
            _dry_run(config, origins, as_json=as_json)
        if print_config or dry_run:
            return
        from flbench.api import running

        ending = running.start(config, origins, Caller())
    from flbench.cli.show import show

    show([ending.path], as_json=as_json)
    console.notes(ending.unsent())
    ending.check()


def _dry_run(config: Config, origins: Mapping[str, str], *, as_json: bool) -> None:
    """Print configuration, partition, and estimates of size, time and memory.

    With `as_json` it is a dict with `config`, `notes`, `partition` (as `flbench data --json` prints
    it) and `estimate`, the fields of `flbench.experiment.estimate.Estimate`, whose `total` contains
    the time until now, such as that of imports, and that of MLflow.
    """
    from flbench.data import catalogue
    from flbench.experiment import assembly, estimate

    built = assembly.build(config)
    try:
        if not as_json:
            console.text(to_yaml(built.config.tree(), origins))
            console.notes(built.notes)
            tables.print_partition(built.federation)
        preparing = time.process_time()
        measured = estimate.measure(built)
        mirrored = config.tracking.mlflow is not False and find_spec("mlflow") is not None
        total = preparing + max(measured.total, estimate.MIRROR * mirrored)
        measured = replace(measured, total=total)
    finally:
        built.engine.close()
    if as_json:
        about = {"config": built.config.tree(), "notes": list(built.notes)}
        partition = catalogue.partition(built.federation)
        console.json({**about, "partition": partition, "estimate": vars(measured)})
    else:
        tables.print_estimate(measured)
