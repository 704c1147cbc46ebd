"""Columns of tables that number the rows, such as an index that was saved with the table."""

import re
from collections.abc import Sequence
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

FEWEST: Final = 3  # rows for which consecutive numbers are no coincidence
FEWEST_WIDE: Final = 9  # steps for which other even steps than 1 are none
FEWEST_SHUFFLED: Final = 10  # rows for which consecutive numbers in any order are no coincidence
IDENTIFIER: Final = re.compile(r"(.*[\W_])?(id|ids|idx|index|nr|no|row|rownum|uid)", re.IGNORECASE)
FEWEST_GROUPS: Final = 8  # different values of a column that looks like patients or devices
SOURCE: Final = re.compile(
    r"(.*[\W_])?(id|ids|uid|pid|mrn|((patient|subject|person|participant|proband|user|writer|speaker"
    r"|device|sensor|animal)s?([\W_]*(id|ids|uid|nr|no|num|number|code|name|key))?))[\W_]*",
    re.IGNORECASE,
)
"""Names of columns of what several rows come from."""
MOST_SHOWN: Final = 4


def notes(
    x: NDArray[Any],
    columns: Sequence[str],
    sizes: Sequence[int] | None = None,
    cure: str = "Remove {each} from the data unless it is a measurement.",
) -> tuple[str, ...]:
    """Return a note about the columns that number the rows, or identify them by a number.

    A net can learn from such a column where a row lies in the file, and with it the class of rows
    that are sorted by class. A column numbers the rows if its values are whole numbers that are
    evenly spaced over all rows, or over the rows of each table, or that are consecutive in another
    order. It identifies the rows if all values are different whole numbers and its name is that of
    an identifier.

    Args:
        x: Values [n, columns], in the order of the rows; NaN for missing ones.
        columns: Names of the columns.
        sizes: Number of rows of each table, which sum to n; by default there is one table.
        cure: What the user can do, as a sentence with `{each}` for the columns.

    >>> notes(np.array([[0.0, 0.5], [1.0, 0.1], [2.0, 0.2]]), ["n", "size"])[0][:36]
    'data: the column `n` numbers the row'
    """
    ends = np.cumsum([len(x)] if sizes is None else sizes)
    found = [
        name
        for k, name in enumerate(columns)
        if len(x) >= FEWEST and _numbers_rows(x[:, k], ends, name)
    ]
    if not found:
        return ()
    shown = ", ".join(f"`{name}`" for name in found[:MOST_SHOWN])
    shown += f", ... ({len(found)} in all)" if len(found) > MOST_SHOWN else ""
    if len(found) == 1:
        subject, feature, each = f"the column {shown} numbers", "it as a feature", "it"
    else:
        subject, feature, each = f"the columns {shown} number", "them as features", "each"
    return (
        f"data: {subject} the rows, and the net gets {feature}: where rows are sorted by class or"
        f" client, the net predicts classes from row numbers. {cure.format(each=each)}",
    )


def note_of_repeated(x: NDArray[Any], columns: Sequence[str], key: str) -> tuple[str, ...]:
    """Return a note about columns that look like what several rows come from, such as a patient.

    Such a column has the name of an identifier, at least eight different whole numbers or words,
    and on average two rows or more for each.

    Args:
        x: Values [n, columns]; whole numbers for words, NaN for missing ones.
        columns: Names of the columns.
        key: Name of the setting by which columns are left out.

    >>> x = np.repeat(np.arange(8.0), 2)[:, None]
    >>> len(note_of_repeated(x, ["patient_id"], "drop")), note_of_repeated(x, ["age"], "drop")
    (1, ())
    """
    for k, name in enumerate(columns):
        values = x[:, k]
        if not SOURCE.fullmatch(name) or not _are_whole(values):
            continue
        if FEWEST_GROUPS <= len(np.unique(values)) <= len(values) / 2:
            return (
                f"data: several rows have the same `{name}`. If they come from one patient, person"
                " or device, a client is tested on those that it has trained on: keep them together"
                f" by data.group={name}; or leave the column out by {key}.",
            )
    return ()


def _numbers_rows(values: NDArray[Any], ends: NDArray[np.int64], name: str) -> bool:
    """Return whether a column numbers or identifies the rows."""
    # The first rows decide in most cases, without a pass over the column.
    if not _are_whole(values[:FEWEST]) or not _are_whole(values):
        return False
    tables = [part for part in np.split(values, ends[:-1]) if len(part) > 1]
    if _are_even([values]) or (max(map(len, tables), default=0) >= FEWEST and _are_even(tables)):
        return True
    is_identifier = IDENTIFIER.fullmatch(name) is not None
    if len(values) < FEWEST_SHUFFLED or len(np.unique(values)) != len(values):
        return False
    return is_identifier or values.max() - values.min() + 1 == len(values)


def _are_whole(values: NDArray[Any]) -> bool:
    """Return whether all values are known whole numbers."""
    return bool(np.isfinite(values).all() and (values == np.floor(values)).all())


def _are_even(tables: Sequence[NDArray[Any]]) -> bool:
    """Return whether the values of all tables rise or fall by one and the same step."""
    steps = np.concatenate([np.diff(table) for table in tables]) if tables else np.zeros(0)
    if not len(steps) or not steps[0] or (steps != steps[0]).any():
        return False
    return abs(steps[0]) == 1 or len(steps) >= FEWEST_WIDE
