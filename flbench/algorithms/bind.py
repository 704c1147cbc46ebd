"""Functions with fixed last arguments, and loss terms that are made of functions."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from flbench.core.types import Context


@dataclass(frozen=True)
class Bound:
    """A function and its last arguments; two are equal if their parts are.

    Attributes:
        function: A function of a module, which workers find by its name.
        arguments: The last arguments of each call.
    """

    function: Callable[..., Any]
    arguments: tuple[Any, ...]

    def __call__(self, *given: Any) -> Any:
        """Return what the function returns for the given arguments and the last ones."""
        return self.function(*given, *self.arguments)


def bind(function: Callable[..., Any], *arguments: Any) -> Bound:
    """Return a function whose last arguments are fixed, to be a callable of a local program.

    In contrast to a closure it can be sent to other processes, and in contrast to
    `functools.partial` programs of two rounds that have it are equal.

    >>> def scaled(context, factor):
    ...     return {name: factor * value for name, value in context.leaves.items()}
    >>> bind(scaled, 0.5) == bind(scaled, 0.5)
    True
    """
    return Bound(function, arguments)


@dataclass(frozen=True)
class Term:
    """A loss term that is a function of a context.

    Attributes:
        weight: Factor of the term: a number, or the name of a 0-dim ctx entry.
        function: context -> the value of the term, 0-dim; see `LossTerm`.
    """

    weight: float | str
    function: Callable[[Context], Tensor]

    def __call__(self, context: Context) -> Tensor:
        """Return the value of the term in this step, 0-dim, without its weight."""
        return self.function(context)
