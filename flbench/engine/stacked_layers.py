"""Layers of a net whose clients are stacked: BatchNorm over padded rows, and autocast."""

from copy import copy
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.modules.conv import _ConvNd
from torch.nn.modules.instancenorm import _InstanceNorm

from flbench.core.errors import ConfigError


@dataclass
class Padding:
    """The rows of the current batch that are samples.

    Attributes:
        mask: [B] bool, False for padded rows; None if no row is padded.
    """

    mask: Tensor | None = None


def exclude_padding(net: nn.Module) -> Padding:
    """Change the BatchNorm layers of a net so that padded rows are not part of their statistics.

    Args:
        net: The net; the forward functions of its BatchNorm layers are replaced.

    Returns:
        The mask that the layers read in each forward pass; the caller sets it.

    Raises:
        ConfigError: A BatchNorm has no running statistics, or no momentum for them, or an
            InstanceNorm has running statistics.
    """
    padding = Padding()
    for module in net.modules():
        if isinstance(module, _BatchNorm):
            is_exact = module.momentum is not None and module.track_running_stats
            module.forward = partial(_forward, module, padding)  # type: ignore[method-assign]
        else:
            is_exact = not (isinstance(module, _InstanceNorm) and module.track_running_stats)
        if not is_exact:
            raise ConfigError(
                f"`engine.name=vectorized` cannot train the layer {module}: padded rows would be a"
                " part of its statistics. Give BatchNorm track_running_stats and a momentum, and"
                " InstanceNorm no track_running_stats; or use engine.name=sequential, ray or auto."
            )
    return padding


def cast_convolutions(net: nn.Module) -> None:
    """Let the convolutions of a net cast what they get to the type of autocast.

    Autocast itself does that after `torch.vmap` has taken a convolution apart, and PyTorch compares
    the types of input and bias before.
    """
    for module in net.modules():
        if isinstance(module, _ConvNd):
            module.forward = partial(_cast_forward, module)


def _cast_forward(layer: _ConvNd, x: Tensor, *size: Any) -> Tensor:
    """Return a convolution's output for x [B, channels, ...]."""
    device = x.device.type
    if torch.is_autocast_enabled(device):
        kind = torch.get_autocast_dtype(device)
        x, layer = x.to(kind), copy(layer)
        own: dict[str, Any] = {name: w.to(kind) for name, w in layer.named_parameters()}
        layer._parameters = layer._parameters | own
    out: Tensor = type(layer).forward(layer, x, *size)
    return out


def _forward(layer: _BatchNorm, padding: Padding, x: Tensor) -> Tensor:
    """Return BatchNorm's output for x [B, channels, ...]; padded rows get some finite values."""
    mask = padding.mask
    if layer.running_mean is not None:  # vmap's batch_norm refuses mixed types, as under autocast
        x = x.to(layer.running_mean.dtype)
    if mask is None or not layer.training or len(mask) != len(x):
        out: Tensor = type(layer).forward(layer, x)
        return out
    axes = [0, *range(2, x.dim())]  # all axes but that of the channels
    real = mask.reshape(-1, *(1,) * (x.dim() - 1)).to(x.dtype)  # [B] -> [B, 1, ...]
    count = mask.sum() * (x[0].numel() // x.shape[1])  # values per channel
    mean = (x * real).sum(axes, keepdim=True) / count  # [1, channels, 1, ...]
    squares = ((x - mean).square() * real).sum(axes, keepdim=True)  # [1, channels, 1, ...]
    shape = (1, -1, *(1,) * (x.dim() - 2))
    scale = torch.rsqrt(squares / count + layer.eps)
    if layer.affine:
        scale = scale * layer.weight.reshape(shape)  # [channels] -> [1, channels, 1, ...]
    out = (x - mean) * scale
    if layer.affine:
        out = out + layer.bias.reshape(shape)
    assert layer.momentum is not None
    with torch.no_grad():
        variance = squares / (count - 1).clamp_min(1)  # the running variance is the unbiased one
        for running, value in ((layer.running_mean, mean), (layer.running_var, variance)):
            assert running is not None
            new = (
                value.detach().reshape(-1).to(running.dtype)
            )  # [1, channels, 1, ...] -> [channels]
            running.mul_(1.0 - layer.momentum).add_(new, alpha=layer.momentum)
        if layer.num_batches_tracked is not None:
            layer.num_batches_tracked.add_(1)
    return out
