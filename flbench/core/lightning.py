"""Names of Lightning and TorchMetrics, for all files of flbench that use them.

Lightning imports TorchMetrics, and TorchMetrics imports Hugging Face's transformers for BERTScore
if it is installed. That takes a second of processor time and 35 MB of memory of each process, so
transformers is imported when a metric uses it.
"""

from flbench.core.deferred import deferred

with deferred("transformers"):
    from lightning import LightningModule, Trainer
    from lightning.fabric import Fabric
    from lightning.fabric.plugins import MixedPrecision
    from lightning.pytorch.utilities.signature_utils import is_param_in_hook_signature
    from lightning_utilities.core import rank_zero
    from torchmetrics import Metric

__all__ = [
    "Fabric",
    "LightningModule",
    "Metric",
    "MixedPrecision",
    "Trainer",
    "is_param_in_hook_signature",
    "rank_zero",
]
