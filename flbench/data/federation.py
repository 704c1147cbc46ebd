"""The federation: one tensor with all samples, and the rows of every client."""

import warnings
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from flbench.config.schema import (
    DataConfig,
    GivenNormalization,
    PartitionConfig,
    ShiftConfig,
)
from flbench.core.errors import DataError
from flbench.core.rng import Draw, generator, uniform
from flbench.core.shapes import TokenShape
from flbench.core.types import Samples
from flbench.data import normalization
from flbench.data.dataset import PARTS, Dataset
from flbench.data.partition import ClientParts, split_client
from flbench.data.partitioning import make_partition
from flbench.data.schemes import Indices

CROP_PADDING: Final = 4  # pixels on each side
NO_SHIFT: Final = ShiftConfig()


@dataclass(frozen=True)
class TableEncoding:
    """How rows of a table become inputs of the net, before the normalization.

    With `data.normalize=client`, clients share the words alone, which all need for the same inputs.

    Attributes:
        source: Column of the data set that each input comes from, [width] int64.
        word: Position in `Dataset.words` of the word that an input stands for, [width] int64; the
            input is 1 where the row has that word. -1 for a column of numbers.
        fill: Value that replaces a missing one, [N + 1, width] float32: a row for each client, and
            the mean over the clients in the last row, for samples without a client.
    """

    source: Indices
    word: Indices
    fill: NDArray[np.float32]


