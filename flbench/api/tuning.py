"""Searching hyper-parameters from Python, and resuming a study."""

from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import replace
from functools import partial
from os import PathLike
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from flbench.api import campaigns
from flbench.api.caller import Caller, program
from flbench.api.studies import Study
from flbench.calls import arguments, parts
from flbench.calls.process import preserved
from flbench.config.sources import Layer
from flbench.config.trust import run_code
from flbench.core.errors import ConfigError, RunError
from flbench.core.registry import ALGORITHMS
from flbench.core.system_errors import as_flbench_errors
from flbench.results import study_folder
from flbench.tracking import mirror
from flbench.tracking.store import NamedBy
from flbench.tuning.failures import search_failure
from flbench.tuning.request import require_ray_tune
from flbench.workers import fork_server

if TYPE_CHECKING:
    from flbench.tuning.cost import StudyCost
    from flbench.tuning.prepare import PreparedStudy
    from flbench.tuning.study import StudyFolder
    from flbench.workers.ray_driver import RayDriver


RESOURCES: Final = ("jobs", "gpus_per_trial", "retries", "address")
"""Arguments of `tune` that may change when a study is resumed."""
PATHS: Final = ("space", "out")
OPTIONS: Final = (
    *("trials", "seeds", "vary", "search", "scheduler", "metric", "deployment"),
    *(*RESOURCES, *PATHS),
)
"""Arguments of `tune` that are not of the configuration."""


def called(values: Mapping[str, Any], keys: Mapping[str, Any]) -> Study:
    """Carry out a call of `fl.tune`.

    Args:
        values: Its arguments by name.
        keys: Its keys by their dotted names.
    """
    given = arguments.sections(values, keys)
    options = fields({name: values[name] for name in OPTIONS})
    names = arguments.names_of(values["methods"])
    plain, objects = parts.split(given)
    with run_code(values["trust"]):
        layers = {name: _layers_of(name, names, values["config"], plain) for name in names}
    asked = {**options, **{name: value for name, value in plain.items() if value is not None}}
    call = ", ".join([repr(list(names)), *(f"{name}={value!r}" for name, value in asked.items())])
    caller = program(shown=values["progress"], again=parts.again(given, objects))
    with run_code(values["trust"]):
        ending = start(
            layers,
            options,
            command=(f"fl.tune({call})",),
            caller=caller,
            objects=objects,
        )
    return _finished(ending, caller)


def resume(path: Path, *, progress: bool = True, **resources: Any) -> Study:
    """Continue an interrupted study, as `flbench tune --resume` does.

    Args:
        path: The study folder.
        progress: Whether to show the progress.
        resources: Those of `jobs`, `gpus_per_trial`, `retries` and `address` that change.

    Raises:
        UserError: The folder is not a study folder, the data have changed, or an argument
            cannot change.
        RunError: No trial of a method has a score, or a server of Ray was lost.
        KeyboardInterrupt: The study was interrupted again.
    """
    files = sorted(path.glob("methods/*.yaml"))  # data, net and terms are those of all methods
    began = files[0].relative_to(path).as_posix() if files else ""
    known = (*parts.SECTIONS, "module", "algorithm")
    parts_given = [name for name in resources if name in known]
    own = {name: resources.pop(name) for name in parts_given}
    rest, objects = parts.of_resume(path, own, began)
    resources |= {name: value for name, value in rest.items() if value}
    if unknown := [name for name in resources if name not in RESOURCES]:
        raise ConfigError(
            f"`{unknown[0]}` cannot be given to fl.resume of a study, which keeps its methods,"
            f" search spaces and configuration. Only {', '.join(RESOURCES)} can change; `data`,"
            " `partition`, `model` and the functions of `train` and `evaluation` are given again"
            " if they are objects."
        )
    caller = program(shown=progress, again=parts.again(own, objects))
    ending = carry_on(path, fields(resources), caller=caller, objects=objects)
    return _finished(ending, caller)


