"""The registry of nets, imported by the modules that register."""

from flbench.core.registry import MODELS

__all__ = ["MODELS"]
