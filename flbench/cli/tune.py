"""`flbench tune`: search hyper-parameters, and compare the tuned methods."""

import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from flbench.api.caller import Caller
from flbench.cli import console
from flbench.cli.layers import CommandLine
from flbench.cli.show import show
from flbench.core.errors import RunError, UserError

if TYPE_CHECKING:
    from flbench.api.tuning import StudyEnding


def refuse_with_resume(options: Mapping[str, object], words: Sequence[str]) -> None:
    """Raise a UserError if options or words were given that a resumed study cannot take."""
    given = [f"--{name}" for name, value in options.items() if value is not None]
    if given or words:
        raise UserError(
            f"{', '.join([*words, *given])} cannot be used with --resume: a resumed"
            " study keeps its methods, search spaces, configuration and folder. Only --concurrent,"
            " --gpus-per-trial, --retries and --address can change."
        )


def tune(given: CommandLine, *, options: dict[str, Any], dry_run: bool, as_json: bool) -> None:
    """Check a study, make its folder, and carry it out.

    Args:
        given: What the user gave on the command line for the configuration.
        options: Fields of `flbench.tuning.request.TuneRequest`.
        dry_run: Whether to print the plan and its estimated cost, and train nothing.
        as_json: Whether to print JSON: what `flbench show --json` prints of the study, or with
            `dry_run` the plan, see `flbench.tuning.cost.StudyCost.tree`.
    """
    if not given.methods:
        raise UserError("name the methods to tune, for example flbench tune hfcd fedavg.")
    layers = dict(zip(given.methods, given.layers_of_each(), strict=True))
    from flbench.api import tuning

    if dry_run:
        cost = tuning.plan(layers, options, Caller())
        if as_json:
            console.json(cost.tree())
        else:
            for sentence in cost.sentences():
                console.line(sentence)
        return
    command = ["flbench", *sys.argv[1:]]
    ending = tuning.start(layers, options, command=command, caller=Caller())
    _finish(ending, as_json=as_json)


def resume(path: Path, resources: dict[str, Any], *, as_json: bool) -> None:
    """Resume an interrupted study.

    Args:
        path: Study folder.
        resources: Fields of `flbench.tuning.request.TuneRequest` that change.
        as_json: Whether to print JSON, as `tune` does.
    """
    from flbench.api import tuning

    _finish(tuning.carry_on(path, resources, caller=Caller()), as_json=as_json)


def _finish(ending: "StudyEnding", *, as_json: bool) -> None:
    """Print the tables of a study.

    Raises:
        RunError: No trial of any method has a score.
    """
    from flbench.api import tuning

    show([ending.path], as_json=as_json)
    console.notes(ending.notes)
    if reason := tuning.failure(ending.path):
        raise RunError(reason)
