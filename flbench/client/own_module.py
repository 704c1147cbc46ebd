"""The local step of a client whose net is a LightningModule of the user.

The module's `training_step` computes the task loss, to which a method adds its terms, and its
`configure_optimizers` makes the optimizer. All else (batches, gradients, clipping, projections) is
that of `ClientModule`, so one client with all data trains the weights of Lightning's own Trainer,
bit for bit in float64.
"""

import math
from collections.abc import Callable
from functools import cache, partial
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor, nn

from flbench.client.forward import apply, name_in_net
from flbench.client.logged import Log
from flbench.client.module import ClientModule
from flbench.client.own_optimizer import Schedule, described, parse
from flbench.client.program import Phase
from flbench.core.errors import ConfigError
from flbench.core.lightning import is_param_in_hook_signature
from flbench.core.types import Batch, Context, Outputs, Tree
from flbench.core.user_code_errors import as_errors, calling
from flbench.models import freezing
from flbench.models.lightning_head import Call, of_batch, recorded
from flbench.models.lightning_net import LightningNet, base_of, overrides

Pack = Callable[[Tensor, Tensor, Any], Any]
"""(inputs [B, ...], labels [B], rows [B] of the data set) -> the batch that a module gets."""


class OwnModule(ClientModule):
    """One phase of one client's training by the user's own training step and optimizer.

    The hooks of `fit` are called as a Trainer calls them; `self.trainer` is a namespace with the
    position in the training. The module may set its `should_stop`, which ends the phase before its
    next step. If the phase trains a second model, the module and its optimizer have the values of
    this model from `configure_optimizers` to `on_fit_end`.

    Args:
        net: The user's module as a net.
        phase, leaves, start, ctx: See `ClientModule`.
        position: What `self.trainer` knows of the round and of the client.
        factor: Factor of the round on the learning rates.
        log: What the client has logged so far.
        pack: Makes what the module's hooks get as a batch.
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
        super().__init__(net, phase, dict(leaves), start, ctx)
        self._given = leaves
        self.writes_gradients = True  # the user's optimizer may do so
        self.lr = math.nan
        self._factor = factor
        self._logged = log
        self._pack = pack
        self._schedules: tuple[Schedule, ...] = ()
        vars(position).update(
            current_epoch=0,
            global_step=0,
            max_epochs=-1 if phase.epochs is None else phase.epochs,
            max_steps=-1 if phase.steps is None else phase.steps,
            should_stop=False,
        )
        self._trainer_of_module = position
        self._own: Tree = dict([*net.named_parameters(), *net.named_buffers()])
        self._second: dict[str, str] = {}  # the module's tensor that has the values of a leaf
        self._batch_idx = 0
        self._optimizer: torch.optim.Optimizer | None = None
        self._wanted: Tree = {}
        self._has_started = self._is_in_epoch = False

    @property
    def should_stop(self) -> bool:
        """Whether the module has set `trainer.should_stop`."""
        return bool(self._trainer_of_module.should_stop)

    def step_context(self, batch: Batch, leaves: Tree | None = None) -> Context:
        """Return what loss terms and Statistics read in the step on this batch.

        Outputs are those of the forward pass in which `training_step` computes the loss.
        """
        weights = self.weights(leaves)
        if weights and all(self._own.get(name) is value for name, value in weights.items()):
            weights = None
        mask = None if leaves is None else self._counted(batch)
        if mask is not None:
            x, y, key = (value[mask] for value in (batch.x, batch.y, batch.key))
            batch = batch._replace(x=x, y=y, mask=mask[mask], key=key)
        self.net.labels = batch.y
        step = cache(partial(self._own_step, self._packed(batch, mask), weights))
        return Context(
            lambda: self._outputs(step()[1], len(batch.y)),
            batch=batch,
            ctx=self.ctx,
            leaves=self.leaves if leaves is None else leaves,
            start=self.start,
            apply=partial(apply, self.net),
            task=lambda: step()[0],
        )

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

    def _counted(self, batch: Batch) -> Tensor | None:
        """Return [B] bool: the samples that a gradient hook counts; None if the module gets all.

        BatchNorm in training mode cannot train on one row; then the module gets all rows.
        """
        mask = batch.mask
        least = 2 if freezing.trains_batchnorm(self.net) else 1
        return None if bool(mask.all()) or int(mask.sum()) < least else mask

    def training_step(self, batch: Batch, batch_idx: int = 0) -> Tensor:
        """Return the phase's loss on a batch, 0-dim: the module's own, and the method's terms."""
        self._batch_idx = batch_idx
        self._hook("on_train_batch_start", self._packed(batch), batch_idx)
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

        Parameters that the user has frozen are not trained as long as they are, and those that are
        left out of the optimizer are never trained. In a phase whose optimizer the method sets
        itself, the module's `configure_optimizers` is not called.
        """
        net, position = self.net, self._trainer_of_module
        self._put_second_model()
        position.num_training_batches = batches = self.batches_per_epoch
        steps = position.max_epochs * batches if position.max_steps < 0 else position.max_steps
        position.estimated_stepping_batches = max(1, steps)
        _attach(net.module, position)
        net.module.__dict__["log"] = self._logged.log
        for name, parameter in net.named_parameters():
            parameter.requires_grad_(name not in freezing.of(net).parameters)
        self._hook("setup", "fit")
        if self.phase.by_module:
            optimizer, self._schedules = parse(self._call("configure_optimizers"), net.title)
            net.optimizer = described(optimizer, self._schedules)
            self._train_by(optimizer)
        else:
            self.lr = self.phase.optimizer.lr * self._factor
            optimizer = super().configure_optimizers()
            self._wanted, self._optimizer = self.trained, optimizer
        position.optimizers = [optimizer]
        return optimizer

    def _put_second_model(self) -> None:
        """Exchange the values of the module for those of the second model that the phase trains."""
        if self.phase.weights is None:
            return
        others = {name for name in self.leaves if self.phase.trains(name)} - self._own.keys()
        found = {name: name_in_net(name, self._own) for name in others}
        prefixes = {name.removesuffix(own) for name, own in found.items() if own is not None}
        self._second = {
            prefix + name: name
            for prefix in prefixes
            for name in self._own
            if prefix + name in self.leaves
        }
        with torch.no_grad():
            for second, name in self._second.items():
                tensor = self._own[name]
                self.leaves |= {name: tensor.clone(), second: tensor}
                tensor.copy_(self._given[second])

    def _take_second_model(self) -> None:
        """Copy the trained values into the client's second model; restore those of the module."""
        with torch.no_grad():
            for second, name in self._second.items():
                self._given[second].copy_(self._own[name])
                self._own[name].copy_(self.leaves[name])

    def _train_by(self, optimizer: torch.optim.Optimizer) -> None:
        """Let the user's optimizer train the leaves of the phase."""
        self._wanted = {name: leaf for name, leaf in self.leaves.items() if self.phase.trains(name)}
        wanted = {id(leaf) for leaf in self._wanted.values()}
        for parameter in self.net.parameters():
            if id(parameter) not in wanted:
                parameter.requires_grad_(False)
        for group in optimizer.param_groups:
            group["params"] = [one for one in group["params"] if id(one) in wanted]
            if self._factor != 1.0:
                group["lr"] = group["lr"] * self._factor
        self._optimizer = optimizer
        self._find_trained()
        if not self.trained:
            raise ConfigError(
                f"{self.net.title}.configure_optimizers returns an optimizer of none of the"
                f" parameters that the method trains ({', '.join(sorted(self._wanted)[:3])}, ...)."
                " Give it self.parameters()."
            )
        rates = {float(group.get("lr", math.nan)) for group in optimizer.param_groups}
        self.lr = rates.pop() if len(rates) == 1 and not self._schedules else math.nan

    def _find_trained(self) -> None:
        """Set `trained` to the leaves of the phase that the optimizer has; it may get more."""
        assert self._optimizer is not None
        taken = {id(leaf) for group in self._optimizer.param_groups for leaf in group["params"]}
        self.trained = {name: leaf for name, leaf in self._wanted.items() if id(leaf) in taken}

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
            for schedule in self._schedules:
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
        now = dict(self.net.named_parameters())
        if lost := [name for name, one in now.items() if self._own.get(name) is not one]:
            raise ConfigError(
                f"{self.net.title} adds or replaces parameters"
                f" ({lost[0].removeprefix('module.')}). Make them in __init__, and change their"
                " values in place: with torch.no_grad(): p.copy_(...)."
            )
        self._take_second_model()

    def _own_step(self, batch: Any, weights: Tree | None) -> tuple[Tensor, list[Call]]:
        """Return the loss of the module's training step, 0-dim, and the calls of its head.

        Args:
            batch: The batch, in the form that the module gets.
            weights: What takes the place of the module's leaves; None takes its own.
        """
        if self.net.no_features is not None:
            return self._task_loss(batch, weights), []
        with recorded(self.net.head_module()) as calls:
            return self._task_loss(batch, weights), calls

    def _outputs(self, calls: list[Call], rows: int) -> Outputs:
        """Return features [B, D] and logits [B, C]: inputs and outputs of the head in a step."""
        what = f"{self.net.title}.training_step"
        return Outputs(*of_batch(calls, rows, what, self.net.head))

    def _task_loss(self, batch: Any, weights: Tree | None) -> Tensor:
        """Return what the module's training step returns for a batch: its loss, 0-dim."""
        arguments: tuple[Any, ...] = (batch,)
        own_step: Any = self.net.module.training_step
        if is_param_in_hook_signature(own_step, "batch_idx", min_args=2):
            arguments += (self._batch_idx,)
        found = self._call("training_step", *arguments, weights=weights)
        loss = found.get("loss") if isinstance(found, dict) else found
        if not isinstance(loss, Tensor) or loss.numel() != 1:
            got = f"a tensor of shape {list(loss.shape)}" if isinstance(loss, Tensor) else found
            raise ConfigError(
                f"{self.net.title}.training_step returned {got}. It must return the loss of each"
                " batch, a tensor of one number, or a dict with the key `loss`."
            )
        return loss.reshape(())

    def _hook(self, name: str, *arguments: Any) -> None:
        """Call a hook, if the module has it; it may have given the optimizer further parameters."""
        if overrides(self.net.module, name):
            self._call(name, *arguments)
            if self._optimizer is not None:
                self._find_trained()

    def _call(self, name: str, *arguments: Any, weights: Tree | None = None) -> Any:
        """Return what a method of the user's module returns, with these weights in their place."""
        method = getattr(self.net.module, name)
        with as_errors(f"{self.net.title}.{name}"):
            if weights is None:
                return method(*arguments)
            given = {f"net.{key}": leaf for key, leaf in weights.items()}
            return torch.func.functional_call(_Call(self.net, method), given, arguments)


class _Call(nn.Module):
    """A method of the user's module as a module, for `torch.func.functional_call`."""

    def __init__(self, net: nn.Module, method: Callable[..., Any]) -> None:
        super().__init__()
        self.net = net
        self.method = method

    def forward(self, *arguments: Any) -> Any:
        """Return what the method returns."""
        return self.method(*arguments)


def _attach(module: nn.Module, position: SimpleNamespace | None) -> None:
    """Set what `self.trainer` of a LightningModule and of those within it is."""
    for one in module.modules():
        if base_of(type(one)) is not None:
            one.__dict__["_trainer"] = position
            if position is None:
                one.__dict__.pop("log", None)
