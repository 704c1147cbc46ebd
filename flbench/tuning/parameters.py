"""Parameters of a search space.

A parameter maps a quantile in [0, 1] to one of its values, so that all samplers draw in the same
way.

>>> LogUniform(loguniform=(1e-3, 0.1)).at(0.5)
0.01
>>> Int(int=(2, 8)).grid()
(2, 5, 8)
"""

import math
import re
from abc import abstractmethod
from collections.abc import Mapping
from decimal import Decimal
from typing import Annotated, Any, ClassVar, Final, Self

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationInfo, model_validator

Scalar = str | int | float | bool | None
Params = dict[str, Scalar]
"""Values by dotted keys of the configuration."""

EXPONENT: Final = re.compile(r"[-+]?\d+(\.\d*)?[eE][-+]?\d+")
ROUNDS: Final = re.compile(r"(\d+(?:\.\d*)?) rounds")
DIGITS: Final = 6  # significant digits of a drawn number, so that it can be typed again
WITHIN: Final = 0.381966  # a quantile that gives neither an end nor, in general, a whole number
LARGEST: Final = 1e15  # whole numbers below it are exact as floats
MOST_STEPS: Final = 1_000_000


def scalar(value: object) -> object:
    """Return a value, and a text such as `1e-3` (a string in YAML 1.1) as the number it denotes.

    Raises:
        ValueError: The value is a list or a mapping.
    """
    if value is not None and not isinstance(value, str | int | float):
        raise ValueError("a word, a number, true, false or null")
    return float(value) if isinstance(value, str) and EXPONENT.fullmatch(value) else value


def _several(value: object) -> object:
    """Parse a list of values; a single value is a list of length 1."""
    return tuple(map(scalar, value)) if isinstance(value, list | tuple) else (scalar(value),)


def _number(value: object, info: ValidationInfo) -> object:
    """Parse a number, or `0.5 rounds` as half of `train.rounds`.

    Raises:
        ValueError: The value is neither, or is too large.
    """
    if isinstance(value, str) and (found := ROUNDS.fullmatch(value)):
        rounds = (info.context or {}).get("rounds")
        if rounds is None:
            raise ValueError("a number: the number of rounds is not known here")
        return math.floor(float(found[1]) * rounds + 0.5)
    number = scalar(value) if isinstance(value, str) else value
    if isinstance(number, bool) or not isinstance(number, int | float):
        raise ValueError("a number, or a share of train.rounds such as `0.5 rounds`")
    if not abs(number) <= LARGEST:
        raise ValueError(f"a finite number, at most {LARGEST:g} in size")
    return number


Several = Annotated[tuple[Scalar, ...], BeforeValidator(_several)]
Number = Annotated[int | float, BeforeValidator(_number)]
Whole = Annotated[int, BeforeValidator(_number)]


class Parameter(BaseModel):
    """One parameter of a search space.

    Attributes:
        when: Conditions, as values by the keys of other parameters. The parameter is active only
            if each of these parameters has one of its listed values.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    kind: ClassVar[str]
    form: ClassVar[str]  # an example of how it is written, for messages

    when: dict[str, Several] = {}

    @abstractmethod
    def at(self, quantile: float) -> Scalar:
        """Return the value at a quantile in [0, 1]; equal shares of [0, 1] are equally likely."""

    @abstractmethod
    def grid(self) -> tuple[Scalar, ...]:
        """Return the values that a grid search tries, in order and without duplicates."""

    @abstractmethod
    def suggest(self, trial: Any, path: str) -> Scalar:
        """Return the value that an Optuna trial has for the parameter, or let the trial draw it.

        Args:
            trial: A trial of Optuna.
            path: Configuration key of the parameter.
        """

    def to_optuna(self, value: Scalar) -> Scalar:
        """Return Optuna's representation of a value of the parameter."""
        return value

    def holds(self, value: object) -> bool:
        """Whether the parameter can take a value."""
        return value in self.grid()

    def probes(self) -> tuple[Scalar, ...]:
        """Return a sample of the values that a method must accept before a search starts."""
        return self.grid()

    def is_active(self, values: Mapping[str, Scalar]) -> bool:
        """Whether the conditions of the parameter hold, given values of other parameters."""
        return all(other in values and values[other] in these for other, these in self.when.items())

    def tree(self) -> dict[str, Any]:
        """Return the parameter as it is written in YAML."""
        tree = self.model_dump(mode="json", by_alias=True, exclude_unset=True)
        return {key: value for key, value in tree.items() if key != "when" or value}


