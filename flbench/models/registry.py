"""The nets by name."""

from flbench.models.base import Net
from flbench.registry import Registry

MODELS: Registry[type[Net]] = Registry("model", "flbench.models")
