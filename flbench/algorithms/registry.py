"""The registry of methods: a mapping from the name of a method to its class."""

from flbench.core.registry import ALGORITHMS

__all__ = ["ALGORITHMS"]
