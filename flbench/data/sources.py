"""Loading of data sets; `other_sources` reads all but scikit-learn's digits."""

from functools import cache

import numpy as np
from numpy.typing import NDArray

from flbench.config.schema import DataConfig
from flbench.data.dataset import FOR_FILES, Dataset, check_unused


def load(config: DataConfig) -> Dataset:
    """Load the data set that a configuration names.

    Args:
        config: Section `data`.

    Raises:
        DataError: The data set is not found (the message names the expected files) or cannot be
            read or downloaded, or it cannot have the groups of `data.group`.
    """
    if config.name != "digits" or config.source is not None or config.path is not None:
        from flbench.data import other_sources

        return other_sources.load(config)
    check_unused(config, FOR_FILES, "scikit-learn's digits")
    return digits()


@cache  # scikit-learn parses a text file, which takes longer than the rest of a small experiment
def _digits_arrays() -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
    """Return images [N, 1, 8, 8] and labels [N] of scikit-learn's digits."""
    from sklearn.datasets import load_digits

    bunch = load_digits()
    return bunch.images.astype(np.uint8)[:, None], bunch.target.astype(np.int64)


def digits() -> Dataset:
    """Return scikit-learn's 1,797 images of digits, 8x8 pixels each.

    scikit-learn defines no test part; flbench uses the last 297 images.
    """
    images, labels = _digits_arrays()
    return Dataset(
        "digits",
        images.copy(),
        labels.copy(),
        tuple(str(digit) for digit in range(10)),
        train=1500,
        scale=16.0,
    )
