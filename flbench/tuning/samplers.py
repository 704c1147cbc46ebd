"""Samplers propose the parameters of trials.

A sampler has no state: its proposals depend only on the seed and on the history. A resumed search
therefore proposes the same trials as an uninterrupted one. Trial 0 always has the default
hyper-parameters.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from hashlib import sha256
from itertools import islice
from typing import Final, Literal, Protocol

from flbench.core.errors import ConfigError
from flbench.core.rng import generator
from flbench.tuning.search_space import Params, Scalar, Space

COUNTED: Final = 20_000  # an error message counts the combinations of a grid up to this number


@dataclass(frozen=True)
class Observation:
    """Result of a trial.

    Attributes:
        params: Parameters of the trial by dotted key.
        state: How the trial ended; `stopped` means stopped by the scheduler.
        score: Score of the last evaluated round (larger is better); None without an evaluation.
        round: Number of rounds that the trial has done.
    """

    params: Mapping[str, Scalar]
    state: Literal["finished", "stopped", "diverged", "failed"]
    score: float | None = None
    round: int = 0


class Sampler(Protocol):
    """Proposes the trials of one method, in order."""

    def propose(self, history: Sequence[Observation], count: int) -> list[Params]:
        """Return the parameters of the next `count` trials.

        Args:
            history: Results of trials 0, 1, ..., in the order of their index.
            count: Number of trials, at least 1, and at most `batch` if that is not None.
        """
        ...

    def batch(self, concurrent: int) -> int | None:
        """Return the number of trials that are proposed at once, after all earlier ones have ended.

        Proposals depend on this number. None if the sampler does not use the history, so that any
        number of trials can be proposed at any time.

        Args:
            concurrent: Number of trials that run at the same time.
        """
        ...


@dataclass
class RandomSampler:
    """Draws each trial independently, from the seed, the method's name and the trial's index.

    Attributes:
        space: Search space of the method.
        defaults: Parameters of trial 0.
        seed: Seed of the search.
    """

    space: Space
    defaults: Params
    seed: int

    def propose(self, history: Sequence[Observation], count: int) -> list[Params]:
        return [self.trial(index) for index in range(len(history), len(history) + count)]

    def batch(self, concurrent: int) -> int | None:
        return None

    def trial(self, index: int) -> Params:
        """Return the parameters of one trial."""
        if index == 0:
            return dict(self.defaults)
        import optuna

        optuna.logging.set_verbosity(optuna.logging.WARNING)
        stream = generator(self.seed, "search", number(self.space.method), index)
        drawn = optuna.samplers.RandomSampler(seed=int(stream.integers(2**31)))
        return self.space.suggest(optuna.create_study(sampler=drawn).ask())


class GridSampler(RandomSampler):
    """Proposes every combination of the space's grid values, in order, after the default trial.

    All methods have the same budget: if the grid has fewer combinations than there are trials, the
    other trials are drawn at random.

    Args:
        space: Search space of the method.
        defaults: Parameters of trial 0.
        seed: Seed of the search.
        trials: Number of trials, with the default trial.

    Raises:
        ConfigError: The grid has more combinations than there are trials.
    """

    def __init__(self, space: Space, defaults: Params, seed: int, trials: int) -> None:
        super().__init__(space, defaults, seed)
        others = (params for params in space.grid() if params != defaults)
        self.grid = list(islice(others, trials))
        if len(self.grid) >= trials:
            count = trials + sum(1 for _ in islice(others, COUNTED))
            more = "at least " if count >= trials + COUNTED else ""
            sizes = ", ".join(f"{p} {len(kind.grid())}" for p, kind in space.parameters.items())
            raise ConfigError(
                f"the grid of `{space.method}` ({space.source}) has {more}{count:,} combinations"
                f" besides the defaults, and `trials` is {trials}: it needs"
                f" {more}{count + 1:,}. Values of each: {sizes}. Set a key yourself,"
                " which takes it out of the search, or use `search=random`."
            )

    def trial(self, index: int) -> Params:
        """Return the parameters of one trial."""
        if 1 <= index <= len(self.grid):
            return dict(self.grid[index - 1])
        return super().trial(index)


def number(name: str) -> int:
    """Return a 64-bit hash of a name that is the same in every process and version of Python."""
    return int.from_bytes(sha256(name.encode()).digest()[:8], "big")
