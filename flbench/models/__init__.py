"""The nets, one module for each.

Every net consists of a backbone and a linear head, and returns `Outputs`: features [B, D] and
logits [B, C].
"""

from flbench.core.registry import MODELS
from flbench.models.base import Net, NetSpec

__all__ = ["MODELS", "Net", "NetSpec"]