@dataclass(frozen=True)
class Federation:
    """All samples, and which of them each client has.

    The normalized samples are (x - offset) * scale, with one offset and scale for all samples, or
    with those of the client that has the sample.

    Attributes:
        dataset: The data set, with names of the classes and the size of its train part.
        x: All samples before normalization: images [n, channels, height, width], uint8 or float32;
            series [n, channels, length] or rows of tables [n, columns] float32; or tokens
            [n, length] of an integer type, which are not normalized. Engines have a copy on their
            device.
        y: Labels [n] int64 in [0, C); for other tasks targets [n, ...], see `Dataset.targets`.
        partition: Rows of every client.
        common: Ascending rows of the common test set, the data set's own test part; empty if there
            is none or it was distributed to clients.
        offset: What the normalization subtracts; it broadcasts against one sample. With `owner` it
            has a first axis [N + 1, ...]: a row for each client, and one of zeros for other
            samples.
        scale: Factor of the normalization, of the same shape.
        augment: Augmentations of training batches, `crop` and `flip`.
        seed: Seed of the run.
        notes: Notes about the data to show before a run, one sentence each.
        table: How rows of a table became rows of `x`; None for images.
        owner: Client of each sample [n] int64 with `data.normalize=client`, N for samples without a
            client; None if all samples have the same normalization.
        new: Rows of the clients that join after the training; None without such clients. They are
            no clients of this federation: see `with_new_clients`. `owner`, and the rows of
            `offset`, `scale` and `TableEncoding.fill`, have them behind the N clients.
    """

    dataset: Dataset
    x: Tensor
    y: Tensor
    partition: ClientParts
    common: Indices
    offset: Tensor
    scale: Tensor
    augment: tuple[str, ...]
    seed: int
    notes: tuple[str, ...] = ()
    table: TableEncoding | None = None
    owner: Tensor | None = None
    new: ClientParts | None = None

    @property
    def clients(self) -> int:
        """Number of clients N."""
        return self.partition.clients

    @property
    def classes(self) -> int:
        """Number of classes C."""
        return len(self.dataset.classes)

    @property
    def output(self) -> int | None:
        """Number of logits that a net must return; None for targets that are not classes."""
        return self.classes if self.dataset.targets is None else None

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of one sample; of tokens a `TokenShape`."""
        if self.dataset.kind == "tokens":
            return TokenShape(self.x.shape[1], self.dataset.vocabulary, self.dataset.padding)
        return tuple(self.x.shape[1:])

    @cached_property
    def labels(self) -> Indices:
        """Classes [n] int64 of all samples as clients see them, with `shift.labels` permuted."""
        return self.partition.classes_of(self.dataset.y)

    @cached_property
    def counts(self) -> Tensor:
        """Number of training samples [N, C] int64 by client and class."""
        counts = [
            np.bincount(self.labels[rows], minlength=self.classes)
            for rows in self.partition.parts["train"]
        ]
        return torch.from_numpy(np.stack(counts).astype(np.int64))

    @cached_property
    def sizes(self) -> Tensor:
        """Number of training samples [N] int64 by client."""
        return self.counts.sum(dim=1)

    @cached_property
    def _together(self) -> dict[str, Indices]:
        """Rows [n] of the samples of all clients by part, one client after the other."""
        return {part: np.concatenate(rows) for part, rows in self.partition.parts.items()}

    @cached_property
    def _of_common(self) -> dict[int, Indices]:
        """Samples of the common test set that were drawn, by their size; each client reads them."""
        return {}

    def rows(self, which: Samples, client: int, draw: Draw) -> Indices:
        """Return the rows of the data set that a step of a program reads.

        A whole part is returned in ascending order. A range or a limit is applied to an order that
        is drawn for each seed and client, with `redraw="round"` also for each round. For the common
        test set, which is the same for all clients, a limit selects a sample stratified by class
        for each seed.

        Returns:
            Rows [n] int64.
        """
        if which.part == "common" or which.piece is not None:
            is_common = which.part == "common"
            rows = self.common_rows(which.limit) if is_common else self._together[which.part]
            begin = client * (which.piece or 0)
            return rows[begin:][: which.piece]
        parts = self.partition.parts[which.part]
        rows = parts[client]
        if (
            which.low == 0.0
            and which.high == 1.0
            and (which.limit is None or which.limit >= len(rows))
        ):
            return rows
        key = draw.key if which.redraw == "round" else ()
        rng = generator(self.seed, "rows", client, PARTS.index(which.part), *key)
        order = rng.permutation(rows)
        low, high = _cut(which.low, len(rows)), _cut(which.high, len(rows))
        return np.asarray(order[low:high][: which.limit])

    def inputs(
        self, rows: Indices | Tensor, dtype: torch.dtype, keys: Tensor | None = None
    ) -> Tensor:
        """Return normalized samples, augmented if noise keys are given; tokens as int64.

        Args:
            rows: Rows [B] of the data set, one-dimensional, int32 or int64.
            dtype: Floating-point type of inputs that are not tokens.
            keys: Noise keys [B] int64 for the augmentation; None for no augmentation.

        Returns:
            Samples [B, ...].
        """
        rows = torch.as_tensor(rows, device=self.x.device)
        if self.dataset.kind == "tokens":
            return self.x[rows].long()
        x = self.x.index_select(0, rows).to(dtype)  # [n, ...] -> [B, ...]; faster than self.x[rows]
        offset, scale = self.offset, self.scale
        if self.owner is not None:
            offset, scale = offset[self.owner[rows]], scale[self.owner[rows]]  # [B, ...]
        x.sub_(offset).mul_(scale)
        return x if keys is None or not self.augment else augment(x, keys, self.augment)

    def packed(self, x: Tensor, y: Tensor, rows: Any, *, dtype: torch.dtype) -> Any:
        """Return a batch in the form that the user's data loader gives it."""
        form = self.dataset.form
        if form is None:
            return x, y
        extras: dict[str | int, Tensor | list[str]] = {}
        for key, values in self.dataset.extras.items():
            if values.dtype.kind == "U":  # texts: loaders give lists of them
                extras[key] = values[rows].tolist()
                continue
            found = torch.from_numpy(values[rows]).to(x.device)
            extras[key] = found.to(dtype) if found.is_floating_point() else found
        return form.packed(x, y, extras)

    def reseeded(self, seed: int) -> "Federation":
        """Return a copy for another seed of the run, with the same samples for every client."""
        return replace(self, seed=seed)

    def with_new_clients(self) -> "Federation":
        """Return a copy whose last clients are those that join after the training."""
        if self.new is None:
            return self
        from flbench.data.new_clients import joined

        return replace(self, partition=joined(self.partition, self.new), new=None)

    def without_samples(self) -> "Federation":
        """Return a copy without `x`, for processes that get the samples through shared memory."""
        dataset = replace(self.dataset, x=self.dataset.x[:0])
        if dataset.targets is not None:  # they are in `y`
            dataset = replace(dataset, targets=dataset.targets[:0])
        return replace(self, x=torch.empty(0), dataset=dataset)

    def with_samples(self, samples: NDArray[Any]) -> "Federation":
        """Return a copy with the given samples as `x`, without copying them."""
        with warnings.catch_warnings():
            # PyTorch warns of read-only arrays, but nothing writes to the samples: batches are
            # copies.
            warnings.filterwarnings("ignore", message="The given NumPy array is not writable")
            return replace(self, x=torch.from_numpy(samples))

    def to(self, device: torch.device, dtype: torch.dtype) -> "Federation":
        """Return a copy with `x`, `y`, `offset`, `scale` and `owner` on a device.

        The type of `x` does not change, and that of `y` does for targets in floating point alone.
        Tensors that need no copy share their memory.
        """
        return replace(
            self,
            x=self.x.to(device),
            y=self.y.to(device, dtype if self.y.is_floating_point() else self.y.dtype),
            offset=self.offset.to(device, dtype),
            scale=self.scale.to(device, dtype),
            owner=None if self.owner is None else self.owner.to(device),
        )

    def common_rows(self, limit: int | None) -> Indices:
        """Return the rows of the common test set, or `limit` of them, stratified by class."""
        rows = self.common
        if limit is None or limit >= len(rows):
            return rows
        if limit not in self._of_common:
            share = limit / len(rows)
            rng = generator(self.seed, "common", limit)
            found = split_client(rows, self.dataset.y[rows], (share, 0.0, 1.0 - share), rng)
            self._of_common[limit] = found[0]
        return self._of_common[limit]


