"""Searching hyper-parameters from Python, and resuming a study."""

from collections.abc import Mapping, Sequence
from contextlib import ExitStack, closing, nullcontext
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from flbench.api import campaigns, studies
from flbench.api.comparing import NAMING, methods_of
from flbench.api.progress import Caller
from flbench.api.studies import Study
from flbench.calls import arguments, parts
from flbench.calls.process import preserved
from flbench.comparison import prepare as comparing
from flbench.comparison import winners
from flbench.comparison.design import Design, layers_of_each
from flbench.comparison.folder import ComparisonFolder
from flbench.config.sources import Layer, from_values, merge
from flbench.config.trust import run_code
from flbench.core.errors import ConfigError
from flbench.core.system_errors import as_flbench_errors
from flbench.jobs.resources import CELL, cluster
from flbench.jobs.samples import LoadedSamples
from flbench.results import study_folder
from flbench.tracking import mirror
from flbench.tracking.store import NamedBy
from flbench.tuning.report import search_failure
from flbench.tuning.request import require_ray_tune
from flbench.workers import fork_server

if TYPE_CHECKING:
    from flbench.jobs.estimate import Plan
    from flbench.tuning.prepare import PreparedStudy
    from flbench.tuning.study import StudyFolder
    from flbench.workers.ray_driver import RayDriver


RESOURCES: Final = ("jobs", "gpus_per_trial", "retries", "address")
"""Arguments of `tune` that may change when a study is resumed."""
PATHS: Final = ("space", "out")
OPTIONS: Final = (
    *("trials", "equal", "seeds", "vary", "search", "scheduler", "metric"),
    *(*RESOURCES, *PATHS),
)
"""Arguments of `tune` that are not of the configuration."""


def called(values: Mapping[str, Any], keys: Mapping[str, Any]) -> Study:
    """Carry out a call of `fl.tune`, given its arguments by name and its dotted keys."""
    given = arguments.sections(values, keys)
    options = fields({name: values[name] for name in OPTIONS})
    plain, objects = parts.split(given)
    caller = Caller.of(values, objects)
    with run_code(values["trust"]):
        methods = methods_of(values["methods"], "argument of fl.tune")
        if named := [
            one.label for one in methods if one.label != one.method or {*one.layer} - {*NAMING}
        ]:
            raise ConfigError(
                f"`{named[0]}` is a variant. A study has each method once, with the data and the"
                " budget of the others: give keys as arguments of fl.tune."
            )
        layers = layers_of_each(methods, arguments.layers("tune", values["config"], plain))
        asked = {**options, **{name: value for name, value in plain.items() if value is not None}}
        told = ", ".join([repr([*layers]), *(f"{k}={v!r}" for k, v in asked.items())])
        ending = start(layers, options, (f"fl.tune({told})",), caller)
    ending.check(caller)
    return Study(ending.path)


def resume(path: Path, *, progress: bool = True, **resources: Any) -> Study:
    """Continue an interrupted study; see `fl.resume`.

    Raises:
        ConfigError: An argument cannot change.
    """
    files = sorted(path.glob("methods/*.yaml"))  # data, net and terms are those of all methods
    began = files[0].relative_to(path).as_posix() if files else ""
    known = (*parts.SECTIONS, "algorithm")
    own = {name: resources.pop(name) for name in [*resources] if name in known}
    rest, objects = parts.of_resume(path, own, began)
    resources |= {name: value for name, value in rest.items() if value}
    if unknown := [name for name in resources if name not in RESOURCES]:
        raise ConfigError(
            f"`{unknown[0]}` cannot be given to fl.resume of a study, which keeps its methods,"
            f" search spaces and configuration. Only {', '.join(RESOURCES)} can change; `data`,"
            " `partition`, `model` and the functions of `train` and `evaluation` are given again"
            " if they are objects."
        )
    caller = Caller.of({"progress": progress}, objects)
    ending = carry_on(path, fields(resources), caller)
    ending.check(caller)
    return Study(ending.path)


