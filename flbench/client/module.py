"""A client's local step as a LightningModule.

`ClientModule` is one phase of one client's training. The sequential engine calls its
`training_step` and `configure_optimizers`. For a phase without `until`, `record` and `gradient`,
`lightning.Trainer(max_epochs=phase.epochs).fit(module, batches)` trains the same weights, bit for
bit; `ClientBatches` (`flbench.engine.training`) gives it the batches that an engine draws.

The engine does not use a Trainer itself, because a Trainer per client costs 45 % over a bare
PyTorch loop.
"""

from collections.abc import Callable
from functools import partial
from typing import Any, Self

import torch
from torch import Tensor, nn

from flbench.client.forward import apply, call, freeze_statistics, name_in_net, never_trained
from flbench.client.loss_and_optimizer import local_loss, make_optimizer
from flbench.client.program import Phase
from flbench.client.recording import Recording
from flbench.client.tensor_names import untrained
from flbench.core.lightning import LightningModule
from flbench.core.types import Batch, Context, Outputs, Tree
from flbench.models import freezing


class ClientModule(LightningModule):
    """One phase of one client's training.

    Args:
        net: The net. Its parameters and buffers are leaves of the client, under the net's own
            names.
        phase: What is trained, on which loss, by which optimizer.
        leaves: The client's leaves. Those with names of the net are the net's own tensors, not
            copies. Training changes them in place.
        start: The values of the leaves at the beginning of the local program.
        ctx: Named tensors that the server sent or that Statistics computed. Recorded Statistics
            add theirs at the end of the phase.
        lr: Learning rate; None takes `phase.optimizer.lr`.

    Attributes:
        trained: The leaves that the phase trains, set by `configure_optimizers`.
        recordings: The running reductions of the Statistics of `phase.record`.
        writes_gradients: Whether the optimizer may write to gradients, and needs copies.
        batches_per_epoch: Number of batches of each epoch; the engine sets it.
        rows: Returns the rows [B] of the data set that the present batch consists of; the engine
            sets it.
    """

    batches_per_epoch: int = 0
    rows: Callable[[], Any] | None = None

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
        self.writes_gradients = phase.clip is not None or phase.optimizer.nesterov
        self.lr = phase.optimizer.lr if lr is None else lr
        self.leaves = leaves
        self.start = start
        self.ctx = ctx
        self.trained: Tree = {}
        self.recordings = [Recording(statistic) for statistic in phase.record]
        self._hook_gradients: tuple[Tensor, ...] = ()

    def context(self, **more: Any) -> Context:
        """Return what callables of the phase read beside a batch, with `more` of it."""
        return Context(**{"leaves": self.leaves, "start": self.start, "ctx": self.ctx} | more)

    def weights(self, leaves: Tree | None) -> Tree | None:
        """Return the parameters and buffers that the net is called with; None for its own ones.

        Args:
            leaves: Other values of the leaves; None takes those of the client.
        """
        if leaves is None and self.phase.weights is None:
            return None
        here = self.leaves if leaves is None else leaves
        if self.phase.weights is not None:
            here = here | self.phase.weights(self.context(leaves=here))
        own = (*self.net.named_parameters(), *self.net.named_buffers())
        return {name: here[name] for name, _ in own}

    def forward(self, x: Tensor, leaves: Tree | None = None) -> Outputs:
        """Return the net's outputs for inputs x [B, ...]; see `weights`."""
        weights = self.weights(leaves)
        outputs: Outputs = self.net(x) if weights is None else call(self.net, weights, x)
        return outputs

    def step_context(self, batch: Batch, leaves: Tree | None = None) -> Context:
        """Return what loss terms and Statistics read in the step on this batch.

        Args:
            batch: The samples.
            leaves: Other values of the leaves; None takes those of the client.
        """
        forward = partial(self.forward, batch.x, leaves)
        here = self.leaves if leaves is None else leaves
        return Context(
            forward,
            batch=batch,
            ctx=self.ctx,
            leaves=here,
            start=self.start,
            apply=partial(apply, self.net),
        )

    def training_step(self, batch: Batch, batch_idx: int = 0) -> Tensor:
        """Return the phase's loss on a batch, 0-dim; recorded Statistics see the step.

        With a gradient hook the loss is that of the hook's first evaluation (0 if there is none),
        detached; the hook's gradient is what `gradients` returns.
        """
        if self.phase.gradient is not None:
            return self._hooked_step(batch)
        context = self.step_context(batch)
        loss = local_loss(self.phase.terms, context)
        self.record(context)
        return loss

    def record(self, context: Context) -> None:
        """Add one step to the Statistics of `phase.record`, without gradients."""
        with torch.no_grad():
            for recording in self.recordings:
                recording.see(context)

    def gradients(self, loss: Tensor) -> tuple[Tensor | None, ...]:
        """Return the gradient of each leaf of `trained`, in its order.

        Args:
            loss: What `training_step` returned, possibly times a loss scaler's factor. It is not
                read where the phase has a gradient hook.

        Returns:
            One tensor per leaf; None for a leaf that the loss does not depend on. Tensors may share
            memory.
        """
        if self.phase.gradient is not None:
            return self._hook_gradients
        return torch.autograd.grad(loss, list(self.trained.values()), allow_unused=True)

    def configure_optimizers(self) -> torch.optim.Optimizer:
        """Return the phase's optimizer over the leaves that it trains; freeze all other leaves.

        A frozen leaf is not part of the optimizer: weight decay and momentum do not move it.

        Raises:
            UnknownNameError: `phase.train` names no parameter of the client.
        """
        others = never_trained(self.net)
        self.trained = {}
        for name, leaf in self.leaves.items():
            if name_in_net(name, others) or not leaf.is_floating_point():
                continue
            wanted = self.phase.trains(name)
            if leaf.requires_grad != wanted:
                leaf.requires_grad_(wanted)
            if wanted:
                self.trained[name] = leaf
        if not self.trained:
            raise untrained(self.phase, self.leaves)
        return make_optimizer(self.phase.optimizer, list(self.trained.values()), self.lr)

    def train(self, mode: bool = True) -> Self:
        """Set the training mode.

        Modules that the user has put in eval mode stay so, and BatchNorm with
        `phase.batchnorm="eval"`.
        """
        super().train(mode)
        if mode:
            freezing.keep_modes(self.net)
        if mode and self.phase.batchnorm == "eval":
            freeze_statistics(self.net)
        return self

    def project(self) -> None:
        """Replace the trained leaves by what `phase.project` makes of them."""
        if self.phase.project is not None:
            with torch.no_grad():
                for name, value in self.phase.project(self.context(trained=self.trained)).items():
                    self.trained[name].copy_(value)

    def configure_gradient_clipping(
        self,
        optimizer: torch.optim.Optimizer,
        gradient_clip_val: float | None = None,
        gradient_clip_algorithm: str | None = None,
    ) -> None:
        """Scale the gradients so that their norm over all trained leaves is at most `phase.clip`.

        The arguments, which are the Trainer's own, are not read.
        """
        if self.phase.clip is not None:
            nn.utils.clip_grad_norm_(list(self.trained.values()), self.phase.clip)

    @property
    def should_stop(self) -> bool:
        """Whether the phase ends before its next step: never, if its own limits do not say so."""
        return False

    # The hooks below are called by Lightning's Trainer only. Engines do the same in their loops.

    def optimizer_step(self, *args: Any, **kwargs: Any) -> None:
        """Take an optimizer step, then project the trained leaves."""
        super().optimizer_step(*args, **kwargs)
        self.project()

    def on_train_start(self) -> None:
        """Set the training mode, which a Trainer leaves as it is."""
        self.train()

    def _hooked_step(self, batch: Batch) -> Tensor:
        """Run the gradient hook; return the loss of its first evaluation, 0-dim and detached."""
        hook, terms, device = self.phase.gradient, self.phase.terms, batch.x.device.type
        assert hook is not None
        # Autocast is for the forward pass: the hook and backward passes run without it.
        dtype, enabled = torch.get_autocast_dtype(device), torch.is_autocast_enabled(device)
        losses: list[Tensor] = []

        def grad(parameters: Tree, batch: Batch) -> Tree:
            here = {name: value.detach().requires_grad_() for name, value in parameters.items()}
            context = self.step_context(batch, {**self.leaves, **here})
            with torch.enable_grad(), torch.autocast(device, dtype, enabled):
                loss = local_loss(terms, context)
            losses.append(loss.detach())
            gradients = torch.autograd.grad(loss, list(here.values()), allow_unused=True)
            return {
                name: torch.zeros_like(value) if gradient is None else gradient
                for (name, value), gradient in zip(here.items(), gradients, strict=True)
            }

        parameters = {name: leaf.detach() for name, leaf in self.trained.items()}
        with torch.autocast(device, enabled=False):
            gradient = hook(self.context(batch=batch, trained=parameters), grad)
        self._hook_gradients = tuple(gradient[name].detach() for name in self.trained)
        return losses[0] if losses else batch.x.new_zeros(())
