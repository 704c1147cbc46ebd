"""Names of the metrics of `flbench.metrics.ranking`, for modules that must not load PyTorch."""

from typing import Final

NAMES: Final = ("auroc", "average_precision")
NAMES_WITH_MEANS: Final = tuple(name for key in NAMES for name in (key, f"{key}_mean"))
"""Metrics of a run on data with two classes: each over all samples, and as a mean over clients."""
