"""Building the objects of an experiment from its configuration."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.modules.conv import _ConvNd

from flbench.algorithms import Algorithm, Setting
from flbench.algorithms.base import Rewrite, is_of_user, state_of
from flbench.callbacks.callback_list import CallbackList
from flbench.callbacks.run_view import Memory
from flbench.client.forward import name_in_net
from flbench.client.program import LocalProgram, Phase
from flbench.config.schema import (
    BestConfig,
    Config,
    EngineConfig,
    OwnModelConfig,
    RecordedAlgorithmConfig,
)
from flbench.core.errors import ConfigError
from flbench.core.known_code import unknown_parts
from flbench.core.rng import Draw
from flbench.core.storage import GIB, Storage, memory_of_machine, only_rows
from flbench.core.tree import nbytes
from flbench.core.types import State, Tree
from flbench.data import sources
from flbench.data.federation import Federation
from flbench.data.federation import build as build_federation
from flbench.engine.base import STACKED_SIZE, Engine, dtype_of
from flbench.experiment import checkpoint, own_methods
from flbench.experiment.evaluate import Evaluator
from flbench.experiment.found import Found, on_this_machine, with_device
from flbench.experiment.judging import ClassJudge
from flbench.experiment.loop import FederatedLoop, Seconds
from flbench.experiment.notes import configuration_notes
from flbench.experiment.predictions import PARTS, positive_class
from flbench.experiment.rounds import programs, seeded_method
from flbench.experiment.row_files import ClientRows
from flbench.experiment.run_folder import RunFolder
from flbench.metrics.classes import confusable_classes, rare_classes, read_confusion
from flbench.models import fixed
from flbench.models.base import build as build_net
from flbench.models.base import describe, is_lightning, net_leaves

if TYPE_CHECKING:
    from flbench.experiment.frozen_outputs import Cached
    from flbench.experiment.local_terms import LocalTerms
    from flbench.experiment.smoke import Smoke
    from flbench.experiment.target_judging import TargetJudge
    from flbench.metrics.own import OwnMetric


class Restored(NamedTuple):
    """What is read from a checkpoint.

    Attributes:
        state: The state.
        seconds: Time spent until then.
        memory: What it stores for callbacks.
    """

    state: State
    seconds: Seconds
    memory: Memory


@dataclass(frozen=True)
class Experiment:
    """All objects of one experiment, built from its configuration.

    Attributes:
        asked: The configuration as the user asked for it.
        found: What the run found out beside it.
        federation: Samples of all clients.
        net: The net with its seeded initial weights.
        algorithm: The method.
        engine: Engine that trains and evaluates.
        judge: What is judged, and how.
        notes: Notes to show before the run starts, one sentence each. They depend on configuration
            and data alone.
        module: Optimizer and hyper-parameters of a LightningModule of the user; otherwise empty.
        cached: What the engine has in place of net and samples; None if it has these.
        has_workers: Whether processes of `engine.workers` may train and evaluate too.
    """

    asked: Config
    found: Found
    federation: Federation
    net: nn.Module
    algorithm: Algorithm
    engine: Engine
    judge: "ClassJudge | TargetJudge"
    notes: tuple[str, ...]
    module: Mapping[str, Any] = field(default_factory=dict)
    cached: "Cached | None" = None
    has_workers: bool = False

    @cached_property
    def config(self) -> Config:
        """The complete configuration, as config.yaml has it."""
        return self.found.complete(self.asked)

    def with_workers(self, tell: Callable[[str], None]) -> "Experiment":
        """Return the experiment with `engine.workers` processes of this machine.

        The engine is the same on GPUs, and if it is that of Ray, which has workers of its own.

        Args:
            tell: Function that gets notes for the user.
        """
        used = self.found.engine
        if not self.may_have_workers:
            return replace(self, has_workers=True)
        from flbench.engine.local import LocalEngine

        engine = LocalEngine(self.engine, *self.given, used, tell)
        return replace(self, engine=engine, has_workers=True)

    @property
    def may_have_workers(self) -> bool:
        """Whether the engine is one that trains with processes of this machine, on CPUs."""
        used = self.found.engine
        return used.name != "ray" and used.device == "cpu" and used.workers != 1

    @property
    def storage(self) -> Storage:
        """Where large tensors are stored: in mapped files above `engine.state_memory`."""
        return Storage(self.config.engine.state_memory, self.config.output.dir)

    @property
    def given(self) -> tuple[nn.Module, Federation]:
        """Net and samples as engines get them."""
        if self.cached is None:
            return self.net, self.federation
        return self.cached.net, self.cached.federation

    def start(self) -> State:
        """Return the state before the first round.

        Raises:
            RunError: The file system has not enough space for the tensors that clients keep.
        """
        dtype = dtype_of(self.config.engine)
        return _start(self.net, self.algorithm, dtype, self.storage.copied)

    def sketch(self, ids: Tensor | None = None) -> State:
        """Return the state before the first round for measurements, without a copy for each client.

        Args:
            ids: Ids [K] of clients whose rows have their values and can be written; other rows are
                zero. None for all clients; then rows share memory, and are only to be read.
        """
        views = _start(self.net, self.algorithm, dtype_of(self.config.engine))
        if ids is None:
            return views
        return replace(views, clients=only_rows(views.clients, ids))

    def evaluator(self, warn: Callable[[str], None], parts: tuple[str, ...] = PARTS) -> Evaluator:
        """Return an evaluator of the experiment's models.

        Args:
            warn: Function that is called with a sentence if fine-tuning diverges.
            parts: Parts of the clients' samples to evaluate on.
        """
        return Evaluator(
            algorithm=self.algorithm,
            engine=self.engine,
            federation=self.federation,
            judge=self.judge,
            config=self.config.evaluation,
            recalibrate=self.config.train.batchnorm == "drop",
            warn=warn,
            parts=parts,
            net=self.net,
            cached=self.cached,
        )

    def loop(
        self,
        folder: RunFolder,
        callbacks: CallbackList,
        seconds: Seconds,
        parts: tuple[str, ...] = PARTS,
    ) -> FederatedLoop:
        """Return the loop that runs the experiment's rounds.

        Args:
            folder: Run folder to write to.
            callbacks: The callbacks of the run.
            seconds: Time already spent.
            parts: Parts of the clients' samples to evaluate on.
        """
        return FederatedLoop(
            config=self.config,
            algorithm=self.algorithm,
            engine=self.engine,
            evaluator=self.evaluator(callbacks.on_note, parts),
            folder=folder,
            callbacks=callbacks,
            seconds=seconds,
            module=self.module,
            storage=self.storage,
        )

    def restore(self, folder: RunFolder) -> Restored:
        """Restore the last checkpoint of a run folder.

        Metrics in the folder that are newer than the checkpoint are removed.

        Args:
            folder: The run folder.

        Returns:
            The state of the checkpoint, and what else it stores. If there is no checkpoint: the
            state before the first round, and nothing else.

        Raises:
            DataError: The checkpoint is damaged or belongs to another configuration.
        """
        if not folder.checkpoint("last").exists():
            folder.rewind(0)
            folder.client_rows = ClientRows()
            return Restored(self.start(), Seconds(), Memory())
        path = folder.checkpoint("last")
        state, extra, folder.client_rows = checkpoint.read(path, self.config.hash(), self.storage)
        with checkpoint.reading(path):
            if state.stage >= len(self.algorithm.stages()):
                raise ValueError(f"there is no stage {state.stage}")
            folder.rewind(extra.pop("rows"))
            return Restored(state, Seconds(**extra.pop("seconds")), Memory(**extra))


def build(
    config: Config,
    federation: Federation | None = None,
    *,
    tried: bool = True,
    engine: EngineConfig | None = None,
    folder: Path | None = None,
    tell: Callable[[str], None] | None = None,
) -> Experiment:
    """Build all objects of an experiment.

    This sets the number of threads that PyTorch uses in this process.

    Args:
        config: Configuration of the experiment.
        federation: The samples that `config.data` and `config.partition` describe, if they are
            already loaded; None to load them.
        tried: Whether to try the code of the user in a few steps of training. The models of a
            finished run need no trial.
        engine: What to build with in place of the section `engine` of the configuration.
        folder: Folder of the run, if it has begun: what is frozen in the net has the values that
            the run has stored.
        tell: Function that gets notes of an engine while it waits for its workers; None to hear
            them with the other notes.

    Raises:
        UserError: Data and configuration do not fit together. The message lists all reasons that
            the method gives.
    """
    _check_resolved(config)
    asked, used = config, with_device(engine or config.engine)
    torch.set_num_threads(used.threads)
    with own_methods.named(asked.algorithm):
        federation = load_federation(asked) if federation is None else federation
        net, about_net = _net(asked, federation, folder)
        judge, about_classes = _judge(asked, net, federation)
        rewrites, terms = _rewrites(asked, net)
        found = _found(asked, used, federation, about_net, judge, terms)
        config = found.complete(asked)
        algorithm, about_method = _method(config, net, federation, rewrites)
        # Ray's workers may have a GPU that this process lacks.
        here = on_this_machine(used) if used.name == "ray" else used
        smoke = _smoke(config, here, algorithm, net, federation) if tried else None
        module: Mapping[str, Any] = {}
        if smoke is not None:
            trained = smoke.check(config)
            if is_lightning(net):
                from flbench.experiment import own_module_programs

                module = own_module_programs.recorded(trained, config)
        cached, about_cache = _cached(config, here, net, federation) if tried else (None, [])
        given = (net, federation) if cached is None else (cached.net, cached.federation)
        made, used, about_engine = _engine(used, config, given, smoke, tell)
    notes = [
        *federation.notes,
        *about_classes,
        *about_method,
        *configuration_notes(config, federation, net, algorithm),
        *about_cache,
        *about_engine,
    ]
    found = replace(found, engine=used)
    return Experiment(
        asked, found, federation, net, algorithm, made, judge, tuple(notes), module, cached
    )


def _net(
    asked: Config, federation: Federation, folder: Path | None
) -> tuple[nn.Module, dict[str, str | None]]:
    """Return the net, and what config.yaml says of it; see `Found.net`."""
    net = build_net(asked.model, federation.shape, federation.output, asked.seed)
    if folder is not None and (values := fixed.values(net)):
        checkpoint.load_frozen(folder / "checkpoints" / checkpoint.FROZEN, values)
    about: dict[str, str | None] = {}
    if isinstance(asked.model, OwnModelConfig):
        from flbench.models import own

        about = own.recorded(asked.model, net)
    if isinstance(asked.model, OwnModelConfig) or asked.model.weights is not None:
        from flbench.models import pretrained

        about |= pretrained.recorded(net)
    return net, about


def _rewrites(asked: Config, net: nn.Module) -> tuple[tuple[Rewrite, ...], "LocalTerms | None"]:
    """Return what the user's terms and module change in a method's programs, and these terms."""
    rewrites: list[Rewrite] = []
    terms = None
    if asked.train.terms:
        from flbench.experiment import local_terms

        terms = local_terms.make(asked.train.terms)
        rewrites.append(terms)
    if is_lightning(net):
        from flbench.experiment import own_module_programs  # it loads Lightning

        own_module_programs.check_keys(asked)
        rewrites.append(own_module_programs.by_module)
    return tuple(rewrites), terms


def _found(
    asked: Config,
    used: EngineConfig,
    federation: Federation,
    about_net: Mapping[str, str | None],
    judge: "ClassJudge | TargetJudge",
    terms: "LocalTerms | None",
) -> Found:
    """Return what config.yaml has beside what the user asked for."""
    scheme = None
    if asked.partition.is_own:
        from flbench.data import own_schemes

        scheme = own_schemes.sha256(asked.partition, federation.partition.hash())
    return Found(
        engine=used,
        dataset=federation.dataset.name,
        samples=federation.dataset.sha256,
        clients=federation.with_new_clients().clients,
        scheme=scheme,
        net=about_net,
        method=own_methods.sha256(asked.algorithm, own_methods.find(asked.algorithm)),
        terms=() if terms is None else terms.hashes,
        metrics={metric.name: metric.sha256 for metric in judge.metrics},
        best=judge.best,
    )


def _method(
    config: Config, net: nn.Module, federation: Federation, rewrites: tuple[Rewrite, ...]
) -> tuple[Algorithm, list[str]]:
    """Return the method, whose requirements are met, and notes."""
    setting = Setting(
        seed=config.seed,
        rounds=config.train.rounds,
        train=config.train,
        clients=federation.clients,
        sizes=federation.sizes,
        classes=federation.classes,
        net=describe(net, federation.shape),
        model=config.model.name,
        own_optimizer=is_lightning(net),
    )
    algorithm = own_methods.find(config.algorithm)(config.algorithm, setting)
    algorithm.rewrites = rewrites
    _refuse(config, net, _sentences(algorithm.requires()))
    start = _start(net, algorithm, dtype_of(config.engine))
    _refuse(config, net, [*_too_large(start), *_without_training(algorithm, start)])
    notes = _sentences(algorithm.notes())
    if is_lightning(net):
        from flbench.experiment import own_module_programs

        has_classes = federation.dataset.targets is None
        own_module_programs.check_method(algorithm, start, net, has_classes=has_classes)
    if config.train.terms:
        from flbench.experiment import local_terms

        notes += local_terms.check_method(algorithm, replace(start, clients={}))
    return algorithm, notes


def _refuse(config: Config, net: nn.Module, unmet: list[str]) -> None:
    """Raise a ConfigError if there are requirements of a method that are not met."""
    if not unmet:
        return
    lines = [f"`algorithm.name={config.algorithm.name}`: {sentence}" for sentence in unmet]
    if frozen := len(fixed.of(net).parameters):
        lines.append(
            f"{frozen} parameters of the net are frozen (`model.freeze`, `model.lora` or"
            " requires_grad=False): if that is the reason, freeze less of the net, or take another"
            " method."
        )
    raise ConfigError("\n".join(lines))


def _smoke(
    config: Config, here: EngineConfig, algorithm: Algorithm, net: nn.Module, federation: Federation
) -> "Smoke | None":
    """Return a trial of the code of the user; None if net, losses and method are flbench's."""
    is_own = isinstance(config.model, OwnModelConfig) or is_of_user(algorithm)
    unknown = unknown_parts((net, algorithm.rewrites))
    if not (is_own or unknown):
        return None
    from flbench.experiment.smoke import Smoke

    begin = partial(_start, dtype=dtype_of(config.engine))
    return Smoke(here, algorithm, net, unknown, federation, begin)


