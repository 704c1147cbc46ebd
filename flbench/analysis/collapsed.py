"""Runs that lie far below the other repetitions of their method."""

from collections.abc import Mapping
from statistics import median
from typing import Final

FEWEST: Final = 3  # of fewer repetitions, none tells which of them is the unusual one
DEVIATIONS: Final = 5
"""Standard deviations below what the other runs let expect, from which a run has collapsed."""
SHARE: Final = 0.2  # and by which share of the method's median
NORMAL: Final = 1.4826  # standard deviation of a normal distribution over its median deviation


def collapsed(values: Mapping[str, Mapping[int, float]]) -> list[tuple[str, int]]:
    """Return the runs of a place that have collapsed.

    Expected of a run is the median of its method, plus what the repetition changes for the other
    methods in the median, because some partitions are more difficult than others. A run has
    collapsed if it is below that by five standard deviations, and by a fifth of the median. The
    deviation is estimated from the median of the absolute differences, which collapsed runs do not
    change: of all runs of the place, or of those of the method if these vary more.

    Args:
        values: Values of a metric by method and repetition.

    Returns:
        Methods and repetitions, in the order of `values`.

    >>> collapsed({"a": {0: 0.80, 1: 0.82, 2: 0.10}, "b": {0: 0.71, 1: 0.70, 2: 0.72}})
    [('a', 2)]
    >>> collapsed({"a": {0: 0.80, 1: 0.82, 2: 0.40}, "b": {0: 0.71, 1: 0.70, 2: 0.30}})
    []
    """
    middle = {method: median(mine.values()) for method, mine in values.items()}
    gaps = {
        (method, k): value - middle[method]
        for method, mine in values.items()
        for k, value in mine.items()
        if len(mine) >= FEWEST
    }
    excess = {}
    for (method, k), gap in gaps.items():
        others = [other for (name, number), other in gaps.items() if number == k and name != method]
        excess[method, k] = gap - (median(others) if others else 0.0)
    if not excess:
        return []
    common = NORMAL * median(map(abs, excess.values()))
    found = []
    for (method, k), value in excess.items():
        own = NORMAL * median(abs(one) for (name, _), one in excess.items() if name == method)
        limit = max(DEVIATIONS * max(common, own), SHARE * abs(middle[method]))
        if value < 0 and -value > limit:
            found.append((method, k))
    return found
