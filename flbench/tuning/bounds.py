"""How far a parameter goes at all, by the schema of the configuration."""

from collections.abc import Iterator
from typing import Any, get_args

from pydantic import BaseModel

from flbench.algorithms import ALGORITHMS
from flbench.config.schema import Config
from flbench.core.errors import ConfigError


def bounds(path: str, method: str) -> tuple[float | None, float | None]:
    """Return the smallest and largest number that a key takes; None where there is no bound.

    Args:
        path: a configuration key; one that is not there has no bounds.
        method: whose keys `algorithm.*` are.
    """
    rules = list(_rules(path.split("."), method))
    return _limit(rules, ("ge", "gt")), _limit(rules, ("le", "lt"))


def _limit(rules: list[Any], names: tuple[str, str]) -> float | None:
    found = [getattr(rule, name, None) for rule in rules for name in names]
    return next((value for value in found if value is not None), None)


def _rules(keys: list[str], method: str) -> Iterator[Any]:
    """Yield the limits that the schema sets to a key, of its own and of a union's parts."""
    model: Any = Config
    for key in keys[:-1]:
        model = _method(method) if model is Config and key == "algorithm" else _field(model, key)
        model = getattr(model, "annotation", model)
    field = _field(model, keys[-1])
    if field is None:
        return
    yield from field.metadata
    for part in get_args(field.annotation):
        yield from getattr(part, "__metadata__", ())


def _method(name: str) -> Any:
    try:
        return ALGORITHMS.find(name).Config
    except ConfigError:
        return None


def _field(model: Any, key: str) -> Any:
    known = isinstance(model, type) and issubclass(model, BaseModel)
    return model.model_fields.get(key) if known else None
