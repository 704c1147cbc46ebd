"""Tables as inputs of nets: columns of words as 0 and 1, and missing values filled."""

from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from flbench.core.errors import DataError
from flbench.data.dataset import PARTS, Dataset
from flbench.data.partition import ClientParts
from flbench.data.schemes import Indices

MOST_SHOWN: Final = 4  # columns that a note lists
MAX_BYTES: Final = 16 * 2**30


def encode_words(
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


def impute(
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
