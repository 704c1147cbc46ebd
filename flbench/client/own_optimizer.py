"""The optimizer and the scheduler that a LightningModule of the user configures."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

from torch import Tensor
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler, ReduceLROnPlateau

from flbench.core.errors import ConfigError

FIELDS: Final = ("scheduler", "interval", "frequency")
"""Keys of a scheduler's dict that are read."""


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

    def advance(self, interval: str, number: int) -> None:
        """Advance the scheduler if it is due, as Lightning's Trainer does.

        Args:
            interval: What has ended: a `step` or an `epoch`.
            number: Number of the step within its epoch, or of the epoch, from 0.
        """
        if interval == self.interval and (number + 1) % self.frequency == 0:
            self.scheduler.step()


def parse(found: Any, title: str) -> tuple[Optimizer, tuple[Schedule, ...]]:
    """Return the optimizer and the scheduler, if there is one, of `configure_optimizers`.

    Args:
        found: What it returned.
        title: Name of the user's class, for messages.

    Raises:
        ConfigError: It is not one optimizer and at most one scheduler by step or epoch.
    """
    optimizers: Any
    schedulers: Any = []
    if isinstance(found, Mapping):
        optimizers, schedulers = [found.get("optimizer")], found.get("lr_scheduler") or []
    elif isinstance(found, list | tuple) and len(found) == 2 and isinstance(found[0], list):
        optimizers, schedulers = found
    else:
        optimizers = list(found) if isinstance(found, list | tuple) else [found]
    schedulers = list(schedulers) if isinstance(schedulers, list | tuple) else [schedulers]
    is_one = len(optimizers) == 1 and isinstance(optimizers[0], Optimizer)
    schedules = [
        Schedule(**{key: one[key] for key in FIELDS if key in one})
        if isinstance(one, Mapping)
        else Schedule(one)
        for one in schedulers
    ]
    if not is_one or len(schedules) > 1 or not all(map(_is_exact, schedules)):
        raise ConfigError(
            f"{title}.configure_optimizers returns {found!r}. A client trains by one optimizer, and"
            " by at most one scheduler of torch.optim.lr_scheduler, other than ReduceLROnPlateau,"
            " that advances by step or epoch: return an optimizer, ([optimizer], [scheduler]), or"
            " {'optimizer': ..., 'lr_scheduler': ...}."
        )
    return optimizers[0], tuple(schedules)


def _is_exact(schedule: Schedule) -> bool:
    """Return whether a schedule depends on the number of steps or epochs alone."""
    return (
        isinstance(schedule.scheduler, LRScheduler)
        and not isinstance(schedule.scheduler, ReduceLROnPlateau)
        and schedule.interval in ("step", "epoch")
    )


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
