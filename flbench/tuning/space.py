"""A search space: the parameters of one method that a search may change."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

from flbench.config.schema import Config
from flbench.config.sources import Layer, leaves
from flbench.tuning.parameters import Parameter, Params, Scalar


@dataclass(frozen=True)
class Space:
    """The space of one method.

    Attributes:
        method: its name.
        parameters: by dotted key, those that a condition looks at before those that it is for.
        source: the file, or `built in`.
        origins: file and line of each parameter.
    """

    method: str
    parameters: Mapping[str, Parameter]
    source: str
    origins: Mapping[str, str]

    def assign(self, pick: Callable[[str, Parameter], Scalar]) -> Params:
        """Return a value for each parameter that is active under the values of those before it.

        Args:
            pick: gives the value; it is asked for active parameters alone, in order.
        """
        values: Params = {}
        for path, parameter in self.parameters.items():
            if parameter.is_active(values):
                values[path] = pick(path, parameter)
        return values

    def defaults(self, config: Config) -> Params:
        """Return the configuration's own values at the active parameters: the default trial.

        They may lie outside the ranges, and be None.
        """
        values = leaves(config.tree())
        return self.assign(lambda path, _: values[path])

    def leading_to(self, path: str) -> Params:
        """Return values of other parameters under which this one is active."""
        return {other: values[0] for other, values in self.required(path).items()}

    def required(self, path: str) -> dict[str, tuple[Scalar, ...]]:
        """Return the values of which each parameter above this one must have one."""
        allowed: dict[str, tuple[Scalar, ...]] = {}
        for other, values in self.parameters[path].when.items():
            for name, these in {**self.required(other), other: values}.items():
                allowed[name] = tuple(v for v in these if v in allowed.get(name, these))
        return allowed

    def grid(self) -> Iterator[Params]:
        """Yield every combination of grid values; the last parameter changes first."""
        found: Iterator[Params] = iter([{}])
        for path, parameter in self.parameters.items():
            found = _extended(found, path, parameter)
        return found

    def without(self, values: Mapping[str, Scalar]) -> "Space":
        """Return the space less parameters whose value is settled.

        What hangs on them stays without that condition where it holds, and goes where it does not.
        """
        kept: dict[str, Parameter] = {}
        gone: set[str] = set()
        for path, parameter in self.parameters.items():
            if path in values:
                continue
            open_ = {other: v for other, v in parameter.when.items() if other not in values}
            held = all(values[o] in v for o, v in parameter.when.items() if o in values)
            if held and not gone & set(open_):
                changed = open_ != parameter.when
                kept[path] = parameter.model_copy(update={"when": open_}) if changed else parameter
            else:
                gone.add(path)
        return replace(self, parameters=kept)

    def tree(self) -> dict[str, Any]:
        """Return the space as the dicts and lists of YAML and JSON; `reading.parse` reads them."""
        parameters = {path: parameter.tree() for path, parameter in self.parameters.items()}
        return {"method": self.method, "space": parameters}


def _extended(chosen: Iterator[Params], path: str, parameter: Parameter) -> Iterator[Params]:
    """Yield each combination with each grid value of one more parameter, if that is active."""
    for params in chosen:
        active = parameter.is_active(params)
        yield from ({**params, path: value} for value in parameter.grid()) if active else [params]


def layer(params: Mapping[str, Scalar], origin: str | Mapping[str, str]) -> Layer:
    """Return the parameters of a trial as a layer of configuration.

    Args:
        params: values by dotted keys.
        origin: where they came from: of all, or of each by its key.
    """
    tree: dict[str, Any] = {}
    for path, value in params.items():
        *above, key = path.split(".")
        part = tree
        for name in above:
            part = part.setdefault(name, {})
        part[key] = value
    return Layer(tree, dict.fromkeys(params, origin) if isinstance(origin, str) else dict(origin))
