"""One client's program, step by step, on one device."""

from functools import partial

import torch
from torch import Tensor, nn

from flbench.client.module import ClientModule, mode, view_of
from flbench.client.program import Phase, Statistic, Step, Transform
from flbench.core.tree import is_finite, where_masked
from flbench.core.types import Batch, Dispatch, Info, Outputs, Tree
from flbench.data import batches
from flbench.engine.base import RoundSettings
from flbench.engine.recording import Recording
from flbench.engine.training import Training
from flbench.engine.workbench import Workbench

COLLECT = 512  # samples of one step of a Statistic


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
        known = set(self.start)
        for message, row in ((dispatch.shared, False), (dispatch.rows, True)):
            for name, value in message.values.items():
                target = self.start if name in known else self.ctx
                value = (value[0] if row else value).to(bench.device)
                if name in known and name in message.mask:
                    mask = message.mask[name].to(bench.device)
                    value = where_masked(mask[0] if row else mask, value, self.start[name])
                target[name] = value
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
            case Statistic():
                self._collect(step)
            case Transform():
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
        """Train as a phase says."""
        self._lr = phase.optimizer.lr * self._settings.lr_factor
        module = ClientModule(
            self._bench.net, phase, self.leaves, self.start, self.ctx, lr=self._lr
        )
        training = Training(self._bench, module, self._client, self._settings)
        self._losses += training.run()
        self.steps += training.steps

    def _collect(self, statistic: Statistic) -> None:
        """Run a Statistic over the client's rows and write what it finds into ctx."""
        bench, recording = self._bench, Recording(statistic)
        rows = bench.federation.rows(statistic.samples, self._client, self._settings.draw)
        inputs, kind = bench.traces.gather(statistic, self.leaves, self.start, self.ctx)
        for batch in batches.in_order(bench.federation, rows, bench.dtype, COLLECT):
            look = partial(self._look, recording, batch)
            recording.merge(bench.traces.take(kind, look, inputs, batch))
        with torch.no_grad():
            recording.finish(self.leaves, self.ctx)

    def _look(self, recording: Recording, batch: Batch) -> Tree:
        """Return what a Statistic sees in a batch."""
        bench = self._bench
        with torch.no_grad(), mode(bench.net, train=False), bench.fabric.autocast():
            forward = partial(_outputs, bench.net, batch.x)
            context = view_of(bench.net, forward, batch, self.ctx, self.leaves, self.start)
            return recording.see(context)

    def _map(self, step: Transform) -> None:
        """Let a Transform change leaves."""
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
            # Copies first: a Transform may hand over one leaf's tensor as another leaf's value.
            for name, value in [(name, value.clone()) for name, value in changed.items()]:
                if name in self._bench.own:
                    self.leaves[name].copy_(value)
                else:
                    self.leaves[name] = value


def _outputs(net: nn.Module, x: Tensor) -> Outputs:
    outputs: Outputs = net(x)
    return outputs
