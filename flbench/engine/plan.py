"""Which samples each client of a block sees in which step: one contiguous list for each."""

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
class Plan:
    """The steps of a phase; clients [B] in rows, steps [T] in columns, samples [S] behind.

    Host arrays decide what is done next; tensors lie where the net is, and are not copied again.

    Attributes:
        steps: [B] of each client; its columns after that mean nothing.
        fill: [B, T] real samples of a step.
        first: [B, T] whether a step begins an epoch.
        rows: [B, T, S] rows of the data set, filled up with a client's first one.
        keys: [B, T, S] noise keys.
        ends: [B, T], `fill` on the device.
        epoch: [B, T] of a step, counted from 0.
        numbers: [T], 0 to T - 1.
    """

    steps: NDArray[np.int64]
    fill: NDArray[np.int64]
    first: NDArray[np.bool_]
    rows: Tensor
    keys: Tensor
    ends: Tensor
    epoch: Tensor
    numbers: Tensor

    def reorder(self, order: NDArray[np.int64]) -> None:
        """Put the clients in another order."""
        index = torch.from_numpy(order).to(self.rows.device)
        self.steps, self.fill, self.first = self.steps[order], self.fill[order], self.first[order]
        self.rows, self.keys = self.rows[index], self.keys[index]
        self.ends, self.epoch = self.ends[index], self.epoch[index]

    def active(self, step: int) -> int:
        """Return how many clients take this step; they are the first ones."""
        return int((self.steps > step).sum())


def make(
    federation: Federation,
    phase: Phase,
    ids: NDArray[np.int64],
    settings: RoundSettings,
    *,
    skip_single: bool,
) -> Plan:
    """Return the plan of a phase for a block of clients.

    Args:
        federation: the samples.
        phase: whose rows, epochs or steps.
        ids: [B] client ids.
        settings: batch size, last batch, random streams.
        skip_single: whether a batch of one sample is left out.
    """
    size = settings.train.batch_size
    orders = [_orders(federation, phase, int(i), settings, skip_single=skip_single) for i in ids]
    steps = np.array(
        [sum(_steps(order, size) for order in mine) for mine in orders], dtype=np.int64
    )
    shape = len(ids), int(steps.max(initial=0))
    rows = np.zeros((shape[0], shape[1] * size), dtype=np.int64)
    fill, epoch = np.zeros(shape, dtype=np.int64), np.zeros(shape, dtype=np.int64)
    first = np.zeros(shape, dtype=bool)
    for k, mine in enumerate(orders):
        begin = 0
        for number, order in enumerate(mine):
            end = begin + _steps(order, size)
            rows[k, begin * size : end * size] = order[0]
            rows[k, begin * size : begin * size + len(order)] = order
            fill[k, begin:end] = size
            fill[k, end - 1] -= (end - begin) * size - len(order)
            epoch[k, begin:end] = number
            first[k, begin] = True
            begin = end
    if phase.steps is not None:
        steps = np.minimum(steps, phase.steps)
    top = int(steps.max(initial=0))
    rows = rows.reshape(*shape, size)[:, :top]
    fill, epoch, first = fill[:, :top], epoch[:, :top], first[:, :top]
    keys = settings.draw.noise_keys(ids[:, None, None], epoch[:, :, None], rows)

    def there(values: NDArray[Any]) -> Tensor:
        return torch.from_numpy(np.ascontiguousarray(values)).to(federation.x.device)

    return Plan(
        steps=steps,
        fill=fill,
        first=first,
        rows=there(rows),
        keys=there(keys),
        ends=there(fill),
        epoch=there(epoch),
        numbers=there(np.arange(top)),
    )


def _orders(
    federation: Federation,
    phase: Phase,
    client: int,
    settings: RoundSettings,
    *,
    skip_single: bool,
) -> list[NDArray[np.int64]]:
    """Return the rows of each epoch of a client, as many epochs as its steps need."""
    mine = federation.rows(phase.samples, client, settings.draw)
    found: list[NDArray[np.int64]] = []
    taken = 0
    for number in range(phase.epochs if phase.epochs is not None else phase.steps or 0):
        order = settings.draw.sample_order(client, number, len(mine))
        order = mine[batches.arrange(order, settings.train, skip_single=skip_single)]
        if not len(order) or (phase.steps is not None and taken >= phase.steps):
            break
        found.append(order)
        taken += _steps(order, settings.train.batch_size)
    return found


def _steps(order: NDArray[np.int64], size: int) -> int:
    return -(-len(order) // size)
