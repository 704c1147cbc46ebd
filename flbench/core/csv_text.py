"""CSV files with cells that a spreadsheet shows as they are.

A spreadsheet takes a cell that begins with `=`, `+`, `-` or `@` for a formula. Names come from
users' files, so such a cell is written with an apostrophe before it, unless it is a number.
"""

import csv
import re
from collections.abc import Iterable, Sequence
from io import StringIO
from typing import Final

from flbench.core.printable import printable

_FORMULA: Final = re.compile(r"'*\s*[=+\-@\uff1d\uff0b\uff0d\uff20]")  # the last four are wide
_NUMBER: Final = re.compile(
    r"[+-]?(\d+\.?\d*|\.\d+)(e[+-]?\d+)?|[+-]?inf(inity)?", re.IGNORECASE | re.ASCII
)


def csv_text(header: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    r"""Return a table as the text of a CSV file.

    Cells that are None or NaN are left empty. Numbers are written as they are, and text by `cell`.

    Args:
        header: Names of the columns.
        rows: Cells of each row.

    >>> csv_text(("name", "value"), [("=A1", -1), ("-2", None)])
    "name,value\n'=A1,-1\n-2,\n"
    """
    text = StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow([cell(name) for name in header])
    for row in rows:
        writer.writerow([cell(item) if isinstance(item, str) else _plain(item) for item in row])
    return text.getvalue()


def cell(text: str) -> str:
    """Return a text as the content of a cell, which `read_cell` reads again.

    Control characters become escapes, and a text that a spreadsheet would take for a formula gets
    an apostrophe before it. Numbers do not change.

    >>> cell("=1+1"), cell("-0.5"), cell("-a")
    ("'=1+1", '-0.5', "'-a")
    """
    text = printable(text)
    is_formula = _FORMULA.match(text) and not _NUMBER.fullmatch(text)
    return f"'{text}" if is_formula else text


def read_cell(text: str) -> str:
    """Return the text that `cell` has written, without the apostrophe that it has added.

    >>> read_cell("'=1+1"), read_cell("'quoted'")
    ('=1+1', "'quoted'")
    """
    return text[1:] if text.startswith("'") and _FORMULA.match(text) else text


def _plain(item: object) -> object:
    """Return a cell that is not text; "" for None and NaN.

    Integers of more than 64 bits are written as floats: programs read longer ones as texts.
    """
    if isinstance(item, int) and not -(2**63) <= item < 2**63:
        return float(item)
    return "" if item is None or item != item else item
