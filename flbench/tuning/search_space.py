"""Search spaces of methods, which draw the parameters of a trial of Optuna one after another.

Their YAML files are described in `spaces/README.md`; `parse` reports all errors of a file together,
each with its line.
"""

import inspect
import math
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from math import exp, isfinite, log
from typing import Any, Final, Literal

from flbench.config.schema import Config
from flbench.config.sources import has_value, value_at
from flbench.core import parts
from flbench.core.errors import ConfigError

Scalar = str | int | float | bool | None
Params = dict[str, Scalar]
"""Values by dotted keys of the configuration."""

DIGITS: Final = 6  # significant digits of a drawn number, so that it can be typed again
EDGE: Final = 0.05  # share of a range that counts as one of its ends
SECTIONS: Final = ("algorithm", "train", "model")
NEVER_SEARCHED: Final = ("algorithm.name", "model.name", "train.rounds", "train.participation")
"""Keys that no trial may change: the budget and the cohorts are the same for all trials. The keys
of `train.early_stopping` belong to them."""
FORMS: Final = {
    "uniform": "uniform: [0.1, 1.0]",
    "loguniform": "loguniform: [1.0e-3, 0.3]",
    "int": "int: [2, 8]",
    "choice": "choice: [a, b, c]",
}
"""An example of each type of parameter."""
ROUNDS: Final = re.compile(r"(\d+(?:\.\d*)?) rounds")
LARGEST: Final = 1e15  # whole numbers below it are exact as floats


@dataclass(frozen=True)
class Parameter:
    """One parameter of a search space; figures and tables use it as an axis.

    Attributes:
        path: Dotted configuration key.
        low: Smallest number; ignored if there are choices.
        high: Largest number, which belongs to the range; ignored if there are choices.
        log: Whether all orders of magnitude are equally likely.
        whole: Whether the values are whole numbers.
        choices: Values of a parameter without a range, two at least.
        when: Conditions, as allowed values by the keys of other parameters, which have none. The
            parameter is active only if each of these parameters has one of them.
        place: File and line.
    """

    path: str
    low: float = 0.0
    high: float = 1.0
    log: bool = False
    whole: bool = False
    choices: tuple[Scalar, ...] = ()
    when: Mapping[str, tuple[Scalar, ...]] = field(default_factory=dict)
    place: str = field(default="", compare=False)

    @property
    def values(self) -> str:
        """The values as text, such as `0.001 to 0.1, log`."""
        if self.choices:
            return ", ".join(map(shown, self.choices))
        return f"{shown(self.low)} to {shown(self.high)}{', log' if self.log else ''}"

    def suggest(self, trial: Any) -> Scalar:
        """Return the value that a trial of Optuna draws for the parameter."""
        if self.choices:
            value: Scalar = trial.suggest_categorical(self.path, self.choices)
            return value
        if self.whole:
            return self._rounded(trial.suggest_int(self.path, self.low, self.high))
        return self._rounded(trial.suggest_float(self.path, self.low, self.high, log=self.log))

    def at(self, place: float) -> float:
        """Return the value at a position on the axis of a range: 0 and 1 are its ends."""
        if self.log:
            number = exp((1 - place) * log(self.low) + place * log(self.high))
        else:
            number = (1 - place) * self.low + place * self.high
        return self._rounded(number)

    def _rounded(self, number: float) -> float:
        near = round(number) if self.whole else float(f"{number:.{DIGITS}g}")
        return min(max(near, self.low), self.high)

    def grid(self) -> tuple[Scalar, ...]:
        """Return all choices, or the ends and the middle of a range."""
        return self.choices or tuple(dict.fromkeys((self.low, self.at(0.5), self.high)))

    def holds(self, value: Any) -> bool:
        """Whether the parameter can take a value."""
        if self.choices:
            return value in self.choices
        is_inside = _is_number(value) and self.low <= value <= self.high
        return is_inside and (not self.whole or float(value).is_integer())

    def is_active(self, values: Mapping[str, Scalar]) -> bool:
        """Whether the conditions of the parameter hold, given values of other parameters."""
        return all(values[other] in these for other, these in self.when.items())

    def position(self, value: Any) -> float | None:
        """Return the position of a value: 0 and 1 are the ends; None if the axis cannot show it."""
        if self.choices:
            known = value in self.choices
            return (self.choices.index(value) + 0.5) / len(self.choices) if known else None
        if not _is_number(value) or (self.log and value <= 0):
            return None
        if self.log:
            return log(value / self.low) / log(self.high / self.low)
        return float((value - self.low) / (self.high - self.low))

    def extended(self, values: Iterable[Any]) -> "Parameter":
        """Return the parameter with its axis extended so that it contains the values."""
        if self.choices:
            return replace(self, choices=tuple(dict.fromkeys([*self.choices, *values])))
        numbers = [value for value in values if _is_number(value) and (value > 0 or not self.log)]
        whole = self.whole and all(float(value).is_integer() for value in numbers)
        low, high = min([self.low, *numbers]), max([self.high, *numbers])
        return replace(self, low=low, high=high, whole=whole)

    def end(self, value: Any) -> Literal["low", "high"] | None:
        """Return at which end of its values a value lies: within 5 % of the range, or beyond it.

        If all choices are numbers, the smallest and the largest choice are the ends. None for a
        value between the ends, and if there are fewer than three values.
        """
        if self.choices:
            if len(self.choices) < 3 or not all(map(_is_number, self.choices)):
                return None
            low, high = value == min(self.choices), value == max(self.choices)  # type: ignore[type-var]
        else:
            place = self.position(value)
            if place is None or (self.whole and self.high - self.low < 2):
                return None
            low, high = place <= EDGE, place >= 1 - EDGE
        return "low" if low else "high" if high else None

    def tree(self) -> dict[str, Any]:
        """Return the parameter as it is written in YAML."""
        tree: dict[str, Any]
        if self.choices:
            tree = {"choice": list(self.choices)}
        else:
            kind = "int" if self.whole else "loguniform" if self.log else "uniform"
            tree = {kind: [self.low, self.high]}
        when = {other: list(values) for other, values in self.when.items()}
        return tree | ({"when": when} if when else {})


