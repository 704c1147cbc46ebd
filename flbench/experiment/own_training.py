"""The training step of a user's LightningModule, in the local loss of a method.

The loss that `training_step` returns takes the place of a method's cross entropy, and the method's
other terms are added to it. Terms on features and logits read the inputs and outputs of the head in
the forward pass of `training_step`, and Statistics those of the module's `forward`. Methods that
need something else, such as an optimizer of their own, are refused with the reasons. They are found
in the method's programs, so this holds for methods of other packages too.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from copy import deepcopy
from dataclasses import replace
from functools import partial, wraps
from inspect import signature
from typing import Any, Final

import torch
from torch import Tensor

from flbench.algorithms.base import Algorithm, Setting
from flbench.client.forward import is_buffer
from flbench.client.logged import Log
from flbench.client.own_module import OwnModule, Round, parameter_of
from flbench.client.program import CrossEntropyTerm, LocalProgram, LossTerm, Phase, Statistic, Step
from flbench.config.schema import Config, OptimizerConfig
from flbench.core.errors import ConfigError, UserError
from flbench.core.rng import Draw, seeded
from flbench.core.types import Batch, State, StepContext
from flbench.data.batches import arrange
from flbench.data.federation import Federation
from flbench.data.schemes import Indices
from flbench.engine.base import dtype_of
from flbench.experiment.rounds import programs, visible_to_server
from flbench.losses import CrossEntropy, TaskLoss
from flbench.models.base import NetSpec, net_leaves
from flbench.models.lightning_net import LightningNet

TRIED: Final = 4  # samples of the step that is tried before a run
MOST_TRIED: Final = 10_000  # steps that schedulers are tried for


def check_keys(config: Config) -> None:
    """Raise a ConfigError for keys that a module with its own training step excludes.

    Args:
        config: Configuration of the run.
    """
    if config.train.optimizer != OptimizerConfig():
        raise ConfigError(
            "`train.optimizer` is set, but with `model.lightning` the module's"
            " configure_optimizers makes the optimizer. Leave the section out."
        )
    if config.evaluation.adapt.finetune_lr is not None:
        raise ConfigError(
            "`evaluation.adapt.finetune_lr` is set, but with `model.lightning` the module's"
            " configure_optimizers makes the optimizer. Leave it out."
        )
    if config.train.terms:
        raise ConfigError(
            "`train.terms` add to a cross entropy, but with `model.lightning` the module's"
            " training_step computes the loss. Add the terms there."
        )


def by_module(program: LocalProgram, setting: Setting) -> LocalProgram:
    """Return a program whose phases have the module's loss instead of the cross entropy.

    It is a rewrite of a method's programs; the module makes an optimizer in the place of
    `train.optimizer`.
    """
    optimizer = setting.train.optimizer
    return replace(program, steps=tuple(_changed(step, optimizer) for step in program.steps))


def _changed(step: Step, optimizer: OptimizerConfig) -> Step:
    """Return a step of a program with the module's loss and optimizer."""
    if not isinstance(step, Phase):
        return step
    terms = tuple(_task_loss(term) for term in step.terms)
    # A method may set an optimizer that has the same values as the one of `train`.
    return replace(step, terms=terms, by_module=step.optimizer is optimizer)


def _task_loss(term: LossTerm) -> LossTerm:
    """Return the module's loss for the plain cross entropy; other terms stay as they are."""
    return TaskLoss(term.weight) if type(term) is CrossEntropy else term


def check_method(
    algorithm: Algorithm, start: State, net: LightningNet, *, has_classes: bool = True
) -> None:
    """Raise a ConfigError if a method needs something that the module does not give.

    Args:
        algorithm: The method, with the module's loss.
        start: State before the first round.
        net: The user's module as a net.
        has_classes: Whether the data have classes, which a method may need.
    """
    first = algorithm.local_program(replace(start, clients={}))
    deployments = algorithm.deployed(visible_to_server(start, first), torch.tensor([0])).values()
    reasons: list[str] = []
    readers: list[str] = []
    for _, program in programs(algorithm, start):
        for step in program.steps:
            readers += _readers(step)
            if isinstance(step, Phase):
                reasons += _of_phase(step, algorithm.setting.net, algorithm.setting.train.optimizer)
            elif isinstance(step, Statistic) and not has_classes and not _reads_net(step):
                reasons.append(
                    f"it needs classes, and the data have other targets ({_name(step.fn)})"
                )
    readers += [_name(model.predict) for model in deployments if model.predict is not None]
    if readers and not has_classes:
        reasons.append(f"it needs classes, and the data have other targets ({_listed(readers)})")
    elif readers and net.no_features is not None:
        reasons.append(f"it reads features and logits ({_listed(readers)}), and {net.no_features}")
    if reasons:
        listed = "; ".join(dict.fromkeys(reasons))
        raise ConfigError(
            f"`algorithm.name={algorithm.name}` cannot train {net.title} by its own training step:"
            f" {listed}. Take another method, such as fedavg, fedprox or ditto, or train the module"
            " as a net: fl.run(model=...)."
        )


