"""BatchNorm over batches whose last rows are padding."""

from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm


@dataclass
class Padding:
    """Which rows of the batch at hand are real: [B] bool, or None where all are."""

    mask: Tensor | None = None


def mind_padding(net: nn.Module) -> Padding:
    """Make the BatchNorm layers of a net leave padded rows out of their statistics.

    Returns: what tells them which rows these are.
    """
    padding = Padding()
    for module in net.modules():
        if isinstance(module, _BatchNorm):
            if module.momentum is None or not module.track_running_stats:
                raise ValueError(f"{module} has no running statistics with a momentum")
            module.forward = partial(_forward, module, padding)  # type: ignore[method-assign]
    return padding


def _forward(layer: _BatchNorm, padding: Padding, x: Tensor) -> Tensor:
    mask = padding.mask
    if layer.running_mean is not None:  # vmap's batch_norm refuses mixed types, as of autocast
        x = x.to(layer.running_mean.dtype)
    if mask is None or not layer.training or len(mask) != len(x):
        out: Tensor = type(layer).forward(layer, x)
        return out
    axes = [0, *range(2, x.dim())]
    real = mask.reshape(-1, *(1,) * (x.dim() - 1)).to(x.dtype)  # [B, 1, ...]
    count = mask.sum() * (x[0].numel() // x.shape[1])
    mean = (x * real).sum(axes, keepdim=True) / count
    squares = ((x - mean).square() * real).sum(axes, keepdim=True)
    shape = (1, -1, *(1,) * (x.dim() - 2))
    scale = torch.rsqrt(squares / count + layer.eps)
    if layer.affine:
        scale = scale * layer.weight.reshape(shape)
    out = (x - mean) * scale
    if layer.affine:
        out = out + layer.bias.reshape(shape)
    assert layer.momentum is not None
    with torch.no_grad():
        variance = squares / (count - 1).clamp_min(1)  # the running variance is the unbiased one
        for running, value in ((layer.running_mean, mean), (layer.running_var, variance)):
            assert running is not None
            new = value.detach().reshape(-1).to(running.dtype)
            running.mul_(1.0 - layer.momentum).add_(new, alpha=layer.momentum)
        if layer.num_batches_tracked is not None:
            layer.num_batches_tracked.add_(1)
    return out
