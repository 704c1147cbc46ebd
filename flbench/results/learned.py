"""What the method of a run has learned besides models: the file learned.json of a run folder."""

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Annotated, Any, Final

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel, Field, TypeAdapter

from flbench.core.documents import as_data_error, read_json
from flbench.core.learned import LearnedTable

NAME: Final = "learned.json"
MOST_NUMBERS: Final = 1_000_000
"""Largest number of numbers in the file; what would exceed it is left out."""
DIGITS: Final = 6  # significant digits of a number
LARGEST: Final = 1e100  # magnitude of a number; differences of two of them can be drawn


def text_of(found: Iterable[LearnedTable]) -> str:
    """Return the content of the file.

    Args:
        found: What `Algorithm.learned` has returned. From the first table on with which the file
            would have more than `MOST_NUMBERS` numbers, the rest is left out.
    """
    items: list[dict[str, Any]] = []
    room = MOST_NUMBERS
    for one in found:
        values = np.asarray(one.values)
        room -= values.size
        if room < 0:
            break
        items.append(vars(one) | {"values": _rows(values)})
    return json.dumps({"learned": items}) + "\n"


def read(folder: Path) -> tuple[LearnedTable, ...]:
    """Return what the method of a run has learned; nothing if the run has no such file."""
    file = folder / NAME
    content = read_json(file)
    with as_data_error(file):
        found = _FILE.validate_python(content.get("learned", []))
        return tuple(one.learned() for one in found)


Number = Annotated[float, Field(ge=-LARGEST, le=LARGEST)]


class _Table(BaseModel, extra="forbid"):
    """A table of the file."""

    name: str
    about: str
    values: list[list[Number | None]]
    rows: str
    columns: str
    labels: tuple[str, ...]

    def learned(self) -> LearnedTable:
        """Return the table; a ValueError if its rows or labels have other lengths."""
        values = np.array(self.values, dtype=np.float64)
        if values.ndim != 2 or not values.size or len(self.labels) not in (0, values.shape[1]):
            raise ValueError("`values` is not a table of numbers with the columns of `labels`")
        return LearnedTable(self.name, self.about, values, self.rows, self.columns, self.labels)


_FILE = TypeAdapter(list[_Table])


def _rows(values: NDArray[Any]) -> list[list[float | None]]:
    """Return numbers [R, Q] with few digits, None where they are beyond `LARGEST`."""
    return [
        [float(f"{value:.{DIGITS}g}") if abs(value) <= LARGEST else None for value in row]
        for row in values.tolist()
    ]
