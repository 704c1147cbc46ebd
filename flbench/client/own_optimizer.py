"""The optimizer and the scheduler that a LightningModule of the user configures."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler, ReduceLROnPlateau

from flbench.core.errors import ConfigError


@dataclass(frozen=True)
class Schedule:
    """A scheduler of learning rates within a client's training.

    Attributes:
        scheduler: The scheduler.
        interval: `step` or `epoch`: what it advances after.
        frequency: Number of steps or epochs between two advances.
    """

    scheduler: Any = None
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

    def is_exact(self) -> bool:
        """Return whether learning rates depend on the number of steps or epochs alone."""
        kind = type(self.scheduler)
        is_scheduler = issubclass(kind, LRScheduler) and not issubclass(kind, ReduceLROnPlateau)
        return is_scheduler and self.interval in ("step", "epoch")


def parse(found: Any, title: str) -> tuple[Optimizer, tuple[Schedule, ...]]:
    """Return the optimizer and the scheduler, if there is one, of `configure_optimizers`.

    Args:
        found: What it returned.
        title: Name of the user's class, for messages.

    Raises:
        ConfigError: It is not one optimizer and at most one scheduler by step or epoch.
    """
    optimizers, schedulers = found, None
    match found:
        case Mapping():
            optimizers, schedulers = found.get("optimizer"), found.get("lr_scheduler")
        case [list(), _]:
            optimizers, schedulers = found
    several, schedules = _listed(optimizers), tuple(map(_schedule, _listed(schedulers)))
    if [isinstance(one, Optimizer) for one in several] != [True] or not (
        len(schedules) < 2 and all(one.is_exact() for one in schedules)
    ):
        raise ConfigError(
            f"{title}.configure_optimizers returns {found!r}. A client trains by one optimizer, and"
            " by at most one scheduler of torch.optim.lr_scheduler, other than ReduceLROnPlateau,"
            " that advances by step or epoch: return an optimizer, ([optimizer], [scheduler]), or"
            " {'optimizer': ..., 'lr_scheduler': ...}."
        )
    return several[0], schedules


def _listed(found: Any) -> list[Any]:
    """Return one thing, several ones or None as a list."""
    return [*found] if isinstance(found, list | tuple) else [found] * (found is not None)


def _schedule(found: Any) -> Schedule:
    """Return a scheduler, or the dict of one, as a Schedule."""
    if not isinstance(found, Mapping):
        return Schedule(found)
    keys = ("scheduler", "interval", "frequency")
    return Schedule(**{key: found[key] for key in keys if key in found})


def described(optimizer: Optimizer, schedules: tuple[Schedule, ...]) -> dict[str, Any]:
    """Return an optimizer's class and arguments, and the classes of its schedulers.

    `lr` is a list if groups of parameters differ in it.
    """
    groups = optimizer.param_groups
    arguments: dict[str, Any] = {
        key: [*value] if isinstance(value, tuple) else value
        for key, value in groups[0].items()
        if key not in ("params", "initial_lr") and isinstance(value, int | float | tuple)
    }
    rates = [group.get("initial_lr", group.get("lr")) for group in groups]
    if "lr" in arguments:
        arguments["lr"] = rates if len({*rates}) > 1 else rates[0]
    names = {"schedulers": [type(one.scheduler).__name__ for one in schedules]}
    return {"name": type(optimizer).__name__, **arguments, **(names if schedules else {})}
