"""Building the objects of an experiment from its configuration."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from flbench.algorithms import Algorithm, Setting
from flbench.algorithms.base import Rewrite, is_of_user, state_of
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
from flbench.core.storage import Storage, only_rows
from flbench.core.types import State, Tree
from flbench.data import sources
from flbench.data.federation import Federation
from flbench.data.federation import build as build_federation
from flbench.engine.base import Engine, dtype_of
from flbench.experiment import checkpoint, own_methods
from flbench.experiment.engines import (
    auto_compiles,
    auto_stacks,
    build_engine,
    captures,
    on_this_machine,
    stacks,
    with_device,
)
from flbench.experiment.evaluate import Evaluator
from flbench.experiment.judging import ClassJudge
from flbench.experiment.notes import configuration_notes
from flbench.experiment.predictions import PARTS, positive_class
from flbench.experiment.rounds import programs, seeded_method
from flbench.metrics.classes import confusable_classes, rare_classes, read_confusion
from flbench.models import freezing
from flbench.models.base import build as build_net
from flbench.models.base import describe, net_leaves

if TYPE_CHECKING:
    from flbench.experiment.frozen_outputs import Cached
    from flbench.experiment.smoke import Smoke
    from flbench.experiment.target_judging import TargetJudge
    from flbench.metrics.own import OwnMetric


@dataclass(frozen=True)
class Experiment:
    """All objects of one experiment, built from its configuration.

    Attributes:
        config: The complete configuration, as config.yaml has it.
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

    config: Config
    federation: Federation
    net: nn.Module
    algorithm: Algorithm
    engine: Engine
    judge: "ClassJudge | TargetJudge"
    notes: tuple[str, ...]
    module: Mapping[str, Any] = field(default_factory=dict)
    cached: "Cached | None" = None
    has_workers: bool = False

    def with_workers(self, tell: Callable[[str], None]) -> "Experiment":
        """Return the experiment with `engine.workers` processes of this machine.

        The engine is the same if it is that of Ray, which has workers of its own, and on a GPU,
        unless the configuration gives a number of workers and leaves open which GPUs they have.

        Args:
            tell: Function that gets notes for the user.
        """
        used = self.config.engine
        is_alone = used.device != "cpu" and (used.device != "cuda" or used.workers == "auto")
        if used.name == "ray" or is_alone or used.workers == 1:
            return replace(self, has_workers=True)
        from flbench.engine.local_processes import LocalEngine

        engine = LocalEngine(self.engine, *self.given, used, tell)
        return replace(self, engine=engine, has_workers=True)

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
    if config.train.local_steps is not None and config.partition.new_clients is not None:
        raise ConfigError(
            f"`train.local_steps={config.train.local_steps}` with `partition.new_clients`: clients"
            " that join after the training train for epochs. Set `train.local_epochs` instead, or"
            " leave out the new clients."
        )
    asked, used = config, with_device(engine or config.engine)
    torch.set_num_threads(used.threads)
    with own_methods.named(asked.algorithm):
        federation = load_federation(asked) if federation is None else federation
        net = _net(asked, federation, folder)
        judge, about_classes = _judge(asked, net, federation)
        rewrites, hashes = _rewrites(asked)
        config = _complete(asked, used, federation, net, judge, hashes)
        algorithm = _method(config, net, federation, rewrites)
        # Ray's workers may have a GPU that this process lacks.
        here = on_this_machine(used) if used.name == "ray" else used
        smoke, module, cached, about_cache = None, dict[str, Any](), None, None
        if tried:
            smoke, module = _smoke(config, here, algorithm, net, federation)
            if freezing.of(net).parameters:
                from flbench.experiment import frozen_outputs

                cached, about_cache = frozen_outputs.cached(config.model, net, federation, here)
        given = (net, federation) if cached is None else (cached.net, cached.federation)
        made, used, about_engine = _engine(config, given, smoke, tell)
    notes = [
        *federation.notes,
        *about_classes,
        *_sentences(algorithm.notes()),
        *configuration_notes(config, federation, net, algorithm),
        *_sentences(about_cache),
        *_sentences(about_engine),
    ]
    config = config.altered(engine=used)
    return Experiment(config, federation, net, algorithm, made, judge, tuple(notes), module, cached)


def _net(asked: Config, federation: Federation, folder: Path | None) -> nn.Module:
    """Return the net; what is frozen has the values of a run that has begun."""
    net = build_net(asked.model, federation.shape, federation.output, asked.seed)
    if folder is not None and (values := freezing.values(net)):
        checkpoint.load_frozen(folder / "checkpoints" / checkpoint.FROZEN, values)
    return net


