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
    from flbench.api.campaigns import Ending


def refuse_with_resume(options: Mapping[str, object], words: Sequence[str]) -> None:
    """Raise a UserError if options or words were given that a resumed study cannot take."""
    given = [f"--{name}" for name, value in options.items() if value is not None]
    if given or words:
        raise UserError(
            f"{', '.join([*words, *given])} cannot be used with --resume: a resumed"
            " study keeps its methods, search spaces, configuration and folder. Only --jobs,"
            " --gpus-per-trial, --retries and --address can change."
        )


def called(
    words: Sequence[str],
    algo: Sequence[str],
    aliases: Mapping[str, str],
    asked: dict[str, Any],
    *,
    resume: Path | None,
    dry_run: bool,
    as_json: bool,
) -> None:
    """Carry out `flbench tune`.

    Args:
        words: Methods and overrides.
        algo: Values of `--algo`.
        aliases: Texts of the short forms that the user gave, by the name of the option.
        asked: The given arguments of `flbench.api.tuning.tune`.
        resume: Folder of the study to resume; None to begin one.
        dry_run: Whether to print the plan and its estimated cost, and train nothing.
        as_json: Whether to print JSON.

    Raises:
        UserError: The study cannot be carried out or resumed.
        RunError: No trial of a method has a score.
    """
    from flbench.api import tuning

    if resume is None:
        given = CommandLine.of(words, algo, aliases, asked.pop("config", None))
        tune(given, options=tuning.fields(asked), dry_run=dry_run, as_json=as_json)
        return
    kept = {name: value for name, value in asked.items() if name not in tuning.RESOURCES}
    refuse_with_resume(
        {"algo": algo or None, **aliases, **kept, "dry-run": True if dry_run else None}, words
    )
    changed = {name: value for name, value in asked.items() if name in tuning.RESOURCES}
    _finish(tuning.carry_on(resume, tuning.fields(changed), Caller()), as_json=as_json)


def tune(given: CommandLine, *, options: dict[str, Any], dry_run: bool, as_json: bool) -> None:
    """Check a study, make its folder, and carry it out.

    Args:
        given: What the user gave on the command line for the configuration.
        options: Fields of `flbench.tuning.request.TuneRequest`.
        dry_run: Whether to print the plan and its estimated cost, and train nothing.
        as_json: Whether to print JSON: what `flbench show --json` prints of the study, or with
            `dry_run` the plan, see `flbench.tuning.cost.measure`.
    """
    if not given.methods:
        raise UserError("name the methods to tune, for example flbench tune hfcd fedavg.")
    of_methods = dict(zip(given.methods, given.layers_of_each(), strict=True))
    from flbench.api import tuning

    if dry_run:
        cost = tuning.plan(of_methods, options, Caller())
        if as_json:
            console.json(cost.tree)
        else:
            for sentence in cost.sentences:
                console.line(sentence)
        return
    command = ["flbench", *sys.argv[1:]]
    ending = tuning.start(of_methods, options, command, Caller())
    _finish(ending, as_json=as_json)


def _finish(ending: "Ending", *, as_json: bool) -> None:
    """Print the tables of a study.

    Raises:
        RunError: No trial of any method has a score.
    """
    show([ending.path], as_json=as_json)
    console.notes(ending.notes)
    if ending.error:
        raise RunError(ending.error)