def fields(given: Mapping[str, Any]) -> dict[str, Any]:
    """Return fields of `flbench.tuning.request.TuneRequest` for arguments of `tune`.

    Those that are None have the default of the request.

    Raises:
        UserError: A path is empty, or the value is not a path.
    """
    found = {name: value for name, value in given.items() if value is not None}
    found |= {name: arguments.path_of(found[name], name) for name in PATHS if name in found}
    if found.get("equal") == "steps":
        found.setdefault("scheduler", "none")
    names = {"jobs": "concurrent", "gpus_per_trial": "gpus"}
    return {names.get(name, name): value for name, value in found.items()}


def start(
    layers: dict[str, list[Layer]],
    options: Mapping[str, Any],
    command: Sequence[str],
    caller: Caller,
) -> campaigns.Ending:
    """Check a study, make its folder, and carry it out.

    Args:
        layers: Layers of each method's configuration, in the order of the methods.
        options: Fields of `flbench.tuning.request.TuneRequest` that differ from their defaults.
        command: What the user called, for study.json.
        caller: Who gets progress and notes.

    Raises:
        UserError: The study cannot be carried out.
        RunError: A server of Ray was lost.
        KeyboardInterrupt: A stop signal has arrived.
    """
    fork_server.prepare()  # the driver of Ray begins there
    require_ray_tune()
    from flbench.tuning import cost, prepare

    with campaigns.stopped_by_signals(caller.objects):
        with caller.during(campaigns.CHECK), preserved():
            prepared = _prepared(layers, options, caller)
            named_by = mirror.named_by(next(iter(prepared.origins.values())))
            _check_partitions(prepared, caller)
            if caller.shown:
                caller.tell(cost.measure(prepared).sentences)
        # The cluster is checked before a folder is made.
        with ExitStack() as stack:
            driver = stack.enter_context(cluster(prepared.resources))
            folder = campaigns.addressed(prepare.create(prepared, command), caller)
            stack.enter_context(closing(folder))
            return _carry_out(folder, prepared, caller, named_by, driver)


def plan(layers: dict[str, list[Layer]], options: Mapping[str, Any], caller: Caller) -> "Plan":
    """Check a study, and estimate its cost; see `start`. Nothing is written."""
    require_ray_tune()
    from flbench.tuning import cost

    with as_flbench_errors(), preserved():
        return cost.measure(_prepared(layers, options, caller))


def _prepared(
    layers: dict[str, list[Layer]], options: Mapping[str, Any], caller: Caller
) -> "PreparedStudy":
    """Check a study, and tell the caller the notes about it."""
    from flbench.tuning import prepare
    from flbench.tuning.request import TuneRequest
    from flbench.workers.shipping import pack

    parcel = pack(caller.objects, layers)
    prepared = prepare.prepare(TuneRequest(tuple(layers), **options), layers, parcel)
    mirror.check(prepared.config.tracking, mirror.named_by(next(iter(prepared.origins.values()))))
    caller.tell(prepared.notes)
    return prepared


def carry_on(path: Path, changed: dict[str, Any], caller: Caller) -> campaigns.Ending:
    """Carry out what is left of a study.

    `changed` are fields of `flbench.tuning.request.TuneRequest`.

    Raises:
        UserError: The path is not a study folder, or the data have changed.
        RunError: A server of Ray was lost.
        KeyboardInterrupt: A stop signal has arrived.
    """
    fork_server.prepare()
    require_ray_tune()
    from flbench.tuning import prepare, search
    from flbench.tuning.study import StudyFolder
    from flbench.workers.shipping import pack

    with (
        campaigns.stopped_by_signals(caller.objects),
        closing(campaigns.addressed(StudyFolder.reopen(path), caller)) as folder,
    ):
        prepared = prepare.reopen(folder, changed)
        prepared = replace(prepared, parcel=pack(caller.objects, prepared.configs))
        search.begin_again(folder)  # an error names a damaged trial
        is_over = study_folder.read(path).is_searched
        with nullcontext() if is_over else cluster(prepared.resources) as driver:
            return _carry_out(folder, prepared, caller, "folder", driver)


