"""Loss terms: pure functions of a Context; the local loss is their weighted sum.

Axes: B samples of the batch, C classes, D features. Every term is 0-dim and works under
`torch.vmap`; rows where `batch.mask` is False contribute nothing.

The term `ModelContrast` is defined in the module `model_contrast`, which is imported when the term
is first asked for, and so are the others.
"""

import re
from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from flbench.losses.balanced_softmax import BalancedSoftmax as BalancedSoftmax
    from flbench.losses.class_balanced import ClassBalanced as ClassBalanced
    from flbench.losses.cross_entropy import CrossEntropy as CrossEntropy
    from flbench.losses.focal import Focal as Focal
    from flbench.losses.label_smoothing import LabelSmoothing as LabelSmoothing
    from flbench.losses.linear import Linear as Linear
    from flbench.losses.logit_adjustment import LogitAdjustment as LogitAdjustment
    from flbench.losses.model_contrast import ModelContrast as ModelContrast
    from flbench.losses.prototype_l2 import PrototypeL2 as PrototypeL2
    from flbench.losses.proximal import Proximal as Proximal
    from flbench.losses.task_loss import TaskLoss as TaskLoss


def __getattr__(name: str) -> Any:
    """Import the module of a term."""
    module = re.sub("(?<=[a-z])(?=[A-Z])", "_", name).lower()
    if module != name:
        try:
            return getattr(import_module(f"{__name__}.{module}"), name)
        except ModuleNotFoundError as error:
            if error.name != f"{__name__}.{module}":
                raise
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
