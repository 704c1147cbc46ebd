"""Methods of personalized federated learning, one file each, and what is needed to write one.

A method is a subclass of `Algorithm`, registered under a name. `flbench.algorithms.base` documents
its hooks. The names below are what most methods need, `flbench.losses` has loss terms, and
`flbench.algorithms.shared` has code that two or more methods use.

>>> from flbench.algorithms import ALGORITHMS
>>> ALGORITHMS.find("fedprox").paper.venue
'MLSys 2020'
"""

from flbench.algorithms.base import Algorithm, Communication, Deployment, Paper, Setting
from flbench.algorithms.registry import ALGORITHMS
from flbench.client.program import LocalProgram, LossTerm, Phase, Statistic, Transform
from flbench.config.schema import AlgorithmConfig, UniformConfig
from flbench.core.tree import only, repeat, weighted_mean
from flbench.core.types import (
    Dispatch,
    Info,
    Message,
    Results,
    Stage,
    State,
    StepContext,
    Tree,
    Update,
)

__all__ = [
    "ALGORITHMS",
    "Algorithm",
    "AlgorithmConfig",
    "Communication",
    "Deployment",
    "Dispatch",
    "Info",
    "LocalProgram",
    "LossTerm",
    "Message",
    "Paper",
    "Phase",
    "Results",
    "Setting",
    "Stage",
    "State",
    "Statistic",
    "StepContext",
    "Transform",
    "Tree",
    "UniformConfig",
    "Update",
    "only",
    "repeat",
    "weighted_mean",
]
