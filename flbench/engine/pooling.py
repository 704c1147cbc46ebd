"""Max pooling over windows of 2 x 2 on a CPU, by comparisons of whole tensors.

PyTorch's kernel for images in the order [batch, channels, height, width] visits one window after
the other, and takes a fifth of a training step of LeNet-5. The functions here use operations with
vector instructions and take less than half of that time. Traces use them instead of PyTorch's
operation (see `flbench.engine.traced`).

Values and positions are those of PyTorch, bit for bit, except in two cases. If the maximum of a
window is zero and both -0.0 and +0.0 occur, the sign of the result may differ. If a window contains
NaN, the maximum is NaN, and the position may be another one in the window.
"""

from typing import Any

import torch
from torch import Tensor, fx

POOLING = torch.ops.aten.max_pool2d_with_indices.default

SMALLEST = 50_000
"""Number of entries from which the functions here are faster than PyTorch's kernel."""
WIDEST = 254
"""Largest width of an image: an offset within a window has to fit into uint8."""


def max_pool(x: Tensor, corners: Tensor) -> tuple[Tensor, Tensor]:
    """Return the maxima of windows of 2 x 2 and their positions.

    The position is that of the first maximum of a window, row by row.

    Args:
        x: Images [B, channels, height, width] of height and width >= 2 and width <= `WIDEST`. An
            odd last row or column is in no window.
        corners: What `window_corners` returns for this height and width.

    Returns:
        Maxima [B, channels, height // 2, width // 2] and their positions in the flattened image,
        int64 of the same shape.
    """
    left, right = (x[..., k : x.shape[3] - 1 + k : 2] for k in (0, 1))
    a, b = (half[:, :, : x.shape[2] - 1 : 2].contiguous() for half in (left, right))  # upper row
    c, d = (half[:, :, 1::2].contiguous() for half in (left, right))  # lower row
    is_right, is_lower_right = b > a, d > c  # a tie takes the first
    upper, lower = torch.maximum(a, b), torch.maximum(c, d)
    is_lower = lower > upper
    # is_lower_right where is_lower, else is_right: `torch.where` takes longer for bool tensors
    offset = is_lower_right.bitwise_xor_(is_right).bitwise_and_(is_lower).bitwise_xor_(is_right)
    offset = offset.view(torch.uint8)
    offset.add_(is_lower.view(torch.uint8), alpha=x.shape[3])
    return torch.maximum(upper, lower), offset.long().add_(corners)


def max_pool_values(x: Tensor) -> Tensor:
    """Return the maxima [B, channels, height // 2, width // 2] of windows of 2 x 2.

    Args:
        x: Images [B, channels, height, width] of height and width >= 2. An odd last row or column
            is in no window.
    """
    rows = torch.maximum(x[:, :, : x.shape[2] - 1 : 2], x[:, :, 1::2])
    return torch.maximum(rows[..., : x.shape[3] - 1 : 2], rows[..., 1::2])


def window_corners(height: int, width: int) -> Tensor:
    """Return the positions of the upper left corners of all windows of 2 x 2 in a flattened image.

    Args:
        height: Height of the image, >= 2.
        width: Width of the image, >= 2.

    Returns:
        [height // 2, width // 2] int64.
    """
    rows, columns = torch.arange(0, height - 1, 2), torch.arange(0, width - 1, 2)
    return rows[:, None] * width + columns


def is_replaceable(node: fx.Node, x: Tensor) -> bool:
    """Return whether a node is a max pooling that the functions here compute faster.

    Args:
        node: A node with the operation `POOLING`.
        x: The images that it reads.
    """
    kernel, stride, padding, dilation, ceil = _arguments(node)
    return (
        (kernel, stride or kernel, padding, dilation, ceil)
        == ((2, 2), (2, 2), (0, 0), (1, 1), False)
        and x.is_cpu
        and x.dtype in (torch.float32, torch.float64)
        and x.ndim == 4
        and x.is_contiguous()
        and min(x.shape[2:]) >= 2
        and x.shape[3] <= WIDEST
        and x.numel() >= SMALLEST
    )


def _arguments(node: fx.Node) -> tuple[Any, ...]:
    """Return kernel size, stride, padding and dilation of a max pooling as tuples, and `ceil_mode`.

    The stride is empty where it is that of the kernel size.
    """
    defaults: tuple[Any, ...] = (None, (), 0, 1, False)
    given = (*node.args[1:], *defaults[len(node.args) - 1 :])
    names = ("kernel_size", "stride", "padding", "dilation", "ceil_mode")
    values = [node.kwargs.get(name, value) for name, value in zip(names, given, strict=True)]
    *pairs, ceil = values
    return (*(_pair(value) for value in pairs), ceil)


def _pair(value: Any) -> tuple[Any, ...]:
    """Return an argument of a pooling as a tuple, twice the number where it is one number."""
    if isinstance(value, int):
        return value, value
    numbers = tuple(value)
    return numbers * 2 if len(numbers) == 1 else numbers
