"""Clients of a small multilayer perceptron written out by hand, for loops over whole rounds.

Only samples, labels, cohorts and the order of samples are flbench's. Everything else is computed
here in float64: the net, batches, gradient steps and class means.
"""

from collections.abc import Callable, Collection, Iterator, Sequence
from math import sqrt

import torch
from torch import Tensor

from flbench.core.rng import Draw
from flbench.core.types import State, Tree
from flbench.experiment.assembly import Experiment
from flbench.experiment.rounds import settings_of
from flbench.models.base import net_leaves
from flbench.testing import after
from tests.support import build

LR, EPOCHS, BATCH, CLASSES, WIDTH = 0.3, 2, 7, 10, 6
EXACT = 1e-12
KEYS = (
    "model=mlp",
    f"model.hidden=[{WIDTH}]",
    "partition.samples=100",
    "partition.alpha=0.3",
    "train.participation=0.6",
    "engine.precision=64-true",
    f"train.optimizer.lr={LR}",
    f"train.local_epochs={EPOCHS}",
    f"train.batch_size={BATCH}",
)
BACKBONE, HEAD = ("backbone.fc1.weight", "backbone.fc1.bias"), ("head.weight", "head.bias")
NET = (*BACKBONE, *HEAD)

Loss = Callable[[Tensor, Tensor, list[int]], Tensor]
"""(features [B, D], logits [B, C], labels) -> loss."""


class Clients:
    """The clients of an experiment that was built with KEYS."""

    def __init__(self, built: Experiment) -> None:
        federation = built.federation.to(torch.device("cpu"), torch.float64)
        self.x, self.y = [], []
        for rows in federation.partition.parts["train"]:
            self.x.append(federation.inputs(rows, torch.float64).flatten(1))
            self.y.append(federation.y[torch.from_numpy(rows)].tolist())
        self.start = {name: leaf.detach().double() for name, leaf in net_leaves(built.net).items()}
        self.draws = [Draw(built.config.seed, (t,), len(self.y)) for t in range(9)]

    def __len__(self) -> int:
        return len(self.y)

    def size(self, i: int) -> int:
        return len(self.y[i])

    def cohort(self, t: int) -> list[int]:
        return self.draws[t].cohort(0.6).tolist()

    def train(self, i: int, t: int, weights: Tree, loss: Loss) -> Tree:
        """SGD on the batches of round t."""
        return self.descend(i, t, weights, lambda leaves, x, y: loss(*net(leaves, x), y))

    def descend(
        self,
        i: int,
        t: int,
        weights: Tree,
        loss: Callable[[Tree, Tensor, list[int]], Tensor],
        *,
        names: Collection[str] | None = None,
        epochs: int = EPOCHS,
        lr: float = LR,
        momentum: float = 0.0,
        decay: float = 0.0,
    ) -> Tree:
        """SGD on the named weights (None: all) over the batches of round t."""
        weights, velocity = dict(weights), {}
        for x, y in self.batches(i, t, epochs):
            leaves = {name: value.clone().requires_grad_() for name, value in weights.items()}
            loss(leaves, x, y).backward()
            for name in weights if names is None else names:
                slope = leaves[name].grad + decay * weights[name]
                velocity[name] = slope + momentum * velocity.get(name, 0.0)
                weights[name] = weights[name] - lr * velocity[name]
        return weights

    def batches(self, i: int, t: int, epochs: int = EPOCHS) -> Iterator[tuple[Tensor, list[int]]]:
        """The batches of round t in order: inputs [B, ...] and labels."""
        for epoch in range(epochs):
            order = self.draws[t].sample_order(i, epoch, self.size(i)).tolist()
            for first in range(0, len(order), BATCH):
                rows = order[first : first + BATCH]
                yield self.x[i][rows], [self.y[i][row] for row in rows]

    def mean(self, ids: Sequence[int], trees: Sequence[Tree], *, uniform: bool = False) -> Tree:
        """The mean of what clients sent, by samples or uniform."""
        sizes = [1 if uniform else self.size(i) for i in ids]
        return weighted_sum(trees, [size / sum(sizes) for size in sizes])

    def prototypes(self, i: int, weights: Tree) -> dict[int, Tensor]:
        """The mean feature of each class that a client holds, by class."""
        z, _ = net(weights, self.x[i])
        return class_means(z, self.y[i])

    def count(self, i: int, k: int) -> int:
        return self.y[i].count(k)


def net(weights: Tree, x: Tensor) -> tuple[Tensor, Tensor]:
    """Return features [B, D] behind a ReLU, and logits [B, C]."""
    z = (x @ weights[BACKBONE[0]].T + weights[BACKBONE[1]]).clamp_min(0)
    return z, z @ weights[HEAD[0]].T + weights[HEAD[1]]


def class_means(z: Tensor, y: list[int]) -> dict[int, Tensor]:
    return {k: sum(z[j] for j in range(len(y)) if y[j] == k) / y.count(k) for k in sorted(set(y))}


def mean_cross_entropy(logits: Tensor, y: list[int]) -> Tensor:
    return sum(row.exp().sum().log() - row[k] for row, k in zip(logits, y, strict=True)) / len(y)


def entropy(leaves: Tree, x: Tensor, y: list[int]) -> Tensor:
    """The mean cross entropy of the net with these leaves."""
    return mean_cross_entropy(net(leaves, x)[1], y)


def cosine(a: Tensor, b: Tensor) -> Tensor:
    """The cosine; 0 for a zero vector."""
    lengths = sqrt(float(a.detach() @ a.detach())) * sqrt(float(b.detach() @ b.detach()))
    return a @ b * 0 if lengths < 1e-12 else a @ b / ((a @ a).sqrt() * (b @ b).sqrt())


def weighted_sum(trees: Sequence[Tree], weights: Sequence[float]) -> Tree:
    return {
        name: sum(w * tree[name] for w, tree in zip(weights, trees, strict=True))
        for name in trees[0]
    }


def platform(*overrides: str, rounds: int) -> State:
    """Return the state after all rounds of an experiment with KEYS."""
    return after(build(*KEYS, f"train.rounds={rounds}", *overrides), rounds)


def assert_predicts(
    built: Experiment,
    state: State,
    logits: Callable[[int, Tensor], Tensor],
    played: State | None = None,
) -> None:
    """Assert that clients predict their test parts by these logits: (client, inputs) -> [n, C].

    The settings are those of the round after the state `played`, by default of the next round.
    """
    settings = settings_of(built.algorithm, state if played is None else played)
    predicted = dict(built.evaluator(print).predictions(state, settings))
    federation = built.federation.to(torch.device("cpu"), torch.float64)
    assert len(predicted) > 1
    for i, classes in predicted.items():
        x = federation.inputs(federation.partition.parts["test"][i], torch.float64).flatten(1)
        assert torch.equal(classes.reshape(-1), logits(i, x).argmax(dim=1)), i


def assert_equal(found: Tensor, expected: Tensor, what: object, tolerance: float = EXACT) -> None:
    """Assert that no entry of float64 tensors differs by more than the tolerance."""
    assert found.dtype == torch.float64, what
    torch.testing.assert_close(
        found, expected, rtol=0, atol=tolerance, msg=lambda text: f"{what}: {text}"
    )
