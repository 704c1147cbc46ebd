"""A chunked hypernetwork: the weights of a net are generated from fewer parameters.

theta = scale * h(phi, z). z has one embedding per chunk of theta; phi are two linear layers that
all chunks share. The leaves are `z` [chunks, embedding] and `hyper.*` (phi).

Source: Li et al. (DFedHP), IJCAI 2025. The available text gives no widths; the defaults are chosen
such that z and phi have the printed size of a message, 1,360,512 numbers for a ResNet-18 with
11,168,832 shared parameters.
"""

from collections.abc import Callable
from dataclasses import dataclass
from math import ceil, prod, sqrt
from typing import Literal, Self

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import linear

from flbench.core.types import Context, Tree
from flbench.models.base import NetSpec

Z: frozenset[str] = frozenset({"z"})
PHI: frozenset[str] = frozenset(
    {"hyper.in.weight", "hyper.in.bias", "hyper.out.weight", "hyper.out.bias"}
)
LEAVES = PHI | Z
SMALL = 0.01  # scale of vectors: generated gains start near 1, generated biases near 0

Kind = Literal["weight", "gain", "bias"]


@dataclass(frozen=True)
class Hypernetwork:
    """Generates leaves of a net; a value of `Phase.weights` and `Deployment.weights`.

    Attributes:
        tensors: Pairs of a leaf and its kind, in the order in which outputs fill the leaves. An
            output has unit variance at the start. A `weight` is the output times sqrt(2 / fan_in),
            a `gain` is 1 + 0.01 output, a `bias` is 0.01 output.
        others: Leaves that the net takes as they are.
        chunk: Number of outputs per chunk.
        embedding: Length of a chunk's embedding.
        hidden: Number of units of the hidden layer.
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
        """Return the hypernetwork that generates some parameters of a net, in the net's own order.

        Args:
            net: Description of the net.
            generated: Names of the parameters that are generated.
            chunk: Number of outputs per chunk.
            embedding: Length of a chunk's embedding.
            hidden: Number of units of the hidden layer.
        """
        tensors: list[tuple[str, Kind]] = []
        others: list[str] = []
        for layer in net.layers:
            for leaf in layer.leaves:
                if leaf not in generated:
                    others.append(leaf)
                elif leaf.endswith("bias"):
                    tensors.append((leaf, "bias"))
                elif layer.kind in ("norm", "batchnorm"):
                    tensors.append((leaf, "gain"))
                else:
                    tensors.append((leaf, "weight"))
        return cls(tuple(tensors), tuple(others), chunk, embedding, hidden)

    def __call__(self, context: Context) -> Tree:
        """Return the leaves that the net is called with: generated ones, and `others` as they are.

        Args:
            context: Its leaves have `z` and `hyper.*`; the generated leaves give shapes.
        """
        leaves = context.leaves
        hidden = linear(leaves["z"], leaves["hyper.in.weight"], leaves["hyper.in.bias"]).relu()
        out = linear(hidden, leaves["hyper.out.weight"], leaves["hyper.out.bias"])

        # Chunk after chunk fills tensor after tensor: [chunks, chunk] -> [scalars] -> shapes.
        shapes = [leaves[name].shape for name, _ in self.tensors]
        sizes = [prod(shape) for shape in shapes]
        pieces = torch.split(out.flatten()[: sum(sizes)], sizes)

        weights: Tree = {}
        for (name, kind), shape, piece in zip(self.tensors, shapes, pieces, strict=True):
            fan_in = prod(shape[1:])
            scale = sqrt(2 / fan_in) if kind == "weight" else SMALL
            offset = 1.0 if kind == "gain" else 0.0
            weights[name] = scale * piece.reshape(shape) + offset
        return weights | {name: leaves[name] for name in self.others}

    def rows(self, scalars: int) -> int:
        """Return the number of chunks, the rows of z, for a number of generated scalars."""
        return ceil(scalars / self.chunk)

    def size(self, scalars: int) -> int:
        """Return |phi| + |z|, the size of a message, for a number of generated scalars."""
        phi = (self.embedding + 1) * self.hidden + (self.hidden + 1) * self.chunk
        return phi + self.rows(scalars) * self.embedding

    def initial(self, start: Tree, rng: np.random.Generator) -> Tree:
        """Return phi and z at the start, which all clients have in common.

        Embeddings are standard normal. Matrices are normal with the variance that gives outputs
        unit variance. Biases are zero.

        Args:
            start: Leaves of the seeded net, which give shapes and dtype.
            rng: Generator of the random numbers.
        """
        scalars = sum(start[name].numel() for name, _ in self.tensors)
        dtype = start[self.tensors[0][0]].dtype

        def normal(rows: int, columns: int, variance: float) -> Tensor:
            drawn = rng.standard_normal((rows, columns)) * sqrt(variance)
            return torch.from_numpy(drawn).to(dtype)

        return {
            # The ReLU halves the second moment, which the variance 2 / embedding makes 2.
            "hyper.in.weight": normal(self.hidden, self.embedding, 2 / self.embedding),
            "hyper.in.bias": torch.zeros(self.hidden, dtype=dtype),
            "hyper.out.weight": normal(self.chunk, self.hidden, 1 / self.hidden),
            "hyper.out.bias": torch.zeros(self.chunk, dtype=dtype),
            "z": normal(self.rows(scalars), self.embedding, 1.0),
        }


@dataclass(frozen=True)
class Write:
    """A Transform that writes generated weights into the net's own leaves.

    The steps behind it see an ordinary net: training of the head (so that weights are generated
    once, not in every step), gradients and sizes of weights.

    Attributes:
        weights: Function context -> leaves that the net is called with.
        names: Names of the leaves that are written.
    """

    weights: Callable[[Context], Tree]
    names: tuple[str, ...]

    def __call__(self, context: Context) -> Tree:
        """Return the generated leaves `names`."""
        weights = self.weights(context)
        return {name: weights[name] for name in self.names}
