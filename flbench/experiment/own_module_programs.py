"""The training step of a user's LightningModule, in the local loss of a method.

The loss that `training_step` returns takes the place of a method's cross entropy, and the method's
other terms are added to it. Terms on features and logits read the inputs and outputs of the head in
the forward pass of `training_step`, and Statistics those of the module's `forward`. Methods that
need something else, such as an optimizer of their own, are refused with the reasons. They are found
in the method's programs, so this holds for methods of other packages too.
"""

import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from functools import wraps
from inspect import signature
from typing import Any

import torch
from torch import Tensor, nn

from flbench.algorithms.base import Algorithm
from flbench.algorithms.setting import Setting
from flbench.client.forward import name_in_net
from flbench.client.program import CrossEntropyTerm, LocalProgram, LossTerm, Phase, Statistic, Step
from flbench.config.schema import OptimizerConfig, ScheduleConfig, TrainConfig
from flbench.core.errors import ConfigError
from flbench.core.types import State
from flbench.experiment.rounds import programs, visible_to_server
from flbench.losses import CrossEntropy, TaskLoss
from flbench.models.base import NetSpec
from flbench.models.lightning_net import LightningNet


def check_keys(train: TrainConfig) -> None:
    """Raise a ConfigError for keys that a module with its own training step excludes."""
    for key, is_set, instead in (
        ("train.optimizer", train.optimizer != OptimizerConfig(), "configure_optimizers"),
        ("train.terms", bool(train.terms), "training_step"),
    ):
        if is_set:
            raise ConfigError(
                f"`{key}` is set, but with `model.lightning` the module's {instead} takes its"
                " place. Leave it out."
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
    terms: tuple[LossTerm, ...] = tuple(
        TaskLoss(term.weight) if type(term) is CrossEntropy else term for term in step.terms
    )
    # A method may set an optimizer that has the same values as the one of `train`.
    return replace(step, terms=terms, by_module=step.optimizer is optimizer)


def check_method(
    algorithm: Algorithm, start: State, net: nn.Module, *, has_classes: bool = True
) -> None:
    """Raise a ConfigError if a method needs something that the module does not give.

    A function of a Statistic that reads labels alone says so by its attribute `of_labels`.

    Args:
        algorithm: The method, with the module's loss.
        start: State before the first round.
        net: The user's module as a net.
        has_classes: Whether the data have classes, which a method may need.
    """
    assert isinstance(net, LightningNet)
    first = algorithm.local_program(replace(start, clients={}))
    deployments = algorithm.deployed(visible_to_server(start, first), torch.tensor([0])).values()
    reasons: list[str] = []
    readers: list[str] = []
    for _, program in programs(algorithm, start):
        for step in program.steps:
            if isinstance(step, Phase):
                readers += _readers(step)
                reasons += _of_phase(step, algorithm.setting.net, algorithm.setting.train.optimizer)
            elif isinstance(step, Statistic):
                of_labels = has_classes and getattr(step.fn, "of_labels", False)
                readers += [] if of_labels else [_name(step.fn)]
    readers += [_name(model.predict) for model in deployments if model.predict is not None]
    if readers and not has_classes:
        what = _listed(readers)
        reasons.append(f"it needs classes, and the data have other targets ({what})")
    elif readers and net.no_features is not None:
        reasons.append(f"it reads features and logits ({_listed(readers)}), and {net.no_features}")
    if reasons:
        raise ConfigError(
            f"`algorithm.name={algorithm.name}` cannot train {net.title} by its own training step:"
            f" {'; '.join(dict.fromkeys(reasons))}. Take another method, such as fedavg, fedprox or"
            " ditto, or train the module as a net: leave `model.lightning` out (fl.run)."
        )


def _readers(phase: Phase) -> Iterator[str]:
    """Yield the names of what reads features or logits in a phase."""
    for term in phase.terms:
        if not isinstance(term, TaskLoss) and not getattr(term, "of_parameters", False):
            yield _name(term)
    yield from (_name(statistic.fn) for statistic in phase.record)


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
        trained = [name for name in sorted(phase.train) if name_in_net(name, buffers) is None]
        found = [name_in_net(name, own) for name in trained]
        if None in found or len(set(found)) < len(found):
            yield "it trains tensors that are not parameters of the module"


def _listed(names: Iterable[str]) -> str:
    """Return names without repetitions, as text."""
    return ", ".join(dict.fromkeys(names))


def _name(thing: object) -> str:
    """Return the name of a function, or of the class of an object that is called."""
    return str(getattr(thing, "__name__", type(thing).__name__))


def recorded(net: nn.Module, train: TrainConfig) -> dict[str, Any]:
    """Return the `optimizer` (class and arguments) and the `hyperparameters` of a module.

    Raises:
        ConfigError: The module has a scheduler, and there is one of the rounds as well.
    """
    assert isinstance(net, LightningNet)
    if "schedulers" in net.optimizer and train.schedule != ScheduleConfig():
        raise ConfigError(
            f"{net.title} has a scheduler of its own, and `train.schedule` changes the learning"
            " rate by round as well. Use one of them."
        )
    module: Any = net.module
    about = {"optimizer": net.optimizer} if net.optimizer else {}
    if about and getattr(module, "_log_hyperparams", False) and module.hparams_initial:
        saved = json.dumps(dict(module.hparams_initial), default=str)
        about["hyperparameters"] = json.loads(saved)
    return about


def refuse_further_values(net: nn.Module, extras: Sequence[str | int]) -> None:
    """Let a net refuse calls of `forward` with further values of the batch, such as a mask.

    Evaluations call `forward` with the samples alone.

    Raises:
        ConfigError: An argument of `forward` has the name of one of the values.
    """
    assert isinstance(net, LightningNet)
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
        y = net.labels  # a module may compute its outputs from them too while it is trained
        if not all(x.shape == y.shape and bool((x == y).all()) for x in values[1:]):
            raise error
        return forward(*args, **named)

    net.module.forward = checked
