"""From a configuration to a finished run: build the objects, run the loop, write what was found."""

import json
import os
import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Final

import torch
from torch import nn

from flbench import checkpoint, engine_choice, outcome, provenance, remarks, store
from flbench.algorithms import ALGORITHMS, Algorithm, Setting
from flbench.algorithms.base import state_of
from flbench.config import Config
from flbench.data import partition_files, sources
from flbench.data.federation import Federation
from flbench.data.federation import build as build_federation
from flbench.engine.base import Engine, dtype_of, find_device
from flbench.errors import ConfigError, DataError
from flbench.evaluate import PARTS, Evaluator
from flbench.figures import Judgement
from flbench.layers import Layer, from_file, leaves
from flbench.loop import FederatedLoop, Reporter, Seconds
from flbench.metrics.classes import confusable_classes, rare_classes, read_confusion
from flbench.models.base import build as build_net
from flbench.models.base import describe, net_leaves
from flbench.resolve import resolve
from flbench.rounds import training_state
from flbench.tracking.folder import RunFolder
from flbench.tree import nbytes
from flbench.types import State, Tree
from flbench.yaml_text import to_yaml

THREADS_PER_CORE: Final = 16
ENGINES: Final = {
    "sequential": ("flbench.engine.sequential", "SequentialEngine"),
    "vectorized": ("flbench.engine.vectorized", "VectorizedEngine"),
    "ray": ("flbench.engine.ray", "RayEngine"),
}
# What a resumed run may change: where files lie and what computes, not what comes out.
FREE: Final = (
    *("data.root", "engine.device", "engine.name", "engine.block", "engine.workers"),
    *("engine.address", "engine.state_memory", "tracking."),
    *("output.checkpoint_every", "output.predictions"),
)


@dataclass(frozen=True)
class Experiment:
    """All objects of one experiment, built from its configuration.

    Attributes:
        config: resolved: with the numbers that depend on data and machine.
        federation: the samples.
        net: the seeded net.
        algorithm: the method.
        engine: trains and judges.
        judgement: rare and confusable classes.
        notes: what the user must know before it starts.
    """

    config: Config
    federation: Federation
    net: nn.Module
    algorithm: Algorithm
    engine: Engine
    judgement: Judgement
    notes: tuple[str, ...]

    def start(self) -> State:
        """Return the state before the first round."""
        return _start(self.config, self.net, self.algorithm)

    def evaluator(self, warn: Callable[[str], None], parts: tuple[str, ...] = PARTS) -> Evaluator:
        """Return what judges its models on these parts; `warn` is told what goes wrong."""
        return Evaluator(
            algorithm=self.algorithm,
            engine=self.engine,
            federation=self.federation,
            config=self.config.evaluation,
            recalibrate=self.config.train.batchnorm == "drop",
            warn=warn,
            parts=parts,
        )

    def loop(
        self,
        folder: RunFolder,
        reporter: Reporter,
        seconds: Seconds,
        parts: tuple[str, ...] = PARTS,
    ) -> FederatedLoop:
        """Return the loop that runs its rounds, writes to a folder and judges these parts."""
        return FederatedLoop(
            config=self.config,
            algorithm=self.algorithm,
            engine=self.engine,
            evaluator=self.evaluator(reporter.warn, parts),
            judgement=self.judgement,
            folder=folder,
            reporter=reporter,
            seconds=seconds,
        )

    def restore(self, folder: RunFolder) -> tuple[State, Seconds]:
        """Return the state of a folder's last checkpoint, and the seconds spent until then.

        Figures that are newer than the checkpoint are dropped. Without a checkpoint, the start.
        """
        if not folder.checkpoint("last").exists():
            folder.rewind(0)
            return self.start(), Seconds()
        saved, extra = checkpoint.load(folder.checkpoint("last"), self.config.hash())
        folder.rewind(int(extra["rows"]))
        state = replace(saved, clients=_owned(self.config, saved.clients))
        return state, Seconds(**extra["seconds"])


