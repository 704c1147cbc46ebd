"""Classes from labels, and names from arrays of texts.

All readers number classes by these functions, so that the same labels are the same classes in
tables, arrays, NPZ files and folders:

- The classes are those that occur, unless their names are given.
- Classes whose names are numbers come first, in the order of the numbers; the others follow in the
  order of their characters: `0`, `1`, `2`, `10`, `a`, `b`.
- Labels that are one number, such as `1` and `1.0`, are one class. `1` and `01` are refused.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from decimal import Decimal, InvalidOperation
from math import isfinite
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from flbench.core.errors import DataError, shortened
from flbench.core.wording import listed
from flbench.data.dataset import Dataset, check_labels, check_names, check_one_each

NUMBER: Final = re.compile(r"[-+]?(\d+(\.\d*)?|\.\d+)([eE][-+]?\d+)?", re.ASCII)
CODE: Final = re.compile(r"[-+]?0\d", re.ASCII)  # begins like a code with leading zeros
EXACT: Final = 10**15  # whole numbers below it have an exact name of 15 digits
MISSING_OBJECTS: Final = ("NAType", "NaTType", "MaskedConstant")  # types of pandas and NumPy
NOT_GIVEN: Final = re.compile(r"([-+]?(nan|NaN|NAN)|<NA>|NaT)?")
"""Texts as which NumPy and pandas write a missing value. `none` and `Nan` can be names."""


def in_order(names: Iterable[str]) -> list[str]:
    """Return the names of classes in their order: numbers first, then other texts.

    Args:
        names: Different names.

    >>> in_order(["10", "9", "b", "1.5", "a", "-1"])
    ['-1', '1.5', '9', '10', 'a', 'b']
    """
    numbers = {name: _number(name) for name in names}
    return sorted(
        numbers, key=lambda name: (numbers[name] is None, numbers[name] or Decimal(0), name)
    )


def class_names(labels: Iterable[str], where: str, what: str = "labels") -> dict[str, str]:
    """Return the name of the class of each label.

    Args:
        labels: Labels as text; repetitions are allowed.
        where: What the data are, as the beginning of an error message.
        what: What the labels are, in the plural.

    Returns:
        The name of the class by label. Labels that are one number have one name.

    Raises:
        DataError: Two labels are one number, and one of them has leading zeros.

    >>> class_names(["2.0", "2", "03", "cat"], "data")
    {'2.0': '2', '2': '2', '03': '03', 'cat': 'cat'}
    """
    names: dict[str, str] = {}
    first: dict[str, str] = {}  # the first label of each number
    for label in dict.fromkeys(labels):
        number = _number(label)
        name = label if number is None else _name(number)
        other = first.setdefault(name, label)
        if other != label and (CODE.match(label) or CODE.match(other)):
            raise DataError(
                f"{where}: the {what} {other!r} and {label!r} are written differently, but are the"
                " same number. Write it in one way, or add a letter if they are different classes."
            )
        names[label] = label if CODE.match(label) else name
    return names


def number_texts(
    parts: Mapping[str, Sequence[str]], where: str, names: Sequence[str] | None = None
) -> tuple[tuple[str, ...], list[NDArray[np.int64]]]:
    """Number the classes of labels that are texts.

    Args:
        parts: Labels [n] of each part of the data, by the name of their array.
        where: What the data are, as the beginning of an error message.
        names: Names of the C classes; None for those that occur.

    Returns:
        The names of the C classes, and the labels [n] of each part in [0, C).

    Raises:
        DataError: A label is not among `names`, or two labels are written differently, but are one
            number.
    """
    if names is None:
        name_of = class_names((label for part in parts.values() for label in part), where)
        names = in_order(set(name_of.values()))
    else:
        name_of = {name.strip(): name for name in names}
    position = {name: k for k, name in enumerate(names)}
    number = {label: position[name] for label, name in name_of.items()}
    numbered = []
    for key, part in parts.items():
        wrong = next((k for k, label in enumerate(part) if label not in number), None)
        if wrong is not None:
            raise DataError(
                f"{where}: the label {shortened(part[wrong], 60)!r} is not one of `classes` (sample"
                f" {wrong}, counted from 0, of `{key}`). Add it to these names."
            )
        numbered.append(np.array([number[label] for label in part], dtype=np.int64))
    return tuple(names), numbered


def number_classes(
    parts: Mapping[str, NDArray[Any]], where: str, names: Sequence[str] | None = None
) -> tuple[tuple[str, ...], list[NDArray[np.int64]], tuple[str, ...]]:
    """Number the classes of labels that are whole numbers or texts.

    Args:
        parts: Labels [n] or [n, 1] of each part of the data, by the name of their array.
        where: What the data are, as the beginning of an error message.
        names: Names of the C classes; None for those that occur. Labels that are numbers are
            positions in `names`.

    Returns:
        The names of the C classes, the labels [n] of each part in [0, C), and a note if the numbers
        of the classes are not the labels.

    Raises:
        DataError: A label is missing, is negative, or is not among `names`; a name is empty; or two
            names are equal.
    """
    if names is not None:
        check_names(names, where)
    parts = {key: _whole(part) for key, part in parts.items()}
    if any(part.dtype.kind in "USO" for part in parts.values()):
        texts = {}
        for key, part in parts.items():
            check_one_each(part, f"{where}: `{key}`")
            texts[key] = [text.strip() for text in as_texts(part, f"{where}: `{key}`", "label")]
        found, numbered = number_texts(texts, where, names)
        return found, numbered, ()
    labels = [check_labels(part, f"{where}: `{key}`") for key, part in parts.items()]
    values = np.unique(np.concatenate(labels))
    if names is not None:
        if len(values) and values[-1] >= len(names):
            cure = f"There are {len(names)} names of classes: name all of them" + (
                "." if values[0] == 0 else ", or subtract 1 from labels that begin at 1."
            )
            check_labels(np.concatenate(labels), f"{where}: labels", len(names), cure)
        return tuple(names), labels, ()
    found = tuple(str(value) for value in values)
    if np.array_equal(values, np.arange(len(values))):
        return found, labels, ()
    shown = listed(found, 4)
    note = (
        f"data: the labels are not 0 to {len(found) - 1}, so the {len(found)} classes are numbered"
        f" in the order of the labels that occur: {shown}. Give the names of all classes if others"
        " exist."
    )
    return found, [np.searchsorted(values, part) for part in labels], (note,)


def as_texts(array: NDArray[Any], what: str, item: str) -> list[str]:
    """Return the entries of an array as texts. Byte strings are read as UTF-8.

    Args:
        array: Names or numbers; it is flattened.
        what: Name of the array, as the beginning of an error message.
        item: What an entry is, such as `label`.

    Raises:
        DataError: An entry is missing (None, NaN, an empty text), or is not UTF-8.

    >>> as_texts(np.array([b"a", b"b"]), "`clients`", "client")
    ['a', 'b']
    """
    texts = []
    flat = array.reshape(-1)
    if flat.dtype.kind not in "USObiufmM":
        raise DataError(f"{what} must be texts or numbers, one for each sample, got {flat.dtype}.")
    for k, value in enumerate((flat if flat.dtype.kind in "USO" else flat.astype(str)).tolist()):
        text = None if _is_missing(value) else _text(value)
        if text is None or NOT_GIVEN.fullmatch(text.strip()):
            raise DataError(
                f"{what}: the {item} of sample {k} (counted from 0) is missing, got {value!r}. Fill"
                " it in, or leave the sample out."
            )
        texts.append(text)
    return texts


def with_blocks(dataset: Dataset, groups: NDArray[Any], name: str, what: str) -> Dataset:
    """Return a data set whose samples of one group stay in one part of a client.

    Args:
        dataset: The data set.
        groups: Group of each sample, [n] names or numbers; or of the samples of the train part
            alone, if each other sample is a group of its own.
        name: Name of the column or array that has them.
        what: What they are, as the beginning of an error message.

    Raises:
        DataError: A group is missing, there is another number of groups than samples, or all
            samples have the same group or each has one of its own.
    """
    texts = as_texts(groups, what, "group")
    n = len(dataset.y)
    if len(texts) not in (n, dataset.train):
        raise DataError(
            f"{what} has {len(texts):,} groups for {n:,} samples. Give one group for each sample."
        )
    found, blocks = np.unique(texts, return_inverse=True)
    if len(found) in (1, len(texts)):
        have = "one value" if len(found) == 1 else "another value"
        raise DataError(
            f"{what} has {have} in each of {len(texts):,} samples, so it has no groups to keep"
            " together. Leave data.group out, or name what several samples come from."
        )
    alone = np.arange(len(found), len(found) + n - len(texts))
    blocks = np.concatenate([blocks.astype(np.int64), alone])
    return replace(dataset, blocks=blocks, blocks_of=name)


def _whole(y: NDArray[Any]) -> NDArray[Any]:
    """Return an array of Python's integers as an array of integers, and others as they are."""
    if y.dtype.kind != "O" or not y.size:
        return y
    is_whole = all(type(value) is int and abs(value) < 2**63 for value in y.reshape(-1).tolist())
    return y.astype(np.int64) if is_whole else y


def _is_missing(value: Any) -> bool:
    """Return whether an entry of an array stands for a missing value."""
    if value is None or type(value).__name__ in MISSING_OBJECTS:
        return True
    return isinstance(value, float | np.floating) and bool(value != value)


def _text(value: Any) -> str | None:
    """Return an entry as text; None for bytes that are not UTF-8."""
    if isinstance(value, bytes):
        try:
            return value.decode("utf-8")
        except UnicodeDecodeError:
            return None
    return str(value)


def _number(text: str) -> Decimal | None:
    """Return a text as a number; None if it is not a finite one."""
    try:
        return Decimal(text) if NUMBER.fullmatch(text) and isfinite(float(text)) else None
    except InvalidOperation:  # an exponent of many digits
        return None


def _name(number: Decimal) -> str:
    """Return the name of the class of a number: exact if it is whole, else with 15 digits."""
    if number == number.to_integral_value() and EXACT <= abs(number) < 10**40:
        return str(int(number))
    return f"{float(number):.15g}" if number else "0"
