"""The explore step of population based training (Jaderberg et al., 2017), inside the space."""

from typing import Final

import numpy as np

from flbench.search.parameters import Parameter, Params, Scalar
from flbench.search.ranges import Int, QUniform, Range
from flbench.search.space import Space

DOWN, UP = 0.8, 1.2  # the paper's
ANEW: Final = 0.25  # share of parameters that are drawn again instead: keeps choices moving


def perturbed(space: Space, params: Params, draws: np.random.Generator) -> Params:
    """Return parameters near those of a better trial, none outside its range.

    A number is multiplied by 0.8 or 1.2, a whole one or a multiple moves by a step at least; a
    quarter of all parameters is drawn again, and so are those that were not active or had a value
    outside the space. A choice otherwise stays.
    """

    def pick(path: str, parameter: Parameter) -> Scalar:
        anew, quantile, side = map(float, draws.random(3))
        value = params.get(path)
        if anew < ANEW or path not in params or not parameter.holds(value):
            return parameter.at(quantile)
        if not isinstance(parameter, Range) or not isinstance(value, int | float):
            return value
        up = side < 0.5
        moved = parameter.nearest(value * (UP if up else DOWN))
        if moved == value and isinstance(parameter, Int | QUniform):
            step = 1 if isinstance(parameter, Int) else parameter.ends[2]
            moved = parameter.nearest(value + (step if up else -step))
        return moved

    return space.assign(pick)
