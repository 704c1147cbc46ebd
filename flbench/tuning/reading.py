"""Parses search spaces from YAML. All errors are reported together, each with file and line."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from pydantic import ValidationError

from flbench.algorithms import ALGORITHMS
from flbench.core.errors import ConfigError, did_you_mean
from flbench.tuning.parameters import KINDS, Parameter, Scalar, Uniform
from flbench.tuning.search_space import Space

SECTIONS: Final = ("algorithm", "train", "model")
NEVER_SEARCHED: Final = ("algorithm.name", "model.name", "train.rounds", "train.participation")
"""Keys that no trial may change: the budget and the cohorts are the same for all trials. The keys
of `train.early_stopping` belong to them."""


def parse(
    tree: Mapping[str, Any],
    origins: Mapping[str, str],
    source: str,
    *,
    rounds: int | None = None,
) -> Space:
    """Parse a search space.

    Args:
        tree: Mapping with the keys `method` and `space`, from a YAML file or from `Space.tree`.
        origins: File and line of each value, by dotted key.
        source: Name of the file, for values without an origin.
        rounds: Value of `train.rounds`; None if no range is given as a share of it.

    Raises:
        ConfigError: The space has errors. There is one line for each.
    """
    errors = [
        f"`{key}` is not a key of a search space ({origins.get(key, source)})."
        f"{did_you_mean(str(key), ('method', 'space'))} Keys there: method, space."
        for key in tree
        if key not in ("method", "space")
    ]
    method, entries = tree.get("method"), tree.get("space")
    if not isinstance(method, str):
        errors.append(f"{source}: `method` must name a method, got {method!r}.")
    else:
        try:
            ALGORITHMS.find(method)
        except ConfigError as error:
            errors.append(f"`method` ({origins.get('method', source)}): {error}")
    if not isinstance(entries, dict) or not entries:
        errors.append(f"{source}: `space` must be a mapping of parameters, got {entries!r}.")
        entries = {}
    places = {path: origins.get(f"space.{path}", source) for path in entries}
    parameters: dict[str, Parameter] = {}
    for path, entry in entries.items():
        read = _Entry(path, entry, places[path])
        errors += read.forbidden() or read.read_into(parameters, origins, rounds)
    errors = errors or [
        f"`{path}`: `when` ({places[path]}) {why}"
        for path, parameter in parameters.items()
        for other, values in parameter.when.items()
        for why in _wrong(path, other, values, parameters)
    ]
    if errors:
        raise ConfigError("\n".join(errors))
    space = Space(str(method), _parents_first(parameters, places), source, places)
    errors = [
        f"`{path}` can never be active: its conditions contradict those of the parameters that it"
        f" depends on ({places[path]})."
        for path in parameters
        if not all(space.required(path).values())
    ]
    if errors:
        raise ConfigError("\n".join(errors))
    return space


def _wrong(
    path: str, other: str, values: Sequence[Scalar], parameters: Mapping[str, Parameter]
) -> list[str]:
    """Return why a condition of `path` on `other` is invalid, as ends of sentences."""
    names = [name for name in parameters if name != path]
    if other not in names:
        hint = did_you_mean(other, names)
        return [f"depends on `{other}`, which is not another parameter of this space.{hint}"]
    parent = parameters[other]
    if isinstance(parent, Uniform):
        return [
            f"depends on `{other}`, which is a real number; a condition needs a choice, int,"
            " quniform or fixed."
        ]
    return [
        f"requires `{other}` to be {value!r}, which is not one of its values."
        f"{did_you_mean(str(value), map(str, parent.grid()))}"
        for value in values
        if not parent.holds(value)
    ]


def _parents_first(
    parameters: Mapping[str, Parameter], places: Mapping[str, str]
) -> dict[str, Parameter]:
    """Return the parameters in their order, but each after those that its conditions depend on.

    Raises:
        ConfigError: The conditions form a circle.
    """
    ordered: dict[str, Parameter] = {}

    def add(path: str, trail: Sequence[str]) -> None:
        if path in trail:
            circle = " -> ".join([*trail[trail.index(path) :], path])
            raise ConfigError(
                f"the conditions form a circle: {circle} ({places[path]}). Remove one of them."
            )
        if path not in ordered:
            for other in parameters[path].when:
                add(other, [*trail, path])
            ordered[path] = parameters[path]

    for path in parameters:
        add(path, [])
    return ordered


@dataclass(frozen=True)
class _Entry:
    """One entry of the mapping `space`.

    Attributes:
        path: Dotted configuration key.
        tree: Value of the entry.
        place: File and line of the entry.
    """

    path: str
    tree: object
    place: str

    def forbidden(self) -> list[str]:
        """Return an error if the key cannot be searched; an empty list otherwise."""
        section, dot, _ = self.path.partition(".")
        if section not in SECTIONS:
            why = f"cannot be searched, only keys of {', '.join(SECTIONS)} can"
        elif not dot:
            why = f"is a section: write dotted keys, such as `{section}.KEY`"
        elif self.path in NEVER_SEARCHED or self.path.startswith("train.early_stopping."):
            why = "is the same for all trials and methods of a study and cannot be searched"
        else:
            return []
        return [f"`{self.path}` {why} ({self.place})."]

    def read_into(
        self, parameters: dict[str, Parameter], origins: Mapping[str, str], rounds: int | None
    ) -> list[str]:
        """Add the parameter to `parameters`, or return the errors of the entry."""
        kinds = [key for key in self.tree if key in KINDS] if isinstance(self.tree, dict) else []
        if len(kinds) != 1:
            return [self._no_kind(kinds)]
        kind = KINDS[kinds[0]]
        try:
            parameters[self.path] = kind.model_validate(self.tree, context={"rounds": rounds})
        except ValidationError as error:
            return list(dict.fromkeys(self._explain(it, kind, origins) for it in error.errors()))
        return []

    def _no_kind(self, kinds: Sequence[str]) -> str:
        """Return the error of an entry without exactly one type."""
        start = f"`{self.path}` ({self.place})"
        if len(kinds) > 1:
            return f"{start} has two types, {' and '.join(kinds)}: give it one."
        known = ", ".join(KINDS)
        if not isinstance(self.tree, dict):
            return f"{start} must have a type, like `{{fixed: {self.tree}}}`. Types: {known}."
        keys = [str(key) for key in self.tree if key != "when"]
        hint = next(filter(None, (did_you_mean(key, KINDS) for key in keys)), "")
        got = ", ".join(keys) or "none"
        return f"{start} has no known type, got {got}.{hint} Types: {known}."

    def _explain(self, item: Any, kind: type[Parameter], origins: Mapping[str, str]) -> str:
        """Return a sentence for one of pydantic's errors."""
        key = str(item["loc"][0]) if item["loc"] else ""
        start = f"`{self.path}` ({origins.get(f'space.{self.path}.{key}', self.place)})"
        keys = [field.alias or name for name, field in kind.model_fields.items()]
        if item["type"] == "extra_forbidden":
            hint = did_you_mean(key, keys)
            return f"{start}: `{key}` is not a key of {kind.kind}.{hint} Keys: {', '.join(keys)}."
        if item["type"] in ("missing", "too_long", "too_short", "tuple_type"):
            return f"{start} must be like `{{{kind.form}}}`, got {self.tree!r}."
        message = str(item["msg"]).removeprefix("Value error, ")
        if not key:  # an error of the entry as a whole is a sentence of its own
            return f"{start}: {message}."
        message = message.removeprefix("Input should be ")
        return f"{start}: `{key}` must be {message}, got {item['input']!r}."
