"""Classes from labels, and names from arrays of texts.

All readers number classes by these functions, so that the same labels are the same classes in
tables, arrays, NPZ files and folders:

- The classes are those that occur, unless their names are given.
- Classes whose names are numbers come first, in the order of the numbers; the others follow in the
  order of their characters: `0`, `1`, `2`, `10`, `a`, `b`.
- Labels that are one number, such as `1` and `1.0`, are one class. `1` and `01` are refused.
"""

import re
import unicodedata
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from decimal import Decimal, InvalidOperation
from math import isfinite
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from flbench.core.errors import DataError, shortened
from flbench.core.files import is_text
from flbench.core.own_names import as_written
from flbench.core.wording import listed
from flbench.data.dataset import Dataset

MAX_CLASSES = 10_000
NO_CLASSES = (
    "If they are not classes, give them in Python:"
    " fl.federate(module, fl.Data(x, y, targets=True))."
)
FEW_CLASSES = 1_000  # more classes than these are not accepted without a sample for each of them
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


def check_one_each(y: NDArray[Any], what: str) -> None:
    """Raise a DataError if labels are not one value for each sample, [n] or [n, 1].

    Args:
        y: The labels.
        what: Name of the labels, as the beginning of the error message.
    """
    if y.ndim > 1 and y.size != len(y):
        is_one_hot = y.ndim == 2 and y.dtype.kind in "iubf" and bool(((y != 0).sum(1) == 1).all())
        cure = (
            "They are one-hot labels: save y.argmax(1)."
            if is_one_hot
            else "flbench has one class for each sample; several labels for a sample (multi-label)"
            " are not supported. Save one column of them."
        )
        raise DataError(
            f"{what} have the shape {list(y.shape)}, {y.size // max(1, len(y))} values for each"
            f" sample. {cure}"
        )


def check_labels(
    y: NDArray[Any], what: str, classes: int | None = None, cure: str = NO_CLASSES
) -> NDArray[np.int64]:
    """Check labels and return them as int64 [n].

    Args:
        y: Labels [n] or [n, 1] of any numeric type.
        what: Name of the labels, as the beginning of the error message.
        classes: Number of classes; None for the largest number that flbench accepts.
        cure: What to do about a label outside of that range.

    Raises:
        DataError: A label is not an integer in [0, classes).

    >>> check_labels(np.array([[0.0], [2.0]]), "labels")
    array([0, 2])
    """
    check_one_each(y, what)
    y = np.asarray(y).reshape(-1)
    missing = np.flatnonzero(np.isnan(y)) if y.dtype.kind == "f" else y[:0]
    if len(missing):
        raise DataError(
            f"{what}: the label of sample {missing[0]} (counted from 0) is missing, got"
            f" {y[missing[0]]}. Fill it in, or leave the sample out."
        )
    is_whole = y.dtype.kind in "iub" or (
        y.dtype.kind == "f" and bool(np.isfinite(y).all()) and np.array_equal(y, np.round(y))
    )
    if not is_whole:
        got = str(y.dtype)
        if y.dtype.kind == "f":
            bad = int(np.flatnonzero(y != np.round(np.nan_to_num(y, posinf=0)))[0])
            got = f"{y[bad]} at position {bad}"
        raise DataError(
            f"{what} must be whole numbers, the class of each sample, got {got}. {NO_CLASSES}"
        )
    limit = MAX_CLASSES if classes is None else classes
    if len(y) and (y.min() < 0 or y.max() >= limit):
        bad = int(np.flatnonzero((y < 0) | (y >= limit))[0])
        if y[bad] < 0:
            cure = (
                "Leave out samples without a label, and number the classes from 0 (for labels -1"
                f" and 1: y > 0). {NO_CLASSES}"
            )
        raise DataError(f"{what} must lie in [0, {limit}), got {y[bad]} at position {bad}. {cure}")
    return y.astype(np.int64)


def check_classes(dataset: Dataset, path: Path | str) -> None:
    """Check the classes of a data set that was read from a file, if it has classes.

    Args:
        dataset: The data set.
        path: The file or folder, for the message.

    Raises:
        DataError: The samples have a single class, there are too many classes, or more classes
            than samples, or the name of a class is empty, is that of another class, is not UTF-8
            text, or is too long.
    """
    names = dataset.classes
    if dataset.targets is not None:
        return
    if len(names) > MAX_CLASSES:
        raise DataError(
            f"{path} has {len(names):,} classes; the limit is {MAX_CLASSES:,}. Merge or leave out"
            " classes."
        )
    if len(names) > max(FEW_CLASSES, len(dataset.y)):
        raise DataError(
            f"{path} has {len(names):,} classes, but only {len(dataset.y):,} samples. Leave out the"
            f" names of classes without samples. {NO_CLASSES}"
        )
    if dataset.y.min() == dataset.y.max():
        raise DataError(
            f"{path}: all samples have the class `{names[dataset.y[0]]}`; classification needs at"
            " least two classes. Check the labels, or add samples of other classes."
        )
    if wrong := [name for name in names if not is_text(name)]:
        raise DataError(
            f"{path}: the class name {wrong[0]!r} contains NUL or is not UTF-8 text. Rename it."
        )
    check_lengths(names, "class", path)
    check_names(names, path)


def check_lengths(names: Sequence[str], what: str, path: Path | str) -> None:
    """Raise a DataError if the name of a class or client is too long for the files of results.

    Args:
        names: The names.
        what: What they name, `class` or `client`.
        path: The file or folder, or what the data are, for the message.
    """
    for k, name in enumerate(names):
        try:
            as_written(name, f"the name of {what} {k}, {shortened(name, 60)!r},")
        except ValueError as error:
            raise DataError(f"{path}: {error}. Shorten it.") from error


def check_names(names: Sequence[str], path: Path | str) -> None:
    """Raise a DataError if a class has an empty name, or two classes have the same name.

    Args:
        names: Names of the C classes.
        path: The file or folder, or what the data are, for the message.
    """
    seen: dict[str, int] = {}
    for k, name in enumerate(names):
        if not name.strip():
            raise DataError(f"{path}: class {k} has an empty name, {name!r}. Name it.")
        if (other := seen.setdefault(name.strip(), k)) != k:
            raise DataError(
                f"{path}: the classes {other} and {k} have the same name, {name.strip()!r}. Give"
                " each class a name of its own."
            )


def notes_on_names(names: Sequence[str], what: str, whose: str = "") -> tuple[str, ...]:
    """Return a note if two different names look the same, or differ by case alone.

    Names of one letter may differ by case, as the classes of handwritten letters do.

    Args:
        names: Names of classes or clients, or words of a column.
        what: What they name: `class`, `client` or `word`.
        whose: What they belong to, such as ` of the column sex`.

    >>> [note] = notes_on_names(["a", "b", "a "], "client")
    >>> "0 and 2, 'a' and 'a '" in note
    True
    >>> len(notes_on_names(["Male", "male"], "class")), len(notes_on_names(["A", "a"], "class"))
    (1, 0)
    """
    seen: dict[str, int] = {}
    for k, name in enumerate(names):
        shown = " ".join(unicodedata.normalize("NFC", name).split())
        shown = shown.casefold() if len(shown) > 1 else shown
        if (other := seen.setdefault(shown, k)) != k:
            plural = "classes" if what == "class" else f"{what}s"
            return (
                f"data: the {plural} {other} and {k}{whose}, {names[other]!a} and {name!a}, look"
                f" the same, or differ by case alone, and are two. If they mean one {what}, write"
                " them in one way.",
            )
    return ()
