"""Normalization of inputs, (x - offset) * scale, by the statistics of each channel or column."""

from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from flbench.config.schema import GivenNormalization
from flbench.core.errors import DataError
from flbench.data.dataset import Dataset
from flbench.data.schemes import Indices

Normalization = tuple[NDArray[np.float32], NDArray[np.float32]]
"""Offset and scale, of a shape that broadcasts against one sample."""

PIECE: Final = 2**25  # bytes of float64 in which sums over samples are computed
MOST_UNIT: Final = 16.0  # images with larger values are not in units of [0, 1]


def standard(x: NDArray[Any], rows: Indices) -> Normalization:
    """Return the normalization by mean and standard deviation; see `_scaled` for constants.

    The sums are over differences from one of the values. So they are exactly 0 for equal values,
    and rounding is small beside the standard deviation in any unit.

    Args:
        x: Samples, without missing values.
        rows: Rows of the samples that count, at least one.
    """
    axes = (0, *range(2, x.ndim))
    # One value of each channel, [channels, 1, ...], or the row of a table.
    first = x[rows[0]].astype(np.float64)[(slice(None), *(slice(1),) * (x.ndim - 2))]
    count, (total, squares) = 0, np.zeros((2, x.shape[1]))
    bytes_of_all = 8 * len(rows) * int(np.prod(x.shape[1:]))
    for part in np.array_split(rows, min(len(rows), -(-bytes_of_all // PIECE))):
        piece = x[part] - first
        count += piece.size // piece.shape[1]
        total += piece.sum(axis=axes)
        squares += np.square(piece, out=piece).sum(axis=axes)
    deviation = np.sqrt(np.maximum(squares / count - (total / count) ** 2, 0.0))
    return _scaled(first.ravel() + total / count, deviation, x.ndim)


def given(numbers: GivenNormalization, x: NDArray[Any], dataset: Dataset) -> Normalization:
    """Return the normalization by the user's numbers, those of pixels scaled to [0, 1].

    Raises:
        DataError: There are neither one number nor as many as channels or columns, or the numbers
            are in units of [0, 255] and the images in [0, 1], or the other way round.
    """
    width = x.shape[1]
    for name, values in (("mean", numbers.mean), ("std", numbers.std)):
        if len(values) not in (1, width):
            raise DataError(
                f"`data.normalize.{name}` has {len(values)} numbers, and the inputs of"
                f" `{dataset.name}` have {width} columns or channels. Give one number for all, or"
                " one for each."
            )
    if dataset.kind == "images":
        most = max(*numbers.mean, *numbers.std)
        low, high = (0.0, 1.0) if dataset.is_pixels else (float(x.min()), float(x.max()))
        is_too_small = high > MOST_UNIT and most <= 1 and any(numbers.mean)
        if low >= 0 and (high <= 1 < most or is_too_small):
            raise DataError(
                f"`data.normalize` has numbers up to {most:g}, but the values of `{dataset.name}`"
                f" {'scaled to [0, 1] ' * dataset.is_pixels}lie in [{low:g}, {high:g}]."
                f" {'Divide' if most > 1 else 'Multiply'} mean and std by"
                f" {dataset.scale if dataset.is_pixels else 255:g}."
            )
    factor = dataset.scale if dataset.is_pixels else 1.0
    mean, deviation = (
        np.broadcast_to(np.array(values) * factor, width) for values in (numbers.mean, numbers.std)
    )
    return _scaled(mean, deviation, x.ndim)


def _scaled(offset: NDArray[Any], width: NDArray[Any], axes: int) -> Normalization:
    """Return offset and scale 1 / width of samples with a number of axes, and 0 for the width 0.

    Training samples do not say how wide a channel or column of one value is: its inputs are 0.
    """
    scale = np.zeros(width.shape)
    np.divide(1.0, width, out=scale, where=width > 0)
    # A width below the smallest normal number of float32 would have an infinite factor.
    scale = np.minimum(scale, np.finfo(np.float32).max)
    shape = (-1, *(1,) * (axes - 2))  # broadcasts against one sample
    return offset.astype(np.float32).reshape(shape), scale.astype(np.float32).reshape(shape)
