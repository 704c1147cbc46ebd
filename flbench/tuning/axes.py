"""A parameter of a search space as an axis: of a picture, of a table, of a regression."""

from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from math import isfinite, log
from typing import Any, Literal

from pydantic import ValidationError

from flbench.tuning.parameters import KINDS, Choice, Fixed, Int, Parameter, QUniform, Uniform

End = Literal["low", "high"]

EDGE = 0.05  # share of a range that counts as its end


@dataclass(frozen=True)
class Axis:
    """What values a parameter takes.

    Attributes:
        path: its configuration key.
        low: the smallest number; without meaning where there are choices.
        high: the largest.
        log: whether equal factors are equally far apart.
        whole: whether it takes whole numbers only.
        choices: what is chosen from, instead of numbers of a range.
        declared: whether the space says so; else the range is only what was tried.
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
        """The values in words."""
        if self.choices:
            words = ", ".join(map(shown, self.choices))
            return f"fixed: {words}" if self.fixed else words
        scale = ", log" if self.log else ""
        return f"{shown(self.low)} to {shown(self.high)}{scale}"

    @property
    def fixed(self) -> bool:
        """Whether a search leaves the parameter as it is."""
        return len(self.choices) == 1

    def of(self, params: Mapping[str, Any]) -> float | None:
        """Return where a trial lies; None if its parameters lack this one, or are off the axis."""
        return self.place(params[self.path]) if self.path in params else None

    def place(self, value: Any) -> float | None:
        """Return where a value lies, 0 and 1 being the ends; None if the axis cannot show it."""
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

    def over(self, values: Iterable[Any]) -> "Axis":
        """Return the axis, longer where values lie outside of it."""
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
        """Return at which end of the range a number lies: within 5 % of it, or beyond.

        Of choices the smallest and largest are ends, if all are numbers. With fewer than three
        values there is nothing but ends, and none is worth a word.
        """
        if not self.declared or (self.whole and self.high - self.low < 2):
            return None
        if self.choices:
            if len(self.choices) < 3 or not all(_number(choice) for choice in self.choices):
                return None
            ends: dict[Any, End] = {min(self.choices): "low", max(self.choices): "high"}
            return ends.get(value)
        place = self.place(value)
        if self.low == self.high or place is None:
            return None
        return "low" if place <= EDGE else "high" if place >= 1 - EDGE else None


def axes_of(
    tree: Mapping[str, Any], trials: Iterable[Mapping[str, Any]], rounds: int = 0
) -> list[Axis]:
    """Return the parameters of a space in its order, then others that trials have.

    Args:
        tree: the space as its file has it: `space: {PATH: {KIND: ENDS OR VALUES}}`.
        trials: the parameters of trials. An axis that the tree does not describe, or not by
            numbers, has the ends of what was tried.
        rounds: of the study, of which `0.5 rounds` in a space is a share.
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
        case Choice() | Fixed() as parameter:
            return Axis(path, choices=parameter.grid())
        case Uniform() | QUniform() | Int() as parameter:
            whole = not isinstance(parameter, Uniform) and all(
                float(end).is_integer() for end in parameter.ends
            )
            return Axis(path, *parameter.ends[:2], log=parameter.log, whole=whole)
    if tried and all(map(_number, tried)):
        return Axis(path, min(tried), max(tried), declared=False)
    return Axis(path, choices=tuple(tried[:1]), declared=False).over(tried)


def _read(entry: Mapping[str, Any], rounds: int) -> Parameter | None:
    """Return a parameter of a study's record; None if no kind of today reads it."""
    for kind in (KINDS[key] for key in entry if key in KINDS):
        with suppress(ValidationError):
            return kind.model_validate(entry, context={"rounds": rounds})
    return None


def shown(value: Any) -> str:
    """Return a value as tables and axes have it."""
    if value is None:
        return "null"
    if isinstance(value, bool):
        return str(value).lower()
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def _number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and isfinite(value)
