"""What a search tries next. A sampler remembers nothing: all follows from the seed and the history.

So a resumed search proposes what a straight one would have proposed, and trial 0 is always the
default hyper-parameters.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from hashlib import sha256
from itertools import islice
from typing import Final, Literal, Protocol

from flbench.core.errors import ConfigError
from flbench.core.rng import generator
from flbench.tuning.parameters import Params, Scalar
from flbench.tuning.space import Space

COUNTED: Final = 20_000  # larger grids are not counted to the end


@dataclass(frozen=True)
class Observation:
    """What came of a trial.

    Attributes:
        params: what it was given.
        state: how it ended; `stopped` is by the scheduler.
        score: of its last evaluated round, larger is better; None if none was evaluated.
        round: rounds done.
    """

    params: Mapping[str, Scalar]
    state: Literal["finished", "stopped", "diverged", "failed"]
    score: float | None = None
    round: int = 0


class Sampler(Protocol):
    """Proposes the trials of one method, in order."""

    def propose(self, history: Sequence[Observation], count: int) -> list[Params]:
        """Return the parameters of the `count` trials that follow those of the history.

        Args:
            history: trials 0, 1, ... in order of their index, all of them ended.
            count: >= 1; where `batch` says a number, at most that.
        """
        ...

    def batch(self, concurrent: int) -> int | None:
        """Return how many trials are proposed at once, after all before them have ended.

        None: the history does not matter, and any number may be proposed at any time. Trials
        proposed in batches of another size may be other ones.
        """
        ...


@dataclass
class RandomSampler:
    """Independent draws: trial i follows from the seed, the method's name and i.

    Each parameter has a stream of its own, so that one more or less in the space leaves the others
    as they are.
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
        key = number(self.space.method), index
        return self.space.assign(
            lambda path, parameter: parameter.at(
                float(generator(self.seed, "search", *key, number(path)).random())
            )
        )


class GridSampler(RandomSampler):
    """Every combination of the space's grid values, in order, after the default trial.

    What the grid leaves of the trials is drawn at random: all methods have the same budget.

    Raises: ConfigError if the grid is larger than the budget.
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
                f" besides the defaults, and --trials is {trials}: it needs {more}{count + 1:,}."
                f" Values of each: {sizes}. Lower `points` in the space, or settle a key on the"
                " command line (KEY=VALUE), or take --search random."
            )

    def trial(self, index: int) -> Params:
        """Return the parameters of one trial."""
        if 1 <= index <= len(self.grid):
            return dict(self.grid[index - 1])
        return super().trial(index)


def number(name: str) -> int:
    """Return a whole number for a name, the same in every process and version."""
    return int.from_bytes(sha256(name.encode()).digest()[:8], "big")
