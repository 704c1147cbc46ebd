"""`flbench tune`: search hyper-parameters, and compare the tuned methods."""

import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from flbench.api.caller import Caller
from flbench.cli import console
from flbench.cli.layers import one_run_per_method
from flbench.cli.show import show
from flbench.core.errors import RunError, UserError

if TYPE_CHECKING:
    from flbench.api.tuning import Ending


def refuse_with_resume(options: Mapping[str, object], overrides: Sequence[str]) -> None:
    """Raise a UserError if options or overrides were given that a resumed study cannot take."""
    given = [f"--{name}" for name, value in options.items() if value is not None]
    if given or overrides:
        raise UserError(
            f"{', '.join(given) or ' '.join(overrides)} cannot be used with --resume: a resumed"
            " study keeps its methods, search spaces, configuration and folder. Only --concurrent,"
            " --gpus-per-trial, --retries and --address can change."
        )


def tune(
    algo: str | None, *, config: str | None, overrides: Sequence[str], options: dict[str, Any]
) -> None:
    """Check a study, make its folder, and carry it out.

    Args:
        algo: Names of the methods, separated by commas.
        config: Configuration file.
        overrides: Overrides `key=value`.
        options: Fields of `flbench.tuning.request.TuneRequest`.
    """
    if algo is None:
        raise UserError("name the methods to tune, separated by commas: --algo hfcd,fedavg.")
    layers = one_run_per_method(algo, config=config, overrides=overrides, out=None)
    from flbench.api import tuning

    methods = tuple(name.strip() for name in algo.split(","))
    command = ["flbench", *sys.argv[1:]]
    by_method = dict(zip(methods, layers, strict=True))
    _finish(tuning.start(by_method, options, command=command, caller=Caller()))


def resume(path: Path, resources: dict[str, Any]) -> None:
    """Resume an interrupted study.

    Args:
        path: Study folder.
        resources: Fields of `flbench.tuning.request.TuneRequest` that change.
    """
    from flbench.api import tuning

    _finish(tuning.carry_on(path, resources, caller=Caller()))


def _finish(ending: "Ending") -> None:
    """Print the tables of a study.

    Raises:
        RunError: No trial of any method has a score.
    """
    from flbench.api import tuning

    show([ending.path])
    console.notes(ending.notes)
    if reason := tuning.failure(ending.path):
        raise RunError(reason)
