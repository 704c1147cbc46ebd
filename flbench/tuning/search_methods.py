"""The search methods by name."""

from typing import Final

from flbench.core.errors import ConfigError, did_you_mean
from flbench.tuning.parameters import Params
from flbench.tuning.samplers import GridSampler, RandomSampler, Sampler
from flbench.tuning.space import Space
from flbench.tuning.tpe import OptunaSampler

NAMES: Final = ("random", "grid", "optuna")


def sampler(name: str, space: Space, defaults: Params, *, seed: int, trials: int) -> Sampler:
    """Return the sampler of this name for one method.

    Args:
        name: random, grid or optuna.
        space: what is searched.
        defaults: parameters of trial 0 (`Space.defaults`).
        seed: of the search.
        trials: the budget, the default trial counted.

    Raises: ConfigError if there is none, if a grid does not fit, or if Optuna is not installed.
    """
    if name == "random":
        return RandomSampler(space, defaults, seed)
    if name == "grid":
        return GridSampler(space, defaults, seed, trials)
    if name == "optuna":
        return OptunaSampler(space, defaults, seed, trials)
    raise ConfigError(
        f"--search {name}: there is no such search.{did_you_mean(name, NAMES)} Known:"
        f" {', '.join(NAMES)}."
    )
