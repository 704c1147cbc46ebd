"""Reading of the folder of UCI HAR: motion of smartphones, of 30 persons in 6 activities.

The folder has, for each PART of `train` and `test`, the files
`PART/Inertial Signals/SIGNAL_PART.txt` with a row of 128 numbers for each window, `PART/y_PART.txt`
with the number of the activity, and `PART/subject_PART.txt` with that of the person. The parts have
different persons, each of which is a natural client; all windows belong to the train part of the
data set.
"""

import re
from math import nan
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from flbench.core.errors import DataError, shortened
from flbench.data.dataset import Dataset
from flbench.data.folders import Folder

SIGNAL: Final = re.compile(
    r"(?P<top>.*?)(?P<part>train|test)/Inertial Signals/(?P<signal>\w+)_(?P=part)\.txt"
)

LARGEST: Final = 10**9  # number of a class or a person


def is_har(folder: Folder) -> bool:
    """Return whether a folder has windows of signals as UCI HAR.

    Args:
        folder: The folder or .zip file.
    """
    return any(map(SIGNAL.fullmatch, folder.names))


def read(folder: Folder, name: str) -> Dataset:
    """Read the windows of all persons: series of the signals in the order of their names.

    Args:
        folder: The folder or .zip file.
        name: Name of the data set.

    Raises:
        DataError: A file is missing or damaged, or files have different numbers of rows.
    """
    found = [match for match in map(SIGNAL.fullmatch, folder.names) if match]
    top = found[0]["top"]
    parts = sorted({match["part"] for match in found}, reverse=True)  # train, then test
    signals = sorted({match["signal"] for match in found})
    x: list[NDArray[np.float32]] = []
    labels: list[NDArray[np.int64]] = []
    persons: list[NDArray[np.int64]] = []
    for part in parts:
        y = _whole_numbers(folder, f"{top}{part}/y_{part}.txt")
        persons.append(_whole_numbers(folder, f"{top}{part}/subject_{part}.txt"))
        windows = [
            _numbers(folder, f"{top}{part}/Inertial Signals/{signal}_{part}.txt")
            for signal in signals
        ]
        for signal, rows in zip(signals, windows, strict=True):
            if rows.shape != windows[0].shape or len(rows) != len(y) or len(y) != len(persons[-1]):
                raise DataError(
                    f"{folder.path}: `{signal}_{part}.txt` has numbers of the shape"
                    f" {list(rows.shape)}, `{signals[0]}_{part}.txt` {list(windows[0].shape)},"
                    f" y_{part}.txt {len(y)} rows and subject_{part}.txt {len(persons[-1])}."
                    " Extract the data set again."
                )
        x.append(np.stack(windows, axis=1))  # [n, channels, length]
        labels.append(y)
    numbers, y = np.unique(np.concatenate(labels), return_inverse=True)
    people, groups = np.unique(np.concatenate(persons), return_inverse=True)
    names = _activities(folder, f"{top}activity_labels.txt")
    series = np.concatenate(x)
    return Dataset(
        name,
        series,
        y.astype(np.int64),
        tuple(names.get(int(k), str(k)) for k in numbers),
        train=len(y),
        groups=groups.astype(np.int64),
        group_names=tuple(str(k) for k in people),
        notes=(
            f"data: samples are series of {series.shape[1]} channels and length"
            f" {series.shape[2]}: {', '.join(signals)}.",
            "data: windows of a person overlap by half, so a window of the test part has values of"
            " windows of the training part.",
        ),
    )


def _lines(folder: Folder, entry: str) -> list[str]:
    """Return the lines of a file that are not empty."""
    if entry not in folder.names:
        raise DataError(
            f"{folder.path} has no `{entry}`, which UCI HAR has. Extract the data set again."
        )
    lines = folder.read(entry).decode("ascii", "replace").splitlines()
    found = [line for line in lines if line.strip()]
    if not found:
        raise DataError(f"{folder.place(entry)} has no rows. Extract the data set again.")
    return found


def _whole_numbers(folder: Folder, entry: str) -> NDArray[np.int64]:
    """Return the numbers [n] of classes or persons in a file with one in each row."""
    found = []
    for row, line in enumerate(_lines(folder, entry), 1):
        try:
            number = float(line)
        except ValueError:
            number = nan
        if not (number.is_integer() and 0 <= number <= LARGEST):
            raise DataError(
                f"{folder.place(entry)}: row {row} must be a whole number in [0, {LARGEST:,}], got"
                f" {shortened(line.strip(), 40)!r}. Extract the data set again."
            )
        found.append(int(number))
    return np.array(found, dtype=np.int64)


def _numbers(folder: Folder, entry: str) -> NDArray[np.float32]:
    """Return the rows of numbers of a file that are separated by blanks, [n, columns]."""
    try:
        rows: NDArray[Any] = np.loadtxt(_lines(folder, entry), dtype=np.float32, ndmin=2)
    except ValueError as error:
        raise DataError(
            f"{folder.place(entry)} has no rows of numbers ({error}). Extract the data set again."
        ) from error
    if not np.isfinite(rows).all() or not rows.size:
        raise DataError(f"{folder.place(entry)} has no numbers, or some that are not finite.")
    return rows


def _activities(folder: Folder, entry: str) -> dict[int, str]:
    """Return the names of the activities by their numbers; an empty dict if there is no file."""
    if entry not in folder.names:
        return {}
    lines = folder.read(entry).decode("utf-8", "replace").splitlines()
    pairs = (line.split(maxsplit=1) for line in lines)
    return {int(pair[0]): pair[1] for pair in pairs if len(pair) == 2 and pair[0].isdecimal()}