def _cut(share: float, n: int) -> int:
    """Return the position in n samples at which a range begins or ends.

    A share strictly between 0 and 1 leaves at least one of two or more samples on each side.
    """
    place = round(share * n)
    return min(max(place, 1), n - 1) if 0 < share < 1 and n > 1 else place


def build(
    dataset: Dataset,
    data: DataConfig,
    partition: PartitionConfig,
    seed: int,
    shifted: ShiftConfig = NO_SHIFT,
) -> Federation:
    """Partition a data set, and shift, encode, impute and normalize its samples.

    Statistics of the data are those of the clients that train.

    Raises:
        UserError: The partition cannot be made from these samples, a saved partition cannot be
            used, or `data.normalize` is not defined for the samples.
    """
    made = _partitioned(dataset, partition, seed, data.imbalance)
    made = replace(made, augment=data.augment if dataset.kind == "images" else ())
    if shifted.is_on:
        made = _shifted(made, shifted, seed if partition.seed is None else partition.seed)
    if dataset.is_table:
        made = _encoded(made, by_client=data.normalize == "client")
    return _normalized(made, data.normalize)


def _partitioned(
    dataset: Dataset, config: PartitionConfig, seed: int, imbalance: float
) -> Federation:
    """Return the samples as they are, and which of them each client has."""
    partition, x, new = make_partition(dataset, config, seed, imbalance), dataset.x, None
    if partition.transform is not None:
        from flbench.data.shift import transformed

        own_seed = seed if config.seed is None else config.seed
        what = f"`partition.scheme={config.scheme}`"
        x, partition = transformed(dataset, partition, own_seed, what)
    if config.new_clients:
        from flbench.data.new_clients import hold_out

        partition, new = hold_out(partition, config, seed)
    y = partition.classes_of(dataset.y) if dataset.targets is None else dataset.targets
    test = np.arange(dataset.train, len(dataset.y))
    made = Federation(
        dataset=dataset,
        x=torch.from_numpy(x),
        y=torch.from_numpy(y),
        partition=partition,
        common=test,
        offset=torch.zeros((1,) * (x.ndim - 1)),
        scale=torch.ones((1,) * (x.ndim - 1)),
        augment=(),
        seed=seed,
        notes=(*dataset.notes, *partition.notes),
        new=new,
    )
    used = np.concatenate([*made.with_new_clients()._together.values()])
    # The test part is the common test set only if no client has any sample of it.
    return replace(made, common=test[:0]) if np.isin(test, used).any() else made


