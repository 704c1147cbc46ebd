"""Targets that are not classes: the numbers of a regression, the maps of a segmentation."""

from collections.abc import MutableMapping
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from flbench.core.errors import DataError

KEYS: Final = ("train_labels", "val_labels", "test_labels")
"""Names of the arrays that have labels or targets, in the order of a data set's samples."""

NAMES: Final = ("all",)
"""Classes of a data set with targets: all samples are of one class."""


def take(
    arrays: MutableMapping[str, NDArray[Any]], where: str, *, given: bool | None = None
) -> NDArray[Any] | None:
    """Take the targets out of the arrays of a data set; in their place come labels that are 0.

    If `given` does not say whether labels are targets, they are if they cannot be classes: several
    values for each sample, or values that are not whole numbers.

    Returns:
        Targets [n, ...] in the order of the data set's samples, float32, float64 or int64; None if
        the labels are classes.

    Raises:
        DataError: The targets are not finite numbers.

    >>> arrays = {"train_labels": np.array([[0.5], [1.5]]), "test_labels": np.array([[2.0]])}
    >>> take(arrays, "data").tolist(), arrays["train_labels"].tolist()
    ([[0.5], [1.5], [2.0]], [0, 0])
    """
    keys = [key for key in KEYS if key in arrays]
    if given is None:
        given = not all(_can_be_classes(arrays[key]) for key in keys)
    if not given or not keys:
        return None
    found = [_checked(arrays[key], f"{where}: `{key}`") for key in keys]
    for key in keys:
        arrays[key] = np.zeros(len(arrays[key]), dtype=np.int64)
    return np.concatenate(found)


def _can_be_classes(y: NDArray[Any]) -> bool:
    """Return whether labels are one name or one whole number for each sample."""
    if y.dtype.kind not in "iubf":  # names; other types are refused where labels are checked
        return True
    is_whole = y.dtype.kind != "f" or (np.isfinite(y).all() and np.array_equal(y, np.round(y)))
    return y.ndim > 0 and y.size == len(y) and bool(is_whole)


def _checked(y: NDArray[Any], what: str) -> NDArray[Any]:
    """Return targets as float32, float64 or int64; raise a DataError if they cannot be used."""
    if y.ndim == 0 or y.dtype.kind not in "iubf":
        raise DataError(f"{what} must be numbers, a target for each sample, got {y.dtype}.")
    if y.dtype.kind != "f":
        return y.astype(np.int64)
    wrong = np.flatnonzero(~np.isfinite(y).reshape(len(y), -1).all(axis=1))
    if len(wrong):
        raise DataError(
            f"{what}: the label or target of sample {wrong[0]} (counted from 0) is NaN or infinite."
            " Replace it, or leave the sample out."
        )
    return y if y.dtype in (np.float32, np.float64) else y.astype(np.float32)
