"""Runs that lie far below the other repetitions of their method."""

from typing import Any, Final

import numpy as np
import pandas as pd

FEWEST: Final = 3  # of fewer repetitions, none tells which of them is the unusual one
DEVIATIONS: Final = 5
"""Standard deviations below what the other runs let expect, from which a run has collapsed."""
SHARE: Final = 0.2  # and by which share of the method's median
NORMAL: Final = 1.4826  # standard deviation of a normal distribution over its median deviation


def collapsed(values: pd.DataFrame) -> list[tuple[Any, Any]]:
    """Return the runs of a place that have collapsed.

    Expected of a run is the median of its method, plus what the repetition changes for the other
    methods in the median, because some partitions are more difficult than others. A run has
    collapsed if it is below that by five standard deviations, and by a fifth of the median, and
    below the median itself. The deviation is estimated from the median of the absolute differences,
    which collapsed runs do not change: of all runs of the place, or of those of the method if these
    vary more.

    Args:
        values: Values of a metric, repetitions x methods; NaN where a method lacks a repetition.

    Returns:
        Repetition and method of the runs, method by method.

    >>> collapsed(pd.DataFrame({"a": [0.80, 0.82, 0.10], "b": [0.71, 0.70, 0.72]}))
    [(2, 'a')]
    >>> collapsed(pd.DataFrame({"a": [0.80, 0.82, 0.40], "b": [0.71, 0.70, 0.30]}))
    []
    >>> collapsed(pd.DataFrame({"a": [0.0, 0.0, 0.0], "b": [0.5, 0.0, 0.0], "c": [0.5, 0.0, 0.0]}))
    []
    """
    gaps = (values - values.median()).loc[:, values.count() >= FEWEST]
    others = {name: gaps.drop(columns=name).median(axis=1).fillna(0.0) for name in gaps}
    excess = gaps - pd.DataFrame(others, index=gaps.index)
    own, common = excess.abs().median(), excess.abs().stack().median()
    deviation = NORMAL * np.maximum(own, common)
    limits = np.maximum(DEVIATIONS * deviation, SHARE * values.median()[gaps.columns].abs())
    is_below = (excess < -limits) & (gaps < 0)
    return [(k, name) for name in gaps for k in gaps.index[is_below[name]]]
