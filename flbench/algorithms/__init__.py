"""Methods. Each is one file of pure hooks that reads in the order of its paper."""

from flbench.algorithms.base import Algorithm, Communication, Deployment, Paper, Setting
from flbench.algorithms.registry import ALGORITHMS

__all__ = ["ALGORITHMS", "Algorithm", "Communication", "Deployment", "Paper", "Setting"]
