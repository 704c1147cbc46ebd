"""One phase of a block of clients: each step is one vmap over those that still train.

The clients stand in the order of their steps, most first. So those that take a step are always the
first ones, a finished client costs nothing, and all have taken equally many steps: optimisers that
count steps (Adam) do on the stack exactly what they do client by client.
"""

from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.func import grad
from torch.optim.adam import adam
from torch.optim.adamw import adamw
from torch.optim.sgd import sgd

from flbench.client.module import freeze_statistics, is_buffer, mode
from flbench.client.program import Phase
from flbench.client.recording import REDUCTIONS
from flbench.client.step import local_loss, make_optimizer
from flbench.config.schema import OptimizerConfig
from flbench.core.types import Batch, Tree
from flbench.data.batches import PIECE
from flbench.engine import plan
from flbench.engine.stack import Stack


def train(stack: Stack, phase: Phase) -> tuple[int, int]:
    """Train all clients of a stack as a phase says.

    Returns: rows of all batches, and how many of them were no padding.
    Raises: ValueError if the phase trains nothing, or records what cannot be stacked.
    """
    env = stack.environment
    stack.lr = phase.optimizer.lr * stack.settings.lr_factor
    names = _trained(stack, phase)
    if not names:
        raise ValueError(
            f"the phase trains {phase.train!r}, which names no parameter of the client"
        )
    skip = env.has_batchnorm and phase.batchnorm == "train"
    work = plan.make(env.federation, phase, stack.ids, stack.settings, skip_single=skip)
    moving = [name for name in env.start if name in env.buffers]
    # A second model's statistics too: the net writes to them where `weights` calls it with them.
    written = [name for name in stack.leaves.names if is_buffer(name, env.buffers)]
    stack.leaves.separate([*names, *written], len(stack))
    optimizer = StackedOptimizer(phase.optimizer, stack.lr)
    run = _Run(stack, phase, work, names, moving, optimizer)
    with mode(env.net, train=True):
        if phase.batchnorm == "eval":
            freeze_statistics(env.net)
        run.all()
    return run.slots, run.real


def _trained(stack: Stack, phase: Phase) -> list[str]:
    """Return the leaves that the phase trains, in the stack's order."""
    return [
        name
        for name in stack.leaves.names
        if phase.trains(name)
        and not is_buffer(name, stack.environment.buffers)
        and stack.leaves[name].is_floating_point()
    ]


