"""Batches of one client: which rows, in which order, and what becomes of the last batch."""

from collections.abc import Iterator

import numpy as np
import torch
from torch import Tensor

from flbench.config.schema import TrainConfig
from flbench.core.rng import Draw
from flbench.core.types import Batch
from flbench.data.federation import Federation
from flbench.data.schemes import Indices

PIECE = 4096  # samples that are gathered and normalised at once


def arrange(order: Indices, train: TrainConfig, *, skip_single: bool) -> Indices:
    """Return an epoch's order [n] so that cutting it every B samples gives the epoch's batches.

    Args:
        order: the epoch's samples.
        train: batch size B and `last_batch`: keep the smaller last batch, wrap it around to the
            epoch's start, or drop it.
        skip_single: a batch of one sample is left out (C4: BatchNorm has no statistics of one
            sample).
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


def epoch(
    federation: Federation,
    rows: Indices,
    client: int,
    number: int,
    draw: Draw,
    train: TrainConfig,
    *,
    dtype: torch.dtype,
    skip_single: bool,
    first_step: int,
) -> Iterator[Batch]:
    """Yield the training batches of one epoch of one client.

    Samples are gathered in pieces of many steps.

    Args:
        federation: the samples, on the device where the net is.
        rows: the client's rows of the data set.
        client: its id.
        number: the epoch, from 0.
        draw: the round's random streams.
        train: batch size and last batch.
        dtype: of the inputs.
        skip_single: see `arrange`.
        first_step: optimiser steps already taken in this phase.
    """
    order = rows[
        arrange(draw.sample_order(client, number, len(rows)), train, skip_single=skip_single)
    ]
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
        cuts = (torch.split(whole, size) for whole in (x, y, noise))
        for inputs, labels, key in zip(*cuts, strict=True):
            yield Batch(inputs, labels, ones[: len(labels)], key, steps[done])
            done += 1


def in_order(
    federation: Federation, rows: Indices, dtype: torch.dtype, size: int
) -> Iterator[Batch]:
    """Yield all rows in order, for Statistics; without rows, one padded row that does not count."""
    device = federation.x.device
    step = torch.zeros((), dtype=torch.int64, device=device)
    real = len(rows) > 0
    chosen = rows if real else np.zeros(1, dtype=np.int64)
    for start in range(0, len(chosen), size):
        index = torch.from_numpy(chosen[start : start + size])
        on_device: Tensor = index.to(device)
        mask = torch.full((len(index),), real, dtype=torch.bool, device=device)
        yield Batch(
            federation.inputs(chosen[start : start + size], dtype),
            federation.y[on_device],
            mask,
            on_device,
            step,
        )
