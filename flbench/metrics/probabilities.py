"""Predicted probabilities of classes, kept for the metrics that need them."""

from dataclasses import dataclass, field

import torch
from torch import Tensor


@dataclass(frozen=True)
class Probabilities:
    """Predicted probabilities of all clients' models on one part of the samples.

    Attributes:
        clients: Number of clients N.
        pieces: Client [n] int64, true class [n] int64 and log-probabilities [n, C] of samples.
    """

    clients: int
    pieces: list[tuple[Tensor, Tensor, Tensor]] = field(default_factory=list)

    def add_(self, client: Tensor, true: Tensor, logarithms: Tensor) -> None:
        """Add clients [n], true classes [n] and log-probabilities [n, C] of samples, in place."""
        if len(true):
            self.pieces.append((client, true, logarithms))

    def joined(self) -> tuple[Tensor, Tensor, Tensor] | None:
        """Return client [n], true class [n] and log-probabilities [n, C] float64 of all samples.

        None without samples, and if a probability is NaN.
        """
        if not self.pieces:
            return None
        client, true, logarithms = (torch.cat(some) for some in zip(*self.pieces, strict=True))
        return None if logarithms.isnan().any() else (client, true, logarithms.double())
