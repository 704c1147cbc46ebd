"""Normalization by statistics of each client alone, or by numbers of the user."""

from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from flbench.config.schema import GivenNormalization
from flbench.core.errors import DataError
from flbench.data.dataset import Dataset
from flbench.data.normalization import normalization_of
from flbench.data.partition import ClientParts

MOST_CLIENTS: Final = 6  # clients that a note lists
MOST_UNIT: Final = 16.0  # images with larger values are not in units of [0, 1]


FEW_SAMPLES: Final = 10  # training samples whose mean and standard deviation are uncertain


def by_client(
    x: NDArray[Any], partition: ClientParts, dataset: Dataset
) -> tuple[NDArray[np.float32], NDArray[np.float32], list[str]]:
    """Return offset and factor of the normalization of each client, and notes.

    Mean and standard deviation are those of the client's training part. The factor is 0 for a
    column or channel that is constant there: the client does not know its scale, so it is 0 in all
    of the client's parts.

    Args:
        x: All samples.
        partition: The partition.
        dataset: The data set.

    Returns:
        Offset and factor [N + 1, ...], as `Federation.offset` and `Federation.scale`; and notes.
    """
    shape = (x.shape[1], *dataset.by_channel[1:])
    offset, scale = np.zeros((2, partition.clients + 1, *shape), dtype=np.float32)
    for client, rows in enumerate(partition.parts["train"]):
        if len(rows):
            offset[client], scale[client] = normalization_of(x, rows, dataset)
    each = "column" if dataset.is_table else "channel"
    notes = [
        f"data: each {each} is normalized by its mean and standard deviation over the client's own"
        " training part (data.normalize=client)."
    ]
    flat = scale[:-1].reshape(partition.clients, -1) == 0  # [N, columns or channels]
    if flat.any():
        owners = _called(partition, np.flatnonzero(flat.any(axis=1)))
        notes.append(
            f"data: {int(flat.sum())} times a {each} of the inputs has one value, or none, in the"
            f" training part of a client, and is 0 for this client: {owners}."
        )
    sizes = np.array([len(rows) for rows in partition.parts["train"]])
    if (sizes < FEW_SAMPLES).any():
        owners = _called(partition, np.flatnonzero(sizes < FEW_SAMPLES))
        notes.append(
            f"data: means and standard deviations of fewer than {FEW_SAMPLES} training samples are"
            f" uncertain: {owners}."
        )
    return offset, scale, notes


def _called(partition: ClientParts, clients: NDArray[np.int64]) -> str:
    """Return how the first of some clients are called, for a sentence."""
    shown = [partition.called(int(client)) for client in clients[:MOST_CLIENTS]]
    more = len(clients) - len(shown)
    return f"client{'s' * (len(clients) > 1)} {', '.join(shown)}" + (
        f" and {more:,} more" if more else ""
    )


def by_numbers(
    given: GivenNormalization, x: NDArray[Any], dataset: Dataset
) -> tuple[NDArray[np.float32], NDArray[np.float64]]:
    """Return offset and width of the normalization by the user's numbers, in the units of `x`.

    Args:
        given: Mean and standard deviation; of pixels scaled to [0, 1].
        x: All samples, after words became columns.
        dataset: The data set.

    Raises:
        DataError: There are neither one number nor as many as channels or columns, or the numbers
            are in units of [0, 255] and the images in [0, 1], or the other way round.
    """
    width = x.shape[1]
    each = "column" if dataset.is_table else "channel"
    for name, values in (("mean", given.mean), ("std", given.std)):
        if len(values) not in (1, width):
            raise DataError(
                f"`data.normalize.{name}` has {len(values)} numbers, and the inputs of"
                f" `{dataset.name}` have {width} {each}{'s' * (width > 1)}. Give one number for"
                f" all, or one for each {each}."
            )
    if dataset.kind == "images":
        most = max(*given.mean, *given.std)
        low, high = (0.0, 1.0) if dataset.is_pixels else (float(x.min()), float(x.max()))
        of = dataset.scale if dataset.is_pixels else 255.0
        is_too_small = high > MOST_UNIT and most <= 1 and any(given.mean)
        if low >= 0 and (high <= 1 < most or is_too_small):
            have = "are scaled to [0, 1]" if dataset.is_pixels else f"lie in [{low:g}, {high:g}]"
            raise DataError(
                f"`data.normalize` has the mean {list(given.mean)} and std {list(given.std)}, but"
                f" the values of `{dataset.name}` {have}."
                f" {'Divide' if most > 1 else 'Multiply'} both by {of:g}."
            )
    shape = dataset.by_channel
    unit = dataset.scale if dataset.is_pixels else 1.0
    mean, deviation = (
        np.broadcast_to(np.array(values) * unit, width).reshape(shape)
        for values in (given.mean, given.std)
    )
    return mean.astype(np.float32), deviation
