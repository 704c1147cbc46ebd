"""Hyper-parameter search: studies that give every method the same budget.

`fl.tuning.trainable` and `fl.tuning.space` are for a Tuner of your own; see
`flbench.tuning.own_tuner`.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from flbench.tuning.own_tuner import space, trainable

__all__ = ["space", "trainable"]


def __getattr__(name: str) -> Any:
    """Import a name of the interface when it is first used: it loads PyTorch."""
    if name in __all__:
        return getattr(import_module("flbench.tuning.own_tuner"), name)
    raise AttributeError(f"module 'flbench.tuning' has no attribute {name!r}")


def __dir__() -> list[str]:
    """Return the names of the interface beside those of the module."""
    return sorted({*globals(), *__all__})
