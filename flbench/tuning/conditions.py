"""Conditions of parameters on one another: when they hold, and what cannot be."""

from collections.abc import Iterable, Mapping

from flbench.core.errors import did_you_mean
from flbench.tuning.parameters import Parameter, Scalar
from flbench.tuning.ranges import Uniform

Parameters = Mapping[str, Parameter]
"""By dotted key."""


def is_active(parameter: Parameter, values: Mapping[str, Scalar]) -> bool:
    """Return whether a parameter is there under the values of other parameters."""
    return all(
        other in values and values[other] in allowed for other, allowed in parameter.when.items()
    )


def required(path: str, parameters: Parameters) -> dict[str, tuple[Scalar, ...]]:
    """Return the values of which each parameter above this one must have one."""
    allowed: dict[str, tuple[Scalar, ...]] = {}
    for other, values in parameters[path].when.items():
        for name, these in {**required(other, parameters), other: values}.items():
            allowed[name] = tuple(v for v in these if v in allowed.get(name, these))
    return allowed


def parents_first(parameters: Parameters) -> dict[str, Parameter]:
    """Return the parameters in their order, but each after those that its condition looks at."""
    ordered: dict[str, Parameter] = {}

    def add(paths: Iterable[str]) -> None:
        for path in paths:
            if path not in ordered:
                add(parameters[path].when)
                ordered[path] = parameters[path]

    add(parameters)
    return ordered


def problems(parameters: Parameters, places: Mapping[str, str]) -> list[str]:
    """Return a sentence for each condition that cannot be.

    Args:
        parameters: of a space.
        places: file and line of each.
    """
    found = []
    for path, parameter in parameters.items():
        for other, values in parameter.when.items():
            start = f"`{path}`: `when` ({places[path]})"
            found += [f"{start} {why}" for why in _wrong(path, other, values, parameters)]
    if found:
        return found
    if circle := _circle(parameters):
        return [f"the conditions go in a circle: {' -> '.join(circle)} ({places[circle[0]]})."]
    return [
        f"`{path}` can never be active: its conditions contradict those of the parameters that it"
        f" hangs on ({places[path]})."
        for path in parameters
        if not all(required(path, parameters).values())
    ]


def _wrong(path: str, other: str, values: tuple[Scalar, ...], parameters: Parameters) -> list[str]:
    """Return why a condition of `path` on `other` cannot be, as ends of sentences."""
    names = [name for name in parameters if name != path]
    if other not in names:
        hint = did_you_mean(other, names)
        return [f"looks at `{other}`, which is no other parameter of this space.{hint}"]
    watched = parameters[other]
    if isinstance(watched, Uniform):
        return [
            f"looks at `{other}`, which is any number of a range; a condition needs a choice, int,"
            " quniform or fixed."
        ]
    return [
        f"waits for `{other}` to be {value!r}, which it never is."
        f"{did_you_mean(str(value), map(str, watched.grid()))}"
        for value in values
        if not watched.holds(value)
    ]


def _circle(parameters: Parameters) -> list[str]:
    """Return the parameters of a circle of conditions, the first again at the end, or []."""

    def walk(path: str, trail: list[str]) -> list[str]:
        if path in trail:
            return [*trail[trail.index(path) :], path]
        found = (walk(other, [*trail, path]) for other in parameters[path].when)
        return next((circle for circle in found if circle), [])

    return next((circle for path in parameters if (circle := walk(path, []))), [])
