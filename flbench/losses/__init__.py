"""Loss terms: pure functions of a StepContext; the local loss is their weighted sum.

Axes: B samples of the batch, C classes, D features. Every term is 0-dim and works under
`torch.vmap`; rows where `batch.mask` is False contribute nothing.
"""

from flbench.losses.balanced_softmax import BalancedSoftmax
from flbench.losses.class_balanced import ClassBalanced
from flbench.losses.class_pull import ClassPull
from flbench.losses.cosine_cross_entropy import CosineCrossEntropy
from flbench.losses.cross_entropy import CrossEntropy, ScoresCrossEntropy
from flbench.losses.dynamic import Dynamic
from flbench.losses.focal import Focal
from flbench.losses.label_smoothing import LabelSmoothing
from flbench.losses.linear import Linear
from flbench.losses.logit_adjustment import LogitAdjustment
from flbench.losses.model_contrast import ModelContrast
from flbench.losses.prototype_contrast import PrototypeContrast
from flbench.losses.prototype_distillation import PrototypeDistillation
from flbench.losses.prototype_l2 import PrototypeL2
from flbench.losses.proximal import Proximal
from flbench.losses.semantic_kl import SemanticKL
from flbench.losses.task_loss import TaskLoss

__all__ = [
    "BalancedSoftmax",
    "ClassBalanced",
    "ClassPull",
    "CosineCrossEntropy",
    "CrossEntropy",
    "Dynamic",
    "Focal",
    "LabelSmoothing",
    "Linear",
    "LogitAdjustment",
    "ModelContrast",
    "PrototypeContrast",
    "PrototypeDistillation",
    "PrototypeL2",
    "Proximal",
    "ScoresCrossEntropy",
    "SemanticKL",
    "TaskLoss",
]
