"""One phase of one client's training, and its batches."""

from collections.abc import Iterator

import torch
from torch import Tensor
from torch.amp.grad_scaler import GradScaler
from torch.utils.data import IterableDataset

from flbench.client.module import ClientModule
from flbench.client.program import Phase, most_epochs
from flbench.core.types import Batch
from flbench.data import batches
from flbench.data.federation import Federation
from flbench.engine.base import RoundSettings
from flbench.engine.environment import Environment
from flbench.models import freezing


class Training:
    """One phase of a client's training; the module's leaves are trained in place.

    Args:
        environment: Net, samples, device and precision.
        module: The client's module; its leaves include the net's own tensors. A subclass of
            ClientModule trains by its own `training_step` and `configure_optimizers`.
        client: The client's id, in [0, N).
        settings: Settings of the round.
        scaler: The client's loss scaler; None for none.

    Attributes:
        steps: Optimizer steps taken so far.

    Raises:
        UnknownNameError: The phase trains no parameter.
    """

    def __init__(
        self,
        environment: Environment,
        module: ClientModule,
        client: int,
        settings: RoundSettings,
        scaler: GradScaler | None = None,
    ) -> None:
        self._environment = environment
        self._module = module
        self._phase = module.phase
        self._scaler = GradScaler(enabled=False)
        if scaler is not None and self._phase.gradient is None:  # a hook has no scaled gradients
            self._scaler = scaler
        self._batches = ClientBatches(
            environment.federation,
            self._phase,
            client,
            settings,
            dtype=environment.dtype,
            skip_single=environment.skips_single(self._phase),
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
        module.on_fit_start()
        for number in range(cap):
            if module.should_stop:
                break
            done = torch.tensor(number)
            if phase.until is not None and bool(phase.until(module.context(), means, done)):
                break
            before = self.steps
            total = self._epoch()
            if total is None:
                break
            sums.append(total)
            means[number] = total / (self.steps - before)
            if self._is_over():
                break
        if module.recordings and not self.steps:
            self._record_padded_row()
        for recording in module.recordings:
            recording.finish(module.context())
        module.on_fit_end()
        for leaf in module.trained.values():
            leaf.requires_grad_(False)
            leaf.grad = None
        return sums

    def _record_padded_row(self) -> None:
        """Show the Statistics one padded row, so that a client without a step has results too."""
        env, module = self._environment, self._module
        none = self._batches.indices[:0]
        with freezing.mode(env.net, train=False), env.precision():
            for batch in batches.in_order(env.federation, none, env.dtype, 1):
                module.record(module.step_context(batch))

    def _is_over(self) -> bool:
        """Return whether the phase has taken all of its `steps`, or the module ends it."""
        if self._module.should_stop:
            return True
        return self._phase.steps is not None and self.steps >= self._phase.steps

    def _epoch(self) -> Tensor | None:
        """Train for an epoch; return the sum of its losses, or None if it takes no step."""
        total: Tensor | None = None
        for index, batch in enumerate(self._batches):
            if index == 0:
                self._module.on_train_epoch_start()
                if self._module.should_stop:
                    break
            loss = self._step(batch, index)
            total = loss if total is None else total + loss
            self.steps += 1
            self._module.on_train_batch_end(loss, batch, index)
            if self._is_over():
                break
        if total is not None or self._module.should_stop:
            self._module.on_train_epoch_end()
        return total

    def _step(self, batch: Batch, index: int) -> Tensor:
        """Take one optimizer step; return its loss, 0-dim and detached."""
        env, module, scaler = self._environment, self._module, self._scaler
        with env.precision():
            loss = module.training_step(batch, index)
        gradients = module.gradients(scaler.scale(loss))
        env.write_back()
        # Gradients may share memory or be expanded. Clipping, Nesterov momentum (on a GPU) and the
        # loss scaler write to them, and get copies.
        written = module.writes_gradients or scaler.is_enabled()
        for leaf, gradient in zip(module.trained.values(), gradients, strict=True):
            leaf.grad = gradient.clone() if written and gradient is not None else gradient
        scaler.unscale_(self._optimizer)
        module.configure_gradient_clipping(self._optimizer)
        scaler.step(self._optimizer)
        scaler.update()
        module.project()
        return loss.detach()


class ClientBatches(IterableDataset[Batch]):
    """The training batches of one client in one phase; each iteration is the next epoch.

    The sequential engine trains on these batches, and so does Lightning's Trainer:
    `Trainer(max_epochs=phase.epochs).fit(ClientModule(...), ClientBatches(...))`.

    Args:
        federation: The samples, on the device of the net.
        phase: The phase; its `samples` are read.
        client: The client's id, in [0, N).
        settings: Batch size, treatment of the last batch, and random streams of the round.
        dtype: Type of the inputs.
        skip_single: Whether batches of one sample are left out, as BatchNorm needs it.

    Attributes:
        indices: [n] The client's rows of the data set.
        rows: [B] The rows of the batch that was yielded last.
        per_epoch: Number of batches of each epoch.
    """

    def __init__(
        self,
        federation: Federation,
        phase: Phase,
        client: int,
        settings: RoundSettings,
        *,
        dtype: torch.dtype,
        skip_single: bool,
    ) -> None:
        self.indices = federation.rows(phase.samples, client, settings.draw)
        self.rows = self.indices[:0]
        self._federation = federation
        self._client = client
        self._settings = settings
        self._dtype = dtype
        self._skip_single = skip_single
        taken = batches.arrange(self.indices, settings.train, skip_single=self._skip_single)
        self.per_epoch = -(-len(taken) // settings.train.batch_size)
        self._epochs = self._steps = 0

    def __iter__(self) -> Iterator[Batch]:
        """Yield the batches of the next epoch; none if the client has no samples."""
        train, draw, number = self._settings.train, self._settings.draw, self._epochs
        order = batches.epoch_order(
            self.indices, self._client, number, draw, train, skip_single=self._skip_single
        )
        done = 0
        for batch in batches.epoch(
            self._federation,
            order,
            self._client,
            number,
            draw,
            train,
            dtype=self._dtype,
            first_step=self._steps,
        ):
            self._steps += 1
            self.rows = order[done : done + len(batch.y)]
            done += len(batch.y)
            yield batch
        self._epochs += 1
