"""Prepares a study from the user's request: all checks run before the first trial starts."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from flbench.config import trust
from flbench.config.resolve import resolve, resolve_written
from flbench.config.schema import Config
from flbench.config.sources import Layer, folder_of
from flbench.core import files
from flbench.core.errors import ConfigError, DataError, UserError
from flbench.core.own_names import SUFFIXES
from flbench.core.plain_yaml import to_yaml
from flbench.core.text import redact
from flbench.data import partition_files
from flbench.data.federation import Federation
from flbench.experiment import assembly, own_metrics, provenance
from flbench.experiment.engines import on_this_machine, with_device
from flbench.jobs import estimate
from flbench.jobs.estimate import Estimate
from flbench.jobs.job import Job
from flbench.jobs.resources import Resources
from flbench.metrics import names as metric_names
from flbench.metrics.classes import rare_classes
from flbench.tuning import library
from flbench.tuning.proposals import Proposals
from flbench.tuning.request import (
    KEPT,
    LONG_TAIL,
    ORIGIN,
    TuneRequest,
    check,
    check_metric,
    resources_of,
    with_defaults,
)
from flbench.tuning.search_space import Space, parse
from flbench.tuning.study import StudyFolder, now
from flbench.workers.nesting import is_elsewhere
from flbench.workers.shipping import NOTHING, Parcel

CURE = "Restore the old files, or start a new study."


@dataclass(frozen=True)
class PreparedStudy:
    """A study that has been checked and can be carried out.

    Attributes:
        request: Options of the user.
        configs: Configuration of each method, without a trial's parameters.
        origins: Origins of the configuration's values, by method and dotted key.
        spaces: Search space of each method.
        federation: Partitioned data set that all trials share.
        resources: Resources that the study may use.
        notes: Notes for the user.
        parcel: Objects of the user that the configurations name.
        steps: Optimizer steps of a whole trial with default parameters by method, if the searches
            have equal steps.
        cost: What such a trial costs, if it was measured to count its steps.
    """

    request: TuneRequest
    configs: dict[str, Config]
    origins: dict[str, dict[str, str]]
    spaces: dict[str, Space]
    federation: Federation
    resources: Resources
    notes: tuple[str, ...] = ()
    parcel: Parcel = NOTHING
    steps: Mapping[str, int] = field(default_factory=dict)
    cost: Estimate | None = None

    def measure(self) -> Estimate:
        """Measure what a training of each method with default parameters costs."""
        jobs = (Job(name, name, "", "", 0, mine, {}) for name, mine in self.configs.items())
        return estimate.measure(jobs, lambda job: self.federation, self.resources)

    @property
    def trials(self) -> dict[str, int]:
        """Number of trials of each method, whose steps are those of the cheapest, if so asked."""
        least, most = min(self.steps.values(), default=0), self.request.trials
        shares = {name: least / max(1, self.steps.get(name, least)) for name in self.configs}
        return {name: max(1, round(most * one)) if least else most for name, one in shares.items()}

    @property
    def config(self) -> Config:
        """Configuration of the first method. Seed, data, partition and training are the same for
        all methods.
        """
        return next(iter(self.configs.values()))

    @property
    def batch(self) -> int:
        """Number of trials that TPE proposes at once."""
        return self.request.batch or self.resources.concurrent

    def proposals(self) -> dict[str, Proposals]:
        """Return what proposes the trials of each method.

        Raises:
            ConfigError: A grid has more combinations than there are trials.
        """
        return {
            method: Proposals(
                self.request.search,
                space,
                space.defaults(self.configs[method]),
                seed=self.config.seed,
                trials=self.trials[method],
                batch=self.batch,
            )
            for method, space in self.spaces.items()
        }


def prepare(
    request: TuneRequest, layers: dict[str, list[Layer]], parcel: Parcel = NOTHING
) -> PreparedStudy:
    """Check a request against search spaces, data and methods. No file is written.

    Raises:
        UserError: The request cannot be carried out. All errors of a configuration are reported
            together.
    """
    check(request)
    found = {method: with_defaults(layers[method]) for method in request.methods}
    resolved = {method: resolve(mine) for method, mine in found.items()}
    config = resolved[request.methods[0]][0]
    check_metric(request.metric, config.evaluation)
    notes: list[str] = []
    if request.seeds in (1, 2):
        notes.append(
            f"`seeds={request.seeds}`: with fewer than 3 seeds, no difference can be claimed."
        )
    spaces = library.load(request.methods, request.space, rounds=config.train.rounds)
    for method in request.methods:
        spaces[method], fit_notes = library.fit(spaces[method], found[method])
        notes += fit_notes
    federation = load(config, request.metric)
    engine = config.engine
    if is_elsewhere(request.address) and engine.device == "auto" and request.gpus is not None:
        engine = engine.altered(device="cuda" if request.gpus else "cpu")
    resources = resources_of(request, with_device(engine, request.address, "`address`"))
    configs = {}
    for method, (mine, _) in resolved.items():
        configs[method], found_notes = complete(mine, federation, resources)
        notes += found_notes
    prepared = PreparedStudy(
        request,
        configs,
        {method: places for method, (_, places) in resolved.items()},
        spaces,
        federation,
        resources,
        tuple(dict.fromkeys(notes)),
        parcel,
    )
    if request.equal == "steps":
        cost = prepared.measure()
        if uncounted := ", ".join(name for name in configs if not cost.steps.get(name)):
            raise UserError(
                f"`equal=steps`: no optimizer steps of {uncounted} could be counted; a round fails,"
                " or takes none. Leave these methods out, or use equal=trials."
            )
        prepared = replace(prepared, steps=cost.steps, cost=cost)
    prepared.proposals()  # raises an error if a grid is larger than the budget
    return prepared


def load(config: Config, metric: str) -> Federation:
    """Load the data that all trials share, and check that trials can be scored on them.

    Raises:
        UserError: The data cannot be read, no client has validation samples, the metric is not for
            these data, or trials would stop early.
    """
    if config.train.early_stopping.patience is not None:
        raise ConfigError(
            "`train.early_stopping.patience` cannot be used in a search, whose trials have equal"
            " budgets. Leave it out: the scheduler stops trials that are worse than others."
        )
    federation = assembly.load_federation(config)
    name, classes = federation.dataset.name, federation.classes
    if federation.dataset.targets is not None:
        raise ConfigError(
            f"a study looks for the largest value of a metric of classes, and `{name}` has targets"
            " that are not classes. Try values one by one with fl.federate."
        )
    if not any(len(rows) for rows in federation.partition.parts["validation"]):
        raise UserError(
            f"`metric={metric}` is computed on validation samples, and no client has any"
            f" (partition.split={list(config.partition.split)}). Set a share for them, such as"
            " partition.split=[0.6,0.2,0.2]."
        )
    rare, _ = rare_classes(federation.counts.sum(dim=0), config.evaluation.rare)
    losses = [one.name for one in own_metrics.make(config.evaluation, classes) if one.is_loss]
    why = ""
    if metric in metric_names.RANKING_WITH_MEANS and classes != 2:
        why = f"is for data with two classes, and `{name}` has {classes}"
    elif metric in metric_names.RARE and not rare:
        why = f"is for data with rare classes, and `{name}` has none by evaluation.rare"
    elif metric == "confusable_f1" and config.evaluation.confusable is None:
        why = "needs evaluation.confusable"
    elif metric in [f"{one}{suffix}" for one in losses for suffix in ("", *SUFFIXES)]:
        why = "has smaller values that are better, and a study looks for the largest"
    if why:
        raise ConfigError(f"`metric={metric}` {why}. Choose another one, such as macro_f1.")
    return federation


def complete(
    config: Config, federation: Federation, resources: Resources
) -> tuple[Config, tuple[str, ...]]:
    """Return the complete configuration of a method's trials, and notes about it.

    Raises:
        UserError: The method does not accept the configuration.
    """
    # Building with the simplest engine shows whether the method accepts the configuration.
    engine = on_this_machine(resources.engine.altered(name="sequential"))
    built = assembly.build(config, federation, engine=engine)
    # The complete configuration has the seed of the partition, which all training seeds share.
    return built.config.altered(engine=resources.engine), built.notes


def create(prepared: PreparedStudy, command: Sequence[str]) -> StudyFolder:
    """Create the folder of a study, with the files that a resumed study needs.

    Raises:
        UserError: The folder cannot be created or written to.
        RunError: The disk is full or failed.
    """
    request, federation = prepared.request, prepared.federation
    name = f"{'-'.join(request.methods[:3])}-{files.short_name(federation.dataset.name)}"
    first = request.methods[0]
    given = Layer(prepared.configs[first].tree(), prepared.origins[first])
    folder = StudyFolder.create(folder_of(request.out, TuneRequest.out, given), name)
    spaces = [space.tree() for space in prepared.spaces.values()]
    trees = [config.tree() for config in prepared.configs.values()]
    trust.record(folder.path, _cluster(request), *spaces, *trees)
    (folder.path / "methods").mkdir()
    for method, config in prepared.configs.items():
        folder.write(f"methods/{method}.yaml", to_yaml(config.tree(), prepared.origins[method]))
    packed, description = partition_files.encode(
        federation.partition, federation.dataset, prepared.config.partition
    )
    folder.write("partition.npz", packed)
    folder.write("partition.json", description)
    # study.json is written last: a folder with this file can be resumed.
    printed = [redact(argument) for argument in command]
    header = {"id": folder.path.name, "command": printed, **_described(prepared)}
    folder.write("study.json", json.dumps(header, indent=1) + "\n")
    return folder


def _cluster(request: TuneRequest) -> dict[str, Any]:
    """Return the Ray cluster of a study, as a configuration has it."""
    return {"engine": {"address": request.address}}


def reopen(folder: StudyFolder, changed: dict[str, Any]) -> PreparedStudy:
    """Read an existing study, so that it can be resumed.

    Args:
        folder: Study folder.
        changed: Options of the request that may change: concurrent, gpus, retries, address.

    Raises:
        DataError: study.json is damaged.
        UserError: Data, net, loss terms or metrics of the user differ from those that the study
            began with, or must be given again; or the study names a foreign Ray cluster.
    """
    header, file = folder.description(), folder.path / "study.json"
    cure = "Restore it from a copy, or start a new study."
    try:
        kept = {name: header[name] for name in (*KEPT, "batch")}
        # As many trials at once as TPE proposes, unless that changes.
        options = {"concurrent": kept["batch"], **kept}
        written = TuneRequest(tuple(header["methods"]), out=folder.path.parent, **options)
        files = {name: folder.path / "methods" / f"{name}.yaml" for name in written.methods}
        # This also registers methods that their modules have not registered yet.
        for each in header["methods"].values():
            trust.check(file, each["space_tree"])
        resolved = {name: resolve_written(file) for name, file in files.items()}
        spaces = {
            method: parse(each["space_tree"], {}, each["space"])
            for method, each in header["methods"].items()
        }
        counted = {name: one["steps"] for name, one in header["methods"].items()}
        partition_hash = header["partition_hash"]
    except (KeyError, TypeError, AttributeError) as error:
        raise DataError(f"{file} is damaged ({error!r}). {cure}") from error
    configs = {method: config for method, (config, _) in resolved.items()}
    try:
        check(written)
        check_metric(written.metric, configs[written.methods[0]].evaluation)
    except ConfigError as error:
        raise DataError(f"{file} has a wrong value: {error} {cure}") from error
    request = replace(written, **changed)
    if "address" not in changed:
        trust.check(file, _cluster(request))
    check(request)
    federation = assembly.load_federation(configs[request.methods[0]])
    if federation.partition.hash() != partition_hash:
        raise UserError(
            f"the data have changed since {folder.path} began: their partition is another one."
            f" {CURE}"
        )
    partition_files.check_unchanged(folder.path, federation.partition, federation.dataset, CURE)
    resources = resources_of(request, configs[request.methods[0]].engine)
    for config in configs.values():
        # Hashes of own parts are compared here: in a trial, a difference would be its failure.
        complete(config, federation, resources)
    return PreparedStudy(
        request,
        configs,
        {method: places for method, (_, places) in resolved.items()},
        spaces,
        federation,
        resources,
        steps={name: count for name, count in counted.items() if count is not None},
    )


def _validation_samples(federation: Federation, config: Config, metric: str) -> int:
    """Return the number of validation samples, for metrics of rare classes of these alone."""
    rows = np.concatenate(federation.partition.parts["validation"])
    if metric not in metric_names.RARE:
        return len(rows)
    rare, _ = rare_classes(federation.counts.sum(dim=0), config.evaluation.rare)
    return int(np.isin(federation.labels[rows], rare).sum())


def _described(prepared: PreparedStudy) -> dict[str, Any]:
    """Return the content of study.json without its id and command."""
    request, config = prepared.request, prepared.config
    places = prepared.origins[request.methods[0]]
    return {
        "created": now(),
        "setting": {key: LONG_TAIL[key] for key in LONG_TAIL if places.get(key) == ORIGIN},
        "dataset": prepared.federation.dataset.name,
        "imbalance": config.data.imbalance,
        "scheme": config.partition.title,
        "partition_hash": prepared.federation.partition.hash(),
        "seed": config.seed,
        "rounds": config.train.rounds,
        "validation": _validation_samples(prepared.federation, config, request.metric),
        "git_revision": provenance.git_revision(),
        **{name: getattr(request, name) for name in KEPT},
        "batch": prepared.batch,
        "methods": {
            method: {
                "space": space.source,
                "defaults": space.defaults(prepared.configs[method]),
                "space_tree": space.tree(),
                "trials": prepared.trials[method],
                "steps": prepared.steps.get(method),
            }
            for method, space in prepared.spaces.items()
        },
    }