@dataclass(frozen=True)
class Space:
    """Search space of one method.

    Attributes:
        method: Name of the method.
        parameters: Parameters by dotted key. A parameter comes after those that its conditions
            depend on.
        source: The file of the space, or `built in`.
    """

    method: str
    parameters: Mapping[str, Parameter]
    source: str

    def suggest(self, trial: Any, defaults: Mapping[str, Scalar] | None = None) -> Params:
        """Return the active parameters of a trial of Optuna, as a define-by-run function.

        Args:
            trial: The trial.
            defaults: Parameters of trial 0, which may lie outside the ranges. Optuna learns those
                of `inside(defaults)`, which must be enqueued as the first trial.
        """
        if defaults is not None and trial.number == 0:
            for path in self.inside(defaults):
                self.parameters[path].suggest(trial)
            return dict(defaults)
        return self.assign(lambda parameter: parameter.suggest(trial))

    def assign(self, pick: Callable[[Parameter], Scalar]) -> Params:
        """Return a value for each active parameter, given the values of those before it.

        Args:
            pick: Returns the value of a parameter. It is called for active parameters only.
        """
        values: Params = {}
        for path, parameter in self.parameters.items():
            if parameter.is_active(values):
                values[path] = pick(parameter)
        return values

    def defaults(self, config: Config) -> Params:
        """Return the parameters of the default trial: the configuration's values.

        The values may be None, or lie outside the ranges of the parameters.

        Raises:
            ConfigError: A function of the user has no default for one of its arguments.
        """
        tree = config.tree()
        return self.assign(lambda parameter: _default_of(tree, parameter.path))

    def inside(self, params: Mapping[str, Scalar]) -> Params:
        """Return the values that lie in the ranges of their parameters."""
        known = self.parameters
        return {p: value for p, value in params.items() if p in known and known[p].holds(value)}

    def grid(self) -> Iterator[Params]:
        """Yield every combination of grid values; the last parameter changes fastest."""
        combinations: Iterator[Params] = iter([{}])
        for parameter in self.parameters.values():
            combinations = _extended(combinations, parameter)
        return combinations

    def without(self, given: Mapping[str, Scalar]) -> "Space":
        """Return the space without the given parameters, and without those that they rule out."""
        kept: dict[str, Parameter] = {}
        for path, parameter in self.parameters.items():
            when = {other: v for other, v in parameter.when.items() if other not in given}
            are_met = all(given[o] in v for o, v in parameter.when.items() if o in given)
            if path not in given and are_met:
                kept[path] = replace(parameter, when=when)
        return replace(self, parameters=kept)

    def tree(self) -> dict[str, Any]:
        """Return the space as dicts and lists for YAML and JSON, which `parse` reads."""
        parameters = {path: parameter.tree() for path, parameter in self.parameters.items()}
        return {"method": self.method, "space": parameters}


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
    keys = ("method", "space")
    errors = [
        f"`{key}` is not a key of a search space ({origins.get(key, source)}). Keys there: method,"
        " space."
        for key in tree
        if key not in keys
    ]
    method, entries = tree.get("method"), tree.get("space")
    if not isinstance(method, str):
        errors.append(f"{source}: `method` must be the name of a method, got {method!r}.")
    if not isinstance(entries, dict) or not entries:
        errors.append(f"{source}: `space` must be a mapping of parameters, got {entries!r}.")
        entries = {}
    known: dict[str, Parameter] = {}
    space = Space(str(method), known, source)
    for path, entry in entries.items():
        place = origins.get(f"space.{path}", source)
        try:
            known[path] = _parameter(str(path), entry, place, rounds)
            _check_conditions(known[path], space)
        except ValueError as error:
            errors.append(f"`{path}` ({place}) {error}.")
    if errors:
        raise ConfigError("\n".join(errors))
    return space


