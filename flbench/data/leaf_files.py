"""Reading of LEAF's JSON files: FEMNIST, Shakespeare, and others of the same form.

A file has `users`, a list of names, and `user_data`, for each user `x`, a list of samples, and `y`,
a list of labels. Samples are lists of numbers, which are images if their number is a square and a
table otherwise, or texts of one length, whose labels are the next characters. The samples of a user
in the folders `train` and `test` are joined, and `partition.split` divides them again.
"""

import json
from math import isqrt
from pathlib import PurePosixPath
from typing import Any

import numpy as np
from numpy.typing import NDArray

from flbench.config.schema import DataConfig
from flbench.core.errors import DataError
from flbench.data import labels as labels_of
from flbench.data.dataset import Dataset
from flbench.data.folders import Folder
from flbench.data.text_files import numbers_of, of_windows


def read(folder: Folder, config: DataConfig) -> Dataset:
    """Read the samples of all users; each is a natural client.

    Raises:
        DataError: A file is not of this form; the message names the file.
    """
    found: dict[str, list[tuple[Any, Any]]] = {}
    where = str(folder.path)
    # The train part of a user comes before its test part.
    files = sorted(folder.ending(".json"), key=lambda e: "test" in PurePosixPath(e).parts[:-1])
    try:
        for entry in files:
            where, tree = folder.place(entry), json.loads(folder.text(entry))
            for user in dict.fromkeys(tree["users"]):
                x, y = (tree["user_data"][user][key] for key in "xy")
                if not (isinstance(x, list) and isinstance(y, list) and len(x) == len(y)):
                    raise ValueError(f"`x` and `y` of the user `{user}` are not equally long lists")
                found.setdefault(str(user), []).extend(zip(x, y, strict=True))
        where = str(folder.path)
        x, y = ([pair[k] for pairs in found.values() for pair in pairs] for k in (0, 1))
        groups = np.repeat(np.arange(len(found)), [*map(len, found.values())])
        notes = folder.left_out(files, "LEAF's files are .json")
        about: dict[str, Any] = {"groups": groups, "group_names": tuple(found), "notes": notes}
        if isinstance(x[0], str):
            return _of_texts(config, x, y, where, about)
        numbers: NDArray[Any] = np.array(x, dtype=np.float32)
        if numbers.ndim != 2 or not numbers.size or not np.isfinite(numbers).all():
            raise ValueError("samples must be lists of equally many finite numbers, or texts")
        if not all(isinstance(label, str | int | float) for label in y):
            raise ValueError("labels must be numbers or texts")
        side = isqrt(numbers.shape[1])
        if side > 1 and side * side == numbers.shape[1]:
            numbers = numbers.reshape(-1, 1, side, side)
        names, (classes,) = labels_of.number_classes({"y": np.array(y)}, where)
    except (ValueError, LookupError, TypeError, OverflowError, RecursionError) as error:
        raise DataError(f"{where} is not of LEAF ({error}). Replace or remove it.") from error
    return Dataset(config.title, numbers, classes, names, train=len(y), **about)


def _of_texts(
    config: DataConfig, x: list[str], y: list[str], where: str, about: dict[str, Any]
) -> Dataset:
    """Return the data set of texts and the character after each."""
    length, groups = len(x[0]), about["groups"]
    if {*map(len, x)} != {length} or {*map(len, y)} != {1} or not length:
        raise ValueError("texts must have one length, and labels one character")
    whole = "".join(map("".join, zip(x, y, strict=True)))
    characters = "".join(sorted({*whole}))
    windows = numbers_of(whole, characters, where).reshape(len(x), length + 1)
    # A sample that begins a character later is the one before without its first character.
    follows = (windows[1:, :-1] == windows[:-1, 1:]).all(axis=1) & (groups[1:] == groups[:-1])
    starts = np.concatenate([[0], np.cumsum(np.where(follows, 1, length + 1))])
    first = np.flatnonzero(np.concatenate([[True], groups[1:] != groups[:-1]]))
    starts -= np.repeat(starts[first], np.diff([*first, len(x)]))
    return of_windows(config.title, windows, characters, starts=starts.astype(np.int64), **about)
