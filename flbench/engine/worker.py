"""One client's program, step by step, on one device."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from lightning.fabric import Fabric
from torch import Tensor, nn

from flbench.client.module import ClientModule, apply, call, mode
from flbench.client.program import (
    Collector,
    GradientHook,
    Map,
    Phase,
    Step,
    merge_context,
)
from flbench.client.step import local_loss
from flbench.data import batches
from flbench.data.federation import Federation
from flbench.engine.base import RoundSettings
from flbench.tree import is_finite
from flbench.types import Batch, Dispatch, Info, Outputs, Tree, View

COLLECT = 512  # samples of one step of a Collector


@dataclass(frozen=True)
class Workbench:
    """What clients work with, one after the other.

    Attributes:
        fabric: device and precision.
        net: the net that each client fills with its own values.
        own: the net's own tensors by name.
        start: their seeded values.
        federation: the samples, on the device.
        dtype: of weights and inputs.
        has_batchnorm: whether a batch of one sample must be skipped.
        scaler: the fresh state of 16-mixed's loss scaler; empty for other precisions.
    """

    fabric: Fabric
    net: nn.Module
    own: Tree
    start: Tree
    federation: Federation
    dtype: torch.dtype
    has_batchnorm: bool
    scaler: dict[str, Any]

    @property
    def device(self) -> torch.device:
        """Where the net is."""
        return self.fabric.device

    def reset_scaler(self) -> None:
        """Give the next client a fresh loss scaler: it remembers, and clients must not."""
        if self.scaler:
            self.fabric.strategy.precision.load_state_dict(self.scaler)


class Worker:
    """One client at work: its leaves, what it knows (ctx), and what it has done.

    Args:
        bench: the net and data to work with.
        client: its id.
        settings: of the round.
        rows: what the client kept, [1, ...] each.
        dispatch: what the server sends it.
    """

    def __init__(
        self, bench: Workbench, client: int, settings: RoundSettings, rows: Tree, dispatch: Dispatch
    ) -> None:
        self._bench = bench
        self._client = client
        self._settings = settings
        self._losses: list[Tensor] = []
        self._lr = 0.0
        self.steps = 0
        self.start = dict(bench.start)
        self.ctx: Tree = {
            name: torch.tensor(number, dtype=bench.dtype, device=bench.device)
            for name, number in dispatch.numbers.items()
        }
        self.start |= {name: value[0].to(bench.device) for name, value in rows.items()}
        for message, row in ((dispatch.shared, False), (dispatch.rows, True)):
            for name, value in message.values.items():
                target = self.start if name in self.start else self.ctx
                target[name] = (value[0] if row else value).to(bench.device)
        # The net's own tensors are filled in place; a method's own leaves are copies.
        self.leaves: Tree = {
            name: bench.own[name] if name in bench.own else value.clone()
            for name, value in self.start.items()
        }
        with torch.no_grad():
            for name, leaf in bench.own.items():
                leaf.copy_(self.start[name])
        bench.reset_scaler()

    def take(self, step: Step) -> None:
        """Do one step of the program."""
        match step:
            case Phase():
                self._train(step)
            case Collector():
                self._collect(step)
            case Map():
                self._map(step)

    def mean_loss(self) -> float:
        """Return the mean training loss over all steps; NaN without one."""
        return float(torch.stack(self._losses).sum()) / self.steps if self.steps else float("nan")

    def loss_is_finite(self) -> bool:
        """Return whether all training losses were finite."""
        return not self._losses or bool(torch.stack(self._losses).sum().isfinite())

    def diagnosis(self, leaves: Tree) -> str:
        """Say what is not finite."""
        if not self.loss_is_finite():
            return "its training loss is not finite"
        bad = next(name for name in leaves if not is_finite({name: leaves[name]}))
        return f"its leaf `{bad}` is not finite"

    def _train(self, phase: Phase) -> None:
        bench = self._bench
        fabric, train = bench.fabric, self._settings.train
        self._lr = phase.optimizer.lr * self._settings.lr_factor
        module = ClientModule(
            self._bench.net, phase, self.leaves, self.start, self.ctx, lr=self._lr
        )
        module.train()
        trained = module.trained()
        parameters = list(trained.values())
        if not parameters:
            raise ValueError(
                f"the phase trains {phase.train!r}, which names no parameter of the client"
            )
        optimizer = module.configure_optimizers()
        rows = self._bench.federation.rows(phase.rows, self._client, self._settings.draw)
        skip_single = bench.has_batchnorm and phase.batchnorm == "train"
        records = [_Recording(collector) for collector in phase.record]
        cap = phase.epochs if phase.epochs is not None else phase.steps or 0
        epoch_losses = torch.full((cap,), torch.nan, dtype=torch.float64, device=self._bench.device)
        taken = 0
        for number in range(cap):
            if phase.until is not None and bool(
                phase.until(epoch_losses, torch.tensor(number), self.ctx)
            ):
                break
            total: Tensor | None = None
            count = 0
            for batch in batches.epoch(
                self._bench.federation,
                rows,
                self._client,
                number,
                self._settings.draw,
                train,
                dtype=bench.dtype,
                skip_single=skip_single,
                first_step=taken,
            ):
                optimizer.zero_grad()
                view = module.view(batch)
                if phase.gradient is None:
                    with fabric.autocast():
                        loss = local_loss(phase.terms, view)
                    fabric.backward(loss)
                else:
                    loss = self._hooked_gradient(phase, phase.gradient, trained, batch)
                self._record(records, view)
                if phase.clip is not None:
                    fabric.strategy.precision.unscale_gradients(optimizer)
                    nn.utils.clip_grad_norm_(parameters, phase.clip)
                fabric.strategy.optimizer_step(optimizer)
                if phase.project is not None:
                    with torch.no_grad():
                        for name, value in phase.project(trained, self.ctx).items():
                            trained[name].copy_(value)
                loss = loss.detach()
                total = loss if total is None else total + loss
                count += 1
                taken += 1
                if phase.steps is not None and taken >= phase.steps:
                    break
            if total is not None:
                self._losses.append(total)
                epoch_losses[number] = total / count
            if count == 0 or (phase.steps is not None and taken >= phase.steps):
                break
        self.steps += taken
        for record in records:
            record.finish(self)
        for leaf in parameters:
            leaf.requires_grad_(False)
            leaf.grad = None

    def _hooked_gradient(
        self, phase: Phase, hook: GradientHook, trained: Tree, batch: Batch
    ) -> Tensor:
        """Let a hook say what the optimiser sees.

        Return the loss of its first look, 0 if it took none.
        """
        losses: list[Tensor] = []

        def grad(parameters: Tree, batch: Batch) -> Tree:
            here = {name: value.detach().requires_grad_() for name, value in parameters.items()}
            leaves = {**self.leaves, **here}
            view = View(
                partial(self._forward, phase, leaves, batch.x),
                batch=batch,
                ctx=self.ctx,
                leaves=leaves,
                start=self.start,
                apply=partial(apply, self._bench.net),
            )
            with torch.enable_grad(), self._bench.fabric.autocast():
                loss = local_loss(phase.terms, view)
            losses.append(loss.detach())
            found = torch.autograd.grad(loss, list(here.values()), allow_unused=True)
            return {
                name: torch.zeros_like(value) if gradient is None else gradient
                for (name, value), gradient in zip(here.items(), found, strict=True)
            }

        gradient = hook(
            grad, {name: leaf.detach() for name, leaf in trained.items()}, batch, self.ctx
        )
        for name, leaf in trained.items():
            leaf.grad = gradient[name].detach()
        return losses[0] if losses else torch.zeros((), device=self._bench.device)

    def _forward(self, phase: Phase, leaves: Tree, x: Tensor) -> Outputs:
        if phase.weights is not None:
            return call(self._bench.net, phase.weights(leaves, self.ctx), x)
        return call(self._bench.net, {name: leaves[name] for name in self._bench.own}, x)

    def _record(self, records: "list[_Recording]", view: View) -> None:
        with torch.no_grad():
            for record in records:
                record.add(view)

    def _collect(self, collector: Collector) -> None:
        """Run a Collector over the client's rows and write what it finds into ctx."""
        rows = self._bench.federation.rows(collector.rows, self._client, self._settings.draw)
        recording = _Recording(collector)
        with torch.no_grad(), mode(self._bench.net, train=False):
            for batch in batches.passes(self._bench.federation, rows, self._bench.dtype, COLLECT):
                view = View(
                    partial(_outputs, self._bench.net, batch.x),
                    batch=batch,
                    ctx=self.ctx,
                    leaves=self.leaves,
                    start=self.start,
                    apply=partial(apply, self._bench.net),
                )
                with self._bench.fabric.autocast():
                    recording.add(view)
            recording.finish(self)

    def _map(self, step: Map) -> None:
        """Let a Map change leaves."""
        bench = self._bench
        samples = len(bench.federation.partition.parts["train"][self._client])
        info = Info(
            torch.tensor(self.steps, device=bench.device),
            torch.tensor(self._lr, dtype=bench.dtype, device=bench.device),
            torch.tensor(samples, device=bench.device),
            torch.tensor(self._settings.draw.round, device=bench.device),
        )
        with torch.no_grad():
            changed = step.fn(self.leaves, self.start, self.ctx, info)
            # Copies first: a Map may hand over one leaf's tensor as another leaf's value.
            for name, value in [(name, value.clone()) for name, value in changed.items()]:
                if name in self._bench.own:
                    self.leaves[name].copy_(value)
                else:
                    self.leaves[name] = value


class _Recording:
    """What a Collector has found so far."""

    def __init__(self, collector: Collector) -> None:
        self._collector = collector
        self._found: dict[str, Any] = {}

    def add(self, view: View) -> None:
        """Put one batch's tensors together with those before it."""
        together: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
            "sum": torch.add,
            "min": torch.minimum,
            "max": torch.maximum,
            "rows": lambda a, b: torch.cat([a, b]),
        }
        for key, value in self._collector.fn(view).items():
            reduce = together[self._collector.reduction(key)]
            self._found[key] = reduce(self._found[key], value) if key in self._found else value

    def finish(self, client: Worker) -> None:
        """Write the result into the client's ctx."""
        found: Tree = self._found
        if self._collector.finish is not None:
            found = self._collector.finish(found, client.leaves, client.ctx)
        merge_context(
            client.ctx, self._collector.name, {key: value.clone() for key, value in found.items()}
        )


def _outputs(net: nn.Module, x: Tensor) -> Outputs:
    outputs: Outputs = net(x)
    return outputs
