"""The local step of a client whose net is a LightningModule of the user.

The module's `training_step` computes the task loss, to which a method adds its terms, and its
`configure_optimizers` makes the optimizer. All else (batches, gradients, clipping, projections) is
that of `ClientModule`, so one client with all data trains the weights of Lightning's own Trainer,
bit for bit in float64.
"""

import math
from collections.abc import Callable, Collection
from functools import cached_property, partial
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor, nn

from flbench.client.forward import apply
from flbench.client.logged import Log
from flbench.client.module import ClientModule
from flbench.client.own_optimizer import Schedule, described, learning_rates, parse, retarget
from flbench.client.program import Phase
from flbench.core.errors import ConfigError
from flbench.core.lightning import is_param_in_hook_signature
from flbench.core.types import Batch, Outputs, StepContext, Tree
from flbench.core.user_code_errors import as_errors, calling
from flbench.models import fixed
from flbench.models.lightning_head import Call, features_of, recorded
from flbench.models.lightning_hooks import base_of, overrides
from flbench.models.lightning_net import LightningNet

Pack = Callable[[Tensor, Tensor, Any], Any]
"""(inputs [B, ...], labels [B], rows [B] of the data set) -> the batch that a module gets."""


class OwnModule(ClientModule):
    """One phase of one client's training by the user's own training step and optimizer.

    The hooks of `fit` are called as a Trainer calls them; `self.trainer` is a namespace with the
    position in the training. The module may set its `should_stop`, which ends the phase before its
    next step.

    Args:
        net: The user's module as a net.
        phase: See `ClientModule`.
        leaves: See `ClientModule`.
        start: See `ClientModule`.
        ctx: See `ClientModule`.
        position: What `self.trainer` knows of the round and of the client.
        factor: Factor of the round on the learning rates.
        log: What the client has logged so far.
        pack: Makes what the module's hooks get as a batch.

    Attributes:
        schedules: The schedulers of learning rates, set by `configure_optimizers`.
    """

    net: LightningNet

    def __init__(
        self,
        net: LightningNet,
        phase: Phase,
        leaves: Tree,
        start: Tree,
        ctx: Tree,
        *,
        position: SimpleNamespace,
        factor: float,
        log: Log,
        pack: Pack,
    ) -> None:
        super().__init__(net, phase, leaves, start, ctx)
        self.writes_gradients = True  # the user's optimizer may do so
        self.lr = math.nan
        self._factor = factor
        self._logged = log
        self._pack = pack
        self.schedules: tuple[Schedule, ...] = ()
        vars(position).update(
            current_epoch=0,
            global_step=0,
            max_epochs=-1 if phase.epochs is None else phase.epochs,
            max_steps=-1 if phase.steps is None else phase.steps,
            should_stop=False,
        )
        self._trainer_of_module = position
        self._parameters_of_net = _parameters(net)
        self._batch_idx = 0
        self._optimizer: torch.optim.Optimizer | None = None
        self._wanted: Tree = {}
        self._has_started = self._is_in_epoch = False

    @property
    def should_stop(self) -> bool:
        """Whether the module has set `trainer.should_stop`."""
        return bool(self._trainer_of_module.should_stop)

    def step_context(self, batch: Batch, leaves: Tree | None = None) -> StepContext:
        """Return what loss terms and Statistics read in the step on this batch.

        Outputs are those of the forward pass in which `training_step` computes the loss.
        """
        here = self.leaves if leaves is None else leaves
        weights = None if self.phase.weights is None else self.phase.weights(here, self.ctx)
        if leaves is None:
            return self._context(batch, here, weights)
        if weights is None:
            own = [*self.net.named_parameters(), *self.net.named_buffers()]
            weights = {name: leaves[name] for name, _ in own if name in leaves}
        mask = self._counted(batch)
        x, y, key = (value[mask] for value in (batch.x, batch.y, batch.key))
        part = batch._replace(x=x, y=y, mask=mask[mask], key=key)
        return self._context(part, leaves, weights, mask)

    def _packed(self, batch: Batch, mask: Tensor | None = None) -> Any:
        """Return what the module gets as a batch.

        Args:
            batch: The batch.
            mask: Which samples of the step's batch these are; None for all.
        """
        rows = None if self.rows is None else self.rows()
        if rows is not None and mask is not None:
            rows = rows[mask.cpu().numpy()]
        return self._pack(batch.x, batch.y, rows)

    def _counted(self, batch: Batch) -> Tensor:
        """Return [B] bool: the samples of a batch that count, which are all that the module gets.

        BatchNorm in training mode cannot train on one row; then the module gets all rows.
        """
        mask = batch.mask
        least = 2 if fixed.trains_batchnorm(self.net) else 1
        if bool(mask.all()) or int(mask.sum()) < least:
            return torch.ones_like(mask)
        return mask

    def _context(
        self, batch: Batch, leaves: Tree, weights: Tree | None, mask: Tensor | None = None
    ) -> StepContext:
        """Return the context of a step in which the module has these weights.

        Args:
            batch: The samples.
            leaves: The client's leaves.
            weights: What takes the place of the module's leaves; None takes its own.
            mask: Which samples of the step's batch these are; None for all.
        """
        given = self._packed(batch, mask)
        self.net.labels = batch.y
        step = _OwnStep(self.net, partial(self._task_loss, given, weights), len(batch.y))
        return StepContext(
            step.outputs,
            batch=batch,
            ctx=self.ctx,
            leaves=leaves,
            start=self.start,
            apply=partial(apply, self.net),
            task=step.loss,
        )

    def training_step(self, batch: Batch, batch_idx: int = 0) -> Tensor:
        """Return the phase's loss on a batch, 0-dim: the module's own, and the method's terms."""
        self._batch_idx = batch_idx
        if self._hook("on_train_batch_start", self._packed(batch), batch_idx) == -1:
            raise ConfigError(
                f"{self.net.title}.on_train_batch_start returned -1, which skips the rest of an"
                " epoch. A client trains on all of its batches: remove it."
            )
        return super().training_step(batch, batch_idx)

    def gradients(self, loss: Tensor) -> tuple[Tensor | None, ...]:
        """Return the gradient of each leaf of `trained`; None for one that the user has frozen."""
        if self.phase.gradient is not None:
            return super().gradients(loss)
        free = [leaf for leaf in self.trained.values() if leaf.requires_grad]
        if not free:
            raise ConfigError(f"{self.net.title} has frozen all parameters that the method trains.")
        found = iter(torch.autograd.grad(loss, free, allow_unused=True))
        return tuple(next(found) if leaf.requires_grad else None for leaf in self.trained.values())

    def configure_optimizers(self) -> torch.optim.Optimizer:
        """Call `setup`, and return the module's optimizer over the leaves that the phase trains.

        If the phase trains a second model, its leaves take the place of the module's parameters in
        all methods of the module. Parameters that the user has frozen are not trained as long as
        they are, and those that are left out of the optimizer are never trained. In a phase whose
        optimizer the method sets itself, the module's `configure_optimizers` is not called.
        """
        net, position = self.net, self._trainer_of_module
        own: Tree = dict(net.named_parameters())
        position.num_training_batches = batches = self.batches_per_epoch
        steps = position.max_epochs * batches if position.max_steps < 0 else position.max_steps
        position.estimated_stepping_batches = max(1, steps)
        _attach(net.module, position)
        net.module.__dict__["log"] = self._logged.log
        weights = self._weights()
        # Frozen parameters are not among the leaves: a second model has those of the module.
        seen = own if weights is None else {name: weights.get(name, own[name]) for name in own}
        for name, parameter in seen.items():
            parameter.requires_grad_(name not in net.frozen)
        self._hook("setup", "fit")
        if self.phase.by_module:
            optimizer, self.schedules = parse(self._call("configure_optimizers"), net.title)
            net.optimizer = described(optimizer, self.schedules)
            self._train_by(optimizer, seen)
        else:
            self.lr = self.phase.optimizer.lr * self._factor
            optimizer = super().configure_optimizers()
            self._wanted, self._optimizer = self.trained, optimizer
        position.optimizers = [optimizer]
        return optimizer

    def _train_by(self, optimizer: torch.optim.Optimizer, seen: Tree) -> None:
        """Let the user's optimizer train the leaves of the phase.

        Args:
            optimizer: The optimizer of the module's parameters.
            seen: What the parameters of the module are in this phase, by name.
        """
        if self._factor != 1.0:
            for group in optimizer.param_groups:
                group["lr"] = group["lr"] * self._factor
        self._wanted = {name: leaf for name, leaf in self.leaves.items() if self.phase.trains(name)}
        of = {parameter_of(name, seen): leaf for name, leaf in self._wanted.items()}
        retarget(optimizer, {one: of.get(name) for name, one in seen.items()})
        for name, one in seen.items():
            leaf = of.get(name)
            if leaf is None:
                one.requires_grad_(False)
            elif leaf is not one:
                leaf.requires_grad_(one.requires_grad)
                one.requires_grad_(False)
        self._optimizer = optimizer
        self._find_trained()
        if not self.trained:
            raise ConfigError(
                f"{self.net.title}.configure_optimizers returns an optimizer of none of the"
                f" parameters that the method trains ({', '.join(sorted(self._wanted)[:3])}, ...)."
                " Give it self.parameters()."
            )
        rates = set(learning_rates(optimizer))
        self.lr = rates.pop() if len(rates) == 1 and not self.schedules else math.nan

    def _find_trained(self) -> None:
        """Set `trained` to the leaves of the phase that the optimizer has; it may get more."""
        assert self._optimizer is not None
        taken = {id(leaf) for group in self._optimizer.param_groups for leaf in group["params"]}
        self.trained = {name: leaf for name, leaf in self._wanted.items() if id(leaf) in taken}

    def _weights(self) -> Tree | None:
        """Return the leaves that take the place of the module's parameters; None if none do.

        Weights that are computed from leaves do so in the training step alone: hooks cannot change
        them.
        """
        if self.phase.weights is None:
            return None
        weights = self.phase.weights(self.leaves, self.ctx)
        known = {id(leaf) for leaf in self.leaves.values()}
        return weights if all(id(leaf) in known for leaf in weights.values()) else None

    # The engine calls the hooks below where a Trainer calls them.

    def on_fit_start(self) -> None:
        """Call the module's hook before the training, also for a client without a batch."""
        self._hook("on_fit_start")

    def on_train_epoch_start(self) -> None:
        """Call the module's hooks at the beginning of an epoch that has a batch."""
        if not self._has_started:
            self._has_started = True
            self._hook("on_train_start")
        if not self.should_stop:
            self._is_in_epoch = True
            self._hook("on_train_epoch_start")

    def on_train_batch_end(self, outputs: Any, batch: Batch, batch_idx: int) -> None:
        """Advance schedulers and call the module's hook after an optimizer step."""
        position = self._trainer_of_module
        position.global_step += 1
        cure = "Give it self.trainer.estimated_stepping_batches as its number of steps."
        with calling(f"{self.net.title}: the scheduler", cure):
            for schedule in self.schedules:
                schedule.advance("step", batch_idx)
                if batch_idx + 1 == self.batches_per_epoch:  # as a Trainer, before the hooks
                    schedule.advance("epoch", position.current_epoch)
        self._hook("on_train_batch_end", {"loss": outputs}, self._packed(batch), batch_idx)

    def on_train_epoch_end(self) -> None:
        """Call the module's hook after an epoch."""
        if self._is_in_epoch:
            self._is_in_epoch = False
            self._hook("on_train_epoch_end")
            self._trainer_of_module.current_epoch += 1

    def on_fit_end(self) -> None:
        """Call the module's last hooks."""
        if self._has_started:
            self._hook("on_train_end")
        self._logged.end_phase()
        self._hook("on_fit_end")
        self._hook("teardown", "fit")
        for one in (*self.net.parameters(), *self.trained.values()):
            one.requires_grad_(False)
            if one._backward_hooks:  # of the parameter, registered while this client trained
                one._backward_hooks.clear()
        _attach(self.net.module, None)
        changed = self._parameters_of_net.items() ^ _parameters(self.net).items()
        if names := sorted({name.removeprefix("module.") for name, _ in changed}):
            raise ConfigError(
                f"{self.net.title} adds, replaces, moves or casts parameters"
                f" ({', '.join(names[:3])}). Make them in __init__, and change their values in"
                " place: with torch.no_grad(): p.copy_(...)."
            )

    def _task_loss(self, batch: Any, weights: Tree | None) -> Tensor:
        """Return what the module's training step returns for a batch: its loss, 0-dim.

        Args:
            batch: The batch, in the form that the module gets.
            weights: What takes the place of the module's leaves; None takes its own.
        """
        arguments: tuple[Any, ...] = (batch,)
        own_step: Any = self.net.module.training_step
        if is_param_in_hook_signature(own_step, "batch_idx", min_args=2):
            arguments += (self._batch_idx,)
        found = self._call_with(weights, "training_step", *arguments)
        loss = found.get("loss") if isinstance(found, dict) else found
        if not isinstance(loss, Tensor) or loss.numel() != 1:
            got = f"a tensor of shape {list(loss.shape)}" if isinstance(loss, Tensor) else found
            raise ConfigError(
                f"{self.net.title}.training_step returned {got}. It must return the loss of each"
                " batch, a tensor of one number, or a dict with the key `loss`."
            )
        return loss.reshape(())

    def _hook(self, name: str, *arguments: Any) -> Any:
        """Call a hook, if the module has it; it may have given the optimizer further parameters."""
        if not overrides(self.net.module, name):
            return None
        found = self._call(name, *arguments)
        if self._optimizer is not None:
            self._find_trained()
        return found

    def _call(self, name: str, *arguments: Any) -> Any:
        """Return what a method of the user's module returns."""
        return self._call_with(self._weights(), name, *arguments)

    def _call_with(self, weights: Tree | None, name: str, *arguments: Any) -> Any:
        """Return what a method of the user's module returns with these weights."""
        call = partial(getattr(self.net.module, name), *arguments)
        with as_errors(f"{self.net.title}.{name}"):
            if weights is None:
                return call()
            given = {f"net.{key}": leaf for key, leaf in weights.items()}
            return torch.func.functional_call(_Call(self.net, call), given, ())


