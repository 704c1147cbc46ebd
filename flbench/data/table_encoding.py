"""Tables as inputs of nets: columns of words as 0 and 1, and missing values filled."""

import warnings
from typing import Any

import numpy as np
from numpy.typing import NDArray

from flbench.core.errors import DataError
from flbench.data.dataset import Dataset
from flbench.data.partition import ClientParts
from flbench.data.schemes import Indices


def encode_words(
    x: NDArray[np.float32], dataset: Dataset, partition: ClientParts
) -> tuple[NDArray[np.float32], Indices, Indices]:
    """Replace each column of words by one column of 0 and 1 for each word (one-hot encoding).

    The words are those that occur in the training parts of the clients, all clients together, so
    that all have the same columns. Another word is 0 in all of them, and a missing value is NaN.

    Returns:
        The samples [n, new columns]; for each new column the column of the data set that it comes
        from, and the position of its word (-1 for a column of numbers).
    """
    if not any(dataset.words):
        return x, np.arange(x.shape[1]), np.full(x.shape[1], -1)
    train = np.concatenate(partition.parts["train"])
    none = np.array([-1])
    words = [  # positions of the words in training parts; -1 for a column of numbers
        np.unique(x[train, k][~np.isnan(x[train, k])]).astype(np.int64) if given else none
        for k, given in enumerate(dataset.words)
    ]
    source, word = np.repeat(np.arange(len(words)), [*map(len, words)]), np.concatenate(words)
    if not len(word):
        raise DataError(
            f"the training parts of `{dataset.name}` have no word in its columns of words. Fill in"
            " words, or raise the first share of partition.split."
        )
    encoded = np.empty((len(x), len(word)), dtype=np.float32)
    for place, (k, position) in enumerate(zip(source, word, strict=True)):
        values = x[:, k]
        is_word = np.where(np.isnan(values), values, values == position)
        encoded[:, place] = values if position < 0 else is_word
    return encoded, source, word


def impute(
    x: NDArray[np.float32],
    partition: ClientParts,
    source: Indices,
    *,
    by_client: bool,
    training: int,
) -> tuple[NDArray[np.float32], NDArray[np.float32], list[str]]:
    """Fill missing values of tables with the column's mean over the client's training part.

    If that part has no value in a column, the mean of the other clients' means is used.

    Args:
        x: Samples [n, columns], NaN where a value is missing.
        partition: The partition, of the clients that train and of new ones.
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
    own = np.stack([means_of(x[rows]) for rows in partition.parts["train"]])  # [N, columns]
    known = ~np.isnan(own)
    first = np.unique(source, return_index=True)[1]  # one column for each column of the data set
    overall = np.nan_to_num(means_of(own[:training]))
    filled = np.where(known, own, 0.0 if by_client else overall)
    missing = 0
    for client in range(partition.clients):
        rows = partition.rows(client)
        gaps = np.isnan(x[rows])
        missing += int(gaps[:, first].sum())
        x[rows] = np.where(gaps, filled[client], x[rows])
    notes = []
    if missing or not known.all():
        notes.append(
            f"data: {missing} missing values were filled with the mean of the client's training"
            f" part, or with {'0' if by_client else 'the mean over the other clients'} where that"
            f" part has no value in a column ({int((~known[:, first]).sum())} times)."
        )
    return x, np.concatenate([filled, overall[None]]).astype(np.float32), notes


def means_of(x: NDArray[Any]) -> NDArray[np.float64]:
    """Return the mean of each column of x [n, columns] without its NaN; NaN without any value."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)
        return np.asarray(np.nanmean(x, axis=0, dtype=np.float64))
