"""Normalization of inputs by their mean and standard deviation, or their range."""

from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from flbench.data.dataset import Dataset
from flbench.data.schemes import Indices

MOST_SHOWN: Final = 4  # channels or columns that a note lists
PIECE: Final = 2**25  # bytes of float64 in which sums over pixels are computed


def normalization_of(
    x: NDArray[Any], rows: Indices, dataset: Dataset
) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    """Return offset and factor of the normalization by the mean and standard deviation of samples.

    Args:
        x: Samples, without missing values.
        rows: Rows of the samples that count, at least one.
        dataset: A data set of such samples.

    Returns:
        Offset and factor by channel or column; the factor is 0 exactly where all values are equal.
    """
    mean, deviation = _moments(x, rows, dataset)
    return mean.astype(np.float32), inverse(deviation)


def _moments(
    x: NDArray[Any], rows: Indices, dataset: Dataset
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return mean and standard deviation of samples by channel or column; see `normalization_of`.

    The sums are over differences from one of the values. So they are exactly 0 for equal values,
    and rounding is small beside the standard deviation in any unit.
    """
    axes, shape = dataset.within_channel, dataset.by_channel
    # One value of each channel, [channels, 1, ...], or the row of a table.
    first = x[rows[0]].astype(np.float64)[(slice(None), *(slice(1),) * (x.ndim - 2))]
    count = 0
    total, squares = np.zeros((2, x.shape[1]))
    for part in np.array_split(rows, _pieces(x, len(rows))):
        piece = x[part] - first
        count += piece.size // piece.shape[1]
        total += piece.sum(axis=axes)
        squares += np.square(piece, out=piece).sum(axis=axes)
    deviation = np.sqrt(np.maximum(squares / count - (total / count) ** 2, 0.0))
    return first + (total / count).reshape(shape), deviation.reshape(shape)


def offset_and_width(
    x: NDArray[Any], train: Indices, kind: str, dataset: Dataset
) -> tuple[NDArray[np.float32], NDArray[Any]]:
    """Return offset and width of the normalization (x - offset) / width; see `inverse`.

    Args:
        x: All samples.
        train: Rows of the training samples that they are computed from.
        kind: `standard` (zero mean and unit variance per channel or column) or `unit` ([0, 1]: by
            the largest possible value of uint8 images, and otherwise by the smallest and largest
            training value per channel or column).
        dataset: The data set.
    """
    if kind == "unit" and dataset.is_pixels:
        return np.zeros((1, 1, 1), dtype=np.float32), np.full(
            (1, 1, 1), dataset.scale, dtype=np.float64
        )
    if kind == "unit":
        axes, shape = dataset.within_channel, dataset.by_channel
        low, high = (find(x[train], axis=axes).reshape(shape) for find in (np.min, np.max))
        return low, high - low
    mean, deviation = _moments(x, train, dataset)
    return mean.astype(np.float32), deviation


def _pieces(x: NDArray[Any], count: int) -> int:
    """Return in how many pieces sums over some samples are computed.

    A sum in float64 takes 8 bytes for each value of a piece. Sums over uint8 are exact as long as
    they are below 2**53, so the pieces have any size; those of other types decide about rounding
    and have at least 4,096 samples.

    Args:
        x: All samples.
        count: Number of the samples that are summed.
    """
    values = int(np.prod(x.shape[1:], dtype=np.int64))
    if x.dtype == np.uint8 and count * values * 255**2 < 2**53:
        return max(1, min(count, -(-8 * count * values // PIECE)))
    return max(1, count // 4096)


def note_on(offset: NDArray[np.float32], width: NDArray[Any], kind: str, dataset: Dataset) -> str:
    """Return a sentence with the offset and the width of the normalization (x - offset) / width.

    Pixels are described as PyTorch's transforms describe them: scaled to [0, 1] first.

    Args:
        offset: Offset by channel or column.
        width: Standard deviation or range by channel or column; 0 if it is constant.
        kind: `standard` or `unit` (see `offset_and_width`), or `given`.
        dataset: The data set.
    """
    if kind == "unit" and dataset.is_pixels:
        return f"data: pixels are divided by {dataset.scale:g}; no mean is subtracted."
    low, width = offset.astype(np.float64).ravel(), width.astype(np.float64).ravel()
    over = "over the training parts of all clients"
    each = "column" if dataset.is_table else "channel"
    if kind == "unit":
        return (
            f"data: each {each} is scaled to [0, 1] {over}: smallest values {_listed(low)}, largest"
            f" values {_listed(low + width)}."
        )
    if kind == "given":
        over = "by the numbers of data.normalize"
    what = f"each {each} is normalized"
    if dataset.is_pixels:
        what = "pixels are scaled to [0, 1] and normalized per channel"
        low, width = low / dataset.scale, width / dataset.scale
    return f"data: {what} {over}: mean {_listed(low)}, standard deviation {_listed(width)}."


def _listed(values: NDArray[np.float64]) -> str:
    """Return numbers with four digits, at most the first four of them."""
    shown = ", ".join(f"{value:.4g}" for value in values[:MOST_SHOWN])
    return shown + (f", ... ({len(values)} in all)" if len(values) > MOST_SHOWN else "")


def inverse(width: NDArray[Any]) -> NDArray[np.float32]:
    """Return the factor 1 / width, and 0 where a channel or column has one value (width 0).

    Training samples do not say how wide such a channel or column is, so its inputs are 0.
    """
    factor = np.zeros(width.shape)
    np.divide(1.0, width, out=factor, where=width > 0)
    # A width below the smallest normal number of float32 would have an infinite factor.
    return np.minimum(factor, np.finfo(np.float32).max).astype(np.float32)
