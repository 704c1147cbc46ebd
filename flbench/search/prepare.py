"""From what the user asks for to a study: everything is checked before the first trial starts."""

import json
import os
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final, Literal, get_args

from flbench import experiment, provenance
from flbench.algorithms import ALGORITHMS
from flbench.config import Config
from flbench.data import partition_files
from flbench.data.federation import Federation
from flbench.errors import ConfigError, UserError, did_you_mean
from flbench.layers import Layer, from_file
from flbench.resolve import resolve
from flbench.search import fitting, library
from flbench.search.plan import Budget
from flbench.search.reading import parse
from flbench.search.run import Means, Rules
from flbench.search.samplers import Sampler, sampler
from flbench.search.space import Space
from flbench.search.study import StudyFolder, now
from flbench.yaml_text import to_yaml

Search = Literal["random", "grid", "optuna"]
Scheduler = Literal["asha", "pbt", "none"]
METRICS: Final = (
    *("accuracy", "accuracy_mean", "balanced_accuracy", "macro_f1"),
    *("rare_recall", "rare_f1", "confusable_f1", "worst10_accuracy"),
)
EVALUATIONS: Final = 15  # of a trial, where the user does not say how often


@dataclass(frozen=True)
class Request:
    """What the user asks for.

    Attributes:
        methods: names, in the order of the tables.
        space: file or folder of search spaces; None for those that come with flbench.
        trials: of each method, the default parameters among them.
        search: how parameters are proposed.
        scheduler: which trials go on.
        metric: of validation, that is to be large.
        seeds: of which the default and the tuned parameters are trained again; 0 leaves it out.
        concurrent: trials at once; None for as many as there are cores.
        gpus: share of a GPU for each trial; None for a whole one where trials train on a GPU.
        retries: of a trial whose worker fails.
        address: of a Ray cluster.
        out: folder of studies.
        batch: trials that Optuna proposes at once; None for as many as run at once. A resumed study
            keeps it, or other trials would be proposed.
    """

    methods: tuple[str, ...]
    space: Path | None = None
    trials: int = 16
    search: Search = "random"
    scheduler: Scheduler = "asha"
    metric: str = "accuracy"
    seeds: int = 3
    concurrent: int | None = None
    gpus: float | None = None
    retries: int = 2
    address: str | None = None
    out: Path = Path("studies")
    batch: int | None = None


@dataclass(frozen=True)
class Prepared:
    """A study that can be carried out.

    Attributes:
        folder: of the study.
        configs: of each method, without a trial's parameters.
        spaces: of each method.
        federation: the samples of all.
        budget: of each method.
        rules: of the search.
        means: that it may use.
        search: how parameters are proposed.
        notes: what the user must know.
    """

    folder: StudyFolder
    configs: dict[str, Config]
    spaces: dict[str, Space]
    federation: Federation
    budget: Budget
    rules: Rules
    means: Means
    search: Search
    notes: tuple[str, ...] = ()

    def samplers(self) -> dict[str, Sampler]:
        """Return what proposes the parameters of each method."""
        return {
            method: sampler(
                self.search,
                space,
                space.defaults(self.configs[method]),
                seed=self.budget.seed,
                trials=self.budget.trials,
            )
            for method, space in self.spaces.items()
        }


def begin(request: Request, layers: dict[str, list[Layer]], command: Sequence[str]) -> Prepared:
    """Check a request and make its study folder.

    Args:
        request: what the user asks for.
        layers: of each method's configuration.
        command: for the record.
    Raises: UserError; all problems of the configurations at once where possible.
    """
    _check(request)
    found = {method: _with_defaults(layers[method]) for method in request.methods}
    resolved = {method: resolve(mine) for method, mine in found.items()}
    rounds = {config.train.rounds for config, _ in resolved.values()}
    loaded = library.load(request.methods, request.space, rounds=min(rounds))
    spaces, notes = {}, []
    for method in request.methods:
        spaces[method], said = fitting.fit(loaded[method], found[method])
        notes += said
    first = resolved[request.methods[0]][0]
    federation = experiment.load_federation(first)
    notes += _agree(request, {method: config for method, (config, _) in resolved.items()})
    if not any(len(rows) for rows in federation.partition.parts["validation"]):
        raise UserError(
            "a search judges validation parts, and no client has one. Give them a share:"
            " partition.split=[0.6,0.2,0.2]"
        )
    built = {
        method: experiment.build(_bare(config), federation)
        for method, (config, _) in resolved.items()
    }
    notes = list(dict.fromkeys([*notes, *(note for each in built.values() for note in each.notes)]))
    # What the machine fills in is said once, and the partition is that of all seeds.
    configs = {
        method: experiment.settle(
            replace_section(resolved[method][0], "data", name=each.config.data.name)
        ).model_copy(update={"partition": each.config.partition})
        for method, each in built.items()
    }
    prepared = _prepared(request, configs, spaces, federation, tuple(notes))
    prepared.samplers()  # a grid that does not fit says so now
    folder = StudyFolder.create(
        request.out, f"{'-'.join(request.methods[:3])}-{federation.dataset.name}"
    )
    for method, config in configs.items():
        folder.write(f"methods/{method}.yaml", to_yaml(config.tree(), resolved[method][1]))
    packed, description = partition_files.encode(
        federation.partition, federation.dataset, configs[request.methods[0]].partition
    )
    folder.write("partition.npz", packed)
    folder.write("partition.json", description)
    text = json.dumps(_described(folder, request, prepared, command), indent=1) + "\n"
    folder.write("study.json", text)
    return replace(prepared, folder=folder)