def _readers(step: Step) -> Iterator[str]:
    """Yield the names of what reads features or logits in a step of a program."""
    if isinstance(step, Phase):
        for term in step.terms:
            if not isinstance(term, TaskLoss) and not getattr(term, "of_parameters", False):
                yield _name(term)
        yield from (_name(statistic.fn) for statistic in step.record)
    elif isinstance(step, Statistic) and _reads_net(step):
        yield _name(step.fn)


def _of_phase(phase: Phase, net: NetSpec, optimizer: OptimizerConfig) -> Iterator[str]:
    """Yield what a phase needs that a LightningModule does not give."""
    others = [term for term in phase.terms if isinstance(term, CrossEntropyTerm)]
    if others:
        yield f"its cross entropy is of other logits than those of the head ({_name(others[0])})"
    elif phase.by_module and not any(isinstance(term, TaskLoss) for term in phase.terms):
        names = _listed(map(_name, phase.terms))
        yield f"it trains by a loss of its own, without that of training_step ({names})"
    if phase.optimizer != optimizer and phase.optimizer.lr == optimizer.lr:
        before, after = optimizer.model_dump(), phase.optimizer.model_dump()
        keys = ", ".join(key for key in before if before[key] != after[key])
        yield (
            f"it sets the {keys} of an optimizer, with the learning rate of `train.optimizer`, in"
            " whose place the module makes its own"
        )
    if phase.by_module and isinstance(phase.train, frozenset):
        own, buffers = set(net.parameters), net.names("all").difference(net.parameters)
        trained = [name for name in sorted(phase.train) if not is_buffer(name, buffers)]
        found = [parameter_of(name, own) for name in trained]
        if None in found or len(set(found)) < len(found):
            yield "it trains tensors that are not parameters of the module"


def _listed(names: Iterable[str]) -> str:
    """Return names without repetitions, as text."""
    return ", ".join(dict.fromkeys(names))


def _reads_net(statistic: Statistic) -> bool:
    """Return whether a Statistic reads more of a step than labels, found out by a call.

    A function that has the attribute `of_labels` says so itself.
    """
    if hasattr(statistic.fn, "of_labels"):
        return not statistic.fn.of_labels
    y, mask = torch.zeros(2, dtype=torch.int64), torch.ones(2, dtype=torch.bool)

    def refuse(*_: object, **__: object) -> Any:
        raise ValueError("the net is called")

    labels = Batch(torch.zeros(2, 0), y, mask, torch.arange(2), torch.tensor(0))
    context = StepContext(
        refuse, batch=labels, ctx={}, leaves={}, start={}, apply=refuse, task=refuse
    )
    try:
        statistic.fn(context)
    except Exception:  # noqa: BLE001 (it is the code of a method: it reads what is not there)
        return True
    return False


def _name(thing: object) -> str:
    """Return the name of a function, or of the class of an object that is called."""
    return str(getattr(thing, "__name__", type(thing).__name__))


