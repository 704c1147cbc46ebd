"""The explore step of population based training (Jaderberg et al., 2017), inside the space."""

from typing import Final

import numpy as np

from flbench.tuning.parameters import Params, Uniform
from flbench.tuning.space import Space

DOWN, UP = 0.8, 1.2  # the paper's
ANEW: Final = 0.25  # share of the numbers that are drawn again instead


def perturbed(space: Space, params: Params, draws: np.random.Generator) -> Params:
    """Return parameters near those of a better trial, none outside its range.

    A number of a continuous range is multiplied by 0.8 or 1.2; a quarter is drawn again, and so are
    those that had a value outside the range. Deviation: whole numbers and choices stay, since the
    state that is taken up was made with them (a number of groups, a topology).
    """
    found = dict(params)
    for path, value in params.items():
        parameter = space.parameters.get(path)
        if not isinstance(parameter, Uniform):
            continue
        anew, quantile, side = map(float, draws.random(3))
        if anew < ANEW or not isinstance(value, int | float) or not parameter.holds(value):
            found[path] = parameter.at(quantile)
        else:
            found[path] = parameter.nearest(value * (UP if side < 0.5 else DOWN))
    return found
