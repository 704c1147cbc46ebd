"""Parameters that are numbers of a range: uniform, loguniform, quniform, int."""

import math
import re
from abc import abstractmethod
from decimal import Decimal
from typing import Annotated, Final, Self

from pydantic import BeforeValidator, Field, ValidationInfo, model_validator

from flbench.tuning.parameters import Parameter, Scalar, scalar

DIGITS: Final = 6  # significant ones of a drawn number: more say nothing, and nobody can type them
WITHIN: Final = 0.381966  # a quantile that is neither an end nor a whole number in between
LARGEST: Final = 1e15  # below it whole numbers are exact
MOST_STEPS: Final = 1_000_000
ROUNDS: Final = re.compile(r"(\d+(?:\.\d*)?) rounds")


def _number(value: object, info: ValidationInfo) -> object:
    """Read `0.5 rounds` as half of train.rounds; refuse what is no number."""
    if isinstance(value, str) and (found := ROUNDS.fullmatch(value)):
        rounds = (info.context or {}).get("rounds")
        if rounds is None:
            raise ValueError("a number: how many rounds there are is not known here")
        return math.floor(float(found[1]) * rounds + 0.5)
    number = scalar(value) if isinstance(value, str) else value
    if isinstance(number, bool) or not isinstance(number, int | float):
        raise ValueError("a number, or a share of train.rounds such as `0.5 rounds`")
    if not abs(number) <= LARGEST:
        raise ValueError(f"a finite number, at most {LARGEST:g} in size")
    return number


Number = Annotated[int | float, BeforeValidator(_number)]
Whole = Annotated[int, BeforeValidator(_number)]


class Range(Parameter):
    """Numbers between two ends, both included.

    Attributes:
        points: of a grid, from end to end (one: the middle).
    """

    points: int = Field(3, ge=1, le=1000)

    @property
    @abstractmethod
    def limits(self) -> tuple[float, float]:
        """Both ends."""

    @abstractmethod
    def nearest(self, number: float) -> int | float:
        """Return the value of the range that is closest to a number."""

    def holds(self, value: object) -> bool:
        if isinstance(value, bool) or not isinstance(value, int | float):
            return False
        low, high = self.limits
        return low <= value <= high and self._takes(value)

    def _takes(self, number: float) -> bool:
        """Return whether a number between the ends is one of the values."""
        return True

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
    """Any number, all equally likely."""

    kind = "uniform"
    form = "uniform: [0.1, 1.0]"

    ends: tuple[Number, Number] = Field(alias="uniform")

    @property
    def limits(self) -> tuple[float, float]:
        return float(self.ends[0]), float(self.ends[1])

    def nearest(self, number: float) -> float:
        low, high = self.limits
        return min(max(float(f"{number:.{DIGITS}g}"), low), high)

    def at(self, quantile: float) -> float:
        low, high = self.limits
        return self.nearest(low + quantile * (high - low))


class LogUniform(Uniform):
    """Any number > 0, all orders of magnitude equally likely."""

    kind = "loguniform"
    form = "loguniform: [1.0e-3, 0.3]"

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
    """Multiples of a step, all equally likely; whole numbers if ends and step are."""

    kind = "quniform"
    form = "quniform: [5, 40, 5]"

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
        """Return the low end plus so many steps, exactly: 0.3, never 0.30000000000000004."""
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

    def _takes(self, number: float) -> bool:
        return self.nearest(number) == number


class Int(Range):
    """Whole numbers, all equally likely; with `log`, all orders of magnitude."""

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
        if self.log:  # each number owns what is rounded to it
            first, last = math.log(low - 0.5), math.log(high + 0.5)
            return self.nearest(math.exp(first + quantile * (last - first)))
        return min(low + math.floor(quantile * (high - low + 1)), high)

    def _takes(self, number: float) -> bool:
        return number == int(number)


def _exact(number: float) -> Decimal:
    """Return the number as it was written."""
    return Decimal(str(number))
