"""Methods. Each is one file of pure hooks that reads in the order of its paper."""

from flbench.algorithms.base import Algorithm, Deployment, Paper, Setting, Wire
from flbench.algorithms.registry import ALGORITHMS

__all__ = ["ALGORITHMS", "Algorithm", "Deployment", "Paper", "Setting", "Wire"]
