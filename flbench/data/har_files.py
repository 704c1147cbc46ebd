"""Reading of the folder of UCI HAR: motion of smartphones, of 30 persons in 6 activities.

The folder has, for each PART of `train` and `test`, the files
`PART/Inertial Signals/SIGNAL_PART.txt` with a row of 128 numbers for each window, `PART/y_PART.txt`
with the number of the activity, and `PART/subject_PART.txt` with that of the person, who is a
natural client. All windows belong to the train part of the data set.
"""

import re
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from flbench.config.schema import DataConfig
from flbench.core.errors import DataError
from flbench.data.dataset import Dataset
from flbench.data.folders import Folder

SIGNAL: Final = re.compile(
    r"(?P<top>.*?)(?P<part>train|test)/Inertial Signals/(?P<signal>\w+)_(?P=part)\.txt"
)


def read(folder: Folder, config: DataConfig) -> Dataset:
    """Read the windows of all persons: series of the signals in the order of their names.

    Raises:
        DataError: A file is missing or damaged, or files have different numbers of rows.
    """
    found = [match for match in map(SIGNAL.fullmatch, folder.names) if match]
    top, signals = found[0]["top"], sorted({match["signal"] for match in found})
    x, y, persons = list[NDArray[Any]](), list[NDArray[Any]](), list[NDArray[Any]]()
    for part in sorted({match["part"] for match in found}, reverse=True):  # train, then test
        entry = ""
        try:
            windows = []
            for entry in (f"Inertial Signals/{signal}_{part}.txt" for signal in signals):
                windows.append(np.loadtxt(folder.file(f"{top}{part}/{entry}"), np.float32, ndmin=2))
                if not windows[-1].size or not np.isfinite(windows[-1]).all():
                    raise ValueError("windows that are not finite")
            entry = "Inertial Signals"
            x.append(np.stack(windows, axis=1))  # [n, channels, length]
            for rows, entry in ((y, f"y_{part}.txt"), (persons, f"subject_{part}.txt")):
                rows.append(np.loadtxt(folder.file(f"{top}{part}/{entry}"), np.int64, ndmin=1))
                if rows[-1].shape != x[-1].shape[:1]:
                    raise ValueError("not a number for each window")
        except (OSError, ValueError, OverflowError) as error:
            where = folder.place(f"{top}{part}/{entry}")
            raise DataError(f"{where} cannot be read ({error}). Extract it again.") from error
    numbers, labels = np.unique(np.concatenate(y), return_inverse=True)
    people, groups = np.unique(np.concatenate(persons), return_inverse=True)
    names: dict[str, str] = {}
    if (entry := f"{top}activity_labels.txt") in folder.names:
        words = folder.text(entry).split()
        names = dict(zip(words[::2], words[1::2], strict=False))  # `1 WALKING`
    return Dataset(
        config.title,
        np.concatenate(x),
        labels.astype(np.int64),
        tuple(names.get(str(number), str(number)) for number in numbers),
        train=len(labels),
        groups=groups.astype(np.int64),
        group_names=tuple(map(str, people)),
    )
