"""Shapes of samples, and example samples for trials of nets."""

from typing import Self

import torch
from torch import Tensor


class TokenShape(tuple[int, ...]):
    """Shape `(length,)` of a sequence of tokens, with what a net must know to look tokens up.

    Args:
        length: Number of tokens of a sequence, L.
        vocabulary: Number of token ids V; tokens are whole numbers in [0, V).
        padding: Token id that fills up shorter sequences; None if there is none.

    >>> shape = TokenShape(80, vocabulary=65)
    >>> shape == (80,), shape.vocabulary, shape.padding
    (True, 65, None)
    """

    vocabulary: int
    padding: int | None

    def __new__(cls, length: int, vocabulary: int, padding: int | None = None) -> Self:
        shape = super().__new__(cls, (length,))
        shape.vocabulary, shape.padding = vocabulary, padding
        return shape

    def __getnewargs__(self) -> tuple[int, int, int | None]:
        """Return the arguments that a copy is made of."""
        return self[0], self.vocabulary, self.padding


def described(shape: tuple[int, ...]) -> str:
    """Return what samples of a shape are, for messages.

    >>> described((9, 128)), described((13,))
    ('series [channels, length] of the shape [9, 128]', 'tables with 13 columns')
    """
    if isinstance(shape, TokenShape):
        return f"sequences of {shape[0]} tokens"
    if len(shape) == 1:
        return f"tables with {shape[0]} columns"
    if len(shape) == 2:
        return f"series [channels, length] of the shape {list(shape)}"
    return f"images of the shape {list(shape)}"


def examples(shape: tuple[int, ...], count: int, dtype: torch.dtype) -> Tensor:
    """Return different samples for a trial of a net, [count, *shape].

    Args:
        shape: Shape of one sample.
        count: Number of samples.
        dtype: Type of inputs that are not tokens.

    Returns:
        Numbers from -1 to 1; or tokens (int64) from the highest id downwards, so that a net that
        knows fewer ids fails in the trial. None is padding unless the vocabulary has no other.

    >>> examples(TokenShape(3, vocabulary=5, padding=0), 2, torch.float32)
    tensor([[4, 3, 2],
            [1, 4, 3]])
    """
    total = count * torch.Size(shape).numel()
    if not isinstance(shape, TokenShape):
        return torch.linspace(-1.0, 1.0, total).reshape(count, *shape).to(dtype)
    known = torch.arange(shape.vocabulary)
    if shape.padding is not None and len(known) > 1:
        known = known[known != shape.padding]
    return known.flip(0)[torch.arange(total) % len(known)].reshape(count, *shape)
