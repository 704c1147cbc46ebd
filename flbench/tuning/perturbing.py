"""The explore step of population based training (Jaderberg et al., 2017)."""

from typing import Final

import numpy as np

from flbench.tuning.search_space import Params, Space

DOWN, UP = 0.8, 1.2  # factors of the paper
RESAMPLE_PROBABILITY: Final = 0.25  # a number is drawn from its range instead


def perturbed(space: Space, params: Params, draws: np.random.Generator) -> Params:
    """Return parameters near those of a better trial, within their ranges.

    A number of a continuous range is multiplied by 0.8 or 1.2. With probability 0.25, and whenever
    its value lies outside the range, it is drawn from the range again.

    Deviation from the paper: whole numbers and choices do not change, because the state that the
    trial loads was trained with them (a number of groups, a topology).

    Args:
        space: Search space of the method.
        params: Parameters of the better trial.
        draws: Generator of random numbers; three are drawn for each continuous parameter.
    """
    near = dict(params)
    for path, value in params.items():
        parameter = space.parameters.get(path)
        if parameter is None or parameter.choices or parameter.whole:
            continue
        resample, quantile, side = map(float, draws.random(3))
        if (
            resample < RESAMPLE_PROBABILITY
            or not isinstance(value, int | float)
            or not parameter.holds(value)
        ):
            near[path] = parameter.at(quantile)
        else:
            near[path] = min(
                max(value * (UP if side < 0.5 else DOWN), parameter.low), parameter.high
            )
    return near
