"""Methods of personalized federated learning, one file each, and what is needed to write one.

A method is a subclass of `Algorithm`, registered under a name. `flbench.algorithms.base` documents
its hooks. The methods of flbench import the names below from this package, loss terms from
`flbench.losses`, and code that two or more methods use from `flbench.algorithms.shared`.

>>> from flbench.algorithms import ALGORITHMS
>>> ALGORITHMS.find("fedprox").paper.venue
'MLSys 2020'
"""

from flbench.algorithms.base import Algorithm as Algorithm
from flbench.algorithms.base import Communication as Communication
from flbench.algorithms.base import Deployment as Deployment
from flbench.algorithms.base import Joining as Joining
from flbench.algorithms.base import Paper as Paper
from flbench.algorithms.setting import ADAPTERS as ADAPTERS
from flbench.algorithms.setting import BODY as BODY
from flbench.algorithms.setting import KNOWN_RATE as KNOWN_RATE
from flbench.algorithms.setting import LINEAR_HEAD as LINEAR_HEAD
from flbench.algorithms.setting import MOST_SHOWN as MOST_SHOWN
from flbench.algorithms.setting import PAIRS as PAIRS
from flbench.algorithms.setting import PAIRS_OF_COHORT as PAIRS_OF_COHORT
from flbench.algorithms.setting import PLAIN_SGD as PLAIN_SGD
from flbench.algorithms.setting import LinearHead as LinearHead
from flbench.algorithms.setting import Need as Need
from flbench.algorithms.setting import Setting as Setting
from flbench.client.program import GradFn as GradFn
from flbench.client.program import LocalProgram as LocalProgram
from flbench.client.program import LossTerm as LossTerm
from flbench.client.program import Phase as Phase
from flbench.client.program import Reduce as Reduce
from flbench.client.program import Statistic as Statistic
from flbench.client.program import Step as Step
from flbench.client.program import Term as Term
from flbench.client.program import Transform as Transform
from flbench.client.program import bind as bind
from flbench.config.schema import AlgorithmConfig as AlgorithmConfig
from flbench.config.schema import OptimizerConfig as OptimizerConfig
from flbench.config.schema import TrainConfig as TrainConfig
from flbench.config.schema import UniformConfig as UniformConfig
from flbench.config.schema import epochs as epochs
from flbench.core.learned import LearnedTable as LearnedTable
from flbench.core.registry import ALGORITHMS as ALGORITHMS
from flbench.core.rng import Draw as Draw
from flbench.core.rng import generator as generator
from flbench.core.rng import uniform as uniform
from flbench.core.storage import memory_of_machine as memory_of_machine
from flbench.core.tree import largest as largest
from flbench.core.tree import nbytes as nbytes
from flbench.core.tree import only as only
from flbench.core.tree import put_ as put_
from flbench.core.tree import repeat as repeat
from flbench.core.tree import smallest_index as smallest_index
from flbench.core.tree import take as take
from flbench.core.tree import weighted_mean as weighted_mean
from flbench.core.types import Batch as Batch
from flbench.core.types import Context as Context
from flbench.core.types import Dispatch as Dispatch
from flbench.core.types import Info as Info
from flbench.core.types import Message as Message
from flbench.core.types import Outputs as Outputs
from flbench.core.types import Results as Results
from flbench.core.types import Samples as Samples
from flbench.core.types import Stage as Stage
from flbench.core.types import State as State
from flbench.core.types import Tree as Tree
from flbench.core.types import Update as Update
from flbench.models.base import LayerSpec as LayerSpec
from flbench.models.base import NetSpec as NetSpec
