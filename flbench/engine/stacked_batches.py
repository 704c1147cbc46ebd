"""The batches of a phase for a block of clients: the samples of each client in each step."""

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from flbench.client.program import Phase
from flbench.data import batches
from flbench.data.federation import Federation
from flbench.engine.base import RoundSettings


@dataclass
class StackedBatches:
    """The batches of a phase, for K clients with at most T steps of at most S samples.

    NumPy arrays are on the host, where they decide which clients take the next step. Tensors are on
    the device of the net, so that no step copies indices.

    Attributes:
        steps: [K] steps of each client. Entries [k, t] with t >= steps[k] are not used.
        fill: [K, T] number of samples in a step; the rest up to S is padding.
        epoch: [K, T] the epoch of a step, counted from 0.
        rows: [K, T, S] rows of the data set; padding repeats the first row of the client's epoch.
        keys: [K, T, S] noise keys of the samples (`Batch.key`).
        ends: [K, T], `fill` on the device.
        numbers: [T] the numbers 0 to T - 1 (`Batch.step`).
    """

    steps: NDArray[np.int64]
    fill: NDArray[np.int64]
    epoch: NDArray[np.int64]
    rows: Tensor
    keys: Tensor
    ends: Tensor
    numbers: Tensor

    def reorder(self, order: NDArray[np.int64]) -> None:
        """Put the clients in another order; `order` [K] has the old position of each client."""
        index = torch.from_numpy(order).to(self.rows.device)
        self.steps, self.fill, self.epoch = self.steps[order], self.fill[order], self.epoch[order]
        self.rows, self.keys, self.ends = self.rows[index], self.keys[index], self.ends[index]

    def active(self, step: int) -> int:
        """Return how many clients take this step, for clients sorted by `steps`, largest first."""
        return int((self.steps > step).sum())


def make(
    federation: Federation,
    phase: Phase,
    ids: NDArray[np.int64],
    settings: RoundSettings,
    *,
    skip_single: bool,
) -> StackedBatches:
    """Return the batches of a phase for a block of clients.

    Args:
        federation: The samples of all clients.
        phase: The phase; its samples, and its epochs or steps, are read.
        ids: [K] client ids.
        settings: Batch size S, treatment of the last batch, and random streams of the round.
        skip_single: Whether a batch of one sample is left out, as BatchNorm needs it.
    """
    size = settings.train.batch_size
    orders = [_orders(federation, phase, int(i), settings, skip_single=skip_single) for i in ids]
    # steps [K]; before reshape, rows are [K, T * S]
    steps = np.array([sum(_steps(order, size) for order in mine) for mine in orders])
    shape = len(ids), int(steps.max(initial=0))
    rows = np.zeros((shape[0], shape[1] * size), dtype=np.int64)
    fill, epoch = np.zeros(shape, dtype=np.int64), np.zeros(shape, dtype=np.int64)
    for k, mine in enumerate(orders):
        begin = 0
        for number, order in enumerate(mine):
            end = begin + _steps(order, size)
            rows[k, begin * size : end * size] = order[0]
            rows[k, begin * size : begin * size + len(order)] = order
            fill[k, begin:end] = size
            fill[k, end - 1] -= (end - begin) * size - len(order)
            epoch[k, begin:end] = number
            begin = end
    if phase.steps is not None:
        steps = np.minimum(steps, phase.steps)
    top = int(steps.max(initial=0))
    rows = rows.reshape(*shape, size)[:, :top]  # [K, T * S] -> [K, T, S]
    fill, epoch = fill[:, :top], epoch[:, :top]
    keys = settings.draw.noise_keys(ids[:, None, None], epoch[:, :, None], rows)

    def to_device(values: NDArray[Any]) -> Tensor:
        return torch.from_numpy(np.ascontiguousarray(values)).to(federation.x.device)

    return StackedBatches(
        steps=steps,
        fill=fill,
        epoch=epoch,
        rows=to_device(rows),
        keys=to_device(keys),
        ends=to_device(fill),
        numbers=to_device(np.arange(top)),
    )


def _orders(
    federation: Federation,
    phase: Phase,
    client: int,
    settings: RoundSettings,
    *,
    skip_single: bool,
) -> list[NDArray[np.int64]]:
    """Return the rows of the data set of each epoch of a client, in the order of training.

    With `phase.steps` there are as many epochs as these steps need.
    """
    mine = federation.rows(phase.samples, client, settings.draw)
    orders: list[NDArray[np.int64]] = []
    taken = 0
    for number in range(phase.epochs if phase.epochs is not None else phase.steps or 0):
        order = batches.epoch_order(
            mine, client, number, settings.draw, settings.train, skip_single=skip_single
        )
        if not len(order) or (phase.steps is not None and taken >= phase.steps):
            break
        orders.append(order)
        taken += _steps(order, settings.train.batch_size)
    return orders


def _steps(order: NDArray[np.int64], size: int) -> int:
    """Return the number of steps of an epoch: its samples / batch size, rounded up."""
    return -(-len(order) // size)
