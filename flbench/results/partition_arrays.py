"""Reading the arrays of a partition.npz: counts of samples, and the samples of the clients."""

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from flbench.core import files
from flbench.core.documents import as_data_error
from flbench.core.errors import DataError
from flbench.results.summary import MOST_SAMPLES

if TYPE_CHECKING:
    from numpy.typing import NDArray

LARGEST_PARTITION: Final = 2**30
"""Largest size of the arrays of a partition.npz of a run folder, in bytes."""
MOST_COUNTS: Final = 10**8
"""Largest number of entries of `train_counts`: each takes 8 bytes of memory."""


@dataclass(frozen=True)
class Samples:
    """The samples of a partition.

    Attributes:
        index: Row numbers [n] in the data set.
        client: The client [n] that has the sample.
        part: The client's part [n] that it belongs to: 0 train, 1 validation, 2 test.
    """

    index: "NDArray[np.int64]"
    client: "NDArray[np.int64]"
    part: "NDArray[np.int64]"


def read_counts(file: Path) -> "NDArray[np.int64] | None":
    """Return the training samples [N, C] by client and class; None if the file lacks them."""
    counts = _partition_arrays(file, "train_counts").get("train_counts")
    if counts is None:
        return None
    is_table = counts.ndim == 2 and counts.dtype.kind in "iu" and counts.size <= MOST_COUNTS
    if not is_table or (counts.size and not 0 <= counts.min() <= counts.max() <= MOST_SAMPLES):
        raise DataError(
            f"{file} is damaged: `train_counts` is not a table [clients, classes] of numbers of"
            f" samples, with at most {MOST_COUNTS:,} entries. Start the run again."
        )
    return counts.astype(np.int64)


def read_samples(file: Path) -> Samples | None:
    """Return the samples of a partition; None if the file does not exist, or lacks them."""
    names = ("index", "client", "part")
    found = _partition_arrays(file, *names)
    if len(found) < len(names):
        return None
    for name, array in found.items():
        if array.ndim != 1 or array.dtype.kind not in "iu" or len(array) != len(found["index"]):
            raise DataError(
                f"{file} is damaged: `{name}` is not a row of integers, one for each sample. Start"
                " the run again."
            )
    return Samples(**{name: found[name].astype(np.int64) for name in names})


def _partition_arrays(file: Path, *names: str) -> "dict[str, NDArray[Any]]":
    """Return arrays of a partition.npz by name, as far as they are there."""
    from flbench.data.npz_files import read_arrays

    if not file.is_file():
        return {}
    with as_data_error(file):
        files.check_regular(file, LARGEST_PARTITION)
    return read_arrays(file, LARGEST_PARTITION, names)
