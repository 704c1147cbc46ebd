"""Nets.

Each is one file; every net returns Outputs(features [B, D], logits [B, C]) and has a backbone and a
head.
"""

from flbench.models.base import Net, NetSpec
from flbench.models.registry import MODELS

__all__ = ["MODELS", "Net", "NetSpec"]