def _cached(
    config: Config, here: EngineConfig, net: nn.Module, federation: Federation
) -> tuple["Cached | None", list[str]]:
    """Return what the engine has in place of net and samples if a part is frozen, and notes."""
    if not fixed.of(net).parameters:
        return None, []
    from flbench.experiment import frozen_outputs

    found = frozen_outputs.cached(config, net, federation, here)
    if found is None or isinstance(found, str):
        return None, [found] if found else []
    return found, [found.note]


def _engine(
    used: EngineConfig,
    config: Config,
    given: tuple[nn.Module, Federation],
    smoke: "Smoke | None",
    tell: Callable[[str], None] | None,
) -> tuple[Engine, EngineConfig, list[str]]:
    """Return the engine, the section `engine` with its name and block, and notes.

    Args:
        used: The section with the device that trains; its name may be `auto`.
        config: Configuration of the run.
        given: Net and samples as engines get them.
        smoke: Trial of the user's code; None for none.
        tell: See `build`.
    """
    is_auto, notes = used.name == "auto", []
    if is_auto:
        stacked = auto_stacks(used, given[0])
        used = used.altered(name="vectorized" if stacked else "sequential")
    try:
        if smoke is not None and stacks(used, smoke.net):
            smoke.check_stacked()
        engine = build_engine(used, *given, tell=tell)
    except ConfigError as refusal:
        if not is_auto or used.name == "sequential":
            raise
        notes.append(f"engine: sequential, because clients cannot be stacked: {refusal}")
        used = used.altered(name="sequential")
        engine = build_engine(used, *given, tell=tell)
    if used.name == "vectorized":
        used = used.altered(block=engine.stacked(LocalProgram(()), (), config.train.batch_size))
    return engine, used, notes


