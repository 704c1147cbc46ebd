"""Resuming a run, a study or a comparison."""

from collections.abc import Mapping, Sequence
from functools import partial
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any

from flbench.api.caller import Caller
from flbench.api.running import RunsEnding, finished, train_one
from flbench.api.runs import Run
from flbench.callbacks import Callback
from flbench.callbacks.base import Logger
from flbench.calls import arguments
from flbench.calls.parts import ENTRIES, split
from flbench.comparison.folder import is_comparison
from flbench.config.resolve import read
from flbench.config.sources import Layer, from_values
from flbench.config.trust import run_code
from flbench.core.errors import ConfigError, UserError
from flbench.core.parts import METRICS, OBJECT, TERMS
from flbench.core.registry import ALGORITHMS
from flbench.core.wording import in_shell
from flbench.experiment import lifecycle
from flbench.results import reading, study_folder
from flbench.tracking.mirror import Mirrors

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
        if is_study:
            from flbench.api import tuning

            return tuning.resume(folder, progress=progress, **keys)
        if is_comparison(folder):
            from flbench.api import comparing

            return comparing.resume(folder, progress=progress, **keys)
        origin = "argument of fl.resume"
        plain, objects = of_resume(folder, keys)
        given = {name: arguments.plain(value, name, origin) for name, value in plain.items()}
        told = {"progress": progress, "callbacks": callbacks, "logger": logger}
        caller = Caller.of(told, keys, objects)
        return finished(carry_on(folder, from_values(given, origin), caller), caller)


def carry_on(path: Path, changed: Layer, caller: Caller) -> RunsEnding:
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
    ending = RunsEnding([], Mirrors("user" if "tracking.uri" in changed else "folder"))
    train_one(partial(lifecycle.resume, path, changed), f"resuming {path}", ending, caller)
    return ending


def given_again(keys: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the arguments of `fl.resume` as `split` does, also those of `fl.federate`.

    Classes of methods are registered, and left out.

    Raises:
        ConfigError: An argument is given by two names.
    """
    plain = dict(keys)
    method = plain.get("algorithm")
    classes = method if isinstance(method, list | tuple) else [method]
    if method and all(isinstance(one, type) for one in classes):
        for one in classes:
            ALGORITHMS.section(one)
        del plain["algorithm"]
    evaluation = plain.get("evaluation") or {}
    if {"module", "model"} <= plain.keys() or ("metrics" in plain and "metrics" in evaluation):
        raise ConfigError(
            "`module` is `model`, and `metrics` is `evaluation['metrics']`. Give one of them."
        )
    if "module" in plain:
        plain["model"] = plain.pop("module")
    if "metrics" in plain:
        plain["evaluation"] = {**evaluation, "metrics": plain.pop("metrics")}
    return split(plain)


def of_resume(
    path: Path, keys: Mapping[str, Any], file: str = "config.yaml"
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the arguments of `fl.resume` that change something, and the objects of the user.

    Args:
        path: The folder of the run or study.
        keys: Arguments by name.
        file: Path within the folder of the configuration that it began with.

    Raises:
        ConfigError: The run or study did not begin with such an object.
        DataError: The data cannot be used.
    """
    plain, objects = given_again(keys)
    if objects and (path / file).is_file():
        config = read(path / file)
        metrics = (config.evaluation.metrics or {}).values()
        began = {
            "data": config.data.source == OBJECT,
            "partition": config.partition.scheme == OBJECT,
            "model": config.model.name == OBJECT,
            TERMS: any(term.name.startswith(f"{OBJECT}:") for term in config.train.terms),
            METRICS: any(one.source == OBJECT for one in metrics),
        }
        if wrong := [section for section in objects if not began[section]]:
            raise ConfigError(
                f"`{wrong[0]}` is an object, but {path} did not begin with one. Leave it out:"
                " config.yaml names what is used."
            )
    # Terms and metrics are those of the configuration; only the functions are needed.
    for place in ENTRIES.keys() & objects.keys():
        section, _, name = place.partition(".")
        plain[section] = {key: value for key, value in plain[section].items() if key != name}
    return {key: value for key, value in plain.items() if key not in objects}, objects
