"""The methods by name."""

from flbench.algorithms.base import Algorithm
from flbench.registry import Registry

ALGORITHMS: Registry[type[Algorithm]] = Registry("method", "flbench.algorithms")