class _OwnStep:
    """One call of the module's training step: its loss, and what passed through the head in it.

    Args:
        net: The user's module as a net.
        step: Calls the training step and returns its loss.
        rows: The number of samples B of the batch.
    """

    def __init__(self, net: LightningNet, step: Callable[[], Tensor], rows: int) -> None:
        self._net = net
        self._step = step
        self._rows = rows

    @cached_property
    def _result(self) -> tuple[Tensor, list[Call]]:
        """The loss, 0-dim, and the calls of the head; the training step is called once."""
        if self._net.no_features is not None:
            return self._step(), []
        with recorded(self._net.head_module()) as calls:
            return self._step(), calls

    def loss(self) -> Tensor:
        """Return the loss, 0-dim."""
        return self._result[0]

    def outputs(self) -> Outputs:
        """Return features [B, D] and logits [B, C]: inputs and outputs of the head in this step.

        Raises:
            ConfigError: The training step has not called the head with all samples.
        """
        what, calls = f"{self._net.title}.training_step", self._result[1]
        return Outputs(*features_of(calls, self._rows, what, self._net.head))


class _Call(nn.Module):
    """A call of the user's code as a module, for `torch.func.functional_call`."""

    def __init__(self, net: nn.Module, step: Callable[[], Any]) -> None:
        super().__init__()
        self.net = net
        self.step = step

    def forward(self) -> Any:
        """Return what the call returns."""
        return self.step()


def _parameters(net: nn.Module) -> dict[str, tuple[int, torch.dtype, torch.device]]:
    """Return identity, type and device of each parameter."""
    return {name: (id(one), one.dtype, one.device) for name, one in net.named_parameters()}


def parameter_of(leaf: str, own: Collection[str]) -> str | None:
    """Return the name of the module's parameter that a leaf is, or that it is a second one of.

    Args:
        leaf: Name of a leaf. That of a second model has a prefix with a dot, such as `v.`.
        own: Names of the parameters of the module.

    >>> parameter_of("v.module.fc.bias", {"module.fc.weight", "module.fc.bias"})
    'module.fc.bias'
    """
    parts = leaf.split(".")
    names = (".".join(parts[k:]) for k in range(len(parts)))
    return next((name for name in names if name in own), None)


def _attach(module: nn.Module, position: SimpleNamespace | None) -> None:
    """Set what `self.trainer` of a LightningModule and of those within it is."""
    for one in module.modules():
        if base_of(type(one)) is not None:
            one.__dict__["_trainer"] = position
            if position is None:
                one.__dict__.pop("log", None)
