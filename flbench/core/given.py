"""Objects of the user that have no import path, given to a function of the Python interface.

The configuration names such an object `object`. The process that runs the experiment finds it here,
for as long as the call of the user lasts.
"""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, Final

OBJECT: Final = "object"
"""Value of `data.source`, `partition.scheme` and `model.name` for objects without an import path.

The name of such a function in `train.terms` is `object:NAME`.
"""

METRICS: Final = "evaluation.metrics"
"""Name under which the functions of `evaluation.metrics` are offered, as a dict by their names."""

TERMS: Final = "train.terms"
"""Name under which the functions of `train.terms` are offered, as a dict by their names there."""

_objects: ContextVar[Mapping[str, Any] | None] = ContextVar("objects", default=None)


@contextmanager
def offered(objects: Mapping[str, Any]) -> Iterator[None]:
    """Return a context manager in which `find` returns these objects.

    Args:
        objects: Objects by the section of the configuration that they stand for.

    >>> with offered({"data": 3}):
    ...     find("data")
    3
    """
    token = _objects.set(objects)
    try:
        yield
    finally:
        _objects.reset(token)


def find(section: str) -> Any:
    """Return the object that was given for a section, or None.

    Args:
        section: `data`, `partition`, `model`, `train.terms` or `evaluation.metrics`.
    """
    return (_objects.get() or {}).get(section)
