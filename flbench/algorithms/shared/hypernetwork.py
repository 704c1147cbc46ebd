"""A chunked hypernetwork: shared weights of the net are generated from a few shared numbers.

theta = scale * h(phi, z): z holds one embedding per chunk, phi two linear layers that all chunks
share; a row of outputs follows the other until every generated tensor is filled. The leaves are
`z` [chunks, embedding] and `hyper.*` (phi).

Source: Li et al. (DFedHP), IJCAI 2025, which prints no widths: the defaults are chosen to hit its
payload, 1,360,512 scalars for a ResNet-18 of 11,168,832 shared ones.
"""

from collections.abc import Callable
from dataclasses import dataclass
from math import ceil, prod, sqrt
from typing import Literal, Self

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import linear

from flbench.core.types import Info, Tree
from flbench.models.base import NetSpec

Z: frozenset[str] = frozenset({"z"})
PHI: frozenset[str] = frozenset(
    {"hyper.in.weight", "hyper.in.bias", "hyper.out.weight", "hyper.out.bias"}
)
LEAVES = PHI | Z
SMALL = 0.01  # scale of what is no matrix: gains start near 1, biases near 0

Kind = Literal["weight", "gain", "bias"]


@dataclass(frozen=True)
class Hypernetwork:
    """Generates leaves of a net; a value of `Phase.weights` and `Deployment.weights`.

    Attributes:
        tensors: (leaf, kind) in the order in which they are filled. Outputs of unit variance are
            scaled by sqrt(2 / fan_in) for a `weight`; a `gain` is 1 + 0.01 out, a `bias` 0.01 out.
        others: the leaves that the net takes as they are.
        chunk: outputs of one chunk.
        embedding: numbers of a chunk's embedding.
        hidden: units of the hidden layer.
    """

    tensors: tuple[tuple[str, Kind], ...]
    others: tuple[str, ...]
    chunk: int = 9216
    embedding: int = 128
    hidden: int = 128

    @classmethod
    def of(
        cls, net: NetSpec, generated: frozenset[str], *, chunk: int, embedding: int, hidden: int
    ) -> Self:
        """Return the one that generates these parameters of a net, in the net's own order."""
        tensors: list[tuple[str, Kind]] = []
        others: list[str] = []
        for layer in net.layers:
            for leaf in layer.leaves:
                if leaf not in generated:
                    others.append(leaf)
                elif leaf.endswith("bias"):
                    tensors.append((leaf, "bias"))
                else:
                    norm = layer.kind in ("norm", "batchnorm")
                    tensors.append((leaf, "gain" if norm else "weight"))
        return cls(tuple(tensors), tuple(others), chunk, embedding, hidden)

    def __call__(self, leaves: Tree, ctx: Tree) -> Tree:
        """Return what the net is called with: generated leaves, and the others as they are."""
        shapes = [leaves[name].shape for name, _ in self.tensors]
        sizes = [prod(shape) for shape in shapes]
        inside = linear(leaves["z"], leaves["hyper.in.weight"], leaves["hyper.in.bias"]).relu()
        out = linear(inside, leaves["hyper.out.weight"], leaves["hyper.out.bias"])
        pieces = torch.split(out.flatten()[: sum(sizes)], sizes)
        weights: Tree = {}
        for (name, kind), shape, piece in zip(self.tensors, shapes, pieces, strict=True):
            scale = sqrt(2 / prod(shape[1:])) if kind == "weight" else SMALL
            weights[name] = scale * piece.reshape(shape) + (1.0 if kind == "gain" else 0.0)
        return weights | {name: leaves[name] for name in self.others}

    def rows(self, scalars: int) -> int:
        """Return how many chunks so many generated scalars take, the rows of z."""
        return ceil(scalars / self.chunk)

    def size(self, scalars: int) -> int:
        """Return |phi| + |z|, the scalars of one message, where so many are generated."""
        phi = (self.embedding + 1) * self.hidden + (self.hidden + 1) * self.chunk
        return phi + self.rows(scalars) * self.embedding

    def initial(self, start: Tree, rng: np.random.Generator) -> Tree:
        """Return phi and z at the start, the same for all clients: means of others are noise.

        Embeddings are standard normal, matrices normal with the variance that gives outputs unit
        variance, biases zero.

        Args:
            start: the seeded net's leaves, whose type of number is taken.
            rng: draws them.
        """
        scalars = sum(start[name].numel() for name, _ in self.tensors)
        kind = start[self.tensors[0][0]].dtype

        def normal(rows: int, columns: int, variance: float) -> Tensor:
            drawn = rng.standard_normal((rows, columns)) * sqrt(variance)
            return torch.from_numpy(drawn).to(kind)

        return {
            # The ReLU halves the second moment that 2 / embedding makes 2.
            "hyper.in.weight": normal(self.hidden, self.embedding, 2 / self.embedding),
            "hyper.in.bias": torch.zeros(self.hidden, dtype=kind),
            "hyper.out.weight": normal(self.chunk, self.hidden, 1 / self.hidden),
            "hyper.out.bias": torch.zeros(self.chunk, dtype=kind),
            "z": normal(self.rows(scalars), self.embedding, 1.0),
        }


@dataclass(frozen=True)
class Write:
    """A Transform that writes what the net is called with into the net's own leaves.

    What follows sees an ordinary net: training of personal leaves (weights are generated once, not
    in every step), gradients and sizes of weights.

    Attributes:
        weights: (leaves, ctx) -> what the net is called with.
        names: the leaves that are written.
    """

    weights: Callable[[Tree, Tree], Tree]
    names: tuple[str, ...]

    def __call__(self, leaves: Tree, start: Tree, ctx: Tree, info: Info) -> Tree:
        """Return these leaves."""
        weights = self.weights(leaves, ctx)
        return {name: weights[name] for name in self.names}