def fields(given: Mapping[str, Any]) -> dict[str, Any]:
    """Return fields of `flbench.tuning.request.TuneRequest` for arguments of `tune`.

    Args:
        given: The arguments by name. Those that are None have the default of the request.

    Raises:
        UserError: A path is empty, or the value is not a path.
    """
    found = {name: value for name, value in given.items() if value is not None}
    found |= {name: arguments.path_of(found[name], name) for name in PATHS if name in found}
    names = {"jobs": "concurrent", "gpus_per_trial": "gpus"}
    return {names.get(name, name): value for name, value in found.items()}


class StudyEnding(NamedTuple):
    """How a study ended.

    Attributes:
        path: The study folder.
        notes: Sentences about what was not sent to MLflow.
        resume: Command that trains again what has failed because its worker did; None if nothing.
    """

    path: Path
    notes: list[str]
    resume: str | None = None


def start(
    layers: dict[str, list[Layer]],
    options: dict[str, Any],
    *,
    command: Sequence[str],
    caller: Caller,
    objects: Mapping[str, Any] = MappingProxyType({}),
) -> StudyEnding:
    """Check a study, make its folder, and carry it out.

    Args:
        layers: Layers of each method's configuration, in the order of the methods.
        options: Fields of `flbench.tuning.request.TuneRequest` that differ from their defaults.
        command: What the user called, for study.json.
        caller: Who gets progress and notes.
        objects: Objects of the user, by the section of the configuration that they stand for.

    Raises:
        UserError: The study cannot be carried out.
        RunError: A server of Ray was lost.
        KeyboardInterrupt: A stop signal has arrived.
    """
    fork_server.prepare()  # the driver of Ray begins there
    require_ray_tune()
    from flbench.tuning import cost, prepare
    from flbench.workers.ray_resources import cluster

    with campaigns.stopped_by_signals(objects):
        with caller.during(campaigns.CHECK):
            prepared = _prepared(layers, options, caller, objects)
            if caller.shown:
                with preserved():
                    caller.tell(cost.measure(prepared).sentences())
        # The cluster is checked before a folder is made.
        with (
            cluster(prepared.resources) as driver,
            closing(campaigns.addressed(prepare.create(prepared, command), caller)) as folder,
        ):
            return _carry_out(driver, folder, prepared, caller, _store_named_by(prepared))


def plan(layers: dict[str, list[Layer]], options: dict[str, Any], caller: Caller) -> "StudyCost":
    """Check a study, and estimate its cost; nothing is written or trained to the end.

    Args:
        layers: Layers of each method's configuration, in the order of the methods.
        options: Fields of `flbench.tuning.request.TuneRequest` that differ from their defaults.
        caller: Who gets notes.

    Raises:
        UserError: The study cannot be carried out.
    """
    require_ray_tune()
    from flbench.tuning import cost

    with as_flbench_errors(), preserved():
        return cost.measure(_prepared(layers, options, caller))


def _prepared(
    layers: dict[str, list[Layer]],
    options: dict[str, Any],
    caller: Caller,
    objects: Mapping[str, Any] = MappingProxyType({}),
) -> "PreparedStudy":
    """Check a study, and tell the caller the notes about it."""
    from flbench.tuning import prepare
    from flbench.tuning.request import TuneRequest
    from flbench.workers.shipping import pack

    parcel = pack(objects, layers)
    prepared = prepare.prepare(TuneRequest(tuple(layers), **options), layers, parcel)
    mirror.check(prepared.config.tracking, _store_named_by(prepared))
    caller.tell(prepared.notes)
    return prepared


