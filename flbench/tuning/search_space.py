"""Search space: the parameters of one method that a search may change."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

from flbench.config.schema import Config
from flbench.config.sources import Layer
from flbench.tuning.free_keys import default_of
from flbench.tuning.parameters import Parameter, Params, Scalar


@dataclass(frozen=True)
class Space:
    """Search space of one method.

    Attributes:
        method: Name of the method.
        parameters: Parameters by dotted key. A parameter comes after those that its conditions
            depend on.
        source: The file of the space, or `built in`.
        origins: File and line of each parameter, by dotted key.
    """

    method: str
    parameters: Mapping[str, Parameter]
    source: str
    origins: Mapping[str, str]

    def assign(self, pick: Callable[[str, Parameter], Scalar]) -> Params:
        """Return a value for each active parameter.

        A parameter is active if its conditions hold for the values of the parameters before it.

        Args:
            pick: Function of key and parameter that returns the value. It is called for the active
                parameters only, in order.
        """
        values: Params = {}
        for path, parameter in self.parameters.items():
            if parameter.is_active(values):
                values[path] = pick(path, parameter)
        return values

    def defaults(self, config: Config) -> Params:
        """Return the parameters of the default trial: the configuration's values.

        The values may be None, or lie outside the ranges of the parameters.

        Args:
            config: Configuration of the method without a trial's parameters.

        Raises:
            ConfigError: A function of the user has no such argument, or no default for it.
        """
        tree = config.tree()
        return self.assign(lambda path, _: default_of(tree, path, self.method))

    def leading_to(self, path: str) -> Params:
        """Return values of other parameters for which this parameter is active."""
        return {other: values[0] for other, values in self.required(path).items()}

    def required(self, path: str) -> dict[str, tuple[Scalar, ...]]:
        """Return the allowed values of all parameters that this one depends on.

        Conditions are followed through: if `c` depends on `b` and `b` on `a`, the result for `c`
        has entries for `a` and `b`. An empty tuple means that the conditions contradict each other.
        """
        allowed: dict[str, tuple[Scalar, ...]] = {}
        for other, values in self.parameters[path].when.items():
            for name, these in {**self.required(other), other: values}.items():
                allowed[name] = tuple(v for v in these if v in allowed.get(name, these))
        return allowed

    def grid(self) -> Iterator[Params]:
        """Yield every combination of grid values; the last parameter changes fastest."""
        combinations: Iterator[Params] = iter([{}])
        for path, parameter in self.parameters.items():
            combinations = _extended(combinations, path, parameter)
        return combinations

    def without(self, values: Mapping[str, Scalar]) -> "Space":
        """Return the space without parameters whose values are given.

        A condition on a removed parameter is removed if the given value meets it. If it does not,
        the parameter with the condition is removed too.

        Args:
            values: Values by dotted key of the parameters to remove.
        """
        kept: dict[str, Parameter] = {}
        removed: set[str] = set()
        for path, parameter in self.parameters.items():
            if path in values:
                continue
            when = {other: v for other, v in parameter.when.items() if other not in values}
            are_met = all(values[o] in v for o, v in parameter.when.items() if o in values)
            if are_met and not removed & set(when):
                changed = when != parameter.when
                kept[path] = parameter.model_copy(update={"when": when}) if changed else parameter
            else:
                removed.add(path)
        return replace(self, parameters=kept)

    def tree(self) -> dict[str, Any]:
        """Return the space as dicts and lists for YAML and JSON, which `reading.parse` reads."""
        parameters = {path: parameter.tree() for path, parameter in self.parameters.items()}
        return {"method": self.method, "space": parameters}


def _extended(chosen: Iterator[Params], path: str, parameter: Parameter) -> Iterator[Params]:
    """Extend each combination by each grid value of one more parameter, if it is active."""
    for params in chosen:
        active = parameter.is_active(params)
        yield from ({**params, path: value} for value in parameter.grid()) if active else [params]


def layer(params: Mapping[str, Scalar], origin: str | Mapping[str, str]) -> Layer:
    """Return the parameters of a trial as a layer of the configuration.

    Args:
        params: Values by dotted key.
        origin: Origin of all values, or the origin of each value by its key.
    """
    return Layer(params, dict.fromkeys(params, origin) if isinstance(origin, str) else origin)