def _rewrites(asked: Config) -> tuple[tuple[Rewrite, ...], list[str | None]]:
    """Return what the user's terms and module change in programs, and hashes of the terms."""
    rewrites: list[Rewrite] = []
    hashes: list[str | None] = []
    if asked.train.terms:
        from flbench.experiment import local_terms

        terms, hashes = local_terms.make(asked.train.terms)
        rewrites.append(terms)
    if asked.has_own_optimizer:
        from flbench.experiment import own_module_programs  # it loads Lightning

        own_module_programs.check_keys(asked.train)
        rewrites.append(own_module_programs.by_module)
    return tuple(rewrites), hashes


def _complete(
    asked: Config,
    used: EngineConfig,
    federation: Federation,
    net: nn.Module,
    judge: "ClassJudge | TargetJudge",
    hashes: list[str | None],
) -> Config:
    """Return what the user asked for and what the run found out, as config.yaml has both."""
    scheme, model = None, dict[str, str | None]()
    if asked.partition.is_own:
        from flbench.data import own_schemes

        scheme = own_schemes.sha256(asked.partition, federation.partition.hash())
    if isinstance(asked.model, OwnModelConfig):
        from flbench.models import own

        model = own.recorded(asked.model, net)
    if isinstance(asked.model, OwnModelConfig) or asked.model.weights is not None:
        from flbench.models import pretrained

        model |= pretrained.recorded(asked.model, net)
    method = own_methods.sha256(asked.algorithm)
    terms = [
        entry if found is None else entry.altered(sha256=found)
        for entry, found in zip(asked.train.terms, hashes, strict=True)
    ]
    named = asked.evaluation.metrics or {}
    metrics = {one.name: named[one.name].altered(sha256=one.sha256) for one in judge.metrics}
    return asked.altered(
        engine=used,
        data=asked.data.altered(name=federation.dataset.name, sha256=federation.dataset.sha256),
        partition=asked.partition.altered(
            seed=asked.partition_seed,
            clients=federation.with_new_clients().clients,
            sha256=scheme,
        ),
        # The user's classes of these sections may have a key `altered`.
        model=asked.model.model_copy(update=model),
        algorithm=asked.algorithm.model_copy(update={} if method is None else {"sha256": method}),
        train=asked.train.altered(terms=tuple(terms)),
        evaluation=asked.evaluation.altered(
            every=asked.evaluation_period,
            metrics=metrics or asked.evaluation.metrics,
            best=judge.best,
        ),
    )


def _method(
    config: Config, net: nn.Module, federation: Federation, rewrites: tuple[Rewrite, ...]
) -> Algorithm:
    """Return the method, whose requirements are met."""
    setting = Setting(
        seed=config.seed,
        rounds=config.train.rounds,
        train=config.train,
        clients=federation.clients,
        sizes=federation.sizes,
        classes=federation.classes,
        net=describe(net, federation.shape),
        model=config.model.name,
        own_optimizer=config.has_own_optimizer,
    )
    algorithm = own_methods.find(config.algorithm)(config.algorithm, setting)
    algorithm.rewrites = rewrites
    name = config.algorithm.name
    _refuse(name, net, _sentences(algorithm.requires()))
    start = _start(net, algorithm, dtype_of(config.engine))
    _refuse(name, net, _without_training(algorithm, start))
    if config.train.terms:
        from flbench.experiment import local_terms

        local_terms.check_method(algorithm, start)
    if config.has_own_optimizer:
        from flbench.experiment import own_module_programs

        has_classes = federation.dataset.targets is None
        own_module_programs.check_method(algorithm, start, net, has_classes=has_classes)
    return algorithm


def _refuse(name: str, net: nn.Module, unmet: list[str]) -> None:
    """Raise a ConfigError if there are requirements of a method that are not met."""
    if not unmet:
        return
    lines = [f"`algorithm.name={name}`: {sentence}" for sentence in unmet]
    if frozen := len(freezing.of(net).parameters):
        lines.append(
            f"{frozen} parameters of the net are frozen (`model.freeze`, `model.lora`): if that is"
            " the reason, freeze less of it."
        )
    raise ConfigError("\n".join(lines))


