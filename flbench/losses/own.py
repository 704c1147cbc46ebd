"""A loss term that is a function of the user's own code."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from flbench.config.schema import Scalar
from flbench.core import parts
from flbench.core.types import Context

Arguments = tuple[tuple[str, Scalar], ...]


@dataclass(frozen=True)
class OwnTerm:
    """The value of `function(context, **arguments)`.

    The function maps a `Context` to a 0-dim tensor, and keeps the rules of `LossTerm`: rows
    where `context.batch.mask` is False do not count, and shapes do not depend on values. Besides
    what methods send, `context.ctx` has the client's class counts [C] under the name
    `flbench.losses.class_counts.COUNTS`.

    Attributes:
        path: Import path of the function, `package.module:name`; or `object:NAME` for a function
            that was given to the Python interface and has none.
        function: The function.
        arguments: Its keyword arguments, as pairs.
        weight: Factor of the term: a number, or the name of a 0-dim ctx entry.
    """

    path: str
    function: Callable[..., Tensor]
    arguments: Arguments = ()
    weight: float | str = 1.0

    @classmethod
    def load(cls, path: str, arguments: Arguments, weight: float | str) -> "OwnTerm":
        """Return the term whose function is imported from `path`.

        Raises:
            ConfigError: There is no such function, or it must be given again.
        """
        what = f"the loss term `{path.partition(':')[2]}` of this run"
        function = parts.part(path, parts.TERMS, what, "train={'terms': [...]}", key=path)
        return cls(path, function, arguments, weight)

    def __reduce__(self) -> tuple[Callable[..., "OwnTerm"], tuple[Any, ...]]:
        if self.path.startswith(f"{parts.OBJECT}:"):
            return OwnTerm, (self.path, self.function, self.arguments, self.weight)
        # Worker processes import the function again; they start in the folder of the run.
        return OwnTerm.load, (self.path, self.arguments, self.weight)

    def __call__(self, context: Context) -> Tensor:
        """Return the term, 0-dim."""
        return self.function(context, **dict(self.arguments))