def try_step(
    net: LightningNet, config: Config, federation: Federation, algorithm: Algorithm, start: State
) -> tuple[list[str], dict[str, Any]]:
    """Compute a step of the module, with all its hooks, on a few samples and a copy.

    If the method has phases that train a part of the net alone, a step of each is computed too.

    Args:
        net: The net.
        config: Configuration of the run.
        federation: Samples of the run.
        algorithm: The method, with the module's loss.
        start: State before the first round.

    Returns:
        Notes on what the module does without effect, and what it trains by: its `optimizer` (class
        and arguments) and its `hyperparameters`.

    Raises:
        ConfigError: The module's code raised an exception, or returned something else than a loss
            or an optimizer.
    """
    several = [rows for rows in federation.partition.parts["train"] if len(rows) > 1]
    saved = _saved_hyperparameters(net)
    if not several:
        return [], saved
    rows = max(several, key=len)
    optimizer, epochs = config.train.optimizer, config.train.local_epochs
    whole = Phase("*", (TaskLoss(),), optimizer, epochs=epochs, by_module=True)
    log = Log()
    tried = _try_phase(net, whole, config, federation, rows, log)
    about = {"optimizer": tried.optimizer, **saved}
    notes = _own_optimizers(algorithm, start)
    for names in _parts_trained(net, algorithm, start):
        _try_phase(net, replace(whole, train=names), config, federation, rows, Log())
    if not log.ignored:
        return notes, about
    note = (
        f"model: {net.title} gives self.log options without effect"
        f" ({', '.join(sorted(log.ignored))}): metrics.csv has one value of each name in a round,"
        " the mean over its steps."
    )
    return [*notes, note], about


def _own_optimizers(algorithm: Algorithm, start: State) -> list[str]:
    """Return a note if a method sets the optimizer of some phases itself."""
    steps = [step for _, program in programs(algorithm, start) for step in program.steps]
    found = [step.optimizer for step in steps if isinstance(step, Phase) and not step.by_module]
    if not found:
        return []
    kinds = _listed(f"{one.name} with lr={one.lr:g}" for one in found)
    return [
        f"model: {algorithm.name} sets the optimizer of {len(found)} training phases itself"
        f" ({kinds}). The module's configure_optimizers is for the other phases."
    ]


def _saved_hyperparameters(net: LightningNet) -> dict[str, Any]:
    """Return what the module has saved by `save_hyperparameters`, as values of JSON."""
    module: Any = net.module
    if not getattr(module, "_log_hyperparams", False):
        return {}
    found = {str(key): _plain(value) for key, value in dict(module.hparams_initial).items()}
    return {"hyperparameters": found} if found else {}


def _plain(value: Any) -> Any:
    """Return a value of JSON: dicts and lists of numbers and texts as they are, others as text."""
    if isinstance(value, Mapping):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    return value if isinstance(value, str | int | float | None) else str(value)


def _parts_trained(
    net: LightningNet, algorithm: Algorithm, start: State
) -> Iterator[frozenset[str]]:
    """Yield the names of the parameters of each phase that trains only a part of the net."""
    own = frozenset(name for name, _ in net.named_parameters() if name not in net.frozen)
    seen = {own, frozenset[str]()}
    for number in range(len(algorithm.stages())):
        for step in algorithm.local_program(replace(start, stage=number, clients={})).steps:
            if isinstance(step, Phase) and step.weights is None:
                names = frozenset(name for name in own if step.trains(name))
                if names not in seen:
                    seen.add(names)
                    yield names


def _try_phase(
    net: LightningNet,
    phase: Phase,
    config: Config,
    federation: Federation,
    rows: Indices,
    log: Log,
) -> OwnModule:
    """Compute one step of a phase on a copy of the net; see `try_step`.

    Args:
        net: The net.
        phase: The phase.
        config: Configuration of the run.
        federation: Samples of the run.
        rows: Rows of a client's training part.
        log: What the step logs.

    Returns:
        The module after the step.

    Raises:
        ConfigError: The module's code raised an exception, or replaces, moves or casts parameters.
    """
    module, batch = _on_a_copy(net, phase, config, federation, rows, log)
    before = _parameters(module.net)
    if federation.dataset.extras:
        _refuse_further_values(module.net, batch, tuple(federation.dataset.extras))
    with _seeded(config, federation):
        optimizer = module.configure_optimizers()
        module.begin_phase()
        module.begin_epoch(0)
        loss = module.training_step(batch)
        try:
            pairs = zip(module.trained.values(), module.gradients(loss), strict=True)
            for leaf, gradient in pairs:
                leaf.grad = gradient
            optimizer.step()
            module.end_step(batch, loss.detach())
            _advance_to_the_end(module)
        except UserError:
            raise
        except Exception as error:
            raise ConfigError(
                f"{net.title}: a step of its {type(optimizer).__name__} and of its scheduler raised"
                f" {type(error).__name__}: {error}. Compute the loss from self(x), and take an"
                " optimizer whose step needs gradients alone, and a scheduler of at least"
                " self.trainer.estimated_stepping_batches steps."
            ) from error
        module.end_epoch(0)
        module.end_phase()
    changed = before.items() ^ _parameters(module.net).items()
    if names := sorted({name.removeprefix("module.") for name, _ in changed}):
        raise ConfigError(
            f"{net.title} adds, replaces, moves or casts parameters ({', '.join(names[:3])}). A"
            " client trains those that the module has when it is made, in the type of"
            " `engine.precision`: make them in __init__, and change their values in place: with"
            " torch.no_grad(): p.copy_(...)."
        )
    return module


