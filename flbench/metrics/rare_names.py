"""Balanced classes and the names of rare-class metrics, for modules that must not load PyTorch."""

from collections.abc import Sequence
from typing import Final

NAMES: Final = ("rare_recall", "rare_precision", "rare_f1")
"""Metrics of the rare classes, which a run without rare classes does not have."""
BALANCED: Final = 1.5  # largest imbalance ratio of a balanced set, as in the data sets of KEEL


def are_balanced(counts: Sequence[int]) -> bool:
    """Return whether classes are about equally frequent.

    They are if the most frequent class has at most 1.5 times as many samples as the least frequent
    one. Then the rules for rare classes pick classes that are not rare in the sense of the word.

    Args:
        counts: Training samples by class, over all clients.

    >>> are_balanced([100, 120, 150]), are_balanced([100, 120, 151])
    (True, False)
    """
    return max(counts) <= BALANCED * min(counts)
