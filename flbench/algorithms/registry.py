"""The methods by name."""

from flbench.core.registry import ALGORITHMS

__all__ = ["ALGORITHMS"]