def _parameters(net: LightningNet) -> dict[str, tuple[int, torch.dtype, torch.device]]:
    """Return identity, type and device of each parameter."""
    return {name: (id(one), one.dtype, one.device) for name, one in net.named_parameters()}


def _advance_to_the_end(module: OwnModule) -> None:
    """Advance the scheduler as often as in a whole phase, which one step has begun."""
    batches = module.batches_per_epoch
    for number in range(1, min(batches * (module.phase.epochs or 1), MOST_TRIED)):
        for schedule in module.schedules:
            schedule.advance("step", number % batches)
            if (number + 1) % batches == 0:
                schedule.advance("epoch", number // batches)


def _refuse_further_values(net: LightningNet, batch: Batch, extras: Sequence[str | int]) -> None:
    """Let a step refuse a `forward` that gets further values of the batch, such as a mask.

    Evaluations call `forward` with the samples alone.

    Args:
        net: The net of the step, which is changed.
        batch: The batch of the step.
        extras: Keys of the further values.

    Raises:
        ConfigError: An argument of `forward` has the name of one of the values.
    """
    forward = net.module.forward
    error = ConfigError(
        f"{net.title}.forward gets further values of a batch ({', '.join(map(str, extras))}) beside"
        " the samples, and evaluations call it with the samples alone: they would judge another"
        " model. Compute these values in forward, or make them a part of the samples."
    )
    if set(extras) & {*signature(forward).parameters}:
        raise error

    @wraps(forward)
    def checked(*args: Any, **named: Any) -> Any:
        values = [value for value in (*args, *named.values()) if isinstance(value, Tensor)]
        # A module may compute its outputs from the labels too while it is trained.
        if not all(_is_same(value, batch.y) for value in values[1:]):
            raise error
        return forward(*args, **named)

    net.module.forward = checked


def _is_same(value: Tensor, other: Tensor) -> bool:
    """Return whether two tensors have the same shape and the same numbers."""
    return value.shape == other.shape and bool((value == other).all())


def _seeded(config: Config, federation: Federation) -> AbstractContextManager[None]:
    """Return a context with the random generators of the first step of client 0."""
    return seeded(Draw(config.seed, (0,), federation.clients).module_seed(0))


def _on_a_copy(
    net: LightningNet,
    phase: Phase,
    config: Config,
    federation: Federation,
    rows: Indices,
    log: Log,
) -> tuple[OwnModule, Batch]:
    """Return the module around a copy of the net, and a few samples; see `_try_phase`."""
    dtype = dtype_of(config.engine)
    try:
        net = deepcopy(net).to(dtype)
    except Exception as error:
        raise ConfigError(
            f"{net.title} cannot be copied: {type(error).__name__}: {error}. Each client begins"
            " with a copy of its attributes: make such an object in on_train_start."
        ) from error
    leaves = net_leaves(net.requires_grad_(False))
    start = {name: leaf.detach().clone() for name, leaf in leaves.items()}
    factor = config.train.schedule.factor(config.train.rounds - 1, config.train.rounds)
    counts = None
    if federation.output is not None:
        counts = torch.bincount(federation.y[torch.from_numpy(rows)], minlength=federation.classes)
        counts = counts.to(dtype)
    now = Round(0, config.train.rounds, len(rows), counts)
    pack = partial(federation.packed, dtype=dtype)
    module = OwnModule(
        net,
        phase,
        leaves,
        start,
        {},
        now=now,
        factor=factor,
        log=log,
        pack=pack,
    )
    taken = len(arrange(rows, config.train, skip_single=False))
    module.batches_per_epoch = max(1, -(-taken // config.train.batch_size))
    rows = rows[:TRIED]
    module.rows = lambda: rows
    x, y = federation.inputs(rows, dtype), federation.y[torch.from_numpy(rows)]
    y = y.to(dtype) if y.is_floating_point() else y
    ones, key = torch.ones(len(y), dtype=torch.bool), torch.arange(len(y))
    module.train()
    return module, Batch(x, y, ones, key, torch.tensor(0))
