"""A data set in memory."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from flbench.core.errors import DataError

MAX_CLASSES = 10_000


@dataclass(frozen=True)
class Dataset:
    """Samples in memory, the train part first.

    Attributes:
        name: as in the configuration.
        x: [n, C, H, W] uint8 images, or [n, F] float32 table rows (NaN where a value is missing).
        y: [n] int64 labels in [0, C).
        classes: their names.
        train: number of samples of the set's own train part; the others are its test part.
        groups: [n] int64, the natural client of each sample; None if the set names none.
        scale: what the images are divided by to lie in [0, 1].
    """

    name: str
    x: NDArray[Any]
    y: NDArray[np.int64]
    classes: tuple[str, ...]
    train: int
    groups: NDArray[np.int64] | None = None
    scale: float = 255.0

    @property
    def is_table(self) -> bool:
        """Whether the samples are rows of a table, not images."""
        return self.x.ndim == 2


@dataclass(frozen=True)
class KnownDataset:
    """A data set that flbench knows by name."""

    title: str
    classes: int
    shape: tuple[int, ...]
    where: str
    load: Callable[[Path], Dataset] | None = None
    downloaded: str = ""  # what torchvision's download leaves in data.root


def check_labels(y: NDArray[Any], what: str, classes: int | None = None) -> NDArray[np.int64]:
    """Return labels as int64 [n].

    Raises: DataError if one is not a whole number in [0, classes), or above what any data set has.
    """
    y = np.asarray(y).reshape(-1)
    if y.dtype.kind not in "iub" and not (y.dtype.kind == "f" and np.array_equal(y, np.round(y))):
        raise DataError(f"{what} must be whole numbers, got {y.dtype}.")
    y = y.astype(np.int64)
    top = MAX_CLASSES if classes is None else classes
    if len(y) and (y.min() < 0 or y.max() >= top):
        bad = int(np.flatnonzero((y < 0) | (y >= top))[0])
        raise DataError(f"{what} must lie in [0, {top}), got {int(y[bad])} at position {bad}.")
    return y
