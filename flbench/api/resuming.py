"""Resuming a run or a study."""

from collections.abc import Sequence
from os import PathLike
from typing import Any

from flbench.api import arguments, running, tuning
from flbench.api.runs import Run
from flbench.api.studies import Study
from flbench.callbacks import Callback
from flbench.callbacks.logger import Logger
from flbench.core.errors import ConfigError
from flbench.results import study_folder


def resume(
    path: str | PathLike[str],
    *,
    callbacks: Callback | Sequence[Callback] = (),
    logger: Logger | Sequence[Logger] = (),
    progress: bool = True,
    **keys: Any,
) -> Run | Study:
    """Continue an interrupted run or study, as `flbench run --resume` and `flbench tune --resume`.

    A resumed run ends with the same weights as one without an interruption.

    Args:
        path: The folder of the run or study.
        callbacks: The callbacks that a run began with, in the same order. Each continues with what
            it remembered at the checkpoint.
        logger: The loggers of a run. A logger with the same name and version as before (or run id)
            continues its log.
        progress: Whether to show the progress.
        keys: For a run, sections and dotted keys that may change on resume, such as
            `engine={"device": "cpu"}`. For a study, `concurrent`, `gpus_per_trial`, `retries` and
            `address`. For both, `data`, `model` and the functions of `train={"terms": ...}`, if
            they are objects without an import path.

    Returns:
        The finished run or study. One that was finished before is returned as it is.

    Raises:
        UserError: The folder is not one of a run or study, another process writes to it, a key must
            not change, or the data are others than before.
        RunError: The run failed, or no trial of the study has a score.
        KeyboardInterrupt: It was interrupted again, and saved.
    """
    folder = arguments.path_of(path, "path")
    if study_folder.is_study(folder):
        if callbacks or logger:
            raise ConfigError(
                f"`callbacks` and `logger` are for runs, and {folder} is a study. Leave them out."
            )
        return tuning.resume(folder, progress=progress, **keys)
    return running.resume(folder, callbacks=callbacks, logger=logger, progress=progress, **keys)
