"""Parameters of a search space: what all kinds have in common, and those that are no range.

Each maps a quantile in [0, 1] to one of its values, so that every sampler draws in the same way.
The ranges of numbers stand in ranges.py.
"""

import re
from abc import abstractmethod
from math import floor
from typing import Annotated, Any, ClassVar, Final, Self

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, model_validator

Scalar = str | int | float | bool | None
Params = dict[str, Scalar]
"""Values by dotted keys of the configuration."""

EXPONENT: Final = re.compile(r"[-+]?\d+(\.\d*)?[eE][-+]?\d+")


def scalar(value: object) -> object:
    """Return the value, and `1e-3` (to YAML 1.1 a text) as the number that is meant.

    Raises: ValueError for what is no single value.
    """
    if value is not None and not isinstance(value, str | int | float):
        raise ValueError("a word, a number, true, false or null")
    return float(value) if isinstance(value, str) and EXPONENT.fullmatch(value) else value


def _several(value: object) -> object:
    """Read one value as a list of it."""
    return tuple(map(scalar, value)) if isinstance(value, list | tuple) else (scalar(value),)


Several = Annotated[tuple[Scalar, ...], BeforeValidator(_several)]


class Parameter(BaseModel):
    """One parameter of a space.

    Attributes:
        when: conditions: the parameter is there only while each of these other parameters has one
            of these values.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    kind: ClassVar[str]
    form: ClassVar[str]  # an example of how it is written, for messages

    when: dict[str, Several] = {}

    @abstractmethod
    def at(self, quantile: float) -> Scalar:
        """Return the value at a quantile in [0, 1]; equal shares of [0, 1] are equally likely."""

    @abstractmethod
    def holds(self, value: object) -> bool:
        """Return whether this is one of the values."""

    @abstractmethod
    def grid(self) -> tuple[Scalar, ...]:
        """Return the values that a grid search tries, without doubles, in order."""

    @abstractmethod
    def probes(self) -> tuple[Scalar, ...]:
        """Return values that stand for all: what a method must accept before a search starts."""

    def tree(self) -> dict[str, Any]:
        """Return what YAML holds for it."""
        tree = self.model_dump(mode="json", by_alias=True, exclude_unset=True)
        return {key: value for key, value in tree.items() if key != "when" or value}


class Choice(Parameter):
    """One of several values, all equally likely."""

    kind = "choice"
    form = "choice: [a, b, c]"

    values: Several = Field(alias="choice", min_length=1)

    @model_validator(mode="after")
    def _distinct(self) -> Self:
        for k, value in enumerate(self.values):
            if value in self.values[:k]:  # 1 and true are equal too: what would a condition mean?
                raise ValueError(f"the choice {value!r} stands twice")
        return self

    def at(self, quantile: float) -> Scalar:
        return self.values[min(floor(quantile * len(self.values)), len(self.values) - 1)]

    def holds(self, value: object) -> bool:
        return value in self.values

    def grid(self) -> tuple[Scalar, ...]:
        return self.values

    def probes(self) -> tuple[Scalar, ...]:
        return self.values


class Fixed(Parameter):
    """One value, for all trials but the default one."""

    kind = "fixed"
    form = "fixed: uniform"

    value: Annotated[Scalar, BeforeValidator(scalar)] = Field(alias="fixed")

    def at(self, quantile: float) -> Scalar:
        return self.value

    def holds(self, value: object) -> bool:
        return value == self.value

    def grid(self) -> tuple[Scalar, ...]:
        return (self.value,)

    def probes(self) -> tuple[Scalar, ...]:
        return (self.value,)
