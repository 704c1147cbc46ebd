"""What a net does beside computing: random numbers that it draws, and buffers that it changes.

A net may remember what it wants in its parameters and buffers. Other attributes are not set back
between clients; `experiment/smoke.py` refuses a net whose results depend on them.
"""

from typing import Final

import torch
from torch import Tensor, nn

from flbench.core.errors import ConfigError
from flbench.core.known_code import is_known

POOLS: Final = (nn.FractionalMaxPool2d, nn.FractionalMaxPool3d)
"""Layers of PyTorch that draw random numbers in eval mode too."""


def random_layers(net: nn.Module) -> list[str]:
    """Return descriptions of PyTorch's layers in a net that draw random numbers.

    Args:
        net: The net.

    >>> random_layers(nn.Sequential(nn.Linear(4, 4), nn.Dropout(0.1)))
    ['`1` (Dropout)']
    """
    return [
        f"`{name}` ({type(module).__name__})"
        for name, module in net.named_modules()
        if _is_random(module)
    ]


def _is_random(module: nn.Module) -> bool:
    """Return whether a layer of PyTorch draws random numbers in training."""
    match module:
        case nn.modules.dropout._DropoutNd():
            return bool(module.p > 0)
        case nn.RNNBase():
            return bool(module.dropout > 0 and module.num_layers > 1)
        case nn.MultiheadAttention():
            return bool(module.dropout > 0)
        case nn.RReLU():
            return bool(module.lower != module.upper)
    return isinstance(module, POOLS)


def may_draw(net: nn.Module) -> bool:
    """Return whether a net may draw random numbers in training.

    Args:
        net: The net.
    """
    return bool(random_layers(net)) or not is_known(net)


def may_draw_in_eval(net: nn.Module) -> bool:
    """Return whether a net may draw random numbers in eval mode, unlike dropout.

    Args:
        net: The net.

    >>> may_draw_in_eval(nn.Dropout(0.1)), may_draw_in_eval(nn.FractionalMaxPool2d(2, 1))
    (False, True)
    """
    return not is_known(net) or any(isinstance(module, POOLS) for module in net.modules())


def write_back(name: str, leaf: Tensor, value: Tensor | None) -> None:
    """Copy the new value of a buffer into the tensor that it replaces.

    Args:
        name: Name of the buffer.
        leaf: The tensor.
        value: The new value; None if the buffer was removed.

    Raises:
        ConfigError: The value has another shape, or there is none.
    """
    if value is None or value.shape != leaf.shape:
        now = "is removed" if value is None else f"gets the shape {list(value.shape)}"
        raise ConfigError(
            f"the buffer `{name}` has the shape {list(leaf.shape)} before training and {now} when"
            " the net runs. A buffer must keep its shape: it is sent and averaged with the"
            " parameters."
        )
    with torch.no_grad():
        leaf.copy_(value)