def carry_on(
    path: Path,
    resources: dict[str, Any],
    *,
    caller: Caller,
    objects: Mapping[str, Any] = MappingProxyType({}),
) -> StudyEnding:
    """Carry out what is left of a study.

    Args:
        path: Study folder.
        resources: Fields of `flbench.tuning.request.TuneRequest` that change.
        caller: Who gets progress and notes.
        objects: Objects of the user, by the section of the configuration that they stand for.

    Raises:
        UserError: The path is not a study folder, or the data have changed.
        RunError: A server of Ray was lost.
        KeyboardInterrupt: A stop signal has arrived.
    """
    fork_server.prepare()
    require_ray_tune()
    from flbench.tuning import prepare, run, study_page
    from flbench.tuning.study import StudyFolder
    from flbench.workers.ray_resources import cluster
    from flbench.workers.shipping import pack

    with (
        campaigns.stopped_by_signals(objects),
        closing(campaigns.addressed(StudyFolder.reopen(path), caller)) as folder,
    ):
        prepared = prepare.reopen(folder, resources)
        prepared = replace(prepared, parcel=pack(objects, prepared.configs))
        run.begin_again(folder)
        if run.is_over(folder, prepared):
            # The process may have been killed before it wrote the report.
            study_page.write(folder.path)
            caller.tell([f"{path} is finished: there is nothing to resume."])
            return StudyEnding(folder.path, [])
        with cluster(prepared.resources) as driver:
            return _carry_out(driver, folder, prepared, caller, "folder")


def failure(ending: StudyEnding) -> str | None:
    """Return why a study, or a method of it, has no result; None if all methods have one.

    The last line says how to go on, if what failed may be trained again.
    """
    path = ending.path
    reason = search_failure(study_folder.read(path))
    again = f"\nResume with: {ending.resume}" if ending.resume else ""
    return reason and f"{path}: {reason} All reasons are in {path / 'study.md'}.{again}"


def _store_named_by(prepared: "PreparedStudy") -> NamedBy:
    """Return who names the address of MLflow's store, for a study that has not begun."""
    return mirror.named_by(next(iter(prepared.origins.values())))


def _carry_out(
    driver: "RayDriver",
    folder: "StudyFolder",
    prepared: "PreparedStudy",
    caller: Caller,
    named_by: NamedBy,
) -> StudyEnding:
    """Train what is left of a study and write its report."""
    from flbench.tuning import run, study_page

    request = prepared.request
    report = partial(study_page.write, folder.path)
    finals = (
        "; then final trainings of the default and the best parameters with"
        f" {request.seeds} seed{'' if request.seeds == 1 else 's'}"
        f"{', each on another partition' if prepared.partitions else ''}"
    )
    caller.tell(
        [
            f"{folder.path}: {request.trials} trials of {prepared.settings.rounds} rounds for each"
            f" of {', '.join(request.methods)}, {prepared.resources.concurrent} at once"
            f"{finals if request.seeds else ''}."
        ]
    )
    with campaigns.mirrored(folder, prepared.config, caller, named_by, report) as mirrors:
        run.carry_out(driver, folder, prepared, shown=caller.shown)
    with caller.during(campaigns.MLFLOW):
        notes = mirrors.finish()
    return StudyEnding(folder.path, notes, run.how_to_resume(folder, prepared))


def _layers_of(
    name: str,
    names: Sequence[str],
    config: str | PathLike[str] | None,
    given: Mapping[str, Any],
) -> list[Layer]:
    """Return the layers of one method's configuration.

    If there are several methods, each one gets those keys of the section `algorithm` that it has.
    """
    algorithm = given["algorithm"] or {}
    if not isinstance(algorithm, Mapping):
        raise ConfigError(
            f"`algorithm` must be a dict of keys, got {algorithm!r}: fl.tune takes the methods as"
            " its first argument."
        )
    others = arguments.keys_of_others(name, names, algorithm)
    kept = {key: value for key, value in algorithm.items() if key not in others}
    section = {**kept, **ALGORITHMS.section(name)}
    return arguments.layers("tune", config, {**given, "algorithm": section})


def _finished(ending: StudyEnding, caller: Caller) -> Study:
    """Return a study.

    Raises:
        RunError: No trial of a method has a score.
    """
    caller.tell(ending.notes)
    if reason := failure(ending):
        raise RunError(reason)
    return Study(ending.path)
