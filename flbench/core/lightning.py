"""Names of Lightning and TorchMetrics, for all files of flbench that use them.

Lightning imports TorchMetrics, which imports other packages for metrics that flbench does not use:
Hugging Face's transformers for BERTScore if it is installed, torchvision for quality of images and
SciPy's signals for speech. They take a third of the processor time of flbench's start and 100 MB of
memory of each process, so they are imported when a metric uses them.
"""

from flbench.core.deferred import deferred
from flbench.core.startup import uncollected

with uncollected(), deferred("transformers", "torchvision", "scipy.signal"):
    from lightning import LightningModule, Trainer
    from lightning.pytorch.utilities.signature_utils import is_param_in_hook_signature
    from torchmetrics import Metric

__all__ = [
    "LightningModule",
    "Metric",
    "Trainer",
    "is_param_in_hook_signature",
]