def _carry_out(
    folder: "StudyFolder",
    prepared: "PreparedStudy",
    caller: Caller,
    named_by: NamedBy,
    driver: "RayDriver | None",
) -> campaigns.Ending:
    """Train what is left of a study: trials of its search, then the cells of its winners.

    `driver` is that of the cluster for the search; None if the trials have ended.
    """
    from flbench.tuning import search

    def report() -> None:
        studies.report_of(path).write(path)

    path = folder.path
    ending = campaigns.Ending(path)
    with campaigns.mirrored(folder, prepared.config, caller, named_by, report) as mirrors:
        if driver is not None:
            caller.tell(
                [
                    f"{path}: {sum(prepared.trials.values())} trials,"
                    f" {prepared.config.train.rounds} rounds each,"
                    f" {prepared.resources.concurrent} at once."
                ]
            )
            search.carry_out(driver, folder, prepared, shown=caller.shown)
            driver.close()
        won = winners.winners_of(study_folder.read(path))
        if design := _design(prepared, won):
            ending = _train(design, folder, prepared, caller, named_by)
        elif driver is None:
            caller.tell([campaigns.FINISHED.format(path)])
    if error := search_failure(study_folder.read(path)) or ending.error:
        error = f"{path}: {error} All reasons are in {path / 'report.md'}."
        if ending.failures or search.lost_in(study_folder.read(path)):
            error += f"\nResume with: {folder.resume_command}"
    notes = [*ending.failures, *campaigns.said_of(mirrors, path, caller)]
    return campaigns.Ending(path, error=error, notes=notes)


def _design(prepared: "PreparedStudy", params: Mapping[str, winners.Params]) -> Design | None:
    """Return the comparison of the methods of a study with parameters by label."""
    address = prepared.resources.address
    cluster = {} if address is None else {"engine.address": address}
    layers = {
        method: merge(
            [Layer(config.tree(), prepared.origins[method]), from_values(cluster, "address")]
        )
        for method, config in prepared.configs.items()
    }
    return winners.design_of(layers, params, prepared.request.seeds, prepared.request.vary)


def _samples(design: Design, prepared: "PreparedStudy", caller: Caller) -> LoadedSamples:
    """Return the samples of the cells, which share the data set of the search."""
    own = dict(caller.objects)
    data = {"": own.pop("data")} if "data" in own else {}
    samples = LoadedSamples(own, data)
    samples.keep(design.cells()[0], prepared.federation.dataset)
    return samples


def _check_partitions(prepared: "PreparedStudy", caller: Caller) -> None:
    """Raise a UserError if the partition of a cell cannot be made, before the search begins."""
    if design := _design(prepared, {name: {name: {}} for name in prepared.configs}):
        samples = _samples(design, prepared, caller)
        for cell in design.altered(methods=design.methods[:1]).cells():
            samples.federation(cell)


def _train(
    design: Design,
    folder: "StudyFolder",
    prepared: "PreparedStudy",
    caller: Caller,
    named_by: NamedBy,
) -> campaigns.Ending:
    """Train what is left of the cells of a study."""
    resources = prepared.resources
    samples = _samples(design, prepared, caller)
    campaign = campaigns.Campaign(caller, samples, resources.concurrent)
    made = campaign.prepared(design, named_by, retries=resources.retries)
    made = replace(made, resources=replace(resources, kind=CELL))
    cells, header = ComparisonFolder(folder.path, folder.resume_command), folder.description()
    comparing.check_existing(made, cells)
    if all(map(cells.is_done, made.cells)):
        caller.tell([campaigns.FINISHED.format(folder.path)])
    cells.save(design, made.cells, **{key: header[key] for key in ("id", "created", "command")})
    return campaign.train(cells, made)
