"""One client's local program in a round, step by step, on one device."""

import math
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from time import perf_counter
from types import SimpleNamespace
from typing import TYPE_CHECKING

import torch
from torch import Tensor
from torch.amp.grad_scaler import GradScaler

from flbench.client.forward import apply
from flbench.client.logged import Log
from flbench.client.module import ClientModule
from flbench.client.program import Phase, Statistic, Step, Transform
from flbench.client.recording import Recording
from flbench.client.tensor_names import check_ends, naming
from flbench.core.rng import seeded
from flbench.core.tree import is_finite, where_masked
from flbench.core.types import Batch, Context, Failure, Info, Message, Results, Tree
from flbench.core.user_code_errors import placed
from flbench.data import batches
from flbench.engine.base import STATISTIC_BATCH, LocalWork
from flbench.engine.environment import Environment
from flbench.engine.training import Training
from flbench.losses import TaskLoss
from flbench.models import freezing
from flbench.models.base import is_lightning

if TYPE_CHECKING:
    from flbench.client.own_module import OwnModule
    from flbench.models.lightning_net import LightningNet


class ClientRun:
    """One client in one round: its leaves, its ctx, and the steps that it has taken.

    Args:
        environment: Net, samples, device and precision.
        client: The client's id, in [0, N).
        work: What the client computes.
        is_seeded: Whether the net may draw random numbers, or the program has code of the user.

    Attributes:
        start: The leaves at the beginning of the program: the seeded values, overlaid by those that
            the client keeps, overlaid by the dispatch.
        leaves: The leaves now. Those of the net are the net's own tensors.
        ctx: Named tensors that the server sent or that Statistics computed.
        steps: Optimizer steps taken so far.
    """

    def __init__(
        self, environment: Environment, client: int, work: LocalWork, *, is_seeded: bool
    ) -> None:
        env = self._environment = environment
        self._is_seeded = is_seeded
        # Each client has a new one. PyTorch's initial scale of 2**16 often overflows, and a client
        # would lose its first steps until the scale is small enough.
        is_half = env.autocast is torch.float16
        self._scaler = GradScaler(env.device.type, init_scale=2.0**10, enabled=is_half)
        self._client = client
        self._work, self._settings = work, work.settings
        one = torch.tensor([client])
        rows, dispatch = work.rows(one), work.dispatch(one)
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
        known = self.start.keys() | dispatch.leaves
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
        unchanged = freezing.of(env.net).leaves
        with torch.no_grad():
            for name, leaf in env.own.items():
                if name not in unchanged:
                    leaf.copy_(self.start[name])

    def results(self) -> Results:
        """Run the program and then `observe`; return the results; see `Engine.run`."""
        program, observe = self._work.program, self._work.observe
        for step in program.steps:
            with naming(step, program, self.leaves, self.ctx):
                self._execute(step)
        check_ends(program, self.leaves.keys())
        # Copies, because the steps of `observe` may change leaves.
        ends = {
            name: value[None].clone()
            for name, value in self.leaves.items()
            if name in program.keeps | program.sends
        }
        total = torch.stack(self._losses).sum() if self._losses else torch.tensor(math.nan)
        if reason := self._why_failed(self.leaves if self.steps else ends, total):
            nothing = torch.zeros(0, dtype=torch.int64)
            failure = Failure(self._client, reason)
            return Results(nothing, nothing, nothing, {}, Message(), {}, (failure,))
        masks = {name: self.leaves[mask][None].clone() for name, mask in program.masks}
        begin, steps = perf_counter(), self.steps
        for step in observe:
            self._execute(step)
        prefixes = tuple(f"{step.name}." for step in observe if isinstance(step, Statistic))
        found = {name: value for name, value in self.ctx.items() if name.startswith(prefixes)}
        found |= {} if self._log is None else self._log.tree()
        return Results(
            ids=torch.tensor([self._client]),
            steps=torch.tensor([steps]),
            losses=torch.tensor([float(total) / max(1, steps)], dtype=torch.float64),
            kept={name: value for name, value in ends.items() if name not in program.sends},
            sent=Message({name: ends[name] for name in ends if name in program.sends}, masks),
            observed={name: value[None] for name, value in found.items()},
            observe_seconds=perf_counter() - begin,
        )

    def _why_failed(self, leaves: Tree, total: Tensor) -> str | None:
        """Return a sentence that names the first value that is not finite; None if all are."""
        if self.steps and not total.isfinite():
            return "its training loss is not finite"
        if is_finite(leaves):
            return None
        bad = next(name for name in leaves if not is_finite({name: leaves[name]}))
        return f"its tensor `{bad}` is not finite"

    def _execute(self, step: Step) -> None:
        """Run one step of the local program.

        If something may draw random numbers, the global generators begin at a seed of the run, the
        client and the round.
        """
        begins: AbstractContextManager[None] = nullcontext()
        if self._is_seeded:
            part = () if isinstance(step, Phase) else (1,)
            begins = seeded(self._settings.draw.module_seed(self._client, *part))
        with placed(self._place), begins:
            match step:
                case Phase():
                    self._run_phase(step)
                case Statistic():
                    self._run_statistic(step)
                case Transform():
                    self._run_transform(step)

    def _place(self) -> str:
        """Return client and round, for messages."""
        called = self._environment.federation.partition.called(self._client)
        return f"client {called} in {self._settings.draw.title}"

    def _run_phase(self, phase: Phase) -> None:
        """Train the leaves as a phase says."""
        module = self._module(phase)
        training = Training(self._environment, module, self._client, self._settings, self._scaler)
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

    def _run_statistic(self, statistic: Statistic) -> None:
        """Compute a Statistic over the client's samples and write the result into ctx."""
        env, recording = self._environment, Recording(statistic)
        rows = env.federation.rows(statistic.samples, self._client, self._settings.draw)
        for batch in batches.in_order(env.federation, rows, env.dtype, STATISTIC_BATCH):
            self._observe(recording, batch)
        with torch.no_grad():
            recording.finish(Context(leaves=self.leaves, start=self.start, ctx=self.ctx))

    def _observe(self, recording: Recording, batch: Batch) -> None:
        """Let a Statistic see one batch."""
        env = self._environment
        with torch.no_grad(), freezing.mode(env.net, train=False), env.precision():
            context = Context(
                partial(env.net, batch.x),
                batch=batch,
                ctx=self.ctx,
                leaves=self.leaves,
                start=self.start,
                apply=partial(apply, env.net),
            )
            recording.see(context)
            env.write_back()

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
            changed = step.fn(
                Context(leaves=self.leaves, start=self.start, ctx=self.ctx, info=info)
            )
            # All values are copied first: a Transform may return one leaf as another leaf's value.
            for name, value in [(name, value.clone()) for name, value in changed.items()]:
                if name in env.own:
                    self.leaves[name].copy_(value)
                else:
                    self.leaves[name] = value
