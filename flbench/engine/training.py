"""One phase of one client's training; device and precision are those of Lightning Fabric."""

import torch
from torch import Tensor

from flbench.client.forward import mode
from flbench.client.module import ClientModule
from flbench.client.program import most_epochs
from flbench.core.types import Batch
from flbench.data import batches
from flbench.engine.base import RoundSettings
from flbench.engine.client_batches import ClientBatches
from flbench.engine.environment import Environment


class Training:
    """One phase of a client's training; the module's leaves are trained in place.

    Args:
        environment: Net, samples, device and precision.
        module: The client's module; its leaves include the net's own tensors. A subclass of
            ClientModule trains by its own `training_step` and `configure_optimizers`.
        client: The client's id, in [0, N).
        settings: Settings of the round.

    Attributes:
        steps: Optimizer steps taken so far.

    Raises:
        UnknownNameError: The phase trains no parameter.
    """

    def __init__(
        self, environment: Environment, module: ClientModule, client: int, settings: RoundSettings
    ) -> None:
        self._environment = environment
        self._module = module
        self._phase = module.phase
        self._batches = ClientBatches(
            environment.federation,
            self._phase,
            client,
            settings,
            dtype=environment.dtype,
            has_batchnorm=environment.has_batchnorm,
            needs_two=environment.needs_two,
        )
        module.batches_per_epoch = self._batches.per_epoch
        module.rows = lambda: self._batches.rows
        module.train()
        self._optimizer = module.configure_optimizers()
        self.steps = 0

    def run(self) -> list[Tensor]:
        """Train to the end of the phase; return the sum of the losses of each epoch, 0-dim each."""
        phase, module = self._phase, self._module
        cap = most_epochs(phase)
        means = torch.full(
            (cap,), torch.nan, dtype=torch.float64, device=self._environment.device
        )  # [epochs]
        sums: list[Tensor] = []
        module.begin_phase()
        for number in range(cap):
            if module.should_stop:
                break
            done = torch.tensor(number)
            if phase.until is not None and bool(phase.until(means, done, module.ctx)):
                break
            before = self.steps
            total = self._epoch(number)
            if total is None:
                break
            sums.append(total)
            means[number] = total / (self.steps - before)
            if self._is_over():
                break
        if module.recordings and not self.steps:
            self._record_padded_row()
        for recording in module.recordings:
            recording.finish(module.leaves, module.ctx)
        module.end_phase()
        for leaf in module.trained.values():
            leaf.requires_grad_(False)
            leaf.grad = None
        return sums

    def _record_padded_row(self) -> None:
        """Show the Statistics one padded row, so that a client without a step has results too."""
        env, module = self._environment, self._module
        none = self._batches.indices[:0]
        with mode(env.net, train=False), env.fabric.autocast():
            for batch in batches.in_order(env.federation, none, env.dtype, 1):
                module.merge_recorded(module.observe(module.step_context(batch)))

    def _is_over(self) -> bool:
        """Return whether the phase has taken all of its `steps`, or the module ends it."""
        if self._module.should_stop:
            return True
        return self._phase.steps is not None and self.steps >= self._phase.steps

    def _epoch(self, number: int) -> Tensor | None:
        """Train for an epoch; return the sum of its losses, or None if it takes no step."""
        total: Tensor | None = None
        for index, batch in enumerate(self._batches):
            if index == 0:
                self._module.begin_epoch(number)
                if self._module.should_stop:
                    break
            loss = self._step(batch, index)
            total = loss if total is None else total + loss
            self.steps += 1
            self._module.end_step(batch, loss)
            if self._is_over():
                break
        if total is not None or self._module.should_stop:
            self._module.end_epoch(number)
        return total

    def _step(self, batch: Batch, index: int) -> Tensor:
        """Take one optimizer step; return its loss, 0-dim and detached."""
        phase, env, module = self._phase, self._environment, self._module
        with env.fabric.autocast():
            loss = module.training_step(batch, index)
        hooked = phase.gradient is not None  # its gradients are not multiplied by a loss scaler
        gradients = module.gradients(loss if hooked else env.scale(loss))
        env.write_back()
        # Gradients may share memory or be expanded. Clipping, Nesterov momentum (on a GPU) and the
        # loss scaler write to them, and get copies.
        written = module.writes_gradients or bool(env.scaler)
        for leaf, gradient in zip(module.trained.values(), gradients, strict=True):
            leaf.grad = gradient.clone() if written and gradient is not None else gradient
        module.merge_recorded(module.recorded)
        if env.scaler and not hooked:
            env.fabric.strategy.precision.unscale_gradients(self._optimizer)
        module.configure_gradient_clipping(self._optimizer)
        if hooked:
            self._optimizer.step()
        else:
            env.fabric.strategy.optimizer_step(self._optimizer)
        module.project()
        return loss.detach()