class FixedValue(Parameter):
    """A single value, for all trials except the default trial."""

    kind = "fixed"
    form = "fixed: uniform"

    value: Annotated[Scalar, BeforeValidator(scalar)] = Field(alias="fixed")

    def at(self, quantile: float) -> Scalar:
        return self.value

    def grid(self) -> tuple[Scalar, ...]:
        return (self.value,)

    def suggest(self, trial: Any, path: str) -> Scalar:
        return self.value


class Choice(Parameter):
    """One of several values, all equally likely."""

    kind = "choice"
    form = "choice: [a, b, c]"

    values: Several = Field(alias="choice", min_length=1)

    @model_validator(mode="after")
    def _distinct(self) -> Self:
        for k, value in enumerate(self.values):
            if value in self.values[:k]:  # 1 and true are equal: a condition could not tell which
                raise ValueError(f"the choice {value!r} is listed twice")
        return self

    def at(self, quantile: float) -> Scalar:
        return self.values[min(math.floor(quantile * len(self.values)), len(self.values) - 1)]

    def grid(self) -> tuple[Scalar, ...]:
        return self.values

    def suggest(self, trial: Any, path: str) -> Scalar:
        value: Scalar = trial.suggest_categorical(path, self.values)
        return value


class Range(Parameter):
    """Numbers between two ends, both of which are included.

    Attributes:
        points: Number of values in a grid, from end to end. A single value is the middle.
    """

    points: int = Field(3, ge=1, le=1000)

    @property
    @abstractmethod
    def limits(self) -> tuple[float, float]:
        """The low and the high end."""

    @abstractmethod
    def nearest(self, number: float) -> int | float:
        """Return the value of the range that is closest to a number."""

    def holds(self, value: object) -> bool:
        if isinstance(value, bool) or not isinstance(value, int | float):
            return False
        low, high = self.limits
        return low <= value <= high and self._takes(value)

    def _takes(self, number: float) -> bool:
        """Whether the parameter can take a number that lies between the ends."""
        return self.nearest(number) == number

    def grid(self) -> tuple[Scalar, ...]:
        last = self.points - 1
        values = [self.at(k / last) for k in range(self.points)] if last else [self.at(0.5)]
        return tuple(dict.fromkeys(values))

    def probes(self) -> tuple[Scalar, ...]:
        return tuple(dict.fromkeys((*self.limits, self.at(WITHIN))))

    @model_validator(mode="after")
    def _ordered(self) -> Self:
        low, high = self.limits
        if low >= high:
            raise ValueError(
                f"the low end must be below the high end, got [{low:g}, {high:g}]; for one value"
                f" write `fixed: {low:g}`"
            )
        return self


class Uniform(Range):
    """Real numbers, uniformly distributed."""

    kind = "uniform"
    form = "uniform: [0.1, 1.0]"
    log: ClassVar[bool] = False

    ends: tuple[Number, Number] = Field(alias="uniform")

    @property
    def limits(self) -> tuple[float, float]:
        return float(self.ends[0]), float(self.ends[1])

    def nearest(self, number: float) -> float:
        low, high = self.limits
        return min(max(float(f"{number:.{DIGITS}g}"), low), high)

    def _takes(self, number: float) -> bool:
        return True

    def at(self, quantile: float) -> float:
        low, high = self.limits
        return self.nearest(low + quantile * (high - low))

    def suggest(self, trial: Any, path: str) -> float:
        return self.nearest(trial.suggest_float(path, *self.limits, log=self.log))


