"""Balanced classes and the names of rare-class metrics, for modules that must not load PyTorch."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Final

NAMES: Final = ("rare_recall", "rare_f1")
"""Metrics that mean little for balanced classes; see `flbench.metrics.classes.are_balanced`."""
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


def has_rare(classes: Iterable[Mapping[str, str]]) -> bool:
    """Return whether per_class.csv marks rare classes of a data set that is not balanced.

    Args:
        classes: Its rows by column. Without any for the last round, True is returned.
    """
    lines = [line for line in classes if line["moment"] == "last"]
    if not lines:
        return True
    marked = any(line["rare"] == "1" for line in lines)
    return marked and not are_balanced([int(line["train_support"]) for line in lines])
