"""Resuming a run, a study or a comparison."""

from collections.abc import Sequence
from functools import partial
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any

from flbench.api.progress import Caller
from flbench.api.running import RunEnding, finished, train
from flbench.api.runs import Run
from flbench.callbacks import Callback
from flbench.callbacks.base import Logger
from flbench.calls import arguments, parts
from flbench.comparison.folder import is_comparison
from flbench.config.sources import Layer, from_values
from flbench.config.trust import run_code
from flbench.core.errors import ConfigError, UserError
from flbench.core.wording import in_shell
from flbench.experiment import lifecycle
from flbench.results import reading, study_folder
from flbench.tracking.mirror import Mirror

if TYPE_CHECKING:
    from flbench.api.comparisons import PlannedComparison
    from flbench.api.studies import Study


def resume(
    path: str | PathLike[str],
    *,
    callbacks: Callback | Sequence[Callback] = (),
    logger: Logger | Sequence[Logger] = (),
    progress: bool = True,
    trust: bool = False,
    **keys: Any,
) -> "Run | Study | PlannedComparison":
    """Continue an interrupted run, study or comparison.

    This is what `--resume` of `flbench run`, `flbench tune` and `flbench compare` does. A resumed
    run ends with the same weights as one without an interruption.

    Args:
        path: The folder of the run, study or comparison.
        callbacks: The callbacks that a run began with, in the same order. Each continues with what
            it remembered at the checkpoint.
        logger: The loggers of a run. A logger with the same name and version as before (or run id)
            continues its log.
        progress: Whether to show the progress.
        trust: Whether code that the folder names may run, if your flbench has not written the
            folder on this machine.
        keys: For a run, sections and dotted keys that may change on resume, such as
            `engine={"device": "cpu"}`. For a study, `jobs`, `gpus_per_trial`, `retries` and
            `address`. For a comparison, `jobs`, `address`, `methods` and `seeds` to add methods and
            repetitions. For all of them, `data`, `partition`, `model` (the module of
            `fl.federate`) and the functions of `train={"terms": ...}` and
            `evaluation={"metrics": ...}`, if they are objects without an import path.

    Returns:
        The finished run, study or comparison. One that was finished before is returned as it is.

    Raises:
        UserError: The folder is not that of a run, study or comparison, another process writes to
            it, a key must not change, an object must be given again, or data, net or functions have
            changed.
        RunError: The run or a callback failed, no trial of the study has a score, or all cells of
            the comparison failed.
        KeyboardInterrupt: It was interrupted again, and saved.
    """
    folder = arguments.path_of(path, "path")
    is_study = study_folder.is_study(folder)
    if (callbacks or logger) and (is_study or is_comparison(folder)):
        kind = "study" if is_study else "comparison"
        raise ConfigError(
            f"`callbacks` and `logger` are for runs, and {folder} is a {kind}. Leave them out."
        )
    with run_code(trust):
        if is_study:
            from flbench.api import tuning

            return tuning.resume(folder, progress=progress, **keys)
        if is_comparison(folder):
            from flbench.api import comparing

            return comparing.resume(folder, progress=progress, **keys)
        origin = "argument of fl.resume"
        plain, objects = parts.of_resume(folder, keys)
        given = {name: arguments.plain(value, name, origin) for name, value in plain.items()}
        told = {"progress": progress, "callbacks": callbacks, "logger": logger}
        caller = Caller.of(told, objects)
        return finished(carry_on(folder, from_values(given, origin), caller), caller)


def carry_on(path: Path, changed: Layer, caller: Caller) -> RunEnding:
    """Train what is left of a run.

    Returns:
        The folder, and the process that sends it to MLflow if there is one. Nothing is trained if
        the run was finished before. The errors are those of `resume`.
    """
    reading.check_run_folder(path)
    if (path / "trial.json").is_file():
        study = in_shell(path.resolve().parents[2])
        raise UserError(
            f"{path} is a trial, which is never evaluated on test parts. Resume its study: flbench"
            f" tune --resume {study}"
        )
    mirrors = Mirror("user" if "tracking.uri" in changed else "folder")
    return train(partial(lifecycle.resume, path, changed), f"resuming {path}", mirrors, caller)
