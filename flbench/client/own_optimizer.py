"""The optimizer and the schedulers that a LightningModule of the user configures."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

import torch
from torch import Tensor
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler, ReduceLROnPlateau

from flbench.core.errors import ConfigError

RETURNS: Final = (
    "Return an optimizer, ([optimizer], [scheduler]), or {'optimizer': ..., 'lr_scheduler': ...}."
)


@dataclass(frozen=True)
class Schedule:
    """A scheduler of learning rates within a client's training.

    Attributes:
        scheduler: The scheduler.
        interval: `step` or `epoch`: what it advances after.
        frequency: Number of steps or epochs between two advances.
    """

    scheduler: LRScheduler
    interval: str = "epoch"
    frequency: int = 1

    def advance(self, interval: str, number: int, title: str) -> None:
        """Advance the scheduler if it is due, as Lightning's Trainer does.

        Args:
            interval: What has ended: a `step` or an `epoch`.
            number: Number of the step within its epoch, or of the epoch, from 0.
            title: Name of the user's class, for messages.

        Raises:
            ConfigError: The scheduler is at its end, or raised another exception.
        """
        if interval != self.interval or (number + 1) % self.frequency:
            return
        try:
            self.scheduler.step()
        except Exception as error:
            raise ConfigError(
                f"{title}.configure_optimizers: the scheduler {type(self.scheduler).__name__}"
                f" cannot be advanced after {interval} {number + 1}: {error}. A scheduler with a"
                " number of steps needs that of the client's training:"
                " self.trainer.estimated_stepping_batches."
            ) from error


def parse(found: Any, title: str) -> tuple[Optimizer, tuple[Schedule, ...]]:
    """Return the optimizer and the schedulers in what `configure_optimizers` returned.

    Args:
        found: What it returned.
        title: Name of the user's class, for messages.

    Raises:
        ConfigError: It is not one optimizer, or a scheduler cannot be advanced exactly.
    """
    optimizers, schedulers = _listed(found, title)
    what = f"{title}.configure_optimizers"
    if len(optimizers) != 1:
        raise ConfigError(
            f"{what} returns {len(optimizers)} optimizers. A client trains by one: give its"
            " parameter groups learning rates of their own instead."
        )
    optimizer = optimizers[0]
    if not isinstance(optimizer, Optimizer):
        raise ConfigError(f"{what} returns {type(optimizer).__name__}. {RETURNS}")
    if isinstance(optimizer, torch.optim.LBFGS):
        raise ConfigError(
            f"{what} returns LBFGS, which evaluates a batch several times. Take SGD, Adam or"
            " another optimizer of one gradient per step."
        )
    return optimizer, tuple(_schedule(one, what) for one in schedulers)


def retarget(optimizer: Optimizer, leaves: Mapping[Tensor, Tensor | None]) -> None:
    """Let an optimizer train other tensors in the place of its parameters.

    Args:
        optimizer: The optimizer; it has taken no step.
        leaves: What takes the place of each parameter; None, or no entry, removes it.
    """
    for group in optimizer.param_groups:
        taken = [(one, leaves.get(one)) for one in group["params"]]
        group["params"] = [leaf for _, leaf in taken if leaf is not None]
        for parameter, leaf in taken:
            # Some optimizers, such as Adagrad, have a state before their first step.
            state = optimizer.state.pop(parameter, None)
            if state is not None and leaf is not None:
                optimizer.state[leaf] = state


def _listed(found: Any, title: str) -> tuple[list[Any], list[Any]]:
    """Return the optimizers and the schedulers, in each form that Lightning accepts."""
    if isinstance(found, Optimizer):
        return [found], []
    if isinstance(found, Mapping):
        return [found.get("optimizer")], _of(found)
    if isinstance(found, list | tuple):
        if len(found) == 2 and isinstance(found[0], list):
            second = found[1]
            return found[0], list(second) if isinstance(second, list | tuple) else [second]
        if all(isinstance(one, Mapping) for one in found):
            schedulers = [scheduler for one in found for scheduler in _of(one)]
            return [one.get("optimizer") for one in found], schedulers
        return list(found), []
    raise ConfigError(f"{title}.configure_optimizers returns {type(found).__name__}. {RETURNS}")


def _of(found: Mapping[str, Any]) -> list[Any]:
    """Return the scheduler of a dict, if it has one."""
    scheduler = found.get("lr_scheduler")
    return [] if scheduler is None else [scheduler]


def _schedule(given: Any, what: str) -> Schedule:
    """Return the schedule of a scheduler, or of a dict with its interval and frequency."""
    options = dict(given) if isinstance(given, Mapping) else {"scheduler": given}
    scheduler = options.get("scheduler")
    if options.get("reduce_on_plateau") or isinstance(scheduler, ReduceLROnPlateau):
        raise ConfigError(
            f"{what} returns the scheduler ReduceLROnPlateau, which follows a metric of validation"
            " that a client does not compute while it trains. Take one that advances by step or"
            " epoch, or `train.schedule` for a learning rate by round."
        )
    if not isinstance(scheduler, LRScheduler):
        raise ConfigError(
            f"{what} returns the scheduler {type(scheduler).__name__}, which is none of"
            " torch.optim.lr_scheduler. Take one of those."
        )
    interval, frequency = options.get("interval", "epoch"), options.get("frequency", 1)
    if interval not in ("step", "epoch") or not isinstance(frequency, int) or frequency < 1:
        raise ConfigError(
            f"{what} returns a scheduler with interval={interval!r} and frequency={frequency!r}."
            " The interval is 'step' or 'epoch', the frequency a whole number of at least 1."
        )
    return Schedule(scheduler, interval, frequency)


def described(optimizer: Optimizer, schedules: Iterable[Schedule]) -> dict[str, Any]:
    """Return an optimizer's class and arguments, and the classes of its schedulers.

    Args:
        optimizer: The optimizer, before its first step.
        schedules: Its schedulers.

    Returns:
        `name`, the arguments that are numbers (`lr` as a list if groups of parameters differ) and,
        if there are some, `schedulers`.
    """
    groups = optimizer.param_groups
    rates = [float(group.get("initial_lr", group.get("lr", float("nan")))) for group in groups]
    arguments = {
        key: list(value) if isinstance(value, tuple) else value
        for key, value in groups[0].items()
        if key not in ("params", "initial_lr") and isinstance(value, int | float | tuple)
    }
    found = {"name": type(optimizer).__name__, **arguments}
    if "lr" in found:
        found["lr"] = rates[0] if len(set(rates)) == 1 else rates
    names = [type(one.scheduler).__name__ for one in schedules]
    return {**found, "schedulers": names} if names else found


def learning_rates(optimizer: Optimizer) -> Iterator[float]:
    """Yield the learning rate of each group of an optimizer's parameters."""
    for group in optimizer.param_groups:
        yield float(group.get("lr", float("nan")))
