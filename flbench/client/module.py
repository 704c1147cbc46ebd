"""A client's local step as a LightningModule.

A phase without hooks trains unchanged under Lightning's own `Trainer`; the sequential engine drives
the same module with Fabric: over a bare loop a Trainer per client costs 45 %, Fabric 4 % where
steps are not traced.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Self

import torch
from lightning import LightningModule
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from flbench.client.program import Phase
from flbench.client.step import local_loss, make_optimizer
from flbench.core.types import Batch, Outputs, StepContext, Tree


class ClientModule(LightningModule):
    """One phase of one client's training.

    Args:
        net: the net; its tensors are the leaves under its own names.
        phase: what to train on what.
        leaves: the client's leaves; the net's own tensors among them.
        start: their values at the beginning of the program.
        ctx: what the server sent and what Statistics found.
        lr: learning rate; None takes the phase's.
    """

    def __init__(
        self,
        net: nn.Module,
        phase: Phase,
        leaves: Tree,
        start: Tree,
        ctx: Tree,
        *,
        lr: float | None = None,
    ) -> None:
        super().__init__()
        self.net = net
        self.phase = phase
        self.lr = phase.optimizer.lr if lr is None else lr
        self.bind(leaves, start, ctx)

    def bind(self, leaves: Tree, start: Tree, ctx: Tree) -> None:
        """Point the module at another client's tensors."""
        self.leaves = leaves
        self.start = start
        self.ctx = ctx

    def forward(self, x: Tensor) -> Outputs:
        """Return the net's outputs for inputs x [B, ...], with what the phase calls it with."""
        if self.phase.weights is None:
            outputs: Outputs = self.net(x)
            return outputs
        return call(self.net, self.phase.weights(self.leaves, self.ctx), x)

    def step_context(self, batch: Batch) -> StepContext:
        """Return what the step on this batch sees."""
        return view_of(
            self.net, partial(self.forward, batch.x), batch, self.ctx, self.leaves, self.start
        )

    def training_step(self, batch: Batch, batch_idx: int = 0) -> Tensor:
        """Return the phase's loss on a batch, 0-dim."""
        return local_loss(self.phase.terms, self.step_context(batch))

    def trained(self) -> Tree:
        """Return the leaves that the phase trains, and freeze all others.

        C3: a frozen leaf is not in the optimiser.
        """
        buffers = frozenset(name for name, _ in self.net.named_buffers())
        chosen: Tree = {}
        for name, leaf in self.leaves.items():
            if is_buffer(name, buffers) or not leaf.is_floating_point():
                continue
            wanted = self.phase.trains(name)
            if leaf.requires_grad != wanted:
                leaf.requires_grad_(wanted)
            if wanted:
                chosen[name] = leaf
        return chosen

    def configure_optimizers(self) -> torch.optim.Optimizer:
        """Return the phase's optimiser over the leaves that it trains."""
        return make_optimizer(self.phase.optimizer, list(self.trained().values()), self.lr)

    def train(self, mode: bool = True) -> Self:
        """Set the training mode; BatchNorm stays in eval mode where the phase says so."""
        super().train(mode)
        if mode and self.phase.batchnorm == "eval":
            freeze_statistics(self.net)
        return self


def view_of(
    net: nn.Module,
    forward: Callable[[], Outputs],
    batch: Batch,
    ctx: Tree,
    leaves: Tree,
    start: Tree,
) -> StepContext:
    """Return what a step on this batch sees; `forward` computes the net's outputs."""
    return StepContext(
        forward, batch=batch, ctx=ctx, leaves=leaves, start=start, apply=partial(apply, net)
    )


def freeze_statistics(net: nn.Module) -> None:
    """Let BatchNorm use its running statistics and leave them alone."""
    for module in net.modules():
        if isinstance(module, _BatchNorm):
            module.eval()


def is_buffer(name: str, buffers: frozenset[str]) -> bool:
    """Return whether a leaf is a buffer of the net, or of a second one: `v.` before its name."""
    parts = name.split(".")
    return any(".".join(parts[k:]) in buffers for k in range(len(parts)))


def call(net: nn.Module, weights: Tree, x: Tensor) -> Outputs:
    """Return the net's outputs with these parameters and buffers.

    Train-mode BatchNorm writes to the buffers.
    """
    outputs: Outputs = torch.func.functional_call(net, weights, (x,))
    return outputs


def apply(
    net: nn.Module,
    leaves: Tree,
    x: Tensor,
    *,
    train: bool = False,
    activations: tuple[str, ...] = (),
) -> Outputs:
    """Return the net's outputs with any leaves; nothing is written, the net's mode stays as it was.

    Args:
        net: the net.
        leaves: parameters and buffers by the net's own names, and possibly more.
        x: [B, ...] inputs.
        train: BatchNorm on the batch's statistics (its running ones are left alone).
        activations: names of layers whose input and output are returned.
    """
    weights = {name: leaves[name] for name, _ in net.named_parameters()}
    for name, _ in net.named_buffers():
        weights[name] = leaves[name].clone() if train else leaves[name]
    recorded: dict[str, tuple[Tensor, Tensor]] = {}
    handles = [
        net.get_submodule(name).register_forward_hook(partial(_record, recorded, name))
        for name in activations
    ]
    with mode(net, train=train):
        try:
            outputs = call(net, weights, x)
        finally:
            for handle in handles:
                handle.remove()
    return outputs._replace(activations=recorded)


@contextmanager
def mode(net: nn.Module, *, train: bool) -> Iterator[None]:
    """Set every module's mode, and put each back to what it was."""
    before = [(module, module.training) for module in net.modules()]
    net.train(train)
    try:
        yield
    finally:
        for module, was in before:
            module.training = was


def _record(
    recorded: dict[str, tuple[Tensor, Tensor]],
    name: str,
    module: nn.Module,
    args: tuple[Tensor, ...],
    out: Tensor,
) -> None:
    recorded[name] = (args[0], out)
