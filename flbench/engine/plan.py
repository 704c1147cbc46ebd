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
    found = [_client(federation, phase, int(i), settings, skip_single=skip_single) for i in ids]
    steps = np.array([len(mine["fill"]) for mine in found], dtype=np.int64)
    top = int(steps.max(initial=0))

    def stacked(name: str, *shape: int) -> NDArray[Any]:
        whole = np.zeros((len(found), top, *shape), dtype=found[0][name].dtype)
        for k, mine in enumerate(found):
            whole[k, : len(mine[name])] = mine[name]
        return whole

    def there(values: NDArray[Any]) -> Tensor:
        return torch.from_numpy(values).to(federation.x.device)

    fill = stacked("fill")
    return Plan(
        steps=steps,
        fill=fill,
        first=stacked("first"),
        rows=there(stacked("rows", size)),
        keys=there(stacked("keys", size)),
        ends=there(fill),
        epoch=there(stacked("epoch")),
        numbers=there(np.arange(top)),
    )


def _client(
    federation: Federation,
    phase: Phase,
    client: int,
    settings: RoundSettings,
    *,
    skip_single: bool,
) -> dict[str, NDArray[Any]]:
    """Return one client's steps: rows, keys [T, S], fill, epoch, first [T]."""
    size, draw = settings.train.batch_size, settings.draw
    mine = federation.rows(phase.rows, client, draw)
    parts: dict[str, list[NDArray[Any]]] = {
        "rows": [np.zeros((0, size), dtype=np.int64)],
        "keys": [np.zeros((0, size), dtype=np.int64)],
        "fill": [np.zeros(0, dtype=np.int64)],
        "epoch": [np.zeros(0, dtype=np.int64)],
        "first": [np.zeros(0, dtype=bool)],
    }
    limit = phase.steps
    taken = 0
    for number in range(phase.epochs if phase.epochs is not None else phase.steps or 0):
        order = draw.order(client, number, len(mine))
        order = mine[batches.arrange(order, settings.train, skip_single=skip_single)]
        if not len(order) or (limit is not None and taken >= limit):
            break
        count = -(-len(order) // size)
        fill = np.full(count, size, dtype=np.int64)
        fill[-1] = len(order) - (count - 1) * size
        whole = np.full(count * size, order[0], dtype=np.int64)
        whole[: len(order)] = order
        keys = draw.keys(client, number, whole)
        keep = count if limit is None else min(count, limit - taken)
        parts["rows"].append(whole.reshape(count, size)[:keep])
        parts["keys"].append(keys.reshape(count, size)[:keep])
        parts["fill"].append(fill[:keep])
        parts["epoch"].append(np.full(keep, number, dtype=np.int64))
        parts["first"].append(np.arange(keep) == 0)
        taken += keep
    return {name: np.concatenate(pieces) for name, pieces in parts.items()}