def build(config: Config, federation: Federation | None = None) -> Experiment:
    """Load data, deal them, build net, method and engine; sets the process's number of threads.

    Args:
        config: of the experiment.
        federation: the samples, where they are at hand already: those of `config.data` and
            `config.partition`.
    Raises: UserError where data or configuration do not fit together; all reasons at once where
        possible.
    """
    asked, config = config, settle(config)
    torch.set_num_threads(config.engine.threads or 1)
    federation = load_federation(config) if federation is None else federation
    # A file's own name, where it has one.
    config = altered(config, "data", name=federation.dataset.name)
    config = altered(config, "partition", clients=federation.clients)
    net = build_net(config.model, federation.shape, federation.classes, config.seed)
    setting = Setting(
        seed=config.seed,
        rounds=config.train.rounds,
        train=config.train,
        clients=federation.clients,
        sizes=federation.sizes,
        classes=federation.classes,
        net=describe(net, federation.shape),
    )
    algorithm = ALGORITHMS.find(config.algorithm.name)(config.algorithm, setting)
    unmet = algorithm.requires()
    if unmet:
        raise ConfigError(
            "\n".join(f"`algorithm.name={config.algorithm.name}`: {sentence}" for sentence in unmet)
        )
    rare, notes = rare_classes(federation.counts.sum(dim=0), config.evaluation.rare)
    judgement = Judgement(tuple(rare), _confusable(config, federation), federation.counts)
    notes = [
        *federation.notes,
        *notes,
        *algorithm.remarks(),
        *remarks.of(config, federation, net, algorithm),
    ]
    if config.engine.name == "auto":

        def make(name: str) -> Engine:
            return build_engine(settle(altered(asked, "engine", name=name)), net, federation)

        start = training_state(algorithm, _start(config, net, algorithm))
        name, reason = engine_choice.choose(config, algorithm, start, make)
        chosen = settle(altered(asked, "engine", name=name)).engine
        config = config.model_copy(update={"engine": chosen})
        torch.set_num_threads(chosen.threads or 1)
        notes.append(reason)
    engine = build_engine(config, net, federation)
    block = engine.block(config.train.batch_size)
    if block is not None:
        config = altered(config, "engine", block=block)
    return Experiment(config, federation, net, algorithm, engine, judgement, tuple(notes))


def load_federation(config: Config) -> Federation:
    """Load data and deal them to clients.

    Raises: UserError where that cannot be done.
    """
    config = settle(config)
    dataset = sources.load(config.data)
    return build_federation(dataset, config.data, config.partition, config.seed)


def _start(config: Config, net: nn.Module, algorithm: Algorithm) -> State:
    dtype = dtype_of(config.engine)
    start: Tree = {
        name: leaf.detach().to(dtype) if leaf.is_floating_point() else leaf.detach()
        for name, leaf in net_leaves(net).items()
    }
    return state_of(algorithm, start, partial(_owned, config))


def _owned(config: Config, rows: Tree) -> Tree:
    """Return the clients' rows as they may be written, mapped where they are large."""
    return store.own(rows, config.engine.state_memory, config.output.dir)


def build_engine(config: Config, net: nn.Module, federation: Federation) -> Engine:
    """Return the engine that the configuration names."""
    name = config.engine.name
    module, kind = ENGINES[name]
    try:
        found = import_module(module)
    except ModuleNotFoundError as error:
        raise ConfigError(
            f"`engine.name={name}` needs the package `{error.name}`, which is not installed:"
            f" pip install {error.name}"
        ) from error
    engine: Engine = getattr(found, kind)(net, federation, config.engine)
    return engine


def settle(config: Config) -> Config:
    """Return the configuration with what depends on the machine and the seed filled in."""
    cores = len(os.sched_getaffinity(0))
    threads = config.engine.threads or (1 if config.engine.name == "ray" else cores)
    if threads > THREADS_PER_CORE * cores:
        raise ConfigError(
            f"`engine.threads`={threads} would stall this machine, which has {cores} cores."
            " Leave it out."
        )
    device = str(find_device(config.engine.device))
    seed = config.seed if config.partition.seed is None else config.partition.seed
    engine = altered(config, "engine", threads=threads, device=device)
    return altered(engine, "partition", seed=seed)


Opened = Callable[[Path, Config], object]


def run(
    config: Config,
    origins: dict[str, str],
    reporter: Reporter,
    opened: Opened | None = None,
) -> Path:
    """Run an experiment from its beginning; return its folder.

    Args:
        config: what to run.
        origins: where each value came from, for config.yaml.
        reporter: is told how it goes.
        opened: is told the folder as soon as it can be resumed, before the first round.
    Raises: UserError, RunError, KeyboardInterrupt; what was written stays, and `resume` goes on.
    """
    begin = time.perf_counter()
    with ExitStack() as stack:
        experiment = build(config)
        stack.callback(experiment.engine.close)
        for note in experiment.notes:
            reporter.warn(note)
        config, samples = experiment.config, experiment.federation
        folder = RunFolder.create(
            config.output.dir,
            f"{samples.dataset.name}-{config.partition.scheme}",
            f"{config.algorithm.name}-seed{config.seed}",
        )
        stack.callback(folder.close)
        describe_run(experiment, origins, folder)
        if opened is not None:
            opened(folder.path, config)
        seconds = Seconds(total=time.perf_counter() - begin)
        _go(experiment, experiment.start(), folder, reporter, seconds)
    return folder.path