def _sentences(found: list[str] | str | None) -> list[str]:
    """Return what a method says as a list; its author may give one text, or nothing."""
    return [found] if isinstance(found, str) else list(found or ())


def _without_training(algorithm: Algorithm, start: State) -> list[str]:
    """Return a sentence for each phase of a method all of whose parameters the user has frozen."""
    net = algorithm.setting.net
    if not net.fixed:
        return []
    never = net.names("all").difference(net.parameters) | net.fixed
    known = [*net.parameters, *start.clients, *start.server]
    sentences = []
    for what, program in programs(algorithm, start):
        phases = [step for step in program.steps if isinstance(step, Phase)]
        for number, phase in enumerate(phases, start=1):
            names = known if isinstance(phase.train, str) else phase.train
            if not any(phase.trains(name) and name_in_net(name, never) is None for name in names):
                sentences.append(
                    f"all parameters that its training phase {number} of {what} trains are frozen."
                )
    return sentences


def _judge(
    config: Config, net: nn.Module, federation: Federation
) -> "tuple[ClassJudge | TargetJudge, list[str]]":
    """Return the judge of the models, and notes."""
    if federation.dataset.targets is not None and is_lightning(net):
        from flbench.experiment import target_judging  # it loads torchmetrics

        return target_judging.make(config, net, federation), []
    if config.evaluation.best != BestConfig():
        raise ConfigError(
            "`evaluation.best` is for targets that are not classes. The best round of a"
            f" classification, such as that of `{federation.dataset.name}`, is the one with the"
            " highest validation accuracy. Leave it out."
        )
    names = federation.dataset.classes
    number = positive_class(config.evaluation, names)
    positive = names[number] if len(names) == 2 else None
    metrics: tuple[OwnMetric, ...] = ()
    if config.evaluation.metrics:
        from flbench.experiment import own_metrics

        metrics = own_metrics.make(config.evaluation, federation.classes)
    rare, notes = rare_classes(federation.counts.sum(dim=0), config.evaluation.rare)
    if positive is not None:
        notes.append(
            f"two classes: the positive class of AUROC and average precision is `{positive}`; the"
            " key evaluation.positive chooses it."
        )
    judge = ClassJudge(
        federation,
        tuple(rare),
        _confusable(config, federation),
        metrics,
        has_probabilities=config.evaluation.probabilities,
    )
    return judge, notes