class _Run:
    """The steps of one phase."""

    def __init__(
        self,
        stack: Stack,
        phase: Phase,
        work: plan.Plan,
        names: list[str],
        moving: list[str],
        optimizer: "StackedOptimizer",
    ) -> None:
        self._stack, self._phase, self._plan = stack, phase, work
        self._names, self._moving = names, moving
        self._optimizer = optimizer
        self._found: list[Tree] = [{} for _ in phase.record]
        self.real = self.slots = 0
        # [B, T], 0 where a client takes no step.
        self._losses = torch.zeros(
            work.ends.shape, dtype=torch.float64, device=stack.environment.device
        )
        self._begin = 0  # the step that the window begins with
        self._window: tuple[Tensor, ...] = (torch.empty(0),)
        self._sort()

    def all(self) -> None:
        """Take all steps, and write what was recorded."""
        self._record_nothing()
        step = 0
        while count := self._plan.active(step):
            if self._phase.until is not None and self._stop(step, count):
                continue  # others may be active now
            self._step(step, count)
            step += 1
        self._stack.steps += np.minimum(self._plan.steps, step)
        self._stack.loss += self._losses.sum(dim=1)
        for statistic, found in zip(self._phase.record, self._found, strict=True):
            if statistic.finish is not None:
                finish = statistic.finish
                found = self._stack.each(
                    lambda leaves, start, ctx, got, finish=finish: finish(got, leaves, ctx), found
                )
            self._stack.know(statistic.name, found)

    def _record_nothing(self) -> None:
        """Show the Statistics one padded row: what they find of it is the neutral beginning."""
        stack, env = self._stack, self._stack.environment
        row = torch.zeros(len(stack), 1, dtype=torch.int64, device=env.device)
        batch = (stack.inputs(row), env.federation.y[row], row > 0, row)
        with torch.no_grad(), mode(env.net, train=False):
            for statistic, whole in zip(self._phase.record, self._found, strict=True):
                found = stack.each(partial(stack.observe, statistic), batch)
                # It is written to, and may be a leaf.
                whole |= {key: value.clone() for key, value in found.items()}

    def _sort(self) -> None:
        order = np.argsort(-self._plan.steps, kind="stable")
        self._plan.reorder(order)
        self._stack.reorder(order)
        index = torch.from_numpy(order).to(self._stack.environment.device)
        self._losses = self._losses[index]
        bundles = (self._stack.leaves, self._stack.start, self._stack.ctx)
        trees = [tree for bundle in bundles for tree in (bundle.rows, bundle.shared)]
        # A client's names come in an order of their own: so do buffers and gradients.
        names = tuple(tuple(bundle.names) for bundle in bundles)
        self._inputs, self._kind = self._stack.environment.traces.gather(
            (self._phase, names), *trees
        )
        self._window = (torch.empty(0),)
        self._optimizer.reorder(index)
        self._found = [{k: v[index[: len(v)]] for k, v in found.items()} for found in self._found]

    def _stop(self, step: int, count: int) -> bool:
        """Ask the clients that begin an epoch whether they are done; return whether any is."""
        begins = self._plan.first[:count, step]
        until = self._phase.until
        if not begins.any() or until is None:
            return False
        epochs = self._plan.epoch[:count, step]
        means = self._means(step, count)
        flags = self._stack.each(
            lambda leaves, start, ctx, means, done: until(means, done, ctx),
            means,
            epochs,
            count=count,
        )
        ends = begins & flags.cpu().numpy()
        if not ends.any():
            return False
        self._plan.steps[:count][ends] = step
        self._sort()
        return True

    def _means(self, step: int, count: int) -> Tensor:
        """Return the mean loss of each epoch so far, [count, epochs]; NaN of those to come."""
        phase, losses = self._phase, self._losses[:count, :step]
        cap = phase.epochs if phase.epochs is not None else phase.steps or 0
        sums, counts = losses.new_zeros(2, count, cap)
        epochs = self._plan.epoch[:count, :step]
        sums.scatter_add_(1, epochs, losses)
        counts.scatter_add_(1, epochs, torch.ones_like(losses))
        return torch.where(counts > 0, sums / counts.clamp_min(1), torch.nan)

    def _step(self, step: int, count: int) -> None:
        stack, phase = self._stack, self._phase
        fill = self._plan.fill[:count, step]
        size = int(fill.max())
        self.real, self.slots = self.real + int(fill.sum()), self.slots + count * size
        full = bool((fill == size).all())
        if not 0 <= step - self._begin < len(self._window[0]):
            self._begin, self._window = step, self._gathered(step, count)
        batch = tuple(part[step - self._begin, :count, :size] for part in self._window)
        number = self._plan.numbers[step]
        gradients, loss, buffers, found = self._traced(number, full, batch, count)
        if phase.clip is not None:
            _clip(gradients, phase.clip)
        elif phase.optimizer.nesterov:  # writes to gradients on a GPU; they may share memory
            gradients = {name: value.clone() for name, value in gradients.items()}
        trained = [stack.leaves.rows[name][:count] for name in self._names]
        with torch.no_grad():
            self._optimizer.step(trained, [gradients[name] for name in self._names])
            for name, value in buffers.items():
                stack.leaves.rows[name][:count] = value
            if phase.project is not None:
                self._project(count)
            self._losses[:count, step] = loss.double()
            for statistic, whole, new in zip(phase.record, self._found, found, strict=True):
                self._record(statistic, whole, new)

    def _gathered(self, step: int, count: int) -> tuple[Tensor, ...]:
        """Return x, y, mask and key [W, count, S, ...] of this step and those after it."""
        env, work = self._stack.environment, self._plan
        size = work.rows.shape[2]
        steps = slice(step, step + max(1, PIECE // (count * size)))
        rows, keys = (part[:count, steps].transpose(0, 1) for part in (work.rows, work.keys))
        x = self._stack.inputs(rows.reshape(-1, size), keys.reshape(-1, size))
        mask = torch.arange(size, device=env.device) < work.ends[:count, steps].T[..., None]
        return x.reshape(*rows.shape, *x.shape[2:]), env.federation.y[rows], mask, keys

    def _traced(
        self, number: Tensor, full: bool, batch: tuple[Tensor, ...], count: int
    ) -> tuple[Tree, Tensor, Tree, list[Tree]]:
        """Return gradients, losses, buffers and what Statistics see, [count, ...] each."""
        look = self._gradients if self._phase.gradient is None else self._looked
        x, y, mask, key = batch
        # Without padding the mask is no input but a constant.
        given = [x, y, key, number] if full else [x, y, key, number, mask]
        kind, step = (self._kind, full, count), partial(look, number, full, batch, count)
        return self._stack.environment.traces.take(kind, step, self._inputs, given)

    def _looked(
        self, number: Tensor, full: bool, batch: Any, count: int
    ) -> tuple[Tree, Tensor, Tree, list[Tree]]:
        """Return what a gradient hook makes of the batch, as `_gradients` does without one."""
        one = partial(self._hooked, number, full)
        gradients, loss, buffers = self._stack.each(one, batch, count=count)
        return gradients, loss, buffers, []

    def _gradients(
        self, number: Tensor, full: bool, batch: Any, count: int
    ) -> tuple[Tree, Tensor, Tree, list[Tree]]:
        """Return gradients, losses, buffers and what Statistics see, [count, ...] each.

        A client's loss depends on its own leaves alone: the gradient of the sum of all losses holds
        each client's own. One backward pass over stacked operations is faster than vmap of grad.
        """
        rows = self._stack.leaves.rows
        whole = {name: rows[name] for name in self._names}
        trained = {n: value[:count].detach().requires_grad_() for n, value in whole.items()}
        rows.update(trained)
        try:
            loss, (buffers, found) = self._stack.each(
                partial(self._loss, number, full), batch, count=count
            )
        finally:
            rows.update(whole)
        found_gradients = torch.autograd.grad(loss.sum(), list(trained.values()), allow_unused=True)
        gradients = {
            name: torch.zeros_like(value) if gradient is None else gradient
            for (name, value), gradient in zip(trained.items(), found_gradients, strict=True)
        }
        return gradients, loss.detach(), buffers, found

    def _loss(
        self, number: Tensor, full: bool, leaves: Tree, start: Tree, ctx: Tree, batch: Any
    ) -> tuple[Tensor, tuple[Tree, list[Tree]]]:
        """Return one client's loss, its buffers after it, and what its Statistics see."""
        stack, phase = self._stack, self._phase
        x, y, mask, key = batch
        buffers = {name: leaves[name].clone() for name in self._moving}
        context = stack.step_context(
            {**leaves, **buffers}, start, ctx, Batch(x, y, mask, key, number), weights=phase.weights
        )
        stack.environment.padding.mask = None if full else mask
        with stack.environment.precision():
            loss = local_loss(phase.terms, context)
            found = [
                {name: value.detach() for name, value in statistic.fn(context).items()}
                for statistic in phase.record
            ]
        stack.environment.padding.mask = None
        return loss, (buffers, found)

    def _hooked(
        self, number: Tensor, full: bool, leaves: Tree, start: Tree, ctx: Tree, batch: Any
    ) -> tuple[Tree, Tensor, Tree]:
        """Return the gradient that a hook makes, the loss of its first look, and the buffers."""
        x, y, mask, key = batch
        buffers = {name: leaves[name] for name in self._moving}
        losses: list[Tensor] = []

        def loss_of(trained: Tree, batch: Batch) -> tuple[Tensor, tuple[Tensor, Tree]]:
            mine = {**leaves, **trained, **buffers}
            rows = (batch.x, batch.y, batch.mask, batch.key)
            loss, (moved, _) = self._loss(number, full, mine, start, ctx, rows)
            return loss, (loss.detach(), moved)

        def look(parameters: Tree, batch: Batch) -> Tree:
            result, (loss, moved) = grad(loss_of, has_aux=True)(parameters, batch)
            buffers.update(moved)  # each look at the net counts for BatchNorm
            losses.append(loss)
            gradients: Tree = result
            return gradients

        hook = self._phase.gradient
        assert hook is not None
        trained = {name: leaves[name] for name in self._names}
        gradients = hook(look, trained, Batch(x, y, mask, key, number), ctx)
        loss = losses[0] if losses else x.new_zeros(())
        return {name: gradients[name] for name in self._names}, loss, buffers

    def _project(self, count: int) -> None:
        stack, project = self._stack, self._phase.project

        def one(leaves: Tree, start: Tree, ctx: Tree) -> Tree:
            assert project is not None
            return project({name: leaves[name] for name in self._names}, ctx)

        for name, value in stack.each(one, count=count).items():
            stack.leaves.rows[name][:count] = value

    def _record(self, statistic: Any, whole: Tree, new: Tree) -> None:
        for key, value in new.items():
            reduction = statistic.reduction(key)
            if reduction == "rows":
                raise ValueError(
                    f"the Statistic `{statistic.name}` records rows one after the other, which"
                    " clients of different size cannot do at once"
                )
            count = len(value)
            whole[key][:count] = REDUCTIONS[reduction](whole[key][:count], value)


def _clip(gradients: Tree, largest: float) -> None:
    """Bound the norm of each client's gradients [B, ...]; they may share memory, and get others."""
    squares = [value.reshape(len(value), -1).square().sum(dim=1) for value in gradients.values()]
    norm = torch.stack(squares).sum(dim=0).sqrt()
    factor = (largest / (norm + 1e-6)).clamp_max(1.0)
    for name, value in gradients.items():
        gradients[name] = value * factor.reshape(-1, *(1,) * (value.dim() - 1))


class StackedOptimizer:
    """PyTorch's own optimisers on stacked leaves: they work element by element.

    Args:
        config: which optimiser.
        lr: learning rate.
    """

    def __init__(self, config: OptimizerConfig, lr: float) -> None:
        self._name = config.name
        self._options = make_optimizer(config, [torch.zeros(0)], lr).defaults
        self._first: list[Tensor | None] = []  # momentum, or Adam's first moment
        self._second: list[Tensor] = []
        self._steps: list[Tensor] = []

    def reorder(self, index: Tensor) -> None:
        """Put the clients in another order."""
        self._first = [None if v is None else v[index[: len(v)]] for v in self._first]
        self._second = [value[index[: len(value)]] for value in self._second]

    def step(self, leaves: Sequence[Tensor], gradients: Sequence[Tensor]) -> None:
        """Change the leaves [k, ...] of the first clients in place."""
        if self._name == "sgd":
            self._sgd(list(leaves), list(gradients))
        else:
            self._adam(list(leaves), list(gradients))

    def _sgd(self, leaves: list[Tensor], gradients: list[Tensor]) -> None:
        names = ("weight_decay", "momentum", "lr", "dampening", "nesterov", "maximize")
        first = self._first or [None] * len(leaves)
        views = [None if value is None else value[: len(leaves[0])] for value in first]
        sgd(leaves, gradients, views, **{name: self._options[name] for name in names})
        if not self._first:
            self._first = views  # PyTorch has put the first momentum there, if there is any

    def _adam(self, leaves: list[Tensor], gradients: list[Tensor]) -> None:
        if not self._second:
            self._first = [torch.zeros_like(leaf) for leaf in leaves]
            self._second = [torch.zeros_like(leaf) for leaf in leaves]
            self._steps = [torch.zeros((), dtype=torch.float32) for _ in leaves]
        names = ("amsgrad", "lr", "weight_decay", "eps", "maximize")
        beta1, beta2 = self._options["betas"]
        (adam if self._name == "adam" else adamw)(
            leaves,
            gradients,
            [value[: len(leaves[0])] for value in self._first if value is not None],
            [value[: len(leaves[0])] for value in self._second],
            [],
            self._steps,
            beta1=beta1,
            beta2=beta2,
            **{name: self._options[name] for name in names},
        )
