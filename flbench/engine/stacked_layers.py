"""Layers of a net whose clients are stacked: BatchNorm over padded rows, and convolutions."""

import math
from copy import copy
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.modules.conv import _ConvNd
from torch.nn.modules.instancenorm import _InstanceNorm

from flbench.core.errors import ConfigError

LARGEST_PATCH: Final = 150
"""Largest number of entries of a patch, over all channels, for `has_small_patches`."""


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


def replace_convolutions(net: nn.Module, *, casts: bool, patches: bool) -> None:
    """Change the convolutions of a net whose clients are stacked.

    Args:
        net: The net; the forward functions of its convolutions are replaced.
        casts: Whether they cast what they get to the type of autocast. Autocast itself does that
            after `torch.vmap` has taken a convolution apart, and PyTorch compares the types of
            input and bias before.
        patches: Whether those of `has_small_patches` are computed as products with patches.
    """
    for module in net.modules():
        if isinstance(module, _ConvNd):
            small = patches and has_small_patches(module)
            if casts or small:
                module.forward = partial(_convolve, module, small)


def has_small_patches(layer: _ConvNd) -> bool:
    """Return whether a stacked convolution on a GPU is faster as a product with patches.

    cuDNN computes the convolutions of N stacked clients as one with N groups, one after the other.
    A product with patches is one batched product, but writes each input as often as the kernel has
    entries. Steps of clients per second of a prototype on an H200, float32, as a CUDA graph:

    | net, clients x samples | largest patch | cuDNN | views of `unfold` | slices, compiled |
    |---|---|---|---|---|
    | LeNet-5, 100 x 32 | 6 x 5 x 5 = 150 | 34,019 | 53,443 | 86,121 |
    | net of pfl-research, 50 x 10 | 32 x 3 x 3 = 288 | 7,362 | | 13,325 |
    | ResNet-18, 10 x 32 | 512 x 3 x 3 = 4,608 | 112 | | |

    Slices, which are used here, have not been measured without the compiler.
    """
    is_plain = type(layer) is nn.Conv2d and layer.groups == 1
    return is_plain and layer.in_channels * math.prod(layer.kernel_size) <= LARGEST_PATCH


def _convolve(layer: _ConvNd, small: bool, x: Tensor, *size: Any) -> Tensor:
    """Return a convolution's output for x [B, channels, ...]."""
    device = x.device.type
    if torch.is_autocast_enabled(device):
        kind = torch.get_autocast_dtype(device)
        x, layer = x.to(kind), copy(layer)
        own: dict[str, Any] = {name: w.to(kind) for name, w in layer.named_parameters()}
        layer._parameters = layer._parameters | own
    if small and x.dim() == 4:
        return _by_patches(layer, x)
    out: Tensor = type(layer).forward(layer, x, *size)
    return out


def _by_patches(layer: _ConvNd, x: Tensor) -> Tensor:
    """Return a convolution's output [B, O, H', W'], contiguous, as a product of matrices.

    Patches are stacked slices, whose gradients `torch.vmap` can stack; it has no rule for that of
    `Tensor.unfold`.
    """
    mode = "constant" if layer.padding_mode == "zeros" else layer.padding_mode
    x = functional.pad(x, layer._reversed_padding_repeated_twice, mode).transpose(0, 1)
    for k, (size, apart) in enumerate(zip(layer.kernel_size, layer.dilation, strict=True)):
        places = x.shape[k - 2] - apart * (size - 1)
        x = torch.stack([x.narrow(k - 2, apart * i, places) for i in range(size)], dim=1 + k)
    x = x[..., :: layer.stride[0], :: layer.stride[1]]  # [C, h, w, B, H', W']
    samples, height, width = x.shape[3:]
    # [O, C h w] @ [C h w, B H' W']
    out = layer.weight.flatten(1) @ x.reshape(-1, samples * height * width)
    if layer.bias is not None:
        out = out + layer.bias[:, None]
    return out.reshape(-1, samples, height, width).transpose(0, 1).contiguous()


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
    # Values per channel. A client that has finished may have no row in a step of the others.
    count = mask.sum().clamp_min(1) * (x[0].numel() // x.shape[1])
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
