"""`flbench tune`: search hyper-parameters, and compare the tuned methods."""

import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from flbench.api import comparing, tuning
from flbench.api.progress import Caller
from flbench.cli import console
from flbench.cli.show import show
from flbench.cli.words import WORDS, layers, methods
from flbench.comparison.design import layers_of_each
from flbench.core.errors import RunError, UserError


def tune(
    words: Sequence[str] | None,
    *,
    algo: Sequence[str] | None,
    resume: Path | None,
    dry_run: bool,
    as_json: bool,
    asked: Mapping[str, Any],
    aliases: Mapping[str, str],
) -> None:
    """Carry out or resume a study, and print its tables; with `as_json` as `flbench show` does.

    Raises:
        UserError: The study cannot be carried out or resumed.
        RunError: No trial of any method has a score.
    """
    options = {name: value for name, value in asked.items() if value is not None}
    caller, config = Caller(), options.pop("config", None)
    if resume is not None:
        refused = [name for name in (*aliases, *options) if name not in tuning.RESOURCES]
        if words or algo or config or refused or dry_run:
            others = {"--algo": algo, "--config": config, "--dry-run": dry_run}
            given = [*(words or []), *(name for name, one in others.items() if one)]
            given += [f"--{name.replace('_', '-')}" for name in refused]
            raise UserError(
                f"{', '.join(given)} cannot be used with --resume: a resumed"
                " study keeps its methods, search spaces, configuration and folder. Only --jobs,"
                " --gpus-per-trial, --retries and --address can change."
            )
        ending = tuning.carry_on(resume, tuning.fields(options), caller)
    else:
        names, overrides = methods([*(words or []), *(algo or [])])
        if not names:
            raise UserError("name the methods to tune, for example flbench tune hfcd fedavg.")
        named = comparing.methods_of(names, WORDS)
        of_methods = layers_of_each(named, layers(overrides, aliases, config))
        if dry_run:
            cost = tuning.plan(of_methods, tuning.fields(options), caller)
            console.plan(cost.tree, cost.sentences, as_json=as_json)
            return
        typed = ["flbench", *sys.argv[1:]]
        ending = tuning.start(of_methods, tuning.fields(options), typed, caller)
    show([ending.path], as_json=as_json)
    console.notes(ending.notes)
    if ending.error:
        raise RunError(ending.error)
