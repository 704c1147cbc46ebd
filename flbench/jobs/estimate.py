"""Seconds and memory of many trainings, estimated before the first of them."""

import time
from collections.abc import Callable, Hashable, Iterable
from contextlib import closing
from dataclasses import dataclass
from statistics import fmean
from typing import Generic, TypeVar

from flbench.config.schema import Config
from flbench.core.errors import MethodError, RunError
from flbench.data.federation import Federation
from flbench.experiment import assembly, estimate, own_methods
from flbench.experiment.engines import on_this_machine
from flbench.experiment.estimate import MEASURING, START

Key = TypeVar("Key", bound=Hashable)


@dataclass(frozen=True)
class Measured(Generic[Key]):
    """Estimated costs of trainings.

    Attributes:
        seconds: Seconds of a training by its key, of those that were measured.
        memory: Bytes of the process of one training, the largest of those that were measured.
    """

    seconds: dict[Key, float]
    memory: int

    @property
    def mean(self) -> float:
        """Mean of the seconds; those of an empty training if none was measured."""
        return fmean(self.seconds.values()) if self.seconds else START


def measure(cases: Iterable[tuple[Key, Config, Callable[[], Federation]]]) -> Measured[Key]:
    """Estimate the cost of trainings from a round of each.

    It takes about `MEASURING` seconds at most, and one training more. The state of PyTorch's random
    generators and its number of threads may change.

    Args:
        cases: Key and configuration of each training, and a function that returns its samples.
    """
    begin = time.monotonic()
    seconds: dict[Key, float] = {}
    memory = 0
    for key, config, samples in cases:
        if seconds and time.monotonic() - begin > MEASURING:
            break
        try:
            found = _estimated(config, samples())
        except (RunError, MethodError):  # a method that fails is no reason to refuse the others
            continue
        seconds[key] = START + found.total
        memory = max(memory, found.memory)
    return Measured(seconds, memory)


def _estimated(config: Config, federation: Federation) -> estimate.Estimate:
    """Estimate the cost of a training on this machine; the training may have a GPU of another."""
    built = assembly.build(config, federation, engine=on_this_machine(config.engine))
    with closing(built.engine), own_methods.named(config.algorithm):
        return estimate.measure(built)


def assumed(names: Iterable[str], measured: Iterable[str]) -> list[str]:
    """Return a sentence about the methods that were not measured, if there are any."""
    known = set(measured)
    guessed = [name for name in names if name not in known]
    return [f"cost: {', '.join(guessed)} not measured; the mean is assumed."] if guessed else []
