"""The training batches of one client in one phase."""

from collections.abc import Iterator

import torch
from torch.utils.data import IterableDataset

from flbench.client.program import Phase
from flbench.core.types import Batch
from flbench.data import batches
from flbench.data.federation import Federation
from flbench.engine.base import RoundSettings


class ClientBatches(IterableDataset[Batch]):
    """The training batches of one client in one phase; each iteration is the next epoch.

    The sequential engine trains on these batches, and so does Lightning's Trainer:
    `Trainer(max_epochs=phase.epochs).fit(ClientModule(...), ClientBatches(...))`.

    Args:
        federation: The samples, on the device of the net.
        phase: The phase; its `samples` and `batchnorm` are read.
        client: The client's id, in [0, N).
        settings: Batch size, treatment of the last batch, and random streams of the round.
        dtype: Type of the inputs.
        has_batchnorm: Whether the net has BatchNorm. Then batches of one sample are left out,
            unless the phase freezes BatchNorm.
        needs_two: Whether batches of one sample are left out in any case.

    Attributes:
        indices: [n] The client's rows of the data set.
        rows: [B] The rows of the batch that was yielded last.
        per_epoch: Number of batches of each epoch.
    """

    def __init__(
        self,
        federation: Federation,
        phase: Phase,
        client: int,
        settings: RoundSettings,
        *,
        dtype: torch.dtype,
        has_batchnorm: bool,
        needs_two: bool = False,
    ) -> None:
        self.indices = federation.rows(phase.samples, client, settings.draw)
        self.rows = self.indices[:0]
        self._federation = federation
        self._client = client
        self._settings = settings
        self._dtype = dtype
        self._skip_single = needs_two or (has_batchnorm and phase.batchnorm == "train")
        taken = batches.arrange(self.indices, settings.train, skip_single=self._skip_single)
        self.per_epoch = -(-len(taken) // settings.train.batch_size)
        self._epochs = self._steps = 0

    def __iter__(self) -> Iterator[Batch]:
        """Yield the batches of the next epoch; none if the client has no samples."""
        order = batches.epoch_order(
            self.indices,
            self._client,
            self._epochs,
            self._settings.draw,
            self._settings.train,
            skip_single=self._skip_single,
        )
        done = 0
        for batch in batches.epoch(
            self._federation,
            self.indices,
            self._client,
            self._epochs,
            self._settings.draw,
            self._settings.train,
            dtype=self._dtype,
            skip_single=self._skip_single,
            first_step=self._steps,
        ):
            self._steps += 1
            self.rows = order[done : done + len(batch.y)]
            done += len(batch.y)
            yield batch
        self._epochs += 1