def load_federation(config: Config) -> Federation:
    """Load the data set and distribute its samples to clients.

    Args:
        config: Configuration of the experiment.

    Raises:
        UserError: The data set cannot be read, or the partition cannot be made from it.
    """
    _check_resolved(config)
    dataset = sources.load(config.data)
    return build_federation(dataset, config.data, config.partition, config.seed, config.shift)


def _check_resolved(config: Config) -> None:
    """Raise a TypeError for a configuration that was read as data, which may name any code."""
    if isinstance(config.algorithm, RecordedAlgorithmConfig):
        raise TypeError("nothing is built from a configuration that was read as data: resolve it")


def _too_large(start: State) -> list[str]:
    """Return a sentence if the server's tensors do not fit into the memory of this machine.

    A round computes those that change in main memory, before they are stored elsewhere.
    """
    need, there = nbytes(start.server), memory_of_machine()
    if need <= there:
        return []
    return [
        f"the tensors that the server keeps would take {need / GIB:,.1f} GiB, and this machine has"
        f" {there / GIB:,.1f} GiB. Choose fewer clients (partition.clients) or a smaller net"
        " (model.name)."
    ]


def _start(
    net: nn.Module,
    algorithm: Algorithm,
    dtype: torch.dtype,
    own: Callable[[Tree], Tree] = lambda rows: rows,
) -> State:
    """Return the state before the first round; without `own` the clients' rows share memory."""
    draw = Draw(algorithm.setting.seed, (0,), algorithm.setting.clients)
    with seeded_method(algorithm, draw, 2):
        return state_of(algorithm, _start_values(net, dtype), own)


