"""Classes from labels, and names from arrays of texts.

All readers number classes by these functions, so that the same labels are the same classes in
tables, arrays, NPZ files and folders:

- The classes are those that occur, unless their names are given.
- Classes whose names are numbers come first, in the order of the numbers; the others follow in the
  order of their characters: `0`, `1`, `2`, `10`, `a`, `b`.
- Labels that are one number, such as `1` and `1.0`, are one class; codes, such as `01`, are texts.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from math import isfinite
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from flbench.core.errors import DataError, shortened
from flbench.core.own_names import as_written
from flbench.core.wording import listed
from flbench.data.dataset import Dataset

MAX_CLASSES = 10_000
NO_CLASSES = (
    "If they are not classes, give them in Python:"
    " fl.federate(module, fl.Data(x, y, targets=True))."
)
NUMBER: Final = re.compile(r"[-+]?(\d+(\.\d*)?|\.\d+)([eE][-+]?\d+)?", re.ASCII)
CODE: Final = re.compile(r"[-+]?0\d", re.ASCII)  # begins like a code with leading zeros
MISSING_OBJECTS: Final = ("NoneType", "NAType", "NaTType", "MaskedConstant")
NOT_GIVEN: Final = re.compile(r"([-+]?(nan|NaN|NAN)|<NA>|NaT)?")
"""Texts as which NumPy and pandas write a missing value. `none` and `Nan` can be names."""


def in_order(names: Iterable[str]) -> list[str]:
    """Return the names of classes in their order: numbers first, then other texts.

    >>> in_order(["10", "9", "b", "1.5", "a", "-1"])
    ['-1', '1.5', '9', '10', 'a', 'b']
    """
    numbers = {name: _number(name) for name in names}
    return sorted(numbers, key=lambda name: (numbers[name] is None, numbers[name] or 0, name))


def _number(text: str) -> int | float | None:
    """Return a text as a number, exact if it is whole; None if it is not a finite one."""
    if not NUMBER.fullmatch(text) or not isfinite(number := float(text)):
        return None
    return int(text) if text.lstrip("+-").isdigit() else number


def class_names(labels: Iterable[str]) -> dict[str, str]:
    """Return the name of the class of each label; labels that are one number have one name.

    >>> class_names(["2.0", "2", "03", "cat"])
    {'2.0': '2', '2': '2', '03': '03', 'cat': 'cat'}
    """
    names: dict[str, str] = {}
    for label in labels:
        number = None if CODE.match(label) else _number(label)
        name = str(number or 0) if isinstance(number, int) else f"{number or 0:.15g}"
        names[label] = label if number is None else name
    return names


def number_texts(
    parts: Mapping[str, Sequence[str]], where: str, names: Sequence[str] | None = None
) -> tuple[tuple[str, ...], list[NDArray[np.int64]]]:
    """Number the classes of labels that are texts; see `number_classes`."""
    if names is None:
        name_of = class_names(label for part in parts.values() for label in part)
        names = in_order(set(name_of.values()))
    else:
        name_of = {name.strip(): name for name in names}
    position = {name: k for k, name in enumerate(names)}
    number = {label: position[name] for label, name in name_of.items()}
    for key, part in parts.items():
        for k, label in enumerate(part):
            if label not in number:
                raise DataError(
                    f"{where}: the label {shortened(label, 60)!r} is not one of `classes` (sample"
                    f" {k}, counted from 0, of `{key}`). Add it to these names."
                )
    found = [np.array([number[label] for label in part], dtype=np.int64) for part in parts.values()]
    return tuple(names), found


def number_classes(
    parts: Mapping[str, NDArray[Any]], where: str, names: Sequence[str] | None = None
) -> tuple[tuple[str, ...], list[NDArray[np.int64]]]:
    """Number the classes of labels that are whole numbers or texts.

    Args:
        parts: Labels [n] or [n, 1] of each part of the data, by the name of their array.
        where: What the data are, as the beginning of an error message.
        names: Names of the C classes; None for those that occur. Labels that are numbers are
            positions in `names`.

    Returns:
        The names of the C classes, and the labels [n] of each part in [0, C).

    Raises:
        DataError: A label is missing, is negative, or is not among `names`.
    """
    parts = {key: _one_each(part, f"{where}: `{key}`") for key, part in parts.items()}
    if any(part.dtype.kind in "USO" for part in parts.values()):
        texts = {
            key: [text.strip() for text in as_texts(part, f"{where}: `{key}`", "label")]
            for key, part in parts.items()
        }
        return number_texts(texts, where, names)
    labels = [_checked(part, f"{where}: `{key}`") for key, part in parts.items()]
    values = np.unique(np.concatenate(labels))
    if names is None:
        found = tuple(str(value) for value in values)
        return found, [np.searchsorted(values, part) for part in labels]
    if len(values) and values[-1] >= len(names):
        raise DataError(
            f"{where}: there are {len(names)} names of classes, so labels must lie in [0,"
            f" {len(names)}), got {values[-1]}. Name all classes, from that of the"
            " label 0 on, or subtract 1 from labels that begin at 1."
        )
    return tuple(names), labels


def _one_each(y: NDArray[Any], what: str) -> NDArray[Any]:
    """Return labels [n] or [n, 1] as [n], those that are Python's integers as an array of them."""
    if y.ndim > 1 and y.size != len(y):
        raise DataError(
            f"{what} have the shape {list(y.shape)}, and flbench has one class for each sample."
            " Save one column of them; for one-hot labels, y.argmax(1)."
        )
    y = y.reshape(-1)
    is_whole = y.dtype.kind == "O" and y.size and {*map(type, y.tolist())} == {int}
    return np.array(y.tolist()) if is_whole else y


