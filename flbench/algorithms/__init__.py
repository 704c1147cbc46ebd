"""Methods of personalized federated learning, one file each, and what is needed to write one.

A method is a subclass of `Algorithm`, registered under a name. `flbench.algorithms.base` documents
its hooks. The methods of flbench import the names below from this package, loss terms from
`flbench.losses`, and code that two or more methods use from `flbench.algorithms.shared`.

>>> from flbench.algorithms import ALGORITHMS
>>> ALGORITHMS.find("fedprox").paper.venue
'MLSys 2020'
"""

from flbench.algorithms.base import (
    Algorithm,
    Communication,
    Deployment,
    Joining,
    Paper,
)
from flbench.algorithms.setting import (
    ADAPTERS,
    BODY,
    KNOWN_RATE,
    LINEAR_HEAD,
    MOST_SHOWN,
    PAIRS,
    PAIRS_OF_COHORT,
    PLAIN_SGD,
    Need,
    Setting,
)
from flbench.client.program import (
    GradFn,
    LocalProgram,
    LossTerm,
    Phase,
    Reduce,
    Statistic,
    Step,
    Term,
    Transform,
    bind,
)
from flbench.config.schema import (
    AlgorithmConfig,
    OptimizerConfig,
    TrainConfig,
    UniformConfig,
    epochs,
)
from flbench.core.learned import Learned, LearnedPoints, LearnedTable
from flbench.core.registry import ALGORITHMS
from flbench.core.rng import Draw, generator, torch_seed, uniform
from flbench.core.storage import memory_of_machine
from flbench.core.tree import (
    largest,
    nbytes,
    only,
    put_,
    repeat,
    smallest_index,
    take,
    weighted_mean,
)
from flbench.core.types import (
    Batch,
    Context,
    Dispatch,
    Info,
    Message,
    Outputs,
    Results,
    Samples,
    Stage,
    State,
    Tree,
    Update,
)
from flbench.models.base import LayerSpec, NetSpec

__all__ = [
    "ADAPTERS",
    "ALGORITHMS",
    "BODY",
    "KNOWN_RATE",
    "LINEAR_HEAD",
    "MOST_SHOWN",
    "PAIRS",
    "PAIRS_OF_COHORT",
    "PLAIN_SGD",
    "Algorithm",
    "AlgorithmConfig",
    "Batch",
    "Communication",
    "Context",
    "Deployment",
    "Dispatch",
    "Draw",
    "GradFn",
    "Info",
    "Joining",
    "LayerSpec",
    "Learned",
    "LearnedPoints",
    "LearnedTable",
    "LocalProgram",
    "LossTerm",
    "Message",
    "Need",
    "NetSpec",
    "OptimizerConfig",
    "Outputs",
    "Paper",
    "Phase",
    "Reduce",
    "Results",
    "Samples",
    "Setting",
    "Stage",
    "State",
    "Statistic",
    "Step",
    "Term",
    "TrainConfig",
    "Transform",
    "Tree",
    "UniformConfig",
    "Update",
    "bind",
    "epochs",
    "generator",
    "largest",
    "memory_of_machine",
    "nbytes",
    "only",
    "put_",
    "repeat",
    "smallest_index",
    "take",
    "torch_seed",
    "uniform",
    "weighted_mean",
]
