"""Reading of LEAF's JSON files: FEMNIST, Shakespeare, and others of the same form.

A file has `users`, a list of names, and `user_data`, for each user `x`, a list of samples, and `y`,
a list of labels. Samples are lists of numbers, which are images if their number is a square and a
table otherwise, or texts of one length, whose labels are the next characters. The files may lie in
the folders `train` and `test`: LEAF divides the samples of each user. All of them are joined, and
`partition.split` divides them again, because flbench has a validation part for each client.
"""

import json
from math import isqrt
from pathlib import PurePosixPath
from typing import Any

import numpy as np
from numpy.typing import NDArray

from flbench.core.errors import DataError, shortened
from flbench.data import labels as labels_of
from flbench.data.dataset import Dataset
from flbench.data.folders import Folder
from flbench.data.text_files import LEAF, character_name, numbers_of


def is_leaf_file(entry: str) -> bool:
    """Return whether the name of a file has the suffix of JSON."""
    return entry.lower().endswith(".json")


def read(folder: Folder, name: str, vocabulary: str) -> Dataset:
    """Read the samples of all users; each is a natural client.

    Args:
        folder: The folder or .zip file.
        name: Name of the data set.
        vocabulary: `data.text.vocabulary`: characters of the texts, `texts` or `leaf`.

    Raises:
        DataError: A file is not of this form; the message names file and user.
    """
    files = [entry for entry in folder.names if is_leaf_file(entry)]
    # The train part of a user comes before its test part.
    files.sort(key=lambda entry: ("test" in PurePosixPath(entry).parts[:-1], entry))
    found: dict[str, tuple[list[Any], list[Any]]] = {}
    for entry in files:
        where = folder.place(entry)
        for user, x, y in _users(folder.read(entry), where):
            mine = found.setdefault(user, ([], []))
            mine[0].extend(x)
            mine[1].extend(y)
    found = {user: pair for user, pair in found.items() if pair[0]}
    if not found:
        raise DataError(f"{folder.path}: the JSON files have no samples. Give those of LEAF.")
    x = [sample for samples, _ in found.values() for sample in samples]
    y = [label for _, labels in found.values() for label in labels]
    groups = np.repeat(np.arange(len(found)), [len(samples) for samples, _ in found.values()])
    where = str(folder.path)
    shared: dict[str, Any] = {
        "train": len(x),
        "groups": groups,
        "group_names": tuple(found),
        "notes": folder.left_out(files, "LEAF's files are .json"),
    }
    if isinstance(x[0], str):
        return _texts(name, x, y, groups, vocabulary, where, shared)
    try:
        numbers: NDArray[Any] = np.array(x, dtype=np.float32)
    except (ValueError, TypeError, OverflowError) as error:
        raise DataError(
            f"{where}: samples are neither texts nor lists of equally many numbers ({error})."
        ) from error
    if numbers.ndim != 2 or not numbers.shape[1] or not np.isfinite(numbers).all():
        raise DataError(
            f"{where}: samples must be lists of finite numbers, got the shape"
            f" {list(numbers.shape)}. Flatten them, and replace what is not finite."
        )
    side = isqrt(numbers.shape[1])
    if side > 1 and side * side == numbers.shape[1]:
        numbers = numbers.reshape(-1, 1, side, side)
    for k, label in enumerate(y):
        if not isinstance(label, str | int | float):
            raise DataError(
                f"{where}: the label of sample {k} (counted from 0), of the user"
                f" `{shared['group_names'][groups[k]]}`, is {shortened(repr(label), 40)}. It must"
                " be a number or a text."
            )
    names, (classes,), notes = labels_of.number_classes({"y": np.array(y)}, where, None)
    shared["notes"] = (*shared["notes"], *notes)
    return Dataset(name, numbers, classes, tuple(names), **shared)


def _users(content: bytes, where: str) -> list[tuple[str, list[Any], list[Any]]]:
    """Return name, samples and labels of each user of a file."""
    try:
        tree = json.loads(content)
        users, data = tree["users"], tree["user_data"]
        found = [(str(user), data[user]["x"], data[user]["y"]) for user in users]
    except (ValueError, LookupError, TypeError, RecursionError) as error:
        raise DataError(
            f"{where} is not a file of LEAF ({type(error).__name__}: {error}). It must have `users`"
            " and `user_data` with `x` and `y` of each user."
        ) from error
    if len({user for user, _, _ in found}) < len(found):
        raise DataError(f"{where}: `users` names a user twice. Make the file again.")
    for user, x, y in found:
        if not (isinstance(x, list) and isinstance(y, list)):
            raise DataError(f"{where}: `x` and `y` of the user `{user}` are not two lists.")
        if len(x) != len(y):
            raise DataError(
                f"{where}: the user `{user}` has {len(x)} samples `x` and {len(y)} labels `y`. Make"
                " the file again."
            )
    return found


def _texts(
    name: str,
    x: list[Any],
    y: list[Any],
    groups: NDArray[np.int64],
    vocabulary: str,
    where: str,
    shared: dict[str, Any],
) -> Dataset:
    """Return the data set of texts and the character after each."""
    length = len(x[0])
    for k, (text, label) in enumerate(zip(x, y, strict=True)):
        is_right = isinstance(text, str) and len(text) == length > 0
        if not is_right or not isinstance(label, str) or len(label) != 1:
            raise DataError(
                f"{where}: sample {k} (counted from 0) of the user"
                f" `{shared['group_names'][groups[k]]}` is not a text of {length} characters with"
                " one character as its label. Make the files again."
            )
    whole = "".join(x) + "".join(y)
    characters = LEAF if vocabulary == "leaf" else "".join(sorted(set(whole)))
    ids = numbers_of(whole, characters, where)
    ids = ids.astype(np.uint8 if len(characters) <= 256 else np.int32)
    samples = ids[: len(x) * length].reshape(len(x), length)
    labels = ids[len(x) * length :].astype(np.int64)
    # LEAF's samples begin at every character of a text: then each is the one before without its
    # first character and with its label.
    follows = (samples[1:, :-1] == samples[:-1, 1:]).all(axis=1) & (samples[1:, -1] == labels[:-1])
    follows &= groups[1:] == groups[:-1]
    steps = np.where(follows, 1, length + 1)
    starts = np.concatenate([[0], np.cumsum(steps)])
    first = np.flatnonzero(np.concatenate([[True], groups[1:] != groups[:-1]]))
    starts -= np.repeat(starts[first], np.diff([*first, len(x)]))
    return Dataset(
        name,
        samples,
        labels,
        tuple(map(character_name, characters)),
        vocabulary=len(characters),
        tokens=tuple(characters),
        starts=starts.astype(np.int64),
        span=length + 1,
        **shared,
    )
