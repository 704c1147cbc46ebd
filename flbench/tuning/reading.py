"""Reads search spaces from YAML. All errors are reported together, each with file and line."""

import math
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from flbench.core.errors import ConfigError, DataError, did_you_mean
from flbench.tuning.search_space import Parameter, Scalar, Space

SECTIONS: Final = ("algorithm", "train", "model")
NEVER_SEARCHED: Final = ("algorithm.name", "model.name", "train.rounds", "train.participation")
"""Keys that no trial may change: the budget and the cohorts are the same for all trials. The keys
of `train.early_stopping` belong to them."""
FORMS: Final = {
    "uniform": "uniform: [0.1, 1.0]",
    "loguniform": "loguniform: [1.0e-3, 0.3]",
    "int": "int: [2, 8]",
    "choice": "choice: [a, b, c]",
    "fixed": "fixed: uniform",
}
"""An example of each type of parameter."""
ROUNDS: Final = re.compile(r"(\d+(?:\.\d*)?) rounds")
LARGEST: Final = 1e15  # whole numbers below it are exact as floats


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
    from flbench.algorithms import ALGORITHMS  # PyTorch, which reading a study does not need

    keys = ("method", "space")
    errors = [
        f"`{key}` is not a key of a search space ({origins.get(key, source)})."
        f"{did_you_mean(str(key), keys)} Keys there: method, space."
        for key in tree
        if key not in keys
    ]
    method, entries = tree.get("method"), tree.get("space")
    try:
        ALGORITHMS.find(str(method))
    except ConfigError as error:
        errors.append(f"`method` must name a method ({origins.get('method', source)}): {error}")
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


def parameters(tree: Mapping[str, Any], file: Path) -> list[Parameter]:
    """Return the parameters of a space as a study has recorded it; its method may be unknown here.

    Args:
        tree: The space, from `Space.tree`.
        file: The file that has it, for messages.

    Raises:
        DataError: An entry is damaged.
    """
    try:
        return [_parameter(path, entry, "", None) for path, entry in tree["space"].items()]
    except (KeyError, AttributeError, ValueError) as error:
        raise DataError(f"{file}: its search space is damaged ({error}).") from error


def _parameter(path: str, entry: object, place: str, rounds: int | None) -> Parameter:
    """Parse an entry, or raise a ValueError with the end of a sentence."""
    section, dot, _ = path.partition(".")
    if section not in SECTIONS:
        raise ValueError(f"cannot be searched, only keys of {', '.join(SECTIONS)} can")
    if not dot:
        raise ValueError(f"is a section: write dotted keys, such as `{section}.KEY`")
    if path in NEVER_SEARCHED or path.startswith("train.early_stopping."):
        raise ValueError("is the same for all trials and methods of a study: remove it")
    kinds = [key for key in entry if key in FORMS] if isinstance(entry, dict) else []
    if not isinstance(entry, dict) or len(kinds) != 1:
        raise ValueError(
            f"must have one type, like `{{uniform: [0.1, 1.0]}}`, got {entry!r}. Types:"
            f" {', '.join(FORMS)}"
        )
    [kind] = kinds
    keys = (kind, "when", *(["log"] if kind == "int" else []))
    for key in entry:
        if key not in keys:
            hint = did_you_mean(str(key), keys)
            raise ValueError(f"has the unknown key `{key}`.{hint} Its keys: {', '.join(keys)}")
    when = entry.get("when") or {}
    if not isinstance(when, dict):
        raise ValueError(f"must have `when` like `{{KEY: VALUE}}`, got {when!r}")
    conditions = {
        str(other): tuple(_scalar(v) for v in (these if isinstance(these, list) else [these]))
        for other, these in when.items()
    }
    value = entry[kind]
    if kind in ("choice", "fixed"):
        values = value if kind == "choice" and isinstance(value, list) else [value]
        choices = tuple(map(_scalar, values))
        if not choices or len({*choices}) < len(choices):  # 1 and true are equal
            raise ValueError(f"must have different values, like `{FORMS['choice']}`, got {value!r}")
        return Parameter(path, choices=choices, when=conditions, place=place)
    if not isinstance(value, list) or len(value) != 2:
        raise ValueError(f"must be like `{{{FORMS[kind]}}}`, got {value!r}")
    low, high = (_number(end, rounds) for end in value)
    is_whole, is_log = kind == "int", kind == "loguniform" or entry.get("log", False)
    if not is_whole:
        low, high = float(low), float(high)
    if is_whole and not (isinstance(low, int) and isinstance(high, int)):
        raise ValueError(f"must have whole ends, like `{{{FORMS[kind]}}}`, got {value!r}")
    if low >= high:
        raise ValueError(f"must have a low end below its high end, got {[low, high]}")
    if not isinstance(is_log, bool) or (is_log and low < (1 if is_whole else 5e-324)):
        raise ValueError(f"must have positive ends on a logarithmic scale, got {entry!r}")
    return Parameter(path, low, high, is_log, is_whole, when=conditions, place=place)


def _number(value: object, rounds: int | None) -> int | float:
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
    if value is not None and not isinstance(value, str | int | float):
        raise ValueError(f"must have words, numbers, true, false or null, got {value!r}")
    if isinstance(value, float) and not math.isfinite(value):
        raise ValueError(f"must have finite numbers, got {value!r}")
    return value


def _check_conditions(parameter: Parameter, space: Space) -> None:
    """Raise a ValueError with the end of a sentence if the parameter can never be active."""
    for other, values in parameter.when.items():
        above = space.parameters.get(other)
        if above is None or above is parameter:
            hint = did_you_mean(
                other, [path for path in space.parameters if path != parameter.path]
            )
            raise ValueError(f"depends on `{other}`, which is not a parameter above it.{hint}")
        if not above.choices and not above.whole:
            raise ValueError(
                f"depends on `{other}`, which is a real number; a condition needs a choice, int or"
                " fixed"
            )
        for value in values:
            if not above.holds(value):
                hint = did_you_mean(str(value), map(str, above.choices))
                raise ValueError(
                    f"requires `{other}` to be {value!r}, which is not one of its values.{hint}"
                )
    if not all(space.required(parameter.path).values()):
        raise ValueError(
            "can never be active: its conditions contradict those of the parameters above it"
        )