def why_not_searched(path: str, config: Mapping[str, Any] | None = None) -> str:
    """Return why trials cannot have own values of a key, as the end of a sentence; or ""."""
    if path.partition(".")[0] not in SECTIONS:
        return (
            f"cannot be searched, only keys of {', '.join(SECTIONS)} can: all trials"
            " share the data and their partition"
        )
    if path in NEVER_SEARCHED or path.startswith("train.early_stopping."):
        return "is the same for all trials and methods of a search: remove it"
    if path.startswith("train.optimizer.") and (config or {}).get("model", {}).get("lightning"):
        return "cannot be searched: with `model.lightning` the module makes the optimizer"
    return ""


def _parameter(path: str, entry: object, place: str, rounds: int | None) -> Parameter:
    """Parse an entry, or raise a ValueError with the end of a sentence."""
    if why := why_not_searched(path):
        raise ValueError(why)
    if path in SECTIONS:
        raise ValueError(f"is a section: write dotted keys, such as `{path}.KEY`")
    kinds = [key for key in entry if key in FORMS] if isinstance(entry, dict) else []
    if not isinstance(entry, dict) or len(kinds) != 1:
        raise ValueError(
            f"must have one type, like `{{uniform: [0.1, 1.0]}}`, got {entry!r}. Types:"
            f" {', '.join(FORMS)}"
        )
    [kind] = kinds
    keys = (kind, "when")
    for key in entry:
        if key not in keys:
            raise ValueError(f"has the unknown key `{key}`. Its keys: {', '.join(keys)}")
    when = entry.get("when") or {}
    if not isinstance(when, dict):
        raise ValueError(f"must have `when` like `{{KEY: VALUE}}`, got {when!r}")
    conditions = {str(other): tuple(map(_scalar, _listed(these))) for other, these in when.items()}
    value = entry[kind]
    if kind == "choice":
        choices = tuple(map(_scalar, _listed(value)))
        if len(choices) < 2 or len({*choices}) < len(choices):  # 1 and true are equal
            raise ValueError(f"must have different values, like `{FORMS['choice']}`, got {value!r}")
        return Parameter(path, choices=choices, when=conditions, place=place)
    ends = [_end(end, rounds) for end in value] if isinstance(value, list) else []
    is_whole, is_log = kind == "int", kind == "loguniform"
    if len(ends) != 2 or ends[0] >= ends[1] or (is_whole and float in map(type, ends)):
        raise ValueError(f"must have two ends in order, like `{{{FORMS[kind]}}}`, got {value!r}")
    low, high = ends if is_whole else map(float, ends)
    if is_log and low <= 0:
        raise ValueError(f"must have positive ends, got {entry!r}")
    return Parameter(path, low, high, is_log, is_whole, when=conditions, place=place)


