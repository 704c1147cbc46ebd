"""From YAML to a search space; all problems are told at once, each with file and line."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from pydantic import ValidationError

from flbench.algorithms import ALGORITHMS
from flbench.core.errors import ConfigError, did_you_mean
from flbench.tuning.conditions import parents_first, problems
from flbench.tuning.parameters import Choice, Fixed, Parameter
from flbench.tuning.ranges import Int, LogUniform, QUniform, Uniform
from flbench.tuning.space import Space

KINDS: Final[dict[str, type[Parameter]]] = {
    kind.kind: kind for kind in (Uniform, LogUniform, QUniform, Int, Choice, Fixed)
}
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
    found = found or problems(parameters, places)
    if found:
        raise ConfigError("\n".join(found))
    return Space(str(method), parents_first(parameters), source, places)


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
