"""Batches of the samples of one client, for training and for Statistics."""

from collections.abc import Iterator

import numpy as np
import torch
from torch import Tensor

from flbench.config.schema import TrainConfig
from flbench.core.rng import Draw
from flbench.core.types import Batch
from flbench.data.federation import Federation
from flbench.data.schemes import Indices

PIECE = 4096  # samples that are gathered and normalized at once


def arrange(order: Indices, train: TrainConfig, *, skip_single: bool) -> Indices:
    """Apply the policy for the last batch to an epoch's order of samples.

    Args:
        order: Samples [n] of the epoch, in their drawn order.
        train: Section `train`, with the batch size B and the policy `last_batch`: `keep` a smaller
            last batch, fill it up with the first samples of the epoch (`wrap`), or `drop` it.
        skip_single: Whether to leave out a batch of a single sample, because BatchNorm in training
            mode has no variance over one value.

    Returns:
        The samples [m] to train on: every B consecutive ones form a batch.

    >>> arrange(np.arange(5), TrainConfig(batch_size=3, last_batch="wrap"), skip_single=False)
    array([0, 1, 2, 3, 4, 0])
    """
    size = train.batch_size
    left = len(order) % size
    if left and train.last_batch == "drop":
        order = order[: len(order) - left]
    elif left and train.last_batch == "wrap":
        order = np.resize(order, len(order) - left + size)
    if skip_single and len(order) % size == 1 and size > 1:
        order = order[:-1]
    return order[:0] if skip_single and size == 1 else order


def epoch_order(
    rows: Indices, client: int, number: int, draw: Draw, train: TrainConfig, *, skip_single: bool
) -> Indices:
    """Return the rows of one epoch of one client, in the order of its batches; see `arrange`."""
    drawn = draw.sample_order(client, number, len(rows))
    return rows[arrange(drawn, train, skip_single=skip_single)]


def epoch(
    federation: Federation,
    order: Indices,
    client: int,
    number: int,
    draw: Draw,
    train: TrainConfig,
    *,
    dtype: torch.dtype,
    first_step: int = 0,
) -> Iterator[Batch]:
    """Yield the training batches of one epoch of one client.

    Samples are gathered and normalized for many steps at once.

    Args:
        federation: Samples, on the device of the net.
        order: Rows [n] of the data set in the order of the epoch; see `epoch_order`.
        client: Id of the client.
        number: Number of the epoch within the phase, from 0.
        draw: Random streams of the round.
        train: Section `train`, with the batch size.
        dtype: Floating-point type of the inputs.
        first_step: Number of optimizer steps already taken in this phase.
    """
    keys = draw.noise_keys(client, number, order)
    device = federation.x.device
    size = train.batch_size
    piece = max(1, PIECE // size) * size
    steps = torch.arange(first_step, first_step + -(-len(order) // size), device=device)
    ones = torch.ones(min(size, len(order)), dtype=torch.bool, device=device)
    done = 0
    for start in range(0, len(order), piece):
        chosen = order[start : start + piece]
        noise = torch.from_numpy(keys[start : start + piece]).to(device)
        x = federation.inputs(chosen, dtype, noise)
        y = federation.y[torch.from_numpy(chosen).to(device)]
        cuts = (torch.split(tensor, size) for tensor in (x, y, noise))  # [B, ...] each
        for inputs, labels, key in zip(*cuts, strict=True):
            yield Batch(inputs, labels, ones[: len(labels)], key, steps[done])
            done += 1


def in_order(
    federation: Federation, rows: Indices, dtype: torch.dtype, size: int
) -> Iterator[Batch]:
    """Yield batches of the given rows in their order, for Statistics.

    If there are no rows, one batch with a single row of padding is yielded, whose mask is False.

    Args:
        federation: Samples, on the device of the net.
        rows: Rows [n] of the data set.
        dtype: Floating-point type of the inputs.
        size: Largest number of samples in a batch.
    """
    device = federation.x.device
    step = torch.zeros((), dtype=torch.int64, device=device)
    has_rows = len(rows) > 0
    chosen = rows if has_rows else np.zeros(1, dtype=np.int64)
    for start in range(0, len(chosen), size):
        index = torch.from_numpy(chosen[start : start + size])
        on_device: Tensor = index.to(device)
        mask = torch.full((len(index),), has_rows, dtype=torch.bool, device=device)
        yield Batch(
            federation.inputs(chosen[start : start + size], dtype),
            federation.y[on_device],
            mask,
            on_device,
            step,
        )
