"""Matrices of class similarities: a client's own, and the mean over clients."""

from dataclasses import dataclass

import torch
from torch import Tensor

from flbench.core.types import Info, Tree
from flbench.losses.similarity import cosines


@dataclass(frozen=True)
class WriteSimilarity:
    """S[p, q] = cos(c_p, c_q) of the classes that a client holds.

    S is symmetric with a unit diagonal: the strict upper triangle says it all and is what travels.

    Attributes:
        full: all C x C entries are charged, as if the whole matrix were sent.
    """

    full: bool = False

    def __call__(self, leaves: Tree, start: Tree, ctx: Tree, info: Info) -> Tree:
        """Return the triangle [C, C], zero elsewhere, and which entries cross the link."""
        held = leaves["held"]
        pairs = (held[:, None] & held[None, :]).triu(1)
        cosine = cosines(leaves["prototypes"], leaves["prototypes"])
        return {
            "similarity": torch.where(pairs, cosine, 0.0),
            "pairs": torch.ones_like(pairs) if self.full else pairs,
        }


def mean_similarity(upper: Tensor, held: Tensor, table: Tensor) -> Tensor:
    """Return the mean [C, C] over clients that hold both classes; cos(table) where none does.

    Args:
        upper: [N, C, C] strict upper triangles.
        held: [N, C] bool: the classes of each client.
        table: [C, D] global prototypes.
    """
    joint = torch.einsum("np,nq->pq", held.double(), held.double())
    total = upper.sum(dim=0)
    mean = (total + total.T) / joint.clamp_min(1)
    cosine = cosines(table, table)
    mixed = torch.where(joint > 0, mean, (cosine + cosine.T) / 2)
    return mixed.fill_diagonal_(1.0)
