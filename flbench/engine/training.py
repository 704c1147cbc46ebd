"""One phase of one client's training, driven by Lightning Fabric."""

from functools import partial

import torch
from torch import Tensor, nn

from flbench.client.module import ClientModule, call, mode, view_of
from flbench.client.step import local_loss
from flbench.core.types import Batch, Outputs, Tree
from flbench.data import batches
from flbench.engine.base import RoundSettings
from flbench.engine.recording import Recording
from flbench.engine.workbench import Workbench

Look = tuple[Tensor, tuple[Tensor | None, ...], list[Tree]]
"""A step's loss, 0-dim, the gradients of what is trained, and what each Statistic sees."""


class Training:
    """One phase of a client's training; the module's leaves are trained in place.

    Args:
        bench: net, samples and precision.
        module: the client's, bound to its leaves.
        client: its id.
        settings: of the round.
    """

    def __init__(
        self, bench: Workbench, module: ClientModule, client: int, settings: RoundSettings
    ) -> None:
        self._bench = bench
        self._module = module
        self._client = client
        self._settings = settings
        self._phase = module.phase
        module.train()
        self._trained = module.trained()
        if not self._trained:
            raise ValueError(
                f"the phase trains {self._phase.train!r}, which names no parameter of the client"
            )
        self._optimizer = module.configure_optimizers()
        self._records = [Recording(statistic) for statistic in self._phase.record]
        self._rows = bench.federation.rows(self._phase.samples, client, settings.draw)
        self._inputs, self._kind = bench.traces.gather(
            self._phase, module.leaves, module.start, module.ctx
        )
        self.steps = 0

    def run(self) -> list[Tensor]:
        """Train to the phase's end; return the sum of the losses of each epoch, 0-dim each."""
        phase, ctx = self._phase, self._module.ctx
        cap = phase.epochs if phase.epochs is not None else phase.steps or 0
        means = torch.full((cap,), torch.nan, dtype=torch.float64, device=self._bench.device)
        sums: list[Tensor] = []
        for number in range(cap):
            if phase.until is not None and bool(phase.until(means, torch.tensor(number), ctx)):
                break
            before = self.steps
            total = self._epoch(number)
            if total is None:
                break
            sums.append(total)
            means[number] = total / (self.steps - before)
            if self._is_over():
                break
        if self._records and not self.steps:
            self._record_nothing()
        for record in self._records:
            record.finish(self._module.leaves, ctx)
        for leaf in self._trained.values():
            leaf.requires_grad_(False)
            leaf.grad = None
        return sums

    def _record_nothing(self) -> None:
        """Show the Statistics one padded row, so that a client without a step has results too."""
        bench, none = self._bench, self._rows[:0]
        with torch.no_grad(), mode(bench.net, train=False), bench.fabric.autocast():
            for batch in batches.in_order(bench.federation, none, bench.dtype, 1):
                for record in self._records:
                    record.add(self._module.step_context(batch))

    def _is_over(self) -> bool:
        return self._phase.steps is not None and self.steps >= self._phase.steps

    def _epoch(self, number: int) -> Tensor | None:
        """Return the sum of the losses of an epoch; None if it has no batch."""
        total: Tensor | None = None
        for batch in batches.epoch(
            self._bench.federation,
            self._rows,
            self._client,
            number,
            self._settings.draw,
            self._settings.train,
            dtype=self._bench.dtype,
            skip_single=self._bench.has_batchnorm and self._phase.batchnorm == "train",
            first_step=self.steps,
        ):
            loss = self._step(batch)
            total = loss if total is None else total + loss
            self.steps += 1
            if self._is_over():
                break
        return total

    def _step(self, batch: Batch) -> Tensor:
        """Take one optimiser step; return its loss, detached."""
        phase, bench = self._phase, self._bench
        loss, gradients, seen = self._traced(batch)
        # Gradients may share memory, or be expanded, and these write to them (Nesterov on a GPU).
        written = phase.clip is not None or phase.optimizer.nesterov or bool(bench.scaler)
        for leaf, gradient in zip(self._trained.values(), gradients, strict=True):
            leaf.grad = gradient.clone() if written and gradient is not None else gradient
        for record, found in zip(self._records, seen, strict=True):
            record.merge(found)
        scaled = phase.gradient is None  # a hook's gradient never passed the loss scaler
        if phase.clip is not None:
            if scaled:
                bench.fabric.strategy.precision.unscale_gradients(self._optimizer)
            nn.utils.clip_grad_norm_(list(self._trained.values()), phase.clip)
        if scaled:
            bench.fabric.strategy.optimizer_step(self._optimizer)
        else:
            self._optimizer.step()
        if phase.project is not None:
            with torch.no_grad():
                for name, value in phase.project(self._trained, self._module.ctx).items():
                    self._trained[name].copy_(value)
        return loss

    def _traced(self, batch: Batch) -> Look:
        """Return what is seen in a batch; where steps of its kind have a trace, by that."""
        bench = self._bench
        look = partial(self._look if self._phase.gradient is None else self._hooked, batch)
        if bench.scaler:  # its factor changes, and is no input
            return look()
        # The mask is no input but a constant: there is no padding here.
        given = [batch.x, batch.y, batch.key, batch.step]
        return bench.traces.take(self._kind, look, self._inputs, given)

    def _look(self, batch: Batch) -> Look:
        """Return the loss, its gradients, and what Statistics see."""
        context, fabric = self._module.step_context(batch), self._bench.fabric
        with fabric.autocast():
            loss = local_loss(self._phase.terms, context)
        gradients = torch.autograd.grad(
            self._bench.scaled(loss), list(self._trained.values()), allow_unused=True
        )
        with torch.no_grad(), fabric.autocast():
            seen = [
                {key: value.detach() for key, value in record.see(context).items()}
                for record in self._records
            ]
        return loss.detach(), gradients, seen

    def _hooked(self, batch: Batch) -> Look:
        """Return the loss of a gradient hook's first look, or 0, and the gradients it makes."""
        module, hook = self._module, self._phase.gradient
        losses: list[Tensor] = []
        assert hook is not None

        def grad(parameters: Tree, batch: Batch) -> Tree:
            here = {name: value.detach().requires_grad_() for name, value in parameters.items()}
            leaves = {**module.leaves, **here}
            forward = partial(self._forward, leaves, batch.x)
            context = view_of(self._bench.net, forward, batch, module.ctx, leaves, module.start)
            with torch.enable_grad(), self._bench.fabric.autocast():
                loss = local_loss(self._phase.terms, context)
            losses.append(loss.detach())
            found = torch.autograd.grad(loss, list(here.values()), allow_unused=True)
            return {
                name: torch.zeros_like(value) if gradient is None else gradient
                for (name, value), gradient in zip(here.items(), found, strict=True)
            }

        parameters = {name: leaf.detach() for name, leaf in self._trained.items()}
        gradient = hook(grad, parameters, batch, module.ctx)
        gradients = tuple(gradient[name].detach() for name in self._trained)
        return losses[0] if losses else batch.x.new_zeros(()), gradients, []

    def _forward(self, leaves: Tree, x: Tensor) -> Outputs:
        net, weights = self._bench.net, self._phase.weights
        if weights is not None:
            return call(net, weights(leaves, self._module.ctx), x)
        return call(net, {name: leaves[name] for name in self._bench.own}, x)
