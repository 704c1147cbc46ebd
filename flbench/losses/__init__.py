"""Loss terms: pure functions of a StepContext; the local loss is their weighted sum.

Axes: B samples of the batch, C classes, D features. Every term is 0-dim and works under
`torch.vmap`; rows where `batch.mask` is False contribute nothing. The module of a term is imported
when the term is first asked for.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
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

_MODULES: Final = {
    "BalancedSoftmax": "balanced_softmax",
    "ClassBalanced": "class_balanced",
    "ClassPull": "class_pull",
    "CosineCrossEntropy": "cosine_cross_entropy",
    "CrossEntropy": "cross_entropy",
    "Dynamic": "dynamic",
    "Focal": "focal",
    "LabelSmoothing": "label_smoothing",
    "Linear": "linear",
    "LogitAdjustment": "logit_adjustment",
    "ModelContrast": "model_contrast",
    "PrototypeContrast": "prototype_contrast",
    "PrototypeDistillation": "prototype_distillation",
    "PrototypeL2": "prototype_l2",
    "Proximal": "proximal",
    "ScoresCrossEntropy": "cross_entropy",
    "SemanticKL": "semantic_kl",
    "TaskLoss": "task_loss",
}

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


def __getattr__(name: str) -> Any:
    """Import the module of a term."""
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_MODULES[name]}"), name)
