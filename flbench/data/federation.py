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
from flbench.data.dataset import PARTS, Dataset
from flbench.data.partition import ClientParts
from flbench.data.partitioning import make_partition, split_client
from flbench.data.schemes import Indices

CROP_PADDING: Final = 4  # pixels on each side
MOST_SHOWN: Final = 4  # channels or columns that a note lists
MOST_CLIENTS: Final = 6  # clients that a note lists
MAX_BYTES: Final = 16 * 2**30
MOST_UNIT: Final = 16.0  # images with larger values are not in units of [0, 1]
FEW_SAMPLES: Final = 10  # training samples whose mean and standard deviation are uncertain
NO_SHIFT: Final = ShiftConfig()
PIECE: Final = 2**25  # bytes of float64 in which sums over pixels are computed


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

    def rows(self, which: Samples, client: int, draw: Draw) -> Indices:
        """Return the rows of the data set that a step of a program reads.

        A whole part is returned in ascending order. A range or a limit is applied to an order that
        is drawn for each seed and client, with `redraw="round"` also for each round. For the common
        test set, which is the same for all clients, a limit selects a sample stratified by class
        for each seed.

        Args:
            which: Selection of the client's samples.
            client: Id of the client.
            draw: Random streams of the round.

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
        """Return a batch in the form that the user's data loader gives it.

        Args:
            x: Inputs [B, ...].
            y: Labels [B], or targets.
            rows: Rows [B] of the data set, as an array.
            dtype: Floating-point type of further values.
        """
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
        """Return a copy for another seed of the run, with the same samples for every client.

        Args:
            seed: Seed of the run. It determines which samples `rows` returns for a range or a
                limit, and which samples of the common test set a limit selects.
        """
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
        """Return a copy with the given samples as `x`, without copying them.

        Args:
            samples: All samples, as in `x`; the array may be read-only.
        """
        with warnings.catch_warnings():
            # PyTorch warns of read-only arrays, but nothing writes to the samples: batches are
            # copies.
            warnings.filterwarnings("ignore", message="The given NumPy array is not writable")
            return replace(self, x=torch.from_numpy(samples))

    def to(self, device: torch.device, dtype: torch.dtype) -> "Federation":
        """Return a copy with `x`, `y`, `offset`, `scale` and `owner` on a device.

        The type of `x` does not change, and that of `y` does for targets in floating point alone.
        Tensors that need no copy share their memory.

        Args:
            device: The device.
            dtype: Floating-point type of `offset`, `scale` and such targets.
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
        """Return the rows of the common test set, or a sample of it that is stratified by class.

        Args:
            limit: Number of rows of the sample; None for the whole set.
        """
        rows = self.common
        if limit is None or limit >= len(rows):
            return rows
        share = limit / len(rows)
        rng = generator(self.seed, "common", limit)
        return split_client(rows, self.dataset.y[rows], (share, 0.0, 1.0 - share), rng)[0]


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

    Args:
        dataset: The data set.
        data: Section `data`, for normalization and augmentation.
        partition: Section `partition`.
        seed: Seed of the run.
        shifted: Section `shift`.

    Raises:
        UserError: The partition cannot be made from these samples, a saved partition cannot be
            used, or `data.normalize=client` is set and there is a common test set.
    """
    everyone = make_partition(dataset, partition, seed)
    x, own_seed = dataset.x, seed if partition.seed is None else partition.seed
    if everyone.transform is not None:
        from flbench.data.shift import transformed

        what = f"`partition.scheme={partition.scheme}`"
        x, everyone = transformed(dataset, everyone, own_seed, what)
    # Statistics of the data are those of the clients that train.
    assignment = everyone
    new: ClientParts | None = None
    if partition.new_clients:
        from flbench.data.new_clients import hold_out, joined

        assignment, new = hold_out(everyone, dataset, partition, seed)
        both = assignment if new is None else joined(assignment, new)
        everyone = replace(both, classes=everyone.classes, transformed=everyone.transformed)
    notes = [*dataset.notes, *assignment.notes]
    used = np.sort(np.concatenate([rows for part in PARTS for rows in everyone.parts[part]]))
    test = np.arange(dataset.train, len(dataset.y))
    # The test part is the common test set only if no client has any sample of it.
    common = test if not len(np.intersect1d(test, used, assume_unique=True)) else test[:0]
    by_client = data.normalize == "client"
    if by_client and len(common):
        raise DataError(
            f"`data.normalize=client` is not defined for the common test set of `{dataset.name}`,"
            f" {len(common)} samples that belong to no client. Distribute them, too"
            " (partition.pool=merged), or leave data.normalize out."
        )
    if dataset.kind == "tokens" and data.normalize not in ("standard", "none"):
        raise DataError(
            f"`data.normalize` is for numbers, and the samples of `{dataset.name}` are tokens,"
            " which are never normalized. Leave it out."
        )
    if shifted.is_on:
        from flbench.data import shift

        x, everyone = shift.apply(replace(dataset, x=x), everyone, shifted, own_seed)
        notes += _shift_notes(everyone, common)
    count = assignment.clients
    assignment = _as_seen(assignment, everyone, everyone.shifts[:count])
    new = None if new is None else _as_seen(new, everyone, everyone.shifts[count:])
    table = None
    if dataset.is_table:
        x, source, word, encoded = _encode_words(dataset, assignment)
        x, fill, imputed = _impute(
            x, everyone, source, by_client=by_client, training=assignment.clients
        )
        table = TableEncoding(source, word, fill)
        notes += [*encoded, *imputed]
    owner = None
    if by_client:
        owner = torch.full((len(x),), everyone.clients)
        for part in PARTS:
            for client, rows in enumerate(everyone.parts[part]):
                owner[rows] = client
        offset, scale, about = _normalization_by_client(x, everyone, dataset)
        notes += about
    elif dataset.kind == "tokens":
        offset, scale = np.zeros(1, np.float32), np.ones(1, np.float32)
        notes.append(_about_tokens(dataset))
    elif isinstance(data.normalize, GivenNormalization):
        offset, width = _given(data.normalize, x, dataset)
        scale = _inverse(width)
        notes.append(_normalization_note(offset, width, "given", dataset))
    elif data.normalize == "none":
        offset, scale = (
            np.zeros((1,) * (x.ndim - 1), np.float32),
            np.ones((1,) * (x.ndim - 1), np.float32),
        )
        notes.append("data: inputs are not normalized (data.normalize=none).")
    else:
        train = np.sort(np.concatenate(assignment.parts["train"]))
        offset, width = _normalization(x, train, data.normalize, dataset)
        scale = _inverse(width)
        notes.append(_normalization_note(offset, width, data.normalize, dataset))
    return Federation(
        dataset=dataset,
        x=torch.from_numpy(x),
        y=torch.from_numpy(
            assignment.classes_of(dataset.y) if dataset.targets is None else dataset.targets
        ),
        partition=assignment,
        common=common,
        offset=torch.from_numpy(offset),
        scale=torch.from_numpy(scale),
        augment=data.augment if dataset.kind == "images" else (),
        seed=seed,
        notes=tuple(notes),
        table=table,
        owner=owner,
        new=new,
    )


def _as_seen(some: ClientParts, everyone: ClientParts, shifts: tuple[str, ...]) -> ClientParts:
    """Return a part of the clients with what has been done to the samples of all of them."""
    return replace(
        some,
        shifts=shifts,
        classes=everyone.classes,
        transformed=everyone.transformed,
        transform=None,
    )


def _shift_notes(partition: ClientParts, common: Indices) -> list[str]:
    """Return notes on shifted samples."""
    different = list(dict.fromkeys(partition.shifts))
    shown = "; ".join(different[:MOST_SHOWN]) + ("; ..." if len(different) > MOST_SHOWN else "")
    notes = [f"shift: client k is in group k mod {len(different)}: {shown}."]
    if len(common):
        notes.append(
            "shift: the common test set belongs to no client, so its samples and labels are those"
            " of the data set, without any shift."
        )
    return notes


def _about_tokens(dataset: Dataset) -> str:
    """Return a sentence with the length, the vocabulary and the padding of tokens."""
    padding = f"{dataset.padding} is padding" if dataset.padding is not None else "no padding"
    return (
        f"data: samples are sequences of {dataset.x.shape[1]} tokens of a vocabulary of"
        f" {dataset.vocabulary:,}, {padding}."
    )


def _encode_words(
    dataset: Dataset, partition: ClientParts
) -> tuple[NDArray[np.float32], Indices, Indices, list[str]]:
    """Replace each column of words by one column of 0 and 1 for each word (one-hot encoding).

    The words are those that occur in the training parts of the clients, all clients together, so
    that all have the same columns. Another word is 0 in all of them, and a missing value is NaN.

    Args:
        dataset: A table.
        partition: The partition.

    Returns:
        The samples [n, new columns]; for each new column the column of the data set that it comes
        from, and the position of its word (-1 for a column of numbers); and notes.

    Raises:
        DataError: No column is left, because the training parts have no word in any of them, or the
            samples would take more than 16 GiB.
    """
    x = dataset.x
    if not any(dataset.words):
        return x, np.arange(x.shape[1]), np.full(x.shape[1], -1), []
    train = np.concatenate(partition.parts["train"])
    others = np.concatenate([rows for part in PARTS[1:] for rows in partition.parts[part]])
    known = []  # for each column of words: positions of the words in training parts
    for k, words in enumerate(dataset.words):
        values = x[train, k]
        known.append(np.unique(values[~np.isnan(values)]) if words else None)
    width = sum(1 if found is None else len(found) for found in known)
    if not width:
        raise DataError(
            f"the columns of `{dataset.name}` are columns of words, and all their values in the"
            " training parts of the clients are missing. Fill in words, or raise the first share of"
            " partition.split."
        )
    if 4 * len(x) * width > MAX_BYTES:
        raise DataError(
            f"`{dataset.name}` with its {width:,} columns takes {4 * len(x) * width / 2**30:.1f}"
            f" GiB (columns of words have one for each word); the limit is {MAX_BYTES // 2**30}."
            " Leave out columns with many words."
        )
    encoded = np.empty((len(x), width), dtype=np.float32)
    source: list[int] = []
    word: list[int] = []
    unseen = 0
    for k, found in enumerate(known):
        column, begin = x[:, k], len(source)
        if found is None:
            encoded[:, begin] = column
            source.append(k)
            word.append(-1)
            continue
        new = encoded[:, begin : begin + len(found)]
        new[:] = column[:, None] == found  # [n, words]
        new[np.isnan(column)] = np.nan
        unseen += int((~np.isnan(column[others]) & ~np.isin(column[others], found)).sum())
        source += [k] * len(found)
        word += [int(position) for position in found]
    of_words = [(name, found) for name, found in zip(dataset.columns, known, strict=True)]
    listed = [f"`{name}` ({len(found)})" for name, found in of_words if found is not None]
    shown = ", ".join(listed[:MOST_SHOWN]) + (", ..." if len(listed) > MOST_SHOWN else "")
    notes = [
        "data: columns of words became columns of 0 and 1, one for each word in the training parts"
        f" of all clients: {shown}."
    ]
    if unseen:
        notes.append(
            f"data: {unseen} values of validation and test parts are words that no training part"
            " has; they are 0 in all columns of their words."
        )
    return encoded, np.array(source), np.array(word), notes


def _impute(
    x: NDArray[np.float32],
    partition: ClientParts,
    source: Indices,
    *,
    by_client: bool,
    training: int,
) -> tuple[NDArray[np.float32], NDArray[np.float32], list[str]]:
    """Fill missing values of tables with the column's mean over the client's training part.

    If that part has no value in a column, the mean of the other clients' means is used, and a note
    says so, because the client alone could not compute it.

    Args:
        x: Samples [n, columns], NaN where a value is missing.
        partition: The partition.
        source: Column of the data set that each column comes from. The notes count a value once if
            it has become several columns.
        by_client: Whether a client uses no statistics of other clients. A column without a value in
            its training part is then filled with 0.
        training: Number of clients that train, the first ones; the means of others are not shared.

    Returns:
        The samples without missing values for all samples that clients have; the values that
        replace missing ones, as `TableEncoding.fill`; and notes.
    """
    x = x.copy()
    own = np.full((partition.clients, x.shape[1]), np.nan)  # [N, columns], means of the clients
    for client, rows in enumerate(partition.parts["train"]):
        own[client] = means_of(x[rows])
    known = ~np.isnan(own)
    first = np.unique(source, return_index=True)[1]  # one column for each column of the data set
    shared = own[:training], known[:training]
    overall = np.where(shared[1], shared[0], 0.0).sum(axis=0) / np.maximum(shared[1].sum(axis=0), 1)
    filled = np.where(known, own, 0.0 if by_client else overall)
    missing = 0
    for part in PARTS:
        for client, rows in enumerate(partition.parts[part]):
            gaps = np.isnan(x[rows])
            missing += int(gaps[:, first].sum())
            x[rows] = np.where(gaps, filled[client], x[rows])
    notes = []
    if missing:
        notes.append(
            f"data: {missing} missing values were filled with the mean of the client's training"
            " part."
        )
    if (~known).any() and not by_client:
        notes.append(
            "data: where a client's training part has no value in a column, the mean over the other"
            f" clients was used ({int((~known[:, first]).sum())} times)."
        )
    return x, np.concatenate([filled, overall[None]]).astype(np.float32), notes


def _normalization_by_client(
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
    return mean.astype(np.float32), _inverse(deviation)


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


def means_of(x: NDArray[Any]) -> NDArray[np.float64]:
    """Return the mean of each column [columns] over the rows that have a value; NaN without any.

    Args:
        x: Rows [n, columns], NaN where a value is missing.
    """
    known = ~np.isnan(x)
    totals = np.where(known, x, 0.0).sum(axis=0, dtype=np.float64)
    found = np.full(x.shape[1], np.nan)
    np.divide(totals, known.sum(axis=0), out=found, where=known.any(axis=0))
    return found


def _called(partition: ClientParts, clients: NDArray[np.int64]) -> str:
    """Return how the first of some clients are called, for a sentence."""
    shown = [partition.called(int(client)) for client in clients[:MOST_CLIENTS]]
    more = len(clients) - len(shown)
    return f"client{'s' * (len(clients) > 1)} {', '.join(shown)}" + (
        f" and {more:,} more" if more else ""
    )


def _normalization(
    x: NDArray[Any], train: Indices, kind: str, dataset: Dataset
) -> tuple[NDArray[np.float32], NDArray[Any]]:
    """Return offset and width of the normalization (x - offset) / width; see `_inverse`.

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


def _given(
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


def _normalization_note(
    offset: NDArray[np.float32], width: NDArray[Any], kind: str, dataset: Dataset
) -> str:
    """Return a sentence with the offset and the width of the normalization (x - offset) / width.

    Pixels are described as PyTorch's transforms describe them: scaled to [0, 1] first.

    Args:
        offset: Offset by channel or column.
        width: Standard deviation or range by channel or column; 0 if it is constant.
        kind: `standard` or `unit` (see `_normalization`), or `given`.
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


def _inverse(width: NDArray[Any]) -> NDArray[np.float32]:
    """Return the factor 1 / width, and 0 where a channel or column has one value (width 0).

    Training samples do not say how wide such a channel or column is, so its inputs are 0.
    """
    factor = np.zeros(width.shape)
    np.divide(1.0, width, out=factor, where=width > 0)
    # A width below the smallest normal number of float32 would have an infinite factor.
    return np.minimum(factor, np.finfo(np.float32).max).astype(np.float32)


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
