"""Samples that are put together: their shapes, types and, of images, their ranges of values."""

from typing import Any, Final

from numpy.typing import NDArray

from flbench.core.errors import DataError

SCALES: Final = ((0.0, 1.0), (-1.0, 1.0), (0.0, 255.0))  # ranges in which images are stored
FAR: Final = 100  # images whose largest values differ by this factor have other units


def range_of(x: NDArray[Any]) -> tuple[float, float]:
    """Return the smallest and the largest value of images [n, ...], at least one."""
    return float(x.min()), float(x.max())


def has_other_units(found: tuple[float, float], known: tuple[float, float]) -> bool:
    """Return whether the range of images shows that they have other units than known ones.

    It does if they leave the scale of the known ones, [0, 1], [-1, 1] or [0, 255], by half its
    width, or if the largest absolute values differ by a factor of 100. Images of zeros have any
    units.

    >>> has_other_units((0, 255), (0, 1)), has_other_units((0, 1), (0, 250))
    (True, True)
    >>> has_other_units((-0.1, 1.1), (0, 1)), has_other_units((0, 3), (0, 250))
    (False, False)
    """
    for low, high in SCALES:
        if low <= known[0] and known[1] <= high:
            margin = (high - low) / 2
            if found[0] < low - margin or found[1] > high + margin:
                return True
            break
    size, other = (max(abs(low), abs(high)) for low, high in (found, known))
    return size > 0 and other > 0 and not 1 / FAR <= size / other <= FAR


def check_alike(first: NDArray[Any], x: NDArray[Any], what: str, known: str) -> None:
    """Raise a DataError if samples differ from known ones in shape, type or units."""
    found = [(list(one.shape[1:]), str(one.dtype)) for one in (x, first)]
    ranges = [range_of(one) if one.ndim == 4 and len(one) else (0.0, 0.0) for one in (x, first)]
    if found[0] != found[1] or has_other_units(*ranges):
        here, there = (
            f"the shape {shape} in {dtype} with values in [{low:g}, {high:g}]"
            for (shape, dtype), (low, high) in zip(found, ranges, strict=True)
        )
        raise DataError(
            f"{what} has {here}, and {known} has {there}. Bring all samples to one shape, type and"
            " range of values."
        )
