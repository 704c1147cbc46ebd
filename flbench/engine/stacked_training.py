"""One phase of a block of clients: each step is one `torch.vmap` over the clients still training.

Clients are sorted by their number of steps, largest first. So the clients that take a step are
always the first ones, a client that has finished costs nothing, and all active clients have taken
the same number of steps: an optimizer that counts steps (Adam) gives on the stack what it gives
client by client.

Axes: K clients of the block, `count` clients that take a step, S samples of a client in a step,
T steps of the client with most steps.
"""

from collections.abc import Callable, Sequence
from functools import partial
from itertools import zip_longest
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.func import grad

from flbench.client.forward import freeze_statistics, name_in_net, never_trained
from flbench.client.loss_and_optimizer import local_loss, make_optimizer
from flbench.client.program import Phase, most_epochs
from flbench.client.recording import Recording
from flbench.client.tensor_names import untrained
from flbench.config.schema import OptimizerConfig
from flbench.core.types import Batch, Context, Tree
from flbench.data.batches import PIECE
from flbench.engine import stacked_batches
from flbench.engine.stack import Stack
from flbench.models import freezing


class StackedPhase:
    """One phase of the training of a stack.

    Args:
        stack: The clients; `train` updates their leaves, losses and step counts.
        phase: The phase.

    Attributes:
        written: Names of the leaves that steps write to.
        batches: The batches of all steps.
        optimizer: The optimizer of all clients.
        recordings: The reductions of `Phase.record`.
        losses: [K, T] float64, 0 where a client takes no step.

    Raises:
        UnknownNameError: The phase trains no parameter.
    """

    def __init__(self, stack: Stack, phase: Phase) -> None:
        env = stack.environment
        self.stack, self.phase = stack, phase
        stack.lr = phase.optimizer.lr * stack.settings.lr_factor
        others = never_trained(env.net)
        self._names = [
            name
            for name in stack.leaves.names
            if phase.trains(name)
            and name_in_net(name, others) is None
            and stack.leaves[name].is_floating_point()
        ]
        if not self._names:
            raise untrained(phase, stack.leaves.names)
        self.batches = stacked_batches.make(
            env.federation, phase, stack.ids, stack.settings, skip_single=env.skips_single(phase)
        )
        # The net's buffers, which the forward pass may change.
        self._moving = [name for name in env.start if name in env.buffers]
        # Also the buffers of a second model, which `Phase.weights` may call the net with.
        buffers = [name for name in stack.leaves.names if name_in_net(name, env.buffers)]
        self.written = list(dict.fromkeys([*self._names, *buffers]))
        stack.leaves.make_writable(self.written, len(stack))
        self.optimizer = StackedOptimizer(phase.optimizer, stack.lr)
        self.recordings = [Recording(statistic) for statistic in phase.record]
        self.losses = torch.zeros(self.batches.ends.shape, dtype=torch.float64, device=env.device)
        # Batches of several steps, [W, count, S, ...] each, gathered at once; `_begin` is the first
        # of these W steps.
        self._begin = 0
        self._window: tuple[Tensor, ...] = (torch.empty(0),)
        self._sort()

    def train(self, take_steps: Callable[["StackedPhase"], bool] | None = None) -> None:
        """Take all steps, and write the recorded Statistics into ctx.

        Args:
            take_steps: Takes the steps of a phase in another way, and returns whether it can.
        """
        self._record_padded_row()
        net = self.stack.environment.net
        with freezing.mode(net, train=True):
            if self.phase.batchnorm == "eval":
                freeze_statistics(net)
            if take_steps is None or not take_steps(self):
                self._take_steps()
        self.stack.steps += self.batches.steps
        self.stack.loss += self.losses.sum(dim=1)
        for recording in self.recordings:
            self.stack.finish(recording)

    def _take_steps(self) -> None:
        """Take all steps, each with the clients that still train."""
        step = 0
        while count := self.batches.active(step):
            if self.phase.until is not None and self._end_phases(step, count):
                continue  # the clients were sorted again
            self._step(step, count)
            step += 1

    def _record_padded_row(self) -> None:
        """Start the reductions with one padded row, whose tensors are neutral."""
        stack, env = self.stack, self.stack.environment
        row = torch.zeros(len(stack), 1, dtype=torch.int64, device=env.device)
        batch = (stack.inputs(row), env.federation.y[row], row > 0, row)  # the mask is False
        with torch.no_grad(), freezing.mode(env.net, train=False):
            for one in self.recordings:
                one.add(stack.vmap_clients(partial(stack.observe, one.statistic), batch))

    def _sort(self) -> None:
        """Sort the clients by their number of steps, largest first."""
        order = np.argsort(-self.batches.steps, kind="stable")
        self.batches.reorder(order)
        self.stack.reorder(order)
        index = torch.from_numpy(order).to(self.stack.environment.device)
        self.losses = self.losses[index]
        self._window = (torch.empty(0),)
        self.optimizer.reorder(index)
        for recording in self.recordings:
            recording.reorder(index)

    def _end_phases(self, step: int, count: int) -> bool:
        """Ask `Phase.until` for clients that begin an epoch; return whether any of them ends."""
        epoch, until = self.batches.epoch[:count], self.phase.until
        begins = epoch[:, step] > (epoch[:, step - 1] if step else -1)
        if not begins.any() or until is None:
            return False
        epochs = torch.from_numpy(epoch[:, : step + 1]).to(self.losses.device)
        means = self._means(epochs[:, :step])

        def is_over(leaves: Tree, start: Tree, ctx: Tree, means: Tensor, done: Tensor) -> Tensor:
            return until(Context(leaves=leaves, start=start, ctx=ctx), means, done)

        flags = self.stack.vmap_clients(is_over, means, epochs[:, step], count=count)
        ends = begins & flags.cpu().numpy()
        if not ends.any():
            return False
        self.batches.steps[:count][ends] = step
        self._sort()
        return True

    def _means(self, epochs: Tensor) -> Tensor:
        """Return the mean loss of each epoch, [count, epochs]; NaN for later epochs.

        Args:
            epochs: [count, steps] the epochs of the steps so far.
        """
        count, step = epochs.shape
        losses = self.losses[:count, :step]
        # [count, epochs] each
        sums, counts = losses.new_zeros(2, count, most_epochs(self.phase))
        sums.scatter_add_(1, epochs, losses)
        counts.scatter_add_(1, epochs, torch.ones_like(losses))
        return torch.where(counts > 0, sums / counts.clamp_min(1), torch.nan)

    def _step(self, step: int, count: int) -> None:
        """Take one optimizer step of the first `count` clients."""
        fill = self.batches.fill[:count, step]
        size = int(fill.max())
        if not 0 <= step - self._begin < len(self._window[0]):
            self._begin, self._window = step, self._gather_batches(step, count)
        # x, y, mask and key, [count, S, ...] each
        batch = tuple(part[step - self._begin, :count, :size] for part in self._window)
        full = bool((fill == size).all())
        self.losses[:count, step] = self.update(self.batches.numbers[step], full, batch, count)

    def update(self, number: Tensor, full: bool, batch: Any, count: int) -> Tensor:
        """Update the first `count` clients with one batch each.

        Args:
            number: The number of the step, 0-dim.
            full: Whether no row of the batches is padding.
            batch: x, y, mask and key, [count, S, ...] each.
            count: The number of clients.

        Returns:
            The losses before the update, [count] float64.
        """
        stack, phase = self.stack, self.phase
        recorded: list[Tree] = []
        if phase.gradient is None:
            gradients, loss, buffers, recorded = self.gradients(number, full, batch, count)
        else:
            one = partial(self._hooked_client, number, full)
            gradients, loss, buffers = stack.vmap_clients(one, batch, count=count)
        if phase.clip is not None:
            _clip(gradients, phase.clip)
        elif phase.optimizer.nesterov:
            # On a GPU PyTorch adds momentum to gradients in place; they may share memory.
            gradients = {name: value.clone() for name, value in gradients.items()}
        trained = [stack.leaves.stacked[name][:count] for name in gradients]
        with torch.no_grad():
            self.optimizer.step(trained, list(gradients.values()))
            for name, value in buffers.items():
                stack.leaves.stacked[name][:count] = value
            if phase.project is not None:
                self._project(count)
            for recording, tensors in zip(self.recordings, recorded, strict=True):
                recording.add(tensors)
        return loss.double()

    def _gather_batches(self, step: int, count: int) -> tuple[Tensor, ...]:
        """Return x, y, mask and key [W, count, S, ...] of the W steps from this one on."""
        env, batches = self.stack.environment, self.batches
        size = batches.rows.shape[2]
        steps = slice(step, step + max(1, PIECE // (count * size)))
        rows, keys = (part[:count, steps].transpose(0, 1) for part in (batches.rows, batches.keys))
        # [W, count, S] -> [W * count, S] -> x [W * count, S, ...]
        x = self.stack.inputs(rows.reshape(-1, size), keys.reshape(-1, size))
        mask = torch.arange(size, device=env.device) < batches.ends[:count, steps].T[..., None]
        return x.reshape(*rows.shape, *x.shape[2:]), env.federation.y[rows], mask, keys

    def gradients(
        self, number: Tensor, full: bool, batch: Any, count: int
    ) -> tuple[Tree, Tensor, Tree, list[Tree]]:
        """Return the results of a step, [count, ...] each.

        The loss of a client depends on its own leaves only. So the gradient of the sum of all
        losses contains the gradient of each client. One backward pass over stacked operations is
        faster than `torch.vmap` of `torch.func.grad`.

        Args:
            number: The number of the step, 0-dim.
            full: Whether no row of the batches is padding.
            batch: x, y, mask and key, [count, S, ...] each.
            count: The number of clients that take the step.

        Returns:
            Gradients of the leaves that the loss uses (PyTorch leaves others as they are, also with
            weight decay), losses, buffers after the step, and the tensors of each recorded
            Statistic.
        """
        stacked = self.stack.leaves.stacked
        all_rows = {name: stacked[name] for name in self._names}  # [K, ...] each
        trained = {n: value[:count].detach().requires_grad_() for n, value in all_rows.items()}
        stacked.update(trained)
        try:
            loss, (buffers, recorded) = self.stack.vmap_clients(
                partial(self._client_loss, number, full),
                batch,
                count=count,
            )
        finally:
            stacked.update(all_rows)
        of_sum = torch.autograd.grad(loss.sum(), list(trained.values()), allow_unused=True)
        pairs = zip(trained, of_sum, strict=True)
        gradients = {name: gradient for name, gradient in pairs if gradient is not None}
        return gradients, loss.detach(), buffers, recorded

    def _client_loss(
        self,
        number: Tensor,
        full: bool,
        leaves: Tree,
        start: Tree,
        ctx: Tree,
        batch: Any,
        real: Tensor | None = None,
    ) -> tuple[Tensor, tuple[Tree, list[Tree]]]:
        """Return one client's loss, its buffers after the forward pass, and recorded tensors.

        BatchNorm normalizes with the rows `real` [S]; None for those of the batch's mask.
        """
        stack, phase = self.stack, self.phase
        x, y, mask, key = batch
        real = mask if real is None else real
        buffers = {name: leaves[name].clone() for name in self._moving}
        context = stack.step_context(
            {**leaves, **buffers}, start, ctx, Batch(x, y, mask, key, number), weights=phase.weights
        )
        stack.environment.padding.mask = None if full else real
        with stack.environment.precision():
            loss = local_loss(phase.terms, context)
            recorded = [
                {name: value.detach() for name, value in statistic.fn(context).items()}
                for statistic in phase.record
            ]
        stack.environment.padding.mask = None
        return loss, (buffers, recorded)

    def _hooked_client(
        self, number: Tensor, full: bool, leaves: Tree, start: Tree, ctx: Tree, batch: Any
    ) -> tuple[Tree, Tensor, Tree]:
        """Return one client's gradient from the hook, its first loss, and its buffers.

        The first loss is that of the hook's first evaluation, and 0 if there is none.
        """
        x, y, mask, key = batch
        buffers = {name: leaves[name] for name in self._moving}
        losses: list[Tensor] = []

        def loss_of(trained: Tree, batch: Batch) -> tuple[Tensor, tuple[Tensor, Tree]]:
            mine = {**leaves, **trained, **buffers}
            rows = (batch.x, batch.y, batch.mask, batch.key)
            # A hook may hide rows of the batch from the loss; BatchNorm sees all that are samples.
            real = mask if len(batch.x) == len(x) else batch.mask
            loss, (moved, _) = self._client_loss(number, full, mine, start, ctx, rows, real)
            return loss, (loss.detach(), moved)

        def gradient(parameters: Tree, batch: Batch) -> Tree:
            result, (loss, moved) = grad(loss_of, has_aux=True)(parameters, batch)
            buffers.update(moved)  # each evaluation of the net updates BatchNorm's statistics
            losses.append(loss)
            gradients: Tree = result
            return gradients

        hook = self.phase.gradient
        assert hook is not None
        trained = {name: leaves[name] for name in self._names}
        context = Context(
            leaves=leaves,
            start=start,
            ctx=ctx,
            batch=Batch(x, y, mask, key, number),
            trained=trained,
        )
        gradients = hook(context, gradient)
        loss = losses[0] if losses else x.new_zeros(())
        return {name: gradients[name] for name in self._names}, loss, buffers

    def _project(self, count: int) -> None:
        """Replace the trained leaves by what `Phase.project` makes of them."""
        stack, project = self.stack, self.phase.project

        def one(leaves: Tree, start: Tree, ctx: Tree) -> Tree:
            assert project is not None
            trained = {name: leaves[name] for name in self._names}
            return project(Context(leaves=leaves, start=start, ctx=ctx, trained=trained))

        for name, value in stack.vmap_clients(one, count=count).items():
            stack.leaves.stacked[name][:count] = value


def _clip(gradients: Tree, largest: float) -> None:
    """Scale the gradients [K, ...] so that each client's norm over all leaves is at most `largest`.

    The dict gets new tensors, because the old ones may share memory.
    """
    squares = [value.reshape(len(value), -1).square().sum(dim=1) for value in gradients.values()]
    # [K] for each leaf -> [K]
    norm = torch.stack(squares).sum(dim=0).sqrt()
    factor = (largest / (norm + 1e-6)).clamp_max(1.0)
    for name, value in gradients.items():
        gradients[name] = value * factor.reshape(-1, *(1,) * (value.dim() - 1))


class StackedOptimizer:
    """An optimizer of PyTorch on stacked leaves.

    It works element by element, so a stack of clients is updated as each client alone would be.

    Args:
        config: The kind of optimizer, momentum and weight decay.
        lr: Learning rate, >= 0.
        clients: Number of clients K of an optimizer in a CUDA graph, whose state never moves and
            whose learning rate may be a tensor; None for one that makes its state as it goes.
    """

    def __init__(
        self, config: OptimizerConfig, lr: float | Tensor, clients: int | None = None
    ) -> None:
        self._config, self._lr, self._clients = config, lr, clients
        self._optimizer: torch.optim.Optimizer | None = None
        # Of each leaf: tensors with a row for each client of the first step, and others.
        self._states: list[dict[str, Any]] = []

    def reorder(self, index: Tensor) -> None:
        """Put the clients in another order; `index` [K] has the old position of each client."""
        for state in self._states:
            state.update({key: v[index[: len(v)]] for key, v in state.items() if _is_stacked(v)})

    def reset(self, lr: float) -> None:
        """Forget all steps, in place."""
        if isinstance(self._lr, Tensor):
            self._lr.fill_(lr)
        for state in self._states:
            for value in state.values():
                value.zero_()

    def step(self, leaves: Sequence[Tensor], gradients: Sequence[Tensor]) -> None:
        """Update the leaves [count, ...] of the first clients in place.

        Args:
            leaves: The trained leaves that have a gradient, the same ones in each step.
            gradients: Their gradients [count, ...].
        """
        if not leaves:
            return
        if self._optimizer is None:
            self._optimizer = self._made(leaves)
        optimizer = self._optimizer
        optimizer.param_groups[0]["params"] = list(leaves)
        optimizer.state.clear()
        for leaf, gradient, state in zip_longest(leaves, gradients, self._states):
            if self._clients is not None and gradient.stride() != leaf.stride():
                # The fused kernels read gradients in the order of memory, whatever their strides.
                gradient = torch.empty_like(leaf).copy_(gradient)
            leaf.grad = gradient
            # Clients that have finished are not a part of the leaves and of their state.
            optimizer.state[leaf] = {
                key: v[: len(leaf)] if _is_stacked(v) else v for key, v in (state or {}).items()
            }
        optimizer.step()
        self._states = self._states or [optimizer.state[leaf] for leaf in leaves]
        optimizer.zero_grad()

    def _made(self, leaves: Sequence[Tensor]) -> torch.optim.Optimizer:
        """Return the optimizer; in a CUDA graph its state is made before the first step."""
        if self._clients is None:
            return make_optimizer(self._config, list(leaves), self._lr)
        zeros = [leaf.new_zeros(self._clients, *leaf.shape[1:]) for leaf in leaves]
        optimizer = make_optimizer(self._config, zeros, self._lr, captured=True)
        # It also takes steps that are not captured, which PyTorch would warn of.
        vars(optimizer)["_warned_capturable_if_run_uncaptured"] = True
        for leaf in zeros:
            leaf.grad = torch.zeros_like(leaf)
        optimizer.step()
        self._states = [optimizer.state[leaf] for leaf in zeros]
        self.reset(float(self._lr))
        return optimizer


def _is_stacked(value: object) -> bool:
    """Return whether a value of an optimizer's state has one row per client."""
    return isinstance(value, Tensor) and value.dim() > 0
