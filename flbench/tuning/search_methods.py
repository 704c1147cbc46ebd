"""Search methods by name."""

from typing import Final, get_args

from flbench.core.errors import ConfigError, did_you_mean
from flbench.tuning.request import Search
from flbench.tuning.samplers import GridSampler, RandomSampler, Sampler
from flbench.tuning.search_space import Params, Space
from flbench.tuning.tpe import OptunaSampler

NAMES: Final = get_args(Search)


def sampler(name: str, space: Space, defaults: Params, *, seed: int, trials: int) -> Sampler:
    """Return the sampler of a search method for one federated learning method.

    Args:
        name: Name of the search method: random, grid or optuna.
        space: Search space.
        defaults: Parameters of trial 0, from `Space.defaults`.
        seed: Seed of the search.
        trials: Number of trials, with the default trial.

    Raises:
        ConfigError: There is no such search method, a grid has more combinations than there are
            trials, or Optuna is not installed.
    """
    if name == "random":
        return RandomSampler(space, defaults, seed)
    if name == "grid":
        return GridSampler(space, defaults, seed, trials)
    if name == "optuna":
        return OptunaSampler(space, defaults, seed, trials)
    raise ConfigError(
        f"`search` must be one of {', '.join(NAMES)}, got {name}.{did_you_mean(name, NAMES)}"
    )
