"""From what the user asks for to a study: everything is checked before the first trial starts."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from flbench.config.resolve import resolve
from flbench.config.schema import Config
from flbench.config.sources import Layer, from_file
from flbench.config.yaml_text import to_yaml
from flbench.core.errors import ConfigError, DataError, UserError
from flbench.data import partition_files
from flbench.data.federation import Federation
from flbench.experiment import assembly, provenance
from flbench.tuning import fitting, library
from flbench.tuning.cluster import Resources
from flbench.tuning.plan import Budget
from flbench.tuning.reading import parse
from flbench.tuning.request import Request, check, resources_of, with_defaults
from flbench.tuning.run import Rules
from flbench.tuning.samplers import Sampler
from flbench.tuning.search_methods import sampler
from flbench.tuning.space import Space
from flbench.tuning.study import Record, StudyFolder, now

KEPT = ("trials", "search", "scheduler", "metric", "seeds", "gpus", "retries", "address")


@dataclass(frozen=True)
class Prepared:
    """A study that can be carried out.

    Attributes:
        request: what the user asks for.
        configs: of each method, without a trial's parameters.
        origins: where each value of them is from.
        spaces: of each method.
        federation: the samples of all.
        resources: that it may use.
        notes: what the user must know.
    """

    request: Request
    configs: dict[str, Config]
    origins: dict[str, dict[str, str]]
    spaces: dict[str, Space]
    federation: Federation
    resources: Resources
    notes: tuple[str, ...] = ()

    @property
    def config(self) -> Config:
        """The first method's; in seed, data, partition and training it is that of all."""
        return next(iter(self.configs.values()))

    @property
    def budget(self) -> Budget:
        """What each method may spend."""
        asked = self.request
        return Budget(
            asked.trials, asked.seeds, self.config.seed, asked.batch or self.resources.concurrent
        )

    @property
    def rules(self) -> Rules:
        """How the study searches."""
        return Rules(
            self.request.metric,
            self.request.scheduler,
            self.config.train.rounds,
            self.config.evaluation.every,
            self.config.seed,
        )

    def samplers(self) -> dict[str, Sampler]:
        """Return what proposes the parameters of each method."""
        return {
            method: sampler(
                self.request.search,
                space,
                space.defaults(self.configs[method]),
                seed=self.budget.seed,
                trials=self.budget.trials,
            )
            for method, space in self.spaces.items()
        }


def prepare(request: Request, layers: dict[str, list[Layer]]) -> Prepared:
    """Check a request against spaces, data and methods; nothing is written.

    Args:
        request: what the user asks for.
        layers: of each method's configuration.
    Raises: UserError; all problems of a configuration at once where possible.
    """
    check(request)
    found = {method: with_defaults(layers[method]) for method in request.methods}
    resolved = {method: resolve(mine) for method, mine in found.items()}
    config = resolved[request.methods[0]][0]
    if request.metric == "confusable_f1" and config.evaluation.confusable is None:
        raise ConfigError("--metric confusable_f1 needs evaluation.confusable=own, or a reference.")
    notes = []
    if request.seeds in (1, 2):
        notes.append(
            f"--seeds {request.seeds}: with fewer than 3 seeds no difference can be claimed."
        )
    spaces = library.load(request.methods, request.space, rounds=config.train.rounds)
    for method in request.methods:
        spaces[method], said = fitting.fit(spaces[method], found[method])
        notes += said
    federation = assembly.load_federation(config)
    if not any(len(rows) for rows in federation.partition.parts["validation"]):
        raise UserError(
            "a search evaluates validation parts, and no client has one. Give them a share:"
            " partition.split=[0.6,0.2,0.2]"
        )
    resources = resources_of(request, assembly.fill_defaults(config).engine)
    configs = {}
    for method, (mine, _) in resolved.items():
        # On the plainest engine, to see whether it can be built.
        built = assembly.build(assembly.altered(mine, "engine", name="sequential"), federation)
        notes += built.notes
        # The partition's seed is settled with it: that of all training seeds.
        configs[method] = built.config.model_copy(update={"engine": resources.engine})
    origins = {method: places for method, (_, places) in resolved.items()}
    prepared = Prepared(
        request, configs, origins, spaces, federation, resources, tuple(dict.fromkeys(notes))
    )
    prepared.samplers()  # a grid that does not fit says so now
    return prepared


def create(prepared: Prepared, command: Sequence[str]) -> StudyFolder:
    """Make the folder of a study.

    Args:
        prepared: the study.
        command: for the record.
    """
    request, federation = prepared.request, prepared.federation
    name = f"{'-'.join(request.methods[:3])}-{federation.dataset.name}"
    folder = StudyFolder.create(request.out, name)
    for method, config in prepared.configs.items():
        folder.write(f"methods/{method}.yaml", to_yaml(config.tree(), prepared.origins[method]))
    packed, description = partition_files.encode(
        federation.partition, federation.dataset, prepared.config.partition
    )
    folder.write("partition.npz", packed)
    folder.write("partition.json", description)
    # Last: a folder that has it can be resumed.
    told = {"id": folder.path.name, "command": list(command), **_described(prepared)}
    folder.write("study.json", json.dumps(told, indent=1) + "\n")
    return folder


def reopen(folder: StudyFolder, changed: dict[str, Any]) -> Prepared:
    """Return a study as it was begun.

    Args:
        folder: of the study.
        changed: options of the request that may be others now: concurrent, gpus, retries, address.
    Raises: UserError if the folder is damaged, or the data are others.
    """
    told = folder.description()
    try:
        kept = {key: told["request"][key] for key in (*KEPT, "batch")}
        kept["concurrent"] = kept["batch"]  # as many at once as when it began
        request = Request(tuple(told["methods"]), out=folder.path.parent, **(kept | changed))
        spaces = {
            method: parse(each["space_tree"], {}, each["space"])
            for method, each in told["methods"].items()
        }
        began = told["partition_hash"]
    except (KeyError, TypeError, AttributeError) as error:
        raise DataError(f"{folder.path / 'study.json'} is damaged ({error!r}).") from error
    check(request)
    files = {method: folder.path / "methods" / f"{method}.yaml" for method in request.methods}
    resolved = {method: resolve([from_file(file)]) for method, file in files.items()}
    configs = {method: config for method, (config, _) in resolved.items()}
    federation = assembly.load_federation(configs[request.methods[0]])
    if federation.partition.hash() != began:
        raise UserError(
            f"the data are not those that {folder.path} began with (another partition). Bring back"
            " the old files, or start a new study."
        )
    return Prepared(
        request,
        configs,
        {method: places for method, (_, places) in resolved.items()},
        spaces,
        federation,
        resources_of(request, configs[request.methods[0]].engine),
    )


def _described(prepared: Prepared) -> Record:
    """Return what study.json says besides its name and command."""
    request, config = prepared.request, prepared.config
    asked = {key: getattr(request, key) for key in KEPT}
    return {
        "created": now(),
        "dataset": prepared.federation.dataset.name,
        "scheme": config.partition.scheme,
        "partition_hash": prepared.federation.partition.hash(),
        "seed": config.seed,
        **{key: asked[key] for key in ("metric", "search", "scheduler", "trials", "seeds")},
        "rounds": config.train.rounds,
        "git_revision": provenance.git_revision(),
        "request": asked | {"batch": prepared.budget.concurrent},
        "methods": {
            method: {
                "space": space.source,
                "defaults": space.defaults(prepared.configs[method]),
                "space_tree": space.tree(),
            }
            for method, space in prepared.spaces.items()
        },
    }
