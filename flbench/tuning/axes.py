"""A parameter of a search space as an axis of a figure, a table or a regression."""

from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from math import isfinite, log
from typing import Any, Literal

from pydantic import ValidationError

from flbench.tuning.parameters import KINDS, Choice, FixedValue, Int, Parameter, QUniform, Uniform

End = Literal["low", "high"]

EDGE = 0.05  # share of a range that counts as one of its ends


@dataclass(frozen=True)
class Axis:
    """Values of a parameter.

    Attributes:
        path: Configuration key of the parameter.
        low: Smallest number; ignored if there are choices.
        high: Largest number; ignored if there are choices.
        log: Whether the axis is logarithmic.
        whole: Whether the parameter takes whole numbers only.
        choices: Values to choose from, for a parameter without a range.
        declared: Whether the values are those of the search space. If not, they are those that
            trials have used.
    """

    path: str
    low: float = 0.0
    high: float = 1.0
    log: bool = False
    whole: bool = False
    choices: tuple[Any, ...] = ()
    declared: bool = True

    @property
    def values(self) -> str:
        """The values as text, such as `0.001 to 0.1, log`."""
        if self.choices:
            words = ", ".join(map(shown, self.choices))
            return f"fixed: {words}" if self.fixed else words
        scale = ", log" if self.log else ""
        return f"{shown(self.low)} to {shown(self.high)}{scale}"

    @property
    def fixed(self) -> bool:
        """Whether the parameter has one value only."""
        return len(self.choices) == 1

    def position_in(self, params: Mapping[str, Any]) -> float | None:
        """Return the position of a trial; None if it lacks the parameter or lies off the axis."""
        return self.position(params[self.path]) if self.path in params else None

    def position(self, value: Any) -> float | None:
        """Return the position of a value: 0 and 1 are the ends; None if the axis cannot show it."""
        if self.choices:
            if value not in self.choices:
                return None
            return (self.choices.index(value) + 0.5) / len(self.choices)
        if not _number(value) or (self.log and value <= 0):
            return None
        if self.low == self.high:
            return 0.5 if value == self.low else None
        if self.log:
            return log(value / self.low) / log(self.high / self.low)
        return float((value - self.low) / (self.high - self.low))

    def extended(self, values: Iterable[Any]) -> "Axis":
        """Return the axis, extended so that it contains the values."""
        values = list(values)
        if self.choices:
            choices = list(self.choices)
            for value in values:
                if value not in choices:
                    choices.append(value)
            return replace(self, choices=tuple(choices))
        numbers = [value for value in values if _number(value) and (value > 0 or not self.log)]
        whole = self.whole and all(float(value).is_integer() for value in numbers)
        low, high = min([self.low, *numbers]), max([self.high, *numbers])
        return replace(self, low=low, high=high, whole=whole)

    def end(self, value: Any) -> End | None:
        """Return at which end of the range a value lies: within 5 % of the end, or beyond it.

        If all choices are numbers, the smallest and the largest choice are the ends. None for a
        value between the ends, for an axis that is not declared, and for fewer than three values.
        """
        if not self.declared or (self.whole and self.high - self.low < 2):
            return None
        if self.choices:
            if len(self.choices) < 3 or not all(_number(choice) for choice in self.choices):
                return None
            ends: dict[Any, End] = {min(self.choices): "low", max(self.choices): "high"}
            return ends.get(value)
        place = self.position(value)
        if self.low == self.high or place is None:
            return None
        return "low" if place <= EDGE else "high" if place >= 1 - EDGE else None


def axes_of(
    tree: Mapping[str, Any], trials: Iterable[Mapping[str, Any]], rounds: int
) -> list[Axis]:
    """Return an axis for each parameter of a space, in its order, and of the trials.

    Args:
        tree: Search space as in its file: `space: {PATH: {KIND: ENDS OR VALUES}}`.
        trials: Parameters of trials. An axis that the tree does not describe covers the values
            that the trials have used.
        rounds: Value of `train.rounds`: a range may be given as a share of it (`0.5 rounds`).
    """
    tried: dict[str, list[Any]] = {}
    for params in trials:
        for path, value in params.items():
            tried.setdefault(path, []).append(value)
    entries = tree.get("space", {})
    return [
        _axis(path, entries.get(path, {}), tried.get(path, []), rounds)
        for path in {**entries, **tried}
    ]


def _axis(path: str, entry: Mapping[str, Any], tried: Sequence[Any], rounds: int) -> Axis:
    match _read(entry, rounds):
        case Choice() | FixedValue() as parameter:
            return Axis(path, choices=parameter.grid())
        case Uniform() | QUniform() | Int() as parameter:
            whole = not isinstance(parameter, Uniform) and all(
                float(end).is_integer() for end in parameter.ends
            )
            return Axis(path, *parameter.ends[:2], log=parameter.log, whole=whole)
    if tried and all(map(_number, tried)):
        return Axis(path, min(tried), max(tried), declared=False)
    return Axis(path, choices=tuple(tried[:1]), declared=False).extended(tried)


def _read(entry: Mapping[str, Any], rounds: int) -> Parameter | None:
    """Parse a parameter of a study's record; None if no known kind of parameter reads it."""
    for kind in (KINDS[key] for key in entry if key in KINDS):
        with suppress(ValidationError):
            return kind.model_validate(entry, context={"rounds": rounds})
    return None


def shown(value: Any) -> str:
    """Format a value for tables and axes: numbers with four digits, None as `null`."""
    if value is None:
        return "null"
    if isinstance(value, bool):
        return str(value).lower()
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def _number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and isfinite(value)