def _listed(value: Any) -> list[Any]:
    return value if isinstance(value, list) else [value]


def _end(value: object, rounds: int | None) -> int | float:
    """Parse an end of a range: a number, or `0.5 rounds` as half of `train.rounds`."""
    if isinstance(value, str) and rounds is not None and (found := ROUNDS.fullmatch(value)):
        return math.floor(float(found[1]) * rounds + 0.5)
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    if not is_number or not abs(value) <= LARGEST:  # type: ignore[arg-type]
        raise ValueError(
            f"must have numbers up to {LARGEST:g} as ends, or shares such as `0.5 rounds`, got"
            f" {value!r}"
        )
    return value  # type: ignore[return-value]


def _scalar(value: object) -> Scalar:
    """Parse a value of a choice."""
    is_finite = not isinstance(value, float) or isfinite(value)
    if not (value is None or isinstance(value, str | int | float)) or not is_finite:
        raise ValueError(f"must have words, finite numbers, true, false or null, got {value!r}")
    return value


def _check_conditions(parameter: Parameter, space: Space) -> None:
    """Raise a ValueError with the end of a sentence if the parameter can never be active."""
    for other, values in parameter.when.items():
        above = space.parameters.get(other)
        if above is None or above is parameter or not (above.choices or above.whole):
            raise ValueError(f"depends on `{other}`, which is no choice or int above it")
        if above.when:
            raise ValueError(f"depends on `{other}`, which has a condition itself")
        for value in values:
            if not above.holds(value):
                raise ValueError(f"depends on `{other}`={value!r}, which it can never be")


def _extended(chosen: Iterator[Params], parameter: Parameter) -> Iterator[Params]:
    """Extend each combination by each grid value of one more parameter, if it is active."""
    for params in chosen:
        active = parameter.is_active(params)
        values = parameter.grid()
        yield from ({**params, parameter.path: v} for v in values) if active else [params]


def _default_of(tree: Mapping[str, Any], path: str) -> Scalar:
    """Return a configuration's value, or the default of an argument of the user's function."""
    if has_value(tree, path):
        value: Scalar = value_at(tree, path)
        return value
    section, _, argument = path.rpartition(".")
    owner = "model" if section == "model.args" else section
    name = value_at(tree, f"{owner}.name")
    function = parts.given(owner) if name == parts.OBJECT else parts.find(name)
    taken = inspect.signature(function).parameters if callable(function) else {}
    default = taken[argument].default if argument in taken else inspect.Parameter.empty
    if not isinstance(default, str | int | float | None):
        raise ConfigError(
            f"`{path}` of the search space has no value for the default trial: give `{name}` an"
            f" argument `{argument}` with a default that is a number or a word. Its arguments:"
            f" {', '.join(taken) or 'none'}."
        )
    return default


def shown(value: Any) -> str:
    """Format a value for tables and axes: numbers with four digits, None as `null`."""
    if value is None:
        return "null"
    if isinstance(value, bool):
        return str(value).lower()
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and isfinite(value)
