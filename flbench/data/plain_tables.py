"""Large CSV tables whose fields need no quotes, read column by column with pandas.

A table is read here only if the general reader of `flbench.data.table_files` would give the same
numbers and texts. All other tables, and all malformed ones, are left to that reader, which names
file, line and column of an error.
"""

import csv
import io
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

SMALLEST: Final = 2**20  # bytes of tables for which importing pandas pays
SEEN: Final = 100  # rows that decide which columns have words
FORBIDDEN: Final = re.compile(rb'["\x00-\x09\x0b\x0c\x0e-\x1f\x7f-\xff]')
PADDED: Final = re.compile(rb"[ ](?=[,\r\n]|\Z)|(?<=[,\n])[ ]|\r(?!\n)|\n\r?\n")
"""Blanks at the ends of fields, ends of lines that are no line feeds, and empty lines."""


@dataclass(frozen=True)
class PlainTable:
    """The columns of a table of n rows.

    Attributes:
        header: Names of the columns.
        numbers: Numbers [n, columns] float64 without the label's column; NaN for missing values and
            in columns of texts.
        texts: Columns of texts by their position: the different texts, and for each row the
            position [n] of its text among them, -1 for a missing value.
    """

    header: list[str]
    numbers: NDArray[np.float64]
    texts: dict[int, tuple[list[str], NDArray[np.int64]]]


def read(
    content: bytes,
    missing: Iterable[str],
    is_number: Callable[[str], bool],
    text_column: Callable[[list[str]], int],
) -> PlainTable | None:
    """Read a table; None if it is small, or for the general reader.

    Args:
        content: Content of the file.
        missing: Texts in lower case that are missing values, in any case, in columns of features.
        is_number: Function that says whether a field is a number.
        text_column: Function of the header to the position of the label, a column of texts in
            which no text is a missing value.
    """
    content = content.removeprefix(b"\xef\xbb\xbf")  # the mark of UTF-8
    if len(content) < SMALLEST or FORBIDDEN.search(content) or PADDED.search(content):
        return None
    first, _, _ = content.partition(b"\n")
    [header] = csv.reader([first.decode("ascii").rstrip("\r")])
    width = len(header)
    if width < 2 or len(set(header)) < width or not _has_width(content, width):
        return None
    unknown = {text for word in missing for text in _cases(word)}
    label = text_column(header)
    texts = {label} | _columns_of_texts(content, unknown, is_number)
    import pandas as pd

    names = [str(k) for k in range(width)]
    kinds: Any = {name: str if k in texts else np.float64 for k, name in enumerate(names)}
    absent: Any = {name: sorted(unknown) for k, name in enumerate(names) if k != label}
    try:
        frame: Any = pd.read_csv(
            io.BytesIO(content),
            header=None,
            names=names,
            skiprows=1,
            index_col=False,
            dtype=kinds,
            keep_default_na=False,
            na_values=absent,
            float_precision="round_trip",  # as Python's float
        )
    except (ValueError, OverflowError):  # pandas' ParserError is a ValueError
        return None
    numbers = np.full((len(frame), width - 1), np.nan)
    found: dict[int, tuple[list[str], NDArray[np.int64]]] = {}
    for k, name in enumerate(names):
        column = frame.pop(name)
        if k not in texts:
            numbers[:, k - (k > label)] = column
            continue
        codes, different = pd.factorize(column)
        words = [str(word) for word in different]
        if k != label and any(map(is_number, words)):
            return None
        found[k] = words, codes.astype(np.int64)
    return PlainTable(header, numbers, found)


def _has_width(content: bytes, width: int) -> bool:
    """Return whether each line of a table has the same number of fields, and there are two."""
    signs = np.frombuffer(content, dtype=np.uint8)
    ends = np.flatnonzero(signs == ord("\n"))
    if not len(ends) or ends[-1] != len(signs) - 1:
        ends = np.append(ends, len(signs))  # the last line has no end
    commas = np.flatnonzero(signs == ord(","))
    upto = np.searchsorted(commas, ends)  # commas before the end of each line
    longest = int(np.diff(ends, prepend=-1).max())
    has_width = bool((np.diff(upto, prepend=0) == width - 1).all())
    return len(ends) > 1 and has_width and longest < csv.field_size_limit()


def _columns_of_texts(
    content: bytes, unknown: set[str], is_number: Callable[[str], bool]
) -> set[int]:
    """Return the columns that have a word in the first rows."""
    begin = content[: 2**20].decode("ascii").splitlines()[1 : SEEN + 1]
    rows: Sequence[list[str]] = list(csv.reader(begin))
    return {
        k
        for row in rows
        for k, text in enumerate(row)
        if text not in unknown and not is_number(text)
    }


def _cases(word: str) -> Iterable[str]:
    """Yield a word with all combinations of small and capital letters.

    >>> sorted(_cases("na"))
    ['NA', 'Na', 'nA', 'na']
    """
    return {"".join(letters) for letters in product(*((x, x.upper()) for x in word))}