def describe_run(experiment: Experiment, origins: dict[str, str], folder: RunFolder) -> None:
    """Write who holds what, where and when it began, and the configuration."""
    samples = experiment.federation
    packed, description = partition_files.encode(
        samples.partition, samples.dataset, experiment.config.partition
    )
    folder.write("partition.npz", packed)
    folder.write("partition.json", description)
    folder.write_json("provenance.json", provenance.now())
    # The configuration comes last: a folder that has it can be resumed.
    folder.write("config.yaml", to_yaml(experiment.config.tree(), origins))


def resume(path: Path, overrides: Layer, reporter: Reporter, opened: Opened | None = None) -> Path:
    """Go on with a run from its last checkpoint, or from its beginning if there is none yet.

    Args:
        path: the run folder.
        overrides: of keys that do not change results (FREE).
        reporter: is told how it goes.
        opened: is told the folder and the configuration before the first round.
    Raises: UserError if the folder is no run, or belongs to another configuration.
    """
    begin = time.perf_counter()
    with ExitStack() as stack:
        folder = RunFolder.reopen(path)
        stack.callback(folder.close)
        written, _ = resolve([from_file(path / "config.yaml")])
        config, _ = resolve([from_file(path / "config.yaml"), overrides])
        _check_unchanged(written, config, path)
        if (path / "summary.json").exists():
            reporter.warn(f"{path} is finished: there is nothing to go on with.")
            return path
        experiment = build(config)
        stack.callback(experiment.engine.close)
        _check_data(experiment, path)
        if not folder.checkpoint("last").exists():
            reporter.warn("there is no checkpoint yet: the run starts anew.")
        state, seconds = experiment.restore(folder)
        if state.round:
            reporter.warn(f"goes on after round {state.round}.")
        if opened is not None:
            opened(path, experiment.config)
        seconds.total += time.perf_counter() - begin
        _go(experiment, state, folder, reporter, seconds)
    return folder.path


def _go(
    experiment: Experiment, state: State, folder: RunFolder, reporter: Reporter, seconds: Seconds
) -> None:
    """Run the rounds that are left, judge the best round's models, write tables and summary."""
    limit, size = experiment.config.engine.state_memory, nbytes(state.clients) / store.GIB
    if store.is_mapped(state.clients, limit):
        reporter.warn(
            f"what the clients keep, {size:.1f} GiB, lies in a mapped file beside the runs"
            f" (engine.state_memory={limit:g} GiB)."
        )
    loop = experiment.loop(folder, reporter, seconds)
    try:
        state = loop.run(state)
    except KeyboardInterrupt:
        reporter.warn(f"interrupted and saved. Go on with: flbench run --resume {folder.path}")
        raise
    outcome.write(experiment, loop, state)


def _confusable(config: Config, federation: Federation) -> tuple[int, ...] | None:
    """Return the confusable classes; None to find them in the run's own validation confusion."""
    reference = config.evaluation.confusable
    if reference is None:
        return ()
    if reference == "own":
        return None
    return tuple(confusable_classes(read_confusion(Path(reference), federation.classes)))


def _check_unchanged(written: Config, wanted: Config, path: Path) -> None:
    """Raise a ConfigError for every key that a resumed run may not change."""
    before, after = leaves(written.tree()), leaves(wanted.tree())
    changed = [key for key in after if before.get(key) != after[key] and not key.startswith(FREE)]
    if changed:
        raise ConfigError(
            "\n".join(
                f"`{key}` was {before.get(key)!r} when {path} began and cannot become"
                f" {after[key]!r} on resume. Start a new run for it."
                for key in changed
            )
        )


def _check_data(experiment: Experiment, path: Path) -> None:
    """Raise a DataError if the data are not those that the run began with."""
    try:
        began = json.loads((path / "partition.json").read_text(encoding="utf-8"))["hash"]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise DataError(f"{path / 'partition.json'} cannot be read ({error}).") from error
    now = experiment.federation.partition.hash()
    if now != began:
        raise DataError(
            f"the data are not those that {path} began with (partition {now[:12]}, not"
            f" {began[:12]})."
            " Bring back the old files, or start a new run."
        )


def altered(config: Config, section: str, **values: object) -> Config:
    """Return the configuration with other values in one section."""
    return config.model_copy(update={section: getattr(config, section).model_copy(update=values)})
