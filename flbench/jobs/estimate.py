"""Seconds and memory of many trainings, estimated before the first of them."""

import time
from collections.abc import Callable, Hashable, Iterable
from dataclasses import dataclass
from statistics import fmean
from typing import Generic, TypeVar

from flbench.config.schema import Config
from flbench.core.errors import MethodError, RunError
from flbench.data.federation import Federation
from flbench.experiment import shared_engine
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
    """Estimate the cost of trainings from a few steps of each.

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
            found = shared_engine.estimated(config, samples())
        except (RunError, MethodError):  # a method that fails is no reason to refuse the others
            continue
        seconds[key] = START + found.total
        memory = max(memory, found.memory)
    return Measured(seconds, memory)


def assumed(names: Iterable[str], measured: Iterable[str]) -> list[str]:
    """Return a sentence about the methods that were not measured, if there are any."""
    known = set(measured)
    guessed = [name for name in names if name not in known]
    return [f"cost: {', '.join(guessed)} not measured; the mean is assumed."] if guessed else []
