"""Reading of the folder of UCI HAR: motion of smartphones, of 30 persons in 6 activities.

The folder has, for each PART of `train` and `test`, the files
`PART/Inertial Signals/SIGNAL_PART.txt` with a row of 128 numbers for each window, `PART/y_PART.txt`
with the number of the activity, and `PART/subject_PART.txt` with that of the person. The parts have
different persons, each of which is a natural client; all windows belong to the train part of the
data set.
"""

import re
import warnings
from typing import Any, Final, Literal

import numpy as np
from numpy.typing import NDArray

from flbench.config.schema import DataConfig
from flbench.core.errors import DataError
from flbench.data.dataset import Dataset
from flbench.data.folders import Folder

SIGNAL: Final = re.compile(
    r"(?P<top>.*?)(?P<part>train|test)/Inertial Signals/(?P<signal>\w+)_(?P=part)\.txt"
)


def is_har(folder: Folder) -> bool:
    """Return whether a folder has windows of signals as UCI HAR."""
    return any(map(SIGNAL.fullmatch, folder.names))


def read(folder: Folder, config: DataConfig) -> Dataset:
    """Read the windows of all persons: series of the signals in the order of their names.

    Raises:
        DataError: A file is missing or damaged, or files have different numbers of rows.
    """
    found = [match for match in map(SIGNAL.fullmatch, folder.names) if match]
    top, signals = found[0]["top"], sorted({match["signal"] for match in found})
    x, labels, persons = list[NDArray[Any]](), list[NDArray[Any]](), list[NDArray[Any]]()
    for part in sorted({match["part"] for match in found}, reverse=True):  # train, then test
        files = [f"Inertial Signals/{signal}_{part}.txt" for signal in signals]
        windows = [_numbers(folder, f"{top}{part}/{file}", np.float32, 2) for file in files]
        for rows, file in ((labels, f"y_{part}.txt"), (persons, f"subject_{part}.txt")):
            rows.append(_numbers(folder, f"{top}{part}/{file}", np.int64, 1))
        shapes = {(len(labels[-1]), *windows[0].shape[1:]), *(one.shape for one in windows)}
        if len(shapes) > 1 or len(persons[-1]) != len(labels[-1]):
            raise DataError(
                f"{folder.path}: {', '.join(files)}, y_{part}.txt and subject_{part}.txt have"
                " different numbers of rows or columns. Extract the data set again."
            )
        x.append(np.stack(windows, axis=1))  # [n, channels, length]
    numbers, y = np.unique(np.concatenate(labels), return_inverse=True)
    people, groups = np.unique(np.concatenate(persons), return_inverse=True)
    names: dict[str, str] = {}
    if (entry := f"{top}activity_labels.txt") in folder.names:
        words = folder.read(entry).decode("utf-8", "replace").split()
        names = dict(zip(words[::2], words[1::2], strict=False))  # `1 WALKING`
    return Dataset(
        config.title,
        np.concatenate(x),
        y.astype(np.int64),
        tuple(names.get(str(number), str(number)) for number in numbers),
        train=len(y),
        groups=groups.astype(np.int64),
        group_names=tuple(map(str, people)),
    )


def _numbers(folder: Folder, entry: str, dtype: type, axes: Literal[1, 2]) -> NDArray[Any]:
    """Return the numbers of a file, with a row for each line."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error")  # of files without rows
            found: NDArray[Any] = np.loadtxt(folder.file(entry), dtype=dtype, ndmin=axes)
        if found.ndim != axes or not np.isfinite(found).all() or (axes == 1 and found.min() < 0):
            raise ValueError("it has other numbers than those of UCI HAR")
    except (OSError, ValueError, OverflowError, Warning) as error:
        raise DataError(
            f"{folder.place(entry)} cannot be read ({error}). Extract the data set again."
        ) from error
    return found
