"""Reading of tables: a folder or .zip file with one CSV file per client, all with the same header.

Columns other than the label are numbers. An empty field, `?`, `NA` or `NaN` is a missing value; it
is imputed later, from the client's training part. The label is the last column, the column
`data.label=COLUMN`, or the result of a rule such as `data.label="num > 0"`.
"""

import csv
import io
import re
from dataclasses import dataclass
from math import isfinite
from typing import Final

import numpy as np
from numpy.typing import NDArray

from flbench.core.errors import DataError, did_you_mean, shortened
from flbench.data.archive import Archive
from flbench.data.dataset import Dataset

MISSING: Final = frozenset({"", "?", "na", "nan", "null", "none"})
CONTINUOUS: Final = 20  # a label with more values must have, on average, two rows for each
LARGEST: Final = float(np.finfo(np.float32).max)
RULE: Final = re.compile(r"(?P<column>.*)(?P<sign>>=|<=|==|>|<)(?P<bound>.*)", re.DOTALL)
NUMBER: Final = re.compile(r"[-+]?(\d+(\.\d*)?|\.\d+)([eE][-+]?\d+)?", re.ASCII)


@dataclass(frozen=True)
class Rule:
    """A rule for the label, such as `num > 0`.

    Attributes:
        text: The rule as the user wrote it.
        sign: `>`, `<`, `>=`, `<=` or `==`.
        bound: Number on the right of the sign.
    """

    text: str
    sign: str
    bound: float


def read(archive: Archive, name: str, label: str | None) -> Dataset:
    """Read the tables of all clients, in the order of their file names.

    All rows belong to the train part: there is no common test set.

    Args:
        archive: The folder or .zip file.
        name: Name of the data set.
        label: Column of the label, or a rule on a column; None for the last column.

    Raises:
        DataError: A table cannot be used; the message names file, row and column.
    """
    files = [entry for entry in archive.names if entry.lower().endswith(".csv")]
    header: list[str] = []
    features, labels, groups = [], [], []
    for group, entry in enumerate(files):
        where = f"{archive.path}: {entry}"
        rows = _rows(archive, entry)
        if not header:
            header = rows[0]
        elif rows[0] != header:
            raise DataError(
                f"{where} has the columns {rows[0]}, but {files[0]} has {header}. Use the same"
                " columns in all files."
            )
        column, rule = _label_column(header, label, where)
        x, y = _client(rows[1:], header, column, where)
        features.append(x)
        labels += [_apply(rule, text, where, row) for row, text in enumerate(y, start=2)]
        groups += [group] * len(y)
    names = sorted(
        set(labels), key=lambda text: (_number(text) is None, _number(text) or 0.0, text)
    )
    if len(header) < 2:
        raise DataError(
            f"{archive.path}: the tables have no column besides the label `{header[0]}`."
        )
    if len(names) > CONTINUOUS and 2 * len(names) > len(labels):
        raise DataError(
            f"{archive.path}: the label has {len(names)} values in {len(labels)} rows, too many for"
            " classes. Set data.label to another column or to a rule (`num > 0`)."
        )
    if len(names) < 2:
        raise DataError(
            f"{archive.path}: the label has {len(names)} value(s) ({names}); classification needs"
            " at least two."
        )
    number = {text: k for k, text in enumerate(names)}
    return Dataset(
        name,
        np.concatenate(features),
        np.array([number[text] for text in labels], dtype=np.int64),
        tuple(names),
        train=len(labels),
        groups=np.array(groups, dtype=np.int64),
    )


def _rows(archive: Archive, entry: str) -> list[list[str]]:
    """Return the fields of all rows of a CSV file, the header first; empty rows are left out."""
    try:
        text = archive.read(entry).decode("utf-8-sig")
        rows = [
            [cell.strip() for cell in row]
            for row in csv.reader(io.StringIO(text), strict=True)
            if row
        ]
    except (UnicodeDecodeError, csv.Error) as error:
        raise DataError(
            f"{archive.path}: {entry} is not a CSV table in UTF-8 ({error})."
        ) from error
    if len(rows) < 2:
        raise DataError(f"{archive.path}: {entry} has no rows below its header.")
    return rows


def _label_column(header: list[str], label: str | None, where: str) -> tuple[int, Rule | None]:
    """Return the position of the label's column and, if `label` is a rule, the rule."""
    if label is None:
        return len(header) - 1, None
    if label in header:
        return header.index(label), None
    found = RULE.fullmatch(label)
    column = label if found is None else found["column"].strip()
    if column not in header:
        hint = did_you_mean(column, header) or f" Columns: {', '.join(header)}."
        raise DataError(
            f"`data.label` refers to the column `{shortened(column, 60)}`, which {where} does not"
            f" have.{hint}"
        )
    if found is None:
        return header.index(column), None
    bound = found["bound"].strip()
    if not NUMBER.fullmatch(bound) or not isfinite(float(bound)):
        raise DataError(
            f"`data.label` compares the column `{column}` with `{shortened(bound, 60)}`, which is"
            " not a finite number. A rule looks like `num > 0`."
        )
    return header.index(column), Rule(label, found["sign"], float(bound))


def _client(
    rows: list[list[str]], header: list[str], column: int, where: str
) -> tuple[NDArray[np.float32], list[str]]:
    """Return the features [n, columns - 1] and the texts of the labels [n] of one table."""
    x = np.empty((len(rows), len(header) - 1), dtype=np.float32)
    y = []
    for position, row in enumerate(rows):
        if len(row) != len(header):
            raise DataError(
                f"{where}, row {position + 2} has {len(row)} fields, but the header has"
                f" {len(header)}."
            )
        if row[column].lower() in MISSING:
            raise DataError(
                f"{where}, row {position + 2} has no label in column `{header[column]}`. Remove"
                " the row."
            )
        y.append(row[column])
        for k, text in enumerate(row[:column] + row[column + 1 :]):
            value = np.nan if text.lower() in MISSING else _number(text)
            if value is None or abs(value) > LARGEST:
                name = (header[:column] + header[column + 1 :])[k]
                raise DataError(
                    f"{where}, row {position + 2}, column `{name}`: {text!r} is not a finite"
                    " number that float32 can represent. Encode categories as numbers or as columns"
                    " of 0 and 1."
                )
            x[position, k] = value
    return x, y


def _apply(rule: Rule | None, text: str, where: str, row: int) -> str:
    """Return the class of a label: its text, or "1" or "0" by the rule."""
    value = _number(text)
    if rule is None:
        return text if value is None else f"{value:.15g}"  # "1" and "1.0" are one class
    if value is None:
        raise DataError(
            f"{where}, row {row}: the label {text!r} is not a number, so the rule"
            f" `{rule.text}` cannot be applied."
        )
    fulfilled = {
        ">": value > rule.bound,
        "<": value < rule.bound,
        ">=": value >= rule.bound,
        "<=": value <= rule.bound,
        "==": value == rule.bound,
    }
    return "1" if fulfilled[rule.sign] else "0"


def _number(text: str) -> float | None:
    """Return a text as a number; None if it is not one. Python would read `1_0` as 10."""
    try:
        return None if "_" in text else float(text)
    except ValueError:
        return None