def reopen(path: Path, changed: dict[str, Any]) -> Prepared:
    """Take up a study where it stopped.

    Args:
        path: the study folder.
        changed: options of the request that may be others now: concurrent, gpus, retries, address.
    Raises: UserError if it is no study, another process works on it, or the data are others.
    """
    folder = StudyFolder.reopen(path)
    told = folder.description()
    asked = told["request"]
    request = Request(
        **{
            **asked,
            "methods": tuple(told["methods"]),
            "space": None,
            "out": path.parent,
            **changed,
        }
    )
    configs = {
        method: resolve([from_file(folder.path / "methods" / f"{method}.yaml")])[0]
        for method in request.methods
    }
    spaces = {
        method: parse(told["methods"][method]["space_tree"], {}, told["methods"][method]["space"])
        for method in request.methods
    }
    federation = experiment.load_federation(configs[request.methods[0]])
    if federation.partition.hash() != told["partition_hash"]:
        folder.close()
        raise UserError(
            f"the data are not those that {path} began with (another partition). Bring back the"
            " old files, or start a new study."
        )
    return replace(_prepared(request, configs, spaces, federation, ()), folder=folder)


def replace_section(config: Config, section: str, **values: object) -> Config:
    """Return the configuration with other values in one section."""
    return config.model_copy(update={section: getattr(config, section).model_copy(update=values)})


def _check(request: Request) -> None:
    for method in request.methods:
        ALGORITHMS.find(method)
    if request.metric not in METRICS:
        raise ConfigError(
            f"--metric must be one of {', '.join(METRICS)}, got {request.metric}."
            f"{did_you_mean(request.metric, METRICS)}"
        )
    for option, value, known in (
        ("--search", request.search, get_args(Search)),
        ("--scheduler", request.scheduler, get_args(Scheduler)),
    ):
        if value not in known:
            raise ConfigError(f"{option} must be one of {', '.join(known)}, got {value}.")
    if request.scheduler == "pbt" and request.search != "random":
        raise ConfigError(
            "--scheduler pbt changes parameters while it trains, from a random start: it goes with"
            " --search random alone."
        )


def _with_defaults(layers: list[Layer]) -> list[Layer]:
    """Return the layers over what a study does differently from a run, where nobody says it.

    One thread for each trial, since trials run at once; a checkpoint after each round, for a killed
    trial loses what came after; and some evaluations for those that decide who goes on.
    """
    rounds = resolve(layers)[0].train.rounds
    tree = {
        "engine": {"threads": 1},
        "output": {"checkpoint_every": 1},
        "evaluation": {"every": max(1, rounds // EVALUATIONS)},
    }
    paths = ("engine.threads", "output.checkpoint_every", "evaluation.every")
    return [Layer(tree, dict.fromkeys(paths, "flbench tune")), *layers]


def _bare(config: Config) -> Config:
    """Return the configuration on the plainest engine: to see whether it can be built."""
    return replace_section(config, "engine", name="sequential")


def _agree(request: Request, configs: dict[str, Config]) -> list[str]:
    """Raise a ConfigError where methods would not be compared on the same; return notes."""
    first, *others = configs.values()
    for config in others:
        for section in ("seed", "data", "partition"):
            if getattr(config, section) != getattr(first, section):
                raise ConfigError(f"`{section}` is not the same for all methods of the study.")
        for key in ("rounds", "participation"):
            if getattr(config.train, key) != getattr(first.train, key):
                raise ConfigError(
                    f"`train.{key}` is not the same for all methods: their budgets would differ."
                )
    if request.metric == "confusable_f1" and first.evaluation.confusable is None:
        raise ConfigError("--metric confusable_f1 needs evaluation.confusable=own, or a reference.")
    if request.seeds in (1, 2):
        return [f"--seeds {request.seeds}: with fewer than 3 seeds no difference can be claimed."]
    return []


def _prepared(
    request: Request,
    configs: dict[str, Config],
    spaces: dict[str, Space],
    federation: Federation,
    notes: tuple[str, ...],
) -> Prepared:
    config = configs[request.methods[0]]
    on_gpu = config.engine.device.startswith("cuda") and config.engine.name != "ray"
    gpus = float(on_gpu) if request.gpus is None else request.gpus
    means = Means(1, config.engine, gpus, request.retries, request.address)
    at_once = request.concurrent or max(1, len(os.sched_getaffinity(0)) // means.cpus)
    rules = Rules(
        request.metric,
        request.scheduler,
        config.train.rounds,
        config.evaluation.every,
        config.seed,
    )
    budget = Budget(request.trials, request.seeds, config.seed, request.batch or at_once)
    return Prepared(
        StudyFolder(Path()),
        configs,
        spaces,
        federation,
        budget,
        rules,
        replace(means, concurrent=at_once),
        request.search,
        notes,
    )


def _described(
    folder: StudyFolder, request: Request, prepared: Prepared, command: Sequence[str]
) -> dict[str, Any]:
    """Return study.json."""
    config = prepared.configs[request.methods[0]]
    keys = ("trials", "search", "scheduler", "metric", "seeds", "gpus", "retries", "address")
    own = {key: getattr(request, key) for key in keys} | {"batch": prepared.budget.concurrent}
    return {
        "id": folder.path.name,
        "created": now(),
        "command": list(command),
        "dataset": prepared.federation.dataset.name,
        "scheme": config.partition.scheme,
        "partition_hash": prepared.federation.partition.hash(),
        "seed": config.seed,
        **{key: own[key] for key in ("metric", "search", "scheduler", "trials")},
        "rounds": config.train.rounds,
        "seeds": request.seeds,
        "git_revision": provenance.git_revision(),
        "request": own,
        "methods": {
            method: {
                "space": space.source,
                "defaults": space.defaults(prepared.configs[method]),
                "space_tree": space.tree(),
            }
            for method, space in prepared.spaces.items()
        },
    }
