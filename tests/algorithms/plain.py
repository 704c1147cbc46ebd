"""Clients in plain PyTorch, for slow references: full batches, SGD without momentum, float64."""

from collections.abc import Callable, Collection
from copy import deepcopy
from math import ceil, sqrt
from pathlib import Path

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from flbench.core.rng import Draw
from flbench.core.types import Outputs, Tree
from flbench.experiment.assembly import Experiment
from flbench.models.base import net_leaves

LR, EPOCHS, ROUNDS = 0.1, 2, 3
FULL = (
    "partition.samples=200",
    "train.batch_size=1024",
    "train.participation=0.6",
    "engine.precision=64-true",
    f"train.optimizer.lr={LR}",
    f"train.local_epochs={EPOCHS}",
    f"train.rounds={ROUNDS}",
)
TINY = 1e-10  # float64, sums in another order, several rounds

Loss = Callable[[Tree, Outputs, Tensor], Tensor]


def plain_loss(leaves: Tree, out: Outputs, y: Tensor) -> Tensor:
    return cross_entropy(out.logits, y)


class Plain:
    """The clients of an experiment that was built with FULL."""

    def __init__(self, built: Experiment) -> None:
        self.net = deepcopy(built.net).double()
        self.federation = built.federation.to(torch.device("cpu"), torch.float64)
        self.draws = [Draw(built.config.seed, (t,), built.federation.clients) for t in range(9)]
        self.clients = built.federation.clients

    def start(self) -> Tree:
        return {name: leaf.detach().clone() for name, leaf in net_leaves(self.net).items()}

    def cohort(self, t: int) -> list[int]:
        return self.draws[t].cohort(0.6).tolist()

    def samples(self, client: int) -> tuple[Tensor, Tensor]:
        rows = self.federation.partition.parts["train"][client]
        x = self.federation.inputs(rows, torch.float64)
        return x, self.federation.y[torch.from_numpy(rows)]

    def outputs(self, leaves: Tree, x: Tensor, *, train: bool) -> Outputs:
        """Train-mode BatchNorm writes to the buffers among the leaves."""
        names = set(net_leaves(self.net))
        mine = {name: value for name, value in leaves.items() if name in names}
        return torch.func.functional_call(self.net.train(train), mine, (x,))

    def step(
        self,
        leaves: Tree,
        client: int,
        names: Collection[str],
        *,
        batchnorm: bool = True,
        loss: Loss = plain_loss,
    ) -> Tree:
        """One step on all samples of a client over the named parameters."""
        x, y = self.samples(client)
        new = {name: value.clone() for name, value in leaves.items()}
        moving = [n for n in leaves if n in names and "running" not in n and "num_" not in n]
        for name in moving:
            new[name].requires_grad_()
        value = loss(new, self.outputs(new, x, train=batchnorm), y)
        gradients = torch.autograd.grad(value, [new[name] for name in moving])
        for name, gradient in zip(moving, gradients, strict=True):
            new[name] = new[name].detach() - LR * gradient
        return new

    def mean(self, sent: dict[int, Tree], *, uniform: bool = False) -> Tree:
        sizes = {i: 1.0 if uniform else float(len(self.samples(i)[1])) for i in sent}
        total = sum(sizes.values())
        return {
            name: sum(sizes[i] / total * sent[i][name] for i in sent)
            if value.is_floating_point()
            else torch.stack([sent[i][name] for i in sent]).amax(dim=0)
            for name, value in next(iter(sent.values())).items()
        }

    def federate(
        self, keeps: Collection[str], local: Callable[[int, Tree], Tree]
    ) -> tuple[Tree, list[Tree]]:
        """ROUNDS rounds; clients keep some leaves, the others are averaged.

        Returns: what the server has, and what each client keeps.
        """
        server = self.start()
        kept = [{name: server[name] for name in server if name in keeps}] * self.clients
        for t in range(ROUNDS):
            sent = {}
            for i in self.cohort(t):
                after = local(i, {**server, **kept[i]})
                kept[i] = {name: value for name, value in after.items() if name in keeps}
                sent[i] = {name: value for name, value in after.items() if name not in keeps}
            server |= self.mean(sent)
        return server, kept


def generated(own: Tree, shapes: dict[str, torch.Size]) -> Tree:
    """The weights that a hypernetwork makes of `z` and `hyper.*`, chunk after chunk."""
    out = []
    for z in own["z"]:
        inside = torch.relu(own["hyper.in.weight"] @ z + own["hyper.in.bias"])
        out.append(own["hyper.out.weight"] @ inside + own["hyper.out.bias"])
    flat, at, weights = torch.cat(out), 0, {}
    for name, shape in shapes.items():
        piece = flat[at : at + shape.numel()].reshape(shape)
        at += shape.numel()
        if len(shape) > 1:
            weights[name] = piece * sqrt(2 / shape[1:].numel())
        else:
            weights[name] = 0.01 * piece + (".norm" in name and name.endswith("weight"))
    return weights


def pruned_and_regrown(
    mask: Tensor, size: Tensor, worth: Tensor, share: float
) -> tuple[Tensor, Tensor]:
    """A share of the mask leaves, and as many of all entries that are then outside enter.

    Returns: the mask after pruning, and the mask after regrowth.
    """

    def coarse(value: Tensor) -> list[float]:
        """Entries that differ by less than a millionth of the largest are equal."""
        entries = value.detach().flatten().abs().numpy()
        found: list[float] = np.round(entries / entries.max() * 2**20).tolist()
        return found

    sizes, worths = coarse(size), coarse(worth)
    inside = mask.flatten().nonzero()[:, 0].tolist()
    k = ceil(share * len(inside) - 1e-9) if len(inside) > 1 else 0
    left = sorted(inside, key=lambda e: (sizes[e], e))[k:]
    outside = sorted(set(range(mask.numel())) - set(left), key=lambda e: (-worths[e], e))
    pruned, regrown = torch.zeros(2, mask.numel(), dtype=torch.bool)
    pruned[left] = True
    regrown[left + outside[:k]] = True
    return pruned.reshape(mask.shape), regrown.reshape(mask.shape)


def assert_close(found: Tree, expected: Tree, tiny: float = TINY) -> None:
    """The leaves of `found` are those of `expected`."""
    assert found
    for name, value in found.items():
        assert torch.allclose(value.double(), expected[name].double(), rtol=0, atol=tiny), name


def accuracies(run: Path, protocol: str, split: str = "test") -> list[str]:
    """The accuracies of a deployment in metrics.csv, by round; there is at least one."""
    rows = [line.split(",") for line in (run / "metrics.csv").read_text().splitlines()]
    found = [row[4] for row in rows if row[1:4] == [split, protocol, "accuracy"]]
    assert found, (split, protocol)
    return found
