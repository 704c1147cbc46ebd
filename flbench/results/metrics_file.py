"""metrics.csv: one figure per line, so that a resumed run writes the bytes of a straight one."""

import csv
from collections.abc import Iterable
from pathlib import Path
from typing import Final, NamedTuple

from flbench.core.errors import DataError

HEADER: Final = ("round", "split", "protocol", "metric", "value")


class Row(NamedTuple):
    """One figure; `split`: train, setup, server, validation, test or common, of a model."""

    round: int
    split: str
    protocol: str
    metric: str
    value: float


def header_line() -> str:
    """Return the first line of the file."""
    return ",".join(HEADER) + "\n"


def to_text(rows: Iterable[Row]) -> str:
    """Return lines of the file; whole numbers without a point, others with all their digits."""
    return "".join(
        f"{row.round},{row.split},{row.protocol},{row.metric},{_number(row.value)}\n"
        for row in rows
    )


def read(path: Path) -> list[Row]:
    """Read the file; a last line that a crash cut short is left out.

    Raises: DataError if it is not such a file.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        raise DataError(f"{path} cannot be read: {error.strerror}.") from error
    except UnicodeDecodeError as error:
        raise DataError(f"{path} is damaged: it is not a text in UTF-8.") from error
    whole = text[: text.rfind("\n") + 1]
    lines = list(csv.reader(whole.splitlines()))
    if not lines or tuple(lines[0]) != HEADER:
        raise DataError(f"{path} is not a metrics.csv of flbench.")
    try:
        return [Row(int(line[0]), line[1], line[2], line[3], float(line[4])) for line in lines[1:]]
    except (ValueError, IndexError) as error:
        raise DataError(f"{path} is damaged ({error}).") from error


def _number(value: float) -> str:
    return str(int(value)) if float(value).is_integer() else repr(float(value))
