"""Names of the metrics of `flbench.metrics.probabilities`, for modules that load no PyTorch."""

from typing import Final

NAMES: Final = ("auroc_macro", "ece", "nll", "brier")
NAMES_WITH_MEANS: Final = tuple(name for key in NAMES for name in (key, f"{key}_mean"))
"""Metrics of a run with `evaluation.probabilities`: over all samples, and as means over clients."""
LESS_IS_BETTER: Final = tuple(name for name in NAMES_WITH_MEANS if not name.startswith("auroc"))