def _smoke(
    config: Config, here: EngineConfig, algorithm: Algorithm, net: nn.Module, federation: Federation
) -> tuple["Smoke | None", dict[str, Any]]:
    """Try the code of the user, if there is any; return the trial, and `Experiment.module`."""
    is_own = isinstance(config.model, OwnModelConfig) or is_of_user(algorithm)
    unknown = unknown_parts((net, algorithm.rewrites))
    if not (is_own or unknown):
        return None, {}
    from flbench.experiment.smoke import Smoke

    smoke = Smoke(here, algorithm, net, unknown, federation, _start)
    trained = smoke.check(partial(_net, config, federation, None))
    if not config.has_own_optimizer:
        return smoke, {}
    from flbench.experiment import own_module_programs

    return smoke, own_module_programs.recorded(trained, config.train)


def _engine(
    config: Config,
    given: tuple[nn.Module, Federation],
    smoke: "Smoke | None",
    tell: Callable[[str], None] | None,
) -> tuple[Engine, EngineConfig, str | None]:
    """Return the engine, the section `engine` as it is used, and a note.

    Args:
        config: The complete configuration, with the device that trains.
        given: Net and samples as engines get them.
        smoke: Trial of the user's code; None for none.
        tell: See `build`.
    """
    used, note = config.engine, None
    is_auto = used.name == "auto"
    if is_auto:
        used = used.altered(name="vectorized" if auto_stacks(used, given[0]) else "sequential")
    if used.compile == "auto":
        is_long = auto_compiles(used, config.train, *given)
        used = used.altered(compile="on" if is_long else "off")
    elif used.compile == "on" and not captures(used):
        note = f"engine.compile has no effect with engine.name={used.name} on {used.device}."
    try:
        if smoke is not None and stacks(used):
            smoke.check_stacked()
        engine = build_engine(used, *given, tell=tell)
    except ConfigError as refusal:
        if not is_auto or used.name == "sequential":
            raise
        note = f"engine: sequential, because clients cannot be stacked: {refusal}"
        used = used.altered(name="sequential", compile="off")
        engine = build_engine(used, *given, tell=tell)
    if used.name == "vectorized":
        used = used.altered(block=engine.stacked(LocalProgram(()), (), config.train.batch_size))
    return engine, used, note


def _sentences(found: Sequence[str] | str | None) -> list[str]:
    """Return what a method says as a list; its author may give one text, or nothing."""
    return [found] if isinstance(found, str) else list(found or ())


def _without_training(algorithm: Algorithm, start: State) -> list[str]:
    """Return a sentence for each phase of a method all of whose parameters the user has frozen."""
    net = algorithm.setting.net
    if not net.fixed:
        return []
    never = net.names("all").difference(net.parameters) | net.fixed
    known = [*net.parameters, *start.clients, *start.server]
    return [
        f"all parameters that a training phase of {what} trains are frozen."
        for what, program in programs(algorithm, start)
        for step in program.steps
        if isinstance(step, Phase)
        and not any(
            step.trains(name) and name_in_net(name, never) is None
            for name in (known if isinstance(step.train, str) else step.train)
        )
    ]


def _judge(
    config: Config, net: nn.Module, federation: Federation
) -> "tuple[ClassJudge | TargetJudge, list[str]]":
    """Return the judge of the models, and notes."""
    metrics: tuple[OwnMetric, ...] = ()
    if config.evaluation.metrics:
        from flbench.experiment import own_metrics

        metrics = own_metrics.make(config.evaluation, federation.output)
    if federation.dataset.targets is not None:
        from flbench.experiment import target_judging  # it loads torchmetrics

        return target_judging.make(config, net, federation, metrics), []
    if config.evaluation.best != BestConfig():
        raise ConfigError(
            "`evaluation.best` is for targets that are not classes. The best round of a"
            f" classification, such as that of `{federation.dataset.name}`, is the one with the"
            " highest validation accuracy. Leave it out."
        )
    names = federation.dataset.classes
    number = positive_class(config.evaluation, names)
    positive = names[number] if len(names) == 2 else None
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
    known = freezing.of(net).leaves
    return {
        name: leaf.detach().to(dtype) if leaf.is_floating_point() else leaf.detach()
        for name, leaf in net_leaves(net).items()
        if name not in known
    }


def _confusable(config: Config, federation: Federation) -> tuple[int, ...] | None:
    """Return the confusable classes; see `ClassJudge.confusable`."""
    reference = config.evaluation.confusable
    if reference is None:
        return ()
    if reference == "own":
        return None
    folder = Path(reference.replace("{seed}", str(config.seed)))
    return tuple(confusable_classes(read_confusion(folder, federation.classes)))