class LogUniform(Uniform):
    """Positive real numbers whose logarithm is uniformly distributed."""

    kind = "loguniform"
    form = "loguniform: [1.0e-3, 0.3]"
    log = True

    ends: tuple[Number, Number] = Field(alias="loguniform")

    @model_validator(mode="after")
    def _positive(self) -> Self:
        if self.ends[0] <= 0:
            raise ValueError(f"`loguniform` needs a low end > 0, got {self.ends[0]:g}")
        return self

    def at(self, quantile: float) -> float:
        low, high = map(math.log, self.limits)
        return self.nearest(math.exp(low + quantile * (high - low)))


class QUniform(Range):
    """Multiples of a step, uniformly distributed; whole numbers if ends and step are whole."""

    kind = "quniform"
    form = "quniform: [5, 40, 5]"
    log: ClassVar[bool] = False

    ends: tuple[Number, Number, Number] = Field(alias="quniform")

    @model_validator(mode="after")
    def _multiples(self) -> Self:
        low, high, step = self.ends
        if step <= 0:
            raise ValueError(f"`quniform` needs a step > 0, got {step:g}")
        if max(abs(low), abs(high)) / step > MOST_STEPS:
            raise ValueError(f"the step {step:g} is too small for [{low:g}, {high:g}]")
        for end in (low, high):
            if _exact(end) % _exact(step):
                raise ValueError(f"both ends must be multiples of the step {step:g}, got {end:g}")
        return self

    @property
    def limits(self) -> tuple[float, float]:
        return self.ends[0], self.ends[1]

    @property
    def steps(self) -> int:
        """The number of steps from end to end."""
        low, high, step = map(_exact, self.ends)
        return int((high - low) / step)

    def value(self, steps: int) -> int | float:
        """Return the low end plus a number of steps, in exact decimal arithmetic.

        >>> QUniform(quniform=(0.1, 0.5, 0.1)).value(2)  # not 0.30000000000000004
        0.3
        """
        number = _exact(self.ends[0]) + steps * _exact(self.ends[2])
        return int(number) if all(isinstance(end, int) for end in self.ends) else float(number)

    def index(self, number: float) -> int:
        """Return the number of steps from the low end to the multiple closest to a number."""
        low, _, step = self.ends
        return min(max(round((number - low) / step), 0), self.steps)

    def nearest(self, number: float) -> int | float:
        return self.value(self.index(number))

    def at(self, quantile: float) -> int | float:
        count = self.steps + 1
        return self.value(min(math.floor(quantile * count), count - 1))

    def suggest(self, trial: Any, path: str) -> int | float:
        return self.value(trial.suggest_int(path, 0, self.steps))

    def to_optuna(self, value: Scalar) -> Scalar:
        # Optuna gets the number of steps from the low end, because its own steps are inexact.
        return self.index(value) if isinstance(value, int | float) else value


class Int(Range):
    """Whole numbers, uniformly distributed; with `log`, their logarithms are."""

    kind = "int"
    form = "int: [2, 8]"

    ends: tuple[Whole, Whole] = Field(alias="int")
    log: bool = False

    @model_validator(mode="after")
    def _positive(self) -> Self:
        if self.log and self.ends[0] < 1:
            raise ValueError(f"`int` with `log` needs a low end >= 1, got {self.ends[0]}")
        return self

    @property
    def limits(self) -> tuple[float, float]:
        return self.ends

    def nearest(self, number: float) -> int:
        return min(max(round(number), self.ends[0]), self.ends[1])

    def at(self, quantile: float) -> int:
        low, high = self.ends
        if self.log:  # a number has the probability of the interval that is rounded to it
            first, last = math.log(low - 0.5), math.log(high + 0.5)
            return self.nearest(math.exp(first + quantile * (last - first)))
        return min(low + math.floor(quantile * (high - low + 1)), high)

    def suggest(self, trial: Any, path: str) -> int:
        drawn: int = trial.suggest_int(path, *self.ends, log=self.log)
        return drawn


KINDS: Final[dict[str, type[Parameter]]] = {
    kind.kind: kind for kind in (Uniform, LogUniform, QUniform, Int, Choice, FixedValue)
}


def _exact(number: float) -> Decimal:
    """Return the decimal number that is written as `str(number)`."""
    return Decimal(str(number))
