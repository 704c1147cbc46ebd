"""Resuming a run, a study or a comparison."""

from collections.abc import Sequence
from os import PathLike
from typing import Any

from flbench.api import comparing, running, tuning
from flbench.api.comparisons import PlannedComparison
from flbench.api.runs import Run
from flbench.api.studies import Study
from flbench.callbacks import Callback
from flbench.callbacks.base import Logger
from flbench.calls import arguments
from flbench.comparison.folder import is_comparison
from flbench.config.trust import run_code
from flbench.core.errors import ConfigError
from flbench.results import study_folder


def resume(
    path: str | PathLike[str],
    *,
    callbacks: Callback | Sequence[Callback] = (),
    logger: Logger | Sequence[Logger] = (),
    progress: bool = True,
    trust: bool = False,
    **keys: Any,
) -> Run | Study | PlannedComparison:
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
            `engine={"device": "cpu"}`. For a study, `concurrent`, `gpus_per_trial`, `retries` and
            `address`. For a comparison, `jobs`, `address`, `methods` and `seeds` to add methods and
            repetitions, and `reuse`, folders of finished runs to use again. For all of them,
            `data`, `partition`, `model` (or `module`, as `fl.federate` names it) and the functions
            of `train={"terms": ...}` and `evaluation={"metrics": ...}`, if they are objects without
            an import path.

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
        if is_comparison(folder):
            return comparing.resume(folder, progress=progress, **keys)
        if is_study:
            return tuning.resume(folder, progress=progress, **keys)
        return running.resume(folder, callbacks=callbacks, logger=logger, progress=progress, **keys)
