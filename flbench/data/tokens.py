"""Sequences of tokens: whole numbers that a net looks up, checked against their vocabulary."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from flbench.core.errors import DataError
from flbench.data.dataset import Dataset

MAX_VOCABULARY: Final = 10_000_000
STORED: Final = (np.uint8, np.int16, np.int32)
"""Types that tokens are stored in, the smallest first; a batch has them as int64."""


def complete(dataset: Dataset, padding: int | None, where: str) -> Dataset:
    """Return a data set, if it is one of tokens with its vocabulary, in the smallest type.

    Args:
        dataset: A data set. If `vocabulary` is 0, it has the ids up to the largest token.
        padding: `data.padding`: id of padding; None for that of the data set, if it has one.
        where: What the data are, as the beginning of an error message.

    Raises:
        DataError: A token or the padding is not in the vocabulary; the message names the sample.
    """
    if dataset.kind != "tokens":
        return dataset
    padding = dataset.padding if padding is None else padding
    x, given = dataset.x, dataset.vocabulary
    size = given or 1 + max(int(x.max()), -1 if padding is None else padding)
    if padding is not None and not 0 <= padding < size:
        raise DataError(
            f"`data.padding={padding}` is not a token id of {where}, whose vocabulary has the ids"
            f" 0 to {size - 1}. Give the id that fills up shorter sequences."
        )
    wrong = (x < 0) | (x >= min(size, MAX_VOCABULARY))
    if wrong.any():
        row, place = (int(k) for k in np.argwhere(wrong)[0])
        raise DataError(
            f"{where}: row {row} (counted from 0) has the token {int(x[row, place])} at position"
            f" {place}, and `vocabulary` has the ids 0 to {min(size, MAX_VOCABULARY) - 1}. Replace"
            " the token, or give the right vocabulary; measurements need data.kind=table."
        )
    stored = next(kind for kind in STORED if size - 1 <= np.iinfo(kind).max)
    return replace(dataset, x=x.astype(stored, copy=False), vocabulary=size, padding=padding)


def padded(sequences: Sequence[Any], padding: int, where: str) -> NDArray[np.int64]:
    """Return sequences of different lengths as one array [n, L], filled up on the right.

    Raises:
        DataError: An item is not a sequence of whole numbers.

    >>> padded([[5, 6, 7], [8]], 0, "data")
    array([[5, 6, 7],
           [8, 0, 0]])
    """
    length = max((len(one) for one in sequences), default=0)
    found = np.full((len(sequences), length), padding, dtype=np.int64)
    for row, one in enumerate(sequences):
        numbers = np.asarray(one)
        if len(numbers) and (numbers.ndim != 1 or numbers.dtype.kind not in "iu"):
            raise DataError(
                f"{where}: row {row} (counted from 0) is not a sequence of whole numbers: it is"
                f" {numbers.dtype} of the shape {list(numbers.shape)}. Give the ids of its tokens."
            )
        found[row, : len(numbers)] = numbers
    return found
