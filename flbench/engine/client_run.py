"""One client's local program in a round, step by step, on one device."""

from functools import partial
from types import SimpleNamespace
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from flbench.client.forward import make_step_context, mode
from flbench.client.logged import Log
from flbench.client.module import ClientModule
from flbench.client.program import Phase, Statistic, Step, Transform
from flbench.client.recording import Recording
from flbench.core.raised import placed
from flbench.core.rng import seeded
from flbench.core.tree import is_finite, where_masked
from flbench.core.types import Batch, Dispatch, Info, Outputs, Tree
from flbench.data import batches
from flbench.engine.base import STATISTIC_BATCH, RoundSettings
from flbench.engine.environment import Environment
from flbench.engine.training import Training
from flbench.losses import TaskLoss
from flbench.models import fixed
from flbench.models.base import is_lightning

if TYPE_CHECKING:
    from flbench.client.own_module import OwnModule
    from flbench.models.lightning_net import LightningNet


class ClientRun:
    """One client in one round: its leaves, its ctx, and the steps that it has taken.

    Args:
        environment: Net, samples, device and precision.
        client: The client's id, in [0, N).
        settings: Settings of the round.
        rows: The leaves that the client keeps between rounds, [1, ...] each.
        dispatch: What the server sends to this client.
        has_own: Whether the program has code that flbench does not own.

    Attributes:
        start: The leaves at the beginning of the program: the seeded values, overlaid by `rows`,
            overlaid by the dispatch.
        leaves: The leaves now. Those of the net are the net's own tensors.
        ctx: Named tensors that the server sent or that Statistics computed.
        steps: Optimizer steps taken so far.
    """

    def __init__(
        self,
        environment: Environment,
        client: int,
        settings: RoundSettings,
        rows: Tree,
        dispatch: Dispatch,
        *,
        has_own: bool = False,
    ) -> None:
        env = self._environment = environment
        self._has_own = has_own
        self._client = client
        self._settings = settings
        self._losses: list[Tensor] = []
        self._lr = 0.0
        self._log: Log | None = None
        self.steps = 0
        self.start = dict(env.start)
        self.ctx: Tree = {
            name: torch.tensor(number, dtype=env.dtype, device=env.device)
            for name, number in dispatch.numbers.items()
        }
        self.start |= {name: value[0].to(env.device) for name, value in rows.items()}
        known = set(self.start)
        for message, has_client_axis in ((dispatch.shared, False), (dispatch.rows, True)):
            for name, value in message.values.items():
                target = self.start if name in known else self.ctx
                value = (value[0] if has_client_axis else value).to(env.device)
                if name in known and name in message.mask:
                    mask = message.mask[name].to(env.device)
                    mask = mask[0] if has_client_axis else mask
                    value = where_masked(mask, value, self.start[name])
                target[name] = value
        # The net's own tensors are filled in place; leaves that a method adds are copied.
        self.leaves: Tree = {
            name: env.own[name] if name in env.own else value.clone()
            for name, value in self.start.items()
        }
        unchanged = fixed.of(env.net).leaves
        with torch.no_grad():
            for name, leaf in env.own.items():
                if name not in unchanged:
                    leaf.copy_(self.start[name])
        env.reset_scaler()

    def execute(self, step: Step) -> None:
        """Run one step of the local program.

        For nets that may draw random numbers, and for programs with code that flbench does not own,
        the global random generators begin at a seed of the run, the client and the round.
        """
        with placed(self._place):
            if not self._environment.may_draw and not self._has_own:
                self._execute(step)
                return
            part = () if isinstance(step, Phase) else (1,)
            with seeded(self._settings.draw.module_seed(self._client, *part)):
                self._execute(step)

    def _place(self) -> str:
        """Return client and round, for messages."""
        called = self._environment.federation.partition.called(self._client)
        return f"client {called} in {self._settings.draw.title}"

    def _execute(self, step: Step) -> None:
        """Run one step of the local program, with the random generators as they are."""
        match step:
            case Phase():
                self._run_phase(step)
            case Statistic():
                self._run_statistic(step)
            case Transform():
                self._run_transform(step)

    def mean_loss(self) -> float:
        """Return the mean training loss over all steps; NaN if no step was taken."""
        return float(torch.stack(self._losses).sum()) / self.steps if self.steps else float("nan")

    def loss_is_finite(self) -> bool:
        """Return whether all training losses were finite."""
        return not self._losses or bool(torch.stack(self._losses).sum().isfinite())

    def failure_reason(self, leaves: Tree) -> str:
        """Return a sentence that names the first value that is not finite.

        Args:
            leaves: The leaves that were checked; at least one of them, or the loss, is not finite.
        """
        if not self.loss_is_finite():
            return "its training loss is not finite"
        bad = next(name for name in leaves if not is_finite({name: leaves[name]}))
        return f"its tensor `{bad}` is not finite"

    def _run_phase(self, phase: Phase) -> None:
        """Train the leaves as a phase says."""
        module = self._module(phase)
        training = Training(self._environment, module, self._client, self._settings)
        self._lr = module.lr
        self._losses += training.run()
        self.steps += training.steps

    def _module(self, phase: Phase) -> ClientModule:
        """Return the module that trains a phase: flbench's, or one around that of the user."""
        net, factor = self._environment.net, self._settings.lr_factor
        is_of_method = not any(isinstance(term, TaskLoss) for term in phase.terms)
        if is_of_method or not is_lightning(net):
            lr = phase.optimizer.lr * factor
            return ClientModule(net, phase, self.leaves, self.start, self.ctx, lr=lr)
        self._log = self._log or Log()
        return self._own_module(net, phase, self._log)

    def _own_module(self, net: "LightningNet", phase: Phase, log: Log) -> "OwnModule":
        """Return a module around that of the user."""
        from flbench.client.own_module import OwnModule

        env, settings = self._environment, self._settings
        counts = env.federation.counts[self._client]  # [C]
        has_classes = env.federation.output is not None
        position = SimpleNamespace(
            round=settings.draw.round,
            max_rounds=settings.train.rounds,
            num_training_samples=int(counts.sum()),
            class_counts=counts.to(env.device, env.dtype) if has_classes else None,
        )
        return OwnModule(
            net,
            phase,
            self.leaves,
            self.start,
            self.ctx,
            position=position,
            factor=settings.lr_factor,
            log=log,
            pack=partial(env.federation.packed, dtype=env.dtype),
        )

    def logged(self) -> Tree:
        """Return what a LightningModule of the user has logged; see `Log.tree`."""
        return {} if self._log is None else self._log.tree()

    def _run_statistic(self, statistic: Statistic) -> None:
        """Compute a Statistic over the client's samples and write the result into ctx."""
        env, recording = self._environment, Recording(statistic)
        rows = env.federation.rows(statistic.samples, self._client, self._settings.draw)
        for batch in batches.in_order(env.federation, rows, env.dtype, STATISTIC_BATCH):
            recording.merge(self._observe(recording, batch))
        with torch.no_grad():
            recording.finish(self.leaves, self.ctx)

    def _observe(self, recording: Recording, batch: Batch) -> Tree:
        """Return a Statistic's tensors for one batch."""
        env = self._environment
        with torch.no_grad(), mode(env.net, train=False), env.fabric.autocast():
            forward = partial(_forward, env.net, batch.x)
            context = make_step_context(env.net, forward, batch, self.ctx, self.leaves, self.start)
            found = recording.observe(context)
            env.write_back()
            return found

    def _run_transform(self, step: Transform) -> None:
        """Replace leaves by what a Transform returns."""
        env = self._environment
        samples = len(env.federation.partition.parts["train"][self._client])
        info = Info(
            torch.tensor(self.steps, device=env.device),
            torch.tensor(self._lr, dtype=env.dtype, device=env.device),
            torch.tensor(samples, device=env.device),
            torch.tensor(self._settings.draw.round, device=env.device),
        )
        with torch.no_grad():
            changed = step.fn(self.leaves, self.start, self.ctx, info)
            # All values are copied first: a Transform may return one leaf as another leaf's value.
            for name, value in [(name, value.clone()) for name, value in changed.items()]:
                if name in env.own:
                    self.leaves[name].copy_(value)
                else:
                    self.leaves[name] = value


def _forward(net: nn.Module, x: Tensor) -> Outputs:
    """Return the net's outputs for x [B, ...]."""
    outputs: Outputs = net(x)
    return outputs
