"""Directions that are as far apart as they can be, one per class."""

import torch
from torch import Tensor

from flbench.core.rng import generator
from flbench.losses.similarity import unit

STEPS, RATE = 1000, 0.3


def far_apart(count: int, width: int, seed: int) -> Tensor:
    """Return rows [count, width] of length one in float64, far apart; by the seed alone.

    Where there is room they are orthonormal: Q of a Gaussian matrix. Where there is not, Gaussian
    rows repel one another, the nearest ones most, by gradient descent on the sphere. Source: the
    initial prototypes of FedNH (Dai et al., AAAI 2023); the force and its steps are our own.
    """
    drawn = torch.from_numpy(generator(seed, "method").standard_normal((width, count)))
    if count <= width:
        orthonormal: Tensor = torch.linalg.qr(drawn)[0]
        return orthonormal.T.contiguous()
    rows = unit(drawn.T)
    itself = torch.eye(count, dtype=torch.bool)
    for step in range(STEPS):
        sharpness = 10.0 + 90.0 * step / STEPS
        near = (sharpness * rows @ rows.T).masked_fill(itself, -torch.inf).softmax(dim=1)
        rows = unit(rows - RATE * (1 - step / STEPS) * near @ rows)
    return rows
