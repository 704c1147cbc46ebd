"""Hard limits of a parameter, from its field in the configuration's schema."""

from collections.abc import Iterator
from typing import Any, get_args

from pydantic import BaseModel

from flbench.config.schema import Config
from flbench.core.registry import ALGORITHMS


def bounds(path: str, method: str) -> tuple[float | None, float | None]:
    """Return the smallest and the largest number that a configuration key accepts.

    Args:
        path: Configuration key, such as `train.optimizer.lr`. An unknown key has no bounds.
        method: Name of the method that the keys `algorithm.*` belong to.

    Returns:
        Lower and upper bound, each None if the schema sets none. An exclusive bound (`gt`, `lt`)
        is returned like an inclusive one.
    """
    constraints = list(_constraints(path.split("."), method))
    return _limit(constraints, ("ge", "gt")), _limit(constraints, ("le", "lt"))


def _limit(constraints: list[Any], names: tuple[str, str]) -> float | None:
    """Return the first limit that a constraint sets under one of these names."""
    limits = [getattr(constraint, name, None) for constraint in constraints for name in names]
    return next((value for value in limits if value is not None), None)


def _constraints(keys: list[str], method: str) -> Iterator[Any]:
    """Yield the constraints of a key's field, and those of the members of its union type."""
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
    """Return the configuration class of a method; None for an unknown method."""
    return ALGORITHMS.find(name).Config if name in ALGORITHMS.names() else None


def _field(model: Any, key: str) -> Any:
    """Return a field of a pydantic model; None if there is none."""
    known = isinstance(model, type) and issubclass(model, BaseModel)
    return model.model_fields.get(key) if known else None
