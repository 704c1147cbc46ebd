"""What the method of a run has learned besides models: the file learned.json of a run folder."""

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Annotated, Any, Final, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel, Field, StrictBool, TypeAdapter

from flbench.core.documents import as_data_error, read_json
from flbench.core.learned import Learned, LearnedPoints, LearnedTable

NAME: Final = "learned.json"
MOST_NUMBERS: Final = 1_000_000
"""Largest number of numbers in the file; what would exceed it is left out."""
DIGITS: Final = 6  # significant digits of a number
LARGEST: Final = 1e100  # magnitude of a number; differences of two of them can be drawn


def text_of(found: Iterable[Learned]) -> str:
    """Return the content of the file: a table as it is, points by two principal components.

    Args:
        found: What `Algorithm.learned` has returned. From the first table or points on with which
            the file would have more than `MOST_NUMBERS` numbers, the rest is left out.
    """
    items: list[dict[str, Any]] = []
    room = MOST_NUMBERS
    for one in found:
        values = np.asarray(one.values)
        is_table = isinstance(one, LearnedTable)
        room -= values.size if is_table else 4 * len(values)
        if room < 0:
            break
        item = vars(one) | {"kind": "table" if is_table else "points"}
        item["values"] = _rows(values if is_table else _components(values))
        if isinstance(one, LearnedPoints):
            item["classes"] = np.asarray(one.classes).tolist()
            item["is_shared"] = np.asarray(one.is_shared).tolist()
        items.append(item)
    return json.dumps({"learned": items}) + "\n"


def read(folder: Path, classes: int) -> tuple[Learned, ...]:
    """Return what the method of a run has learned; nothing if the run has no such file.

    Args:
        folder: The run folder.
        classes: Number of classes C of the run.
    """
    file = folder / NAME
    content = read_json(file)
    with as_data_error(file):
        found = _FILE.validate_python(content.get("learned", []))
        return tuple(one.learned(classes) for one in found)


Number = Annotated[float, Field(ge=-LARGEST, le=LARGEST)]


class _Table(BaseModel, extra="forbid"):
    """A table of the file."""

    kind: Literal["table"]
    name: str
    about: str
    values: list[list[Number | None]]
    rows: str
    columns: str
    labels: tuple[str, ...]

    def learned(self, classes: int) -> LearnedTable:
        """Return the table; a ValueError if its rows or labels have other lengths."""
        values = np.array(self.values, dtype=np.float64)
        if values.ndim != 2 or not values.size or len(self.labels) not in (0, values.shape[1]):
            raise ValueError("`values` is not a table of numbers with the columns of `labels`")
        return LearnedTable(self.name, self.about, values, self.rows, self.columns, self.labels)


class _Points(BaseModel, extra="forbid"):
    """Points of the file."""

    kind: Literal["points"]
    name: str
    about: str
    values: list[tuple[Number, Number]] = Field(min_length=1)
    classes: list[Annotated[int, Field(ge=0)]]
    is_shared: list[StrictBool]

    def learned(self, classes: int) -> LearnedPoints:
        """Return the points; a ValueError if a point has no class of the run."""
        lengths = {len(self.values), len(self.classes), len(self.is_shared)}
        if len(lengths) > 1 or max(self.classes) >= classes:
            raise ValueError("a point has no class of the run")
        values, of, shared = map(np.array, (self.values, self.classes, self.is_shared))
        return LearnedPoints(self.name, self.about, values, of, shared)


_FILE = TypeAdapter(list[Annotated[_Table | _Points, Field(discriminator="kind")]])


def _rows(values: NDArray[Any]) -> list[list[float | None]]:
    """Return numbers [R, Q] with few digits, None where they are beyond `LARGEST`."""
    return [
        [float(f"{value:.{DIGITS}g}") if abs(value) <= LARGEST else None for value in row]
        for row in values.tolist()
    ]


def _components(values: NDArray[Any]) -> NDArray[np.float64]:
    """Return the first two principal components [P, 2] of points [P, D]; 0 for a single point."""
    if min(values.shape) < 2:
        return np.zeros((len(values), 2))
    from sklearn.decomposition import PCA  # its import is slow

    found: NDArray[np.float64] = PCA(2, svd_solver="full").fit_transform(values.astype(float))
    return found