def _shifted(made: Federation, config: ShiftConfig, seed: int) -> Federation:
    """Return the federation with the shifts of its clients, those that train and the new ones."""
    from flbench.data import shift

    source = replace(made.dataset, x=made.x.numpy())
    x, everyone = shift.apply(source, made.with_new_clients().partition, config, seed)
    first, last = everyone.shifts[: made.clients], everyone.shifts[made.clients :]
    classes, new = everyone.classes, made.new
    return replace(
        made,
        x=torch.from_numpy(x),
        y=made.y if classes is None else torch.from_numpy(classes),
        partition=replace(made.partition, classes=classes, shifts=first),
        new=new and replace(new, classes=classes, shifts=last),
    )


def _encoded(made: Federation, *, by_client: bool) -> Federation:
    """Return the federation of a table with words as columns, and no missing values."""
    from flbench.data.table_encoding import encode_words, impute

    everyone = made.with_new_clients().partition
    x, source, word = encode_words(made.x.numpy(), made.dataset, made.partition)
    x, fill, notes = impute(x, everyone, source, by_client=by_client, training=made.clients)
    table = TableEncoding(source, word, fill)
    return replace(made, x=torch.from_numpy(x), table=table, notes=(*made.notes, *notes))


def _normalized(made: Federation, how: str | GivenNormalization) -> Federation:
    """Return the federation with the normalization that `data.normalize` names."""
    dataset, x = made.dataset, made.x.numpy()
    if how == "none" or (how == "standard" and dataset.kind == "tokens"):
        return made
    if dataset.kind == "tokens":
        raise DataError(
            f"`data.normalize` is for numbers, and the samples of `{dataset.name}` are tokens,"
            " which are never normalized. Leave it out."
        )
    if how == "client":
        return _normalized_by_client(made)
    train = np.sort(made._together["train"])
    if isinstance(how, GivenNormalization):
        offset, scale = normalization.given(how, x, dataset)
    else:
        offset, scale = normalization.standard(x, train)
    return replace(made, offset=torch.from_numpy(offset), scale=torch.from_numpy(scale))


def _normalized_by_client(made: Federation) -> Federation:
    """Return the federation with a normalization of each client by its own training part."""
    if len(made.common):
        raise DataError(
            f"`data.normalize=client` is not defined for the common test set of"
            f" `{made.dataset.name}`, {len(made.common)} samples that belong to no client."
            " Distribute them, too (partition.pool=merged), or leave data.normalize out."
        )
    x, everyone = made.x.numpy(), made.with_new_clients().partition
    shape = (everyone.clients + 1, x.shape[1], *(1,) * (x.ndim - 2))
    offset, scale = np.zeros((2, *shape), dtype=np.float32)
    owner = torch.full((len(x),), everyone.clients)
    for client, rows in enumerate(everyone.parts["train"]):
        owner[everyone.rows(client)] = client
        if len(rows):
            offset[client], scale[client] = normalization.standard(x, rows)
    return replace(
        made, offset=torch.from_numpy(offset), scale=torch.from_numpy(scale), owner=owner
    )


def augment(x: Tensor, keys: Tensor, kinds: Sequence[str]) -> Tensor:
    """Augment images at random: crop after zero padding, and flip left and right.

    Args:
        x: Images [B, channels, height, width].
        keys: Noise keys [B] int64, which determine offset and flip of each image.
        kinds: Augmentations to apply: `crop`, `flip`.

    Returns:
        Images of the same shape.
    """
    if "crop" in kinds:
        size = 2 * CROP_PADDING + 1
        top = (uniform(keys, 0) * size).long()
        left = (uniform(keys, 1) * size).long()
        # padded: [B, channels, height + 8, width + 8]; rows [B, height] and columns [B, width] of
        # the window of each image in it.
        padded = torch.nn.functional.pad(x, (CROP_PADDING,) * 4)
        rows = top[:, None] + torch.arange(x.shape[2], device=x.device)
        columns = left[:, None] + torch.arange(x.shape[3], device=x.device)
        b = torch.arange(len(x), device=x.device)[:, None, None, None]
        c = torch.arange(x.shape[1], device=x.device)[None, :, None, None]
        x = padded[b, c, rows[:, None, :, None], columns[:, None, None, :]]
    if "flip" in kinds:
        x = torch.where((uniform(keys, 2) < 0.5)[:, None, None, None], x.flip(3), x)
    return x