def _start_values(net: nn.Module, dtype: torch.dtype) -> Tree:
    """Return the net's seeded parameters and buffers, without those that the user has fixed."""
    known = fixed.of(net).leaves
    return {
        name: leaf.detach().to(dtype) if leaf.is_floating_point() else leaf.detach()
        for name, leaf in net_leaves(net).items()
        if name not in known
    }


def build_engine(
    config: EngineConfig,
    net: nn.Module,
    federation: Federation,
    *,
    tell: Callable[[str], None] | None = None,
) -> Engine:
    """Return the engine that `engine.name` selects.

    Args:
        config: Section `engine` as it is used, with a name other than `auto`.
        net: The net.
        federation: Samples of all clients.
        tell: See `build`.

    Raises:
        ConfigError: The engine does not support the configuration.
    """
    if config.name == "ray":
        from flbench.engine.ray import RayEngine

        return RayEngine(net, federation, config, tell=tell)
    if config.name == "vectorized":
        from flbench.engine.vectorized import VectorizedEngine  # it loads PyTorch's compiler

        return VectorizedEngine(net, federation, config)
    from flbench.engine.sequential import SequentialEngine

    return SequentialEngine(net, federation, config)


def auto_stacks(config: EngineConfig, net: nn.Module) -> bool:
    """Return whether `engine.name=auto` trains stacked clients.

    One client at a time leaves most of a GPU idle. On a CPU, stacked convolutions are slower than
    one client after the other, and the layers of large nets gain nothing.

    Args:
        config: Section `engine`, with the device that trains.
        net: The net, without what is frozen and computed once.
    """
    if config.device.startswith("cuda"):
        return True
    size = sum(leaf.numel() for leaf in net_leaves(net).values())
    return size <= STACKED_SIZE and not any(isinstance(one, _ConvNd) for one in net.modules())


def stacks(config: EngineConfig, net: nn.Module) -> bool:
    """Return whether clients are stacked: by the vectorized engine, or by Ray's workers on GPUs."""
    on_gpu = config.device.startswith("cuda")
    by_workers = config.name == "ray" and on_gpu and not is_lightning(net)
    return config.name == "vectorized" or by_workers


def _confusable(config: Config, federation: Federation) -> tuple[int, ...] | None:
    """Return the confusable classes; see `ClassJudge.confusable`."""
    reference = config.evaluation.confusable
    if reference is None:
        return ()
    if reference == "own":
        return None
    return tuple(confusable_classes(read_confusion(Path(reference), federation.classes)))