def _checked(y: NDArray[Any], what: str) -> NDArray[np.int64]:
    """Return labels [n] as int64; raise a DataError if one is no whole number >= 0."""
    if y.dtype.kind not in "iubf":
        raise DataError(f"{what} must be whole numbers or texts, got {y.dtype}. {NO_CLASSES}")
    wrong = np.flatnonzero(~((y >= 0) & (y < MAX_CLASSES) & (y == np.round(y))))
    if len(wrong):
        raise DataError(
            f"{what} must be whole numbers and must lie in [0, {MAX_CLASSES}), got"
            f" {y[wrong[0]]} for sample {wrong[0]} (counted from 0). Leave out samples without a"
            f" label, and number the classes from 0 (for labels -1 and 1: y > 0). {NO_CLASSES}"
        )
    return y.astype(np.int64)


def as_texts(array: NDArray[Any], what: str, item: str) -> list[str]:
    """Return the entries of an array of names or numbers, flattened, as texts; bytes are UTF-8.

    Raises:
        DataError: An entry, such as a `label`, is missing (None, NaN, an empty text) or not UTF-8.

    >>> as_texts(np.array([b"a", b"b"]), "`clients`", "client")
    ['a', 'b']
    """
    flat = array.reshape(-1)
    if flat.dtype.kind not in "USObiufmM":
        raise DataError(f"{what} must be texts or numbers, one for each sample, got {flat.dtype}.")
    texts = []
    for k, value in enumerate((flat if flat.dtype.kind in "USO" else flat.astype(str)).tolist()):
        try:
            text = value.decode("utf-8") if isinstance(value, bytes) else str(value)
        except UnicodeDecodeError:
            text = ""
        if type(value).__name__ in MISSING_OBJECTS or NOT_GIVEN.fullmatch(text.strip()):
            raise DataError(
                f"{what}: the {item} of sample {k} (counted from 0) is missing, got {value!r}. Fill"
                " it in, or leave the sample out."
            )
        texts.append(text)
    return texts


def with_blocks(dataset: Dataset, groups: NDArray[Any], name: str, what: str) -> Dataset:
    """Return a data set whose samples of one group [n] stay in one part of a client.

    With groups of the train part alone, each other sample is a group of its own.

    Raises:
        DataError: A group is missing, there is another number of groups than samples, or all
            samples have the same group or each has one of its own.
    """
    texts, n = as_texts(groups, what, "group"), len(dataset.y)
    found, blocks = np.unique(texts, return_inverse=True)
    if len(texts) not in (n, dataset.train) or len(found) in (1, len(texts)):
        raise DataError(
            f"{what} has {len(texts):,} groups for {n:,} samples, and {len(found):,} different"
            " ones. Name what several samples come from, one for each sample, or leave data.group"
            " out."
        )
    alone = np.arange(len(found), len(found) + n - len(texts))
    blocks = np.concatenate([blocks.astype(np.int64), alone])
    return replace(dataset, blocks=blocks, blocks_of=name)


def check_classes(dataset: Dataset, path: Path | str) -> None:
    """Check the names of classes and clients, and that the samples have at least two classes.

    Raises:
        DataError: The samples have a single class, there are too many classes, or a name is empty,
            that of another class, not UTF-8 text, or too long for the files of results.
    """
    classes, y = dataset.classes, dataset.y
    if len(classes) > MAX_CLASSES:
        raise DataError(
            f"{path} has {len(classes):,} classes; the limit is {MAX_CLASSES:,}. {NO_CLASSES}"
        )
    if dataset.targets is None and y.min() == y.max():
        raise DataError(
            f"{path}: all samples have the class `{classes[y[0]]}`; classification needs at"
            " least two classes. Check the labels, or add samples of other classes."
        )
    for what, names in (("class", classes), ("client", dataset.group_names)):
        for k, name in enumerate(names):
            try:
                as_written(name, f"the name of {what} {k}, {shortened(name, 60)!r},")
                name.encode()
            except ValueError as error:
                raise DataError(f"{path}: {what} {k}: {error}. Rename it.") from error
    stripped = [name.strip() for name in classes]
    if "" in stripped or len({*stripped}) < len(stripped):
        raise DataError(f"{path}: classes need names that differ, got {listed(classes, 20)}.")
