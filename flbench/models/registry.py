"""The nets by name."""

from flbench.core.registry import MODELS

__all__ = ["MODELS"]
