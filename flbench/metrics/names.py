"""Names of metrics, and which classes are balanced, for modules that must not load PyTorch."""

from collections.abc import Sequence
from typing import Final

RARE: Final = ("rare_recall", "rare_precision", "rare_f1")
"""Metrics of the rare classes, which a run without rare classes does not have."""
RANKING: Final = ("auroc", "average_precision")
RANKING_WITH_MEANS: Final = tuple(name for key in RANKING for name in (key, f"{key}_mean"))
"""Metrics of a run on data with two classes: each over all samples, and as a mean over clients."""
PROBABILITY: Final = ("auroc_macro", "ece", "nll", "brier")
PROBABILITY_WITH_MEANS: Final = tuple(name for key in PROBABILITY for name in (key, f"{key}_mean"))
"""Metrics of a run with `evaluation.probabilities`: over all samples, and as means over clients."""
LESS_IS_BETTER: Final = tuple(
    name for name in PROBABILITY_WITH_MEANS if not name.startswith("auroc")
)
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
