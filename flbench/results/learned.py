"""What the method of a run has learned besides models: the file learned.json of a run folder."""

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import ArrayLike, NDArray

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
        item = {"kind": one.kind, **vars(one)}
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

    Raises:
        DataError: The file is damaged.
    """
    file = folder / NAME
    content = read_json(file)
    with as_data_error(file):
        return tuple(_item(dict(one), classes) for one in content.get("learned", []))


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


def _item(one: dict[str, Any], classes: int) -> Learned:
    """Return a table or points of the file.

    Raises:
        KeyError: A value is missing.
        TypeError: A value has another type.
        ValueError: A value has another shape, or is beyond its limits.
    """
    kind = one.pop("kind")
    if kind not in (LearnedTable.kind, LearnedPoints.kind):
        raise ValueError("`kind` is neither table nor points")
    for key in ("name", "about", *(("rows", "columns") if kind == LearnedTable.kind else ())):
        if not isinstance(one[key], str):
            raise TypeError(f"`{key}` is not text")
    values = np.array(one.pop("values"), dtype=np.float64)
    if values.ndim != 2 or not values.size:
        raise ValueError("`values` is not a table of numbers")
    if (np.abs(values) > LARGEST).any():
        raise ValueError(f"a value is beyond {LARGEST:g}")
    if kind == LearnedTable.kind:
        labels = tuple(one.pop("labels"))
        if labels and (len(labels), {*map(type, labels)}) != (values.shape[1], {str}):
            raise ValueError("`labels` is not a list with the name of each column")
        limits = one.pop("limits")
        if limits is not None:
            low, high = map(float, limits)
            if not -LARGEST <= low <= high <= LARGEST:
                raise ValueError("`limits` are not two numbers")
            limits = (low, high)
        return LearnedTable(values=values, labels=labels, limits=limits, **one)
    if values.shape[1] != 2 or not np.isfinite(values).all():
        raise ValueError("points are not pairs of numbers")
    of, shared = (_column(one.pop(key), len(values)) for key in ("classes", "is_shared"))
    if of.dtype.kind != "i" or not 0 <= of.min() <= of.max() < classes:
        raise ValueError("a class of a point is none of the run")
    if shared.dtype != bool:
        raise TypeError("`is_shared` has values besides true and false")
    return LearnedPoints(values=values, classes=of, is_shared=shared, **one)


def _column(values: ArrayLike, length: int) -> NDArray[Any]:
    """Return a row of values, one for each point."""
    found = np.array(values)
    if found.shape != (length,):
        raise ValueError("there is not one value for each point")
    return found
