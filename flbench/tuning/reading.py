"""From YAML to a search space; all problems are told at once, each with file and line."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from pydantic import ValidationError

from flbench.algorithms import ALGORITHMS
from flbench.core.errors import ConfigError, did_you_mean
from flbench.tuning.parameters import KINDS, Parameter, Scalar, Uniform
from flbench.tuning.space import Space

SECTIONS: Final = ("algorithm", "train", "model")
SAME: Final = ("algorithm.name", "model.name", "train.rounds", "train.participation")
"""Keys that no trial may change: budget and cohorts are equal for all."""


def parse(
    tree: Mapping[str, Any],
    origins: Mapping[str, str],
    source: str,
    *,
    rounds: int | None = None,
) -> Space:
    """Return the space that a tree describes.

    Args:
        tree: `method` and `space`, as in YAML, or from `Space.tree`.
        origins: where each value came from, by dotted path.
        source: where the tree came from.
        rounds: train.rounds; None where no end is a share of them.

    Raises: ConfigError with a line for each problem.
    """
    found = [
        f"`{key}` is not a key of a search space ({origins.get(key, source)})."
        f"{did_you_mean(str(key), ('method', 'space'))} Keys there: method, space."
        for key in tree
        if key not in ("method", "space")
    ]
    method, entries = tree.get("method"), tree.get("space")
    if not isinstance(method, str):
        found.append(f"{source}: `method` must name a method, got {method!r}.")
    else:
        try:
            ALGORITHMS.find(method)
        except ConfigError as error:
            found.append(f"`method` ({origins.get('method', source)}): {error}")
    if not isinstance(entries, dict) or not entries:
        found.append(f"{source}: `space` must hold parameters, got {entries!r}.")
        entries = {}
    places = {path: origins.get(f"space.{path}", source) for path in entries}
    parameters: dict[str, Parameter] = {}
    for path, entry in entries.items():
        read = _Entry(path, entry, places[path])
        found += read.forbidden() or read.read_into(parameters, origins, rounds)
    found = found or [
        f"`{path}`: `when` ({places[path]}) {why}"
        for path, parameter in parameters.items()
        for other, values in parameter.when.items()
        for why in _wrong(path, other, values, parameters)
    ]
    if found:
        raise ConfigError("\n".join(found))
    space = Space(str(method), _parents_first(parameters, places), source, places)
    found = [
        f"`{path}` can never be active: its conditions contradict those of the parameters that it"
        f" hangs on ({places[path]})."
        for path in parameters
        if not all(space.required(path).values())
    ]
    if found:
        raise ConfigError("\n".join(found))
    return space


def _wrong(
    path: str, other: str, values: Sequence[Scalar], parameters: Mapping[str, Parameter]
) -> list[str]:
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


def _parents_first(
    parameters: Mapping[str, Parameter], places: Mapping[str, str]
) -> dict[str, Parameter]:
    """Return the parameters in their order, but each after those that its condition looks at.

    Raises: ConfigError if conditions go in a circle.
    """
    ordered: dict[str, Parameter] = {}

    def add(path: str, trail: Sequence[str]) -> None:
        if path in trail:
            circle = " -> ".join([*trail[trail.index(path) :], path])
            raise ConfigError(f"the conditions go in a circle: {circle} ({places[path]}).")
        if path not in ordered:
            for other in parameters[path].when:
                add(other, [*trail, path])
            ordered[path] = parameters[path]

    for path in parameters:
        add(path, [])
    return ordered


@dataclass(frozen=True)
class _Entry:
    """One entry of `space`: its dotted key, what stands there, and where that is."""

    path: str
    tree: object
    place: str

    def forbidden(self) -> list[str]:
        """Return why the key cannot be searched at all."""
        section, dot, _ = self.path.partition(".")
        if section not in SECTIONS:
            why = f"cannot be searched, only keys of {', '.join(SECTIONS)} can"
        elif not dot:
            why = f"is a section: write dotted keys, such as `{section}.KEY`"
        elif self.path in SAME:
            why = "is the same for all trials and methods of a study and cannot be searched"
        else:
            return []
        return [f"`{self.path}` {why} ({self.place})."]

    def read_into(
        self, parameters: dict[str, Parameter], origins: Mapping[str, str], rounds: int | None
    ) -> list[str]:
        """Add the parameter, or return why that cannot be."""
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
        """Turn one of pydantic's errors into a sentence."""
        key = str(item["loc"][0]) if item["loc"] else ""
        start = f"`{self.path}` ({origins.get(f'space.{self.path}.{key}', self.place)})"
        keys = [field.alias or name for name, field in kind.model_fields.items()]
        if item["type"] == "extra_forbidden":
            hint = did_you_mean(key, keys)
            return f"{start}: `{key}` is not a key of {kind.kind}.{hint} Keys: {', '.join(keys)}."
        if item["type"] in ("missing", "too_long", "too_short", "tuple_type"):
            return f"{start} must be like `{{{kind.form}}}`, got {self.tree!r}."
        said = str(item["msg"]).removeprefix("Value error, ")
        if not key:  # of the whole: a sentence of its own
            return f"{start}: {said}."
        said = said.removeprefix("Input should be ")
        return f"{start}: `{key}` must be {said}, got {item['input']!r}."
