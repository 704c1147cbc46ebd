"""The local step of a client whose net is a LightningModule of the user.

The module's `training_step` computes the task loss, to which a method adds its terms, and its
`configure_optimizers` makes the optimizer. All else (batches, gradients, clipping, projections) is
that of `ClientModule`, so one client with all data trains the weights of Lightning's own Trainer,
bit for bit in float64.
"""

import inspect
import math
from collections.abc import Callable, Collection, Iterable, Sequence
from functools import partial
from types import SimpleNamespace
from typing import Any, Final, NamedTuple

import torch
from torch import Tensor, nn

from flbench.client.forward import make_step_context
from flbench.client.logged import Log
from flbench.client.module import ClientModule
from flbench.client.own_optimizer import Schedule, described, learning_rates, parse, retarget
from flbench.client.program import Phase
from flbench.core import metric_names
from flbench.core.errors import ConfigError, RunError, UserError
from flbench.core.lightning import Metric, is_param_in_hook_signature
from flbench.core.raised import user_line
from flbench.core.types import Batch, Outputs, StepContext, Tree
from flbench.models import fixed
from flbench.models.lightning_head import Call, features_of, recorded
from flbench.models.lightning_hooks import LOG_WITHOUT_EFFECT, base_of, overrides
from flbench.models.lightning_net import LightningNet

REDUCTIONS: Final[dict[Any, Callable[[Tensor], Tensor]]] = {
    "mean": torch.mean,
    "sum": torch.sum,
    "min": torch.min,
    "max": torch.max,
    torch.mean: torch.mean,
    torch.sum: torch.sum,
    torch.min: torch.min,
    torch.max: torch.max,
}
MOST_TRIED: Final = 10_000  # steps that schedulers are tried for before a run


class Round(NamedTuple):
    """What a client's module may read of the round and of the client.

    Attributes:
        number: Number of the round, from 0.
        rounds: Number of rounds of the run.
        samples: Number of the client's training samples.
        class_counts: Number of the client's training samples of each class, [C] in the type of the
            net's parameters; None for targets that are not classes.
    """

    number: int
    rounds: int
    samples: int
    class_counts: Tensor | None


Pack = Callable[[Tensor, Tensor, Any], Any]
"""(inputs [B, ...], labels [B], rows [B] of the data set) -> the batch that a module gets."""


def pair(x: Tensor, y: Tensor, rows: Any) -> Any:
    """Return a batch as the pair (inputs, labels)."""
    return x, y


class OwnModule(ClientModule):
    """One phase of one client's training by the user's own training step and optimizer.

    The engine sets the module's Python attributes back at the beginning of each phase, and seeds
    the global random generators; see `flbench.engine.client_run`. Hooks are called as in
    `Trainer.fit`; see `flbench.models.lightning_hooks`.

    Args:
        net: The user's module as a net.
        phase: See `ClientModule`.
        leaves: See `ClientModule`.
        start: See `ClientModule`.
        ctx: See `ClientModule`.
        now: The round, and the numbers of the client's samples.
        factor: Factor of the round on the learning rates.
        log: What the client has logged so far.
        pack: Makes what the module's hooks get as a batch.
        logs_validation: Whether what is logged while the module is validated counts, instead of
            what is logged in the training.

    Attributes:
        ignored: Options of `self.log` that were given and have no effect.
        optimizer: Class and arguments of the optimizer, set by `configure_optimizers`.
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
        now: Round,
        factor: float,
        log: Log,
        pack: Pack = pair,
        logs_validation: bool = False,
    ) -> None:
        super().__init__(net, phase, leaves, start, ctx)
        self.writes_gradients = True  # the user's optimizer may do so
        self.lr = math.nan
        self._factor = factor
        self._logged = log
        self._pack = pack
        self._logs_validation = logs_validation
        self._metrics: dict[str, Metric] = {}
        self._schedules: tuple[Schedule, ...] = ()
        self._position = _Position(net, phase, now)
        self._batch_idx = 0
        self._optimizer: torch.optim.Optimizer | None = None
        self._wanted: Tree = {}
        self._seen: dict[str, tuple[Tensor, torch.dtype, torch.device]] = {}
        self._has_started = self._is_in_epoch = False
        self._is_called, self._validates, self._rows_of_batch = False, False, 1
        self.ignored: set[str] = set()
        self.optimizer: dict[str, Any] = {}

    @property
    def should_stop(self) -> bool:
        """Whether the module has set `trainer.should_stop`."""
        return bool(self._position.should_stop)

    def step_context(self, batch: Batch) -> StepContext:
        """Return what loss terms and Statistics read in the step on this batch.

        Outputs are those of the forward pass in which `training_step` computes the loss.
        """
        return self._context(batch, self.leaves, self._weights_of_step(self.leaves))

    def context_at(self, leaves: Tree, batch: Batch) -> StepContext:
        """Return what loss terms read in a step on this batch with other values of the leaves."""
        weights = self._weights_of_step(leaves)
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
        step = _OwnStep(self.net, partial(self._task_loss, given, weights), len(batch.y))
        return make_step_context(
            self.net, step.outputs, batch, self.ctx, leaves, self.start, task=step.loss
        )

    def _weights_of_step(self, leaves: Tree) -> Tree | None:
        """Return what takes the place of the module's leaves in a step; None if nothing does."""
        return None if self.phase.weights is None else self.phase.weights(leaves, self.ctx)

    def training_step(self, batch: Batch, batch_idx: int = 0) -> Tensor:
        """Return the phase's loss on a batch, 0-dim: the module's own, and the method's terms."""
        self._batch_idx = batch_idx
        self._position.place(batch_idx)
        given = self._packed(batch)
        if self._call("on_train_batch_start", given, batch_idx) == -1:
            raise ConfigError(
                f"{self.net.title}.on_train_batch_start returned -1, which skips the rest of an"
                " epoch. A client trains on all of its batches: remove it."
            )
        return super().training_step(batch, batch_idx)

    def gradients(self, loss: Tensor) -> tuple[Tensor | None, ...]:
        """Return the gradient of each leaf of `trained`; None for one that the user has frozen.

        Raises:
            ConfigError: The loss depends on no parameter that is trained.
        """
        if self.phase.gradient is not None:
            return super().gradients(loss)
        free = [leaf for leaf in self.trained.values() if leaf.requires_grad]
        if not free:
            raise ConfigError(
                f"{self.net.title} has frozen all parameters that the method trains"
                f" ({', '.join(sorted(self.trained)[:3])}, ...). Leave requires_grad=True for some"
                " of them, or take another method."
            )
        if not loss.requires_grad:
            raise ConfigError(
                f"{self.net.title}.training_step returned a loss without a gradient. Compute it"
                " from self(x), without detach(), item() or torch.no_grad()."
            )
        found = iter(torch.autograd.grad(loss, free, allow_unused=True))
        return tuple(next(found) if leaf.requires_grad else None for leaf in self.trained.values())

    def configure_optimizers(self) -> torch.optim.Optimizer:
        """Call `setup`, and return the module's optimizer over the leaves that the phase trains.

        If the phase trains a second model, its leaves take the place of the module's parameters in
        all methods of the module. Parameters that the user has frozen are not trained as long as
        they are, and those that are left out of the optimizer are never trained. In a phase whose
        optimizer the method sets itself, the module's `configure_optimizers` is not called.
        """
        net, own = self.net, dict(self.net.named_parameters())
        _attach(net.module, self._position)
        self._position.begin(self.batches_per_epoch)
        net.module.__dict__["log"] = self._log
        weights = self._weights()
        # Frozen parameters are not among the leaves: a second model has those of the module.
        seen = own if weights is None else {name: weights.get(name, own[name]) for name in own}
        self._seen = {name: (one, one.dtype, one.device) for name, one in seen.items()}
        for name, parameter in seen.items():
            parameter.requires_grad_(name not in net.frozen)
        self._staged("setup")
        if not self.phase.by_module:
            return self._method_optimizer()
        optimizer, self._schedules = parse(self._call("configure_optimizers"), net.title)
        self.optimizer = described(optimizer, self._schedules)
        if self._factor != 1.0:
            if self._schedules:
                raise ConfigError(
                    f"{net.title} has a scheduler of its own, and `train.schedule` changes the"
                    " learning rate by round as well. Use one of them."
                )
            for group in optimizer.param_groups:
                group["lr"] = group["lr"] * self._factor
        self._wanted = {name: leaf for name, leaf in self.leaves.items() if self.phase.trains(name)}
        of = {parameter_of(name, own): leaf for name, leaf in self._wanted.items()}
        retarget(optimizer, {one: of.get(name) for name, one in seen.items()})
        for name, one in seen.items():
            leaf = of.get(name)
            if leaf is None:
                one.requires_grad_(False)
            elif leaf is not one:
                leaf.requires_grad_(one.requires_grad)
                one.requires_grad_(False)
        self._optimizer = optimizer
        self._position.step_by(optimizer, self._schedules)
        self._find_trained()
        if not self.trained:
            raise ConfigError(
                f"{net.title}.configure_optimizers returns an optimizer of none of the parameters"
                f" that the method trains ({', '.join(sorted(self._wanted)[:3])}, ...). Give it"
                " self.parameters()."
            )
        rates = set(learning_rates(optimizer))
        self.lr = rates.pop() if len(rates) == 1 and not self._schedules else math.nan
        return optimizer

    def _method_optimizer(self) -> torch.optim.Optimizer:
        """Return the optimizer that the method sets itself in this phase."""
        self.lr = self.phase.optimizer.lr * self._factor
        optimizer = super().configure_optimizers()
        self._wanted, self._optimizer = self.trained, optimizer
        self._position.step_by(optimizer, ())
        return optimizer

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

    def begin_phase(self) -> None:
        """Call the module's hook before the training, also for a client without a batch."""
        self._hook("on_fit_start")

    def begin_epoch(self, number: int) -> None:
        """Call the module's hooks at the beginning of an epoch that has a batch."""
        self._position.current_epoch = number
        if not self._has_started:
            self._has_started = True
            self._hook("on_train_start")
        if not self.should_stop:
            self._is_in_epoch = True
            self._hook("on_train_epoch_start")

    def end_step(self, batch: Batch, loss: Tensor) -> None:
        """Advance schedulers and call the module's hook after an optimizer step."""
        self._position.global_step += 1
        title = self.net.title
        for schedule in self._schedules:
            schedule.advance("step", self._batch_idx, title)
        if self._position.is_last_batch:  # as a Trainer does, before the hooks
            for schedule in self._schedules:
                schedule.advance("epoch", self._position.current_epoch, title)
        self._hook("on_train_batch_end", {"loss": loss}, self._packed(batch), self._batch_idx)

    def end_epoch(self, number: int) -> None:
        """Call the module's hook after an epoch."""
        if self._is_in_epoch:
            self._is_in_epoch = False
            self._hook("on_train_epoch_end")
            self._position.current_epoch = number + 1

    def end_phase(self) -> None:
        """Call the module's last hooks, and log the values of metrics that it has logged."""
        if self._has_started:
            self._hook("on_train_end")
        self._log_metrics()
        self._hook("on_fit_end")
        self._staged("teardown")
        for one, _, _ in self._seen.values():
            one.requires_grad_(False)
            if one._backward_hooks:  # of the parameter, registered while this client trained
                one._backward_hooks.clear()
        _attach(self.net.module, None)

    def validate(self, batches: Iterable[Batch]) -> None:
        """Call `validation_step` of the module for some batches, and log what it logs.

        The hooks that a Trainer calls before the training are called too, because they may set what
        `validation_step` reads; what they log is left out.

        Args:
            batches: The batches, at least one; `rows` returns those of the one that was taken last.
        """
        module: Any = self.net.module
        own_step: Any = module.validation_step
        with torch.enable_grad():
            self.configure_optimizers()
            self.begin_phase()
            self._hook("on_train_start")
        self._position.validate()
        self._validates = True
        module.eval()
        for name in ("on_validation_start", "on_validation_epoch_start"):
            self._hook(name)
        for index, batch in enumerate(batches):
            self._rows_of_batch = len(batch.y)
            given = self._packed(batch)
            self._hook("on_validation_batch_start", given, index)
            takes_index = is_param_in_hook_signature(own_step, "batch_idx", min_args=2)
            found = self._call("validation_step", given, *((index,) if takes_index else ()))
            self._hook("on_validation_batch_end", found, given, index)
        for name in ("on_validation_epoch_end", "on_validation_end"):
            self._hook(name)
        self.end_phase()
        for leaf in self.trained.values():
            leaf.requires_grad_(False)

    def _log_metrics(self) -> None:
        """Log the values of metrics that the module has logged as objects."""
        for name, metric in self._metrics.items():
            value = metric.compute()
            if not isinstance(value, Tensor) or value.numel() != 1:
                raise ConfigError(
                    f"{self.net.title} logs the metric {type(metric).__name__} as `{name}`, whose"
                    " value is not one number. Log its entries one by one."
                )
            self._logged.add(name, _number(value), torch.mean)

    def advance_to_the_end(self) -> None:
        """Advance the schedulers as often as in a whole phase, which one step has begun.

        Raises:
            ConfigError: A scheduler ends before the phase does.
        """
        batches, title = self.batches_per_epoch, self.net.title
        for number in range(1, min(batches * (self.phase.epochs or 1), MOST_TRIED)):
            for schedule in self._schedules:
                schedule.advance("step", number % batches, title)
                if (number + 1) % batches == 0:
                    schedule.advance("epoch", number // batches, title)

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

    def _staged(self, name: str) -> None:
        """Call `setup` or `teardown`, with the stage by name where it has one of that name."""
        if overrides(self.net.module, name):
            found = inspect.signature(getattr(self.net.module, name)).parameters
            by_name = "stage" in found or any(one.kind is one.VAR_KEYWORD for one in found.values())
            arguments, named = ((), {"stage": "fit"}) if by_name else (("fit",), {})
            self._call(name, *arguments, **named)

    def _hook(self, name: str, *arguments: Any) -> None:
        """Call a hook; it may have given the optimizer further parameters."""
        if overrides(self.net.module, name):
            self._call(name, *arguments)
            self._find_trained()

    def _call(self, name: str, *arguments: Any, **named: Any) -> Any:
        """Return what a method of the user's module returns; None for a hook that it has not."""
        if not overrides(self.net.module, name):
            return None
        return self._call_with(self._weights(), name, *arguments, **named)

    def _call_with(self, weights: Tree | None, name: str, *arguments: Any, **named: Any) -> Any:
        """Return what a method of the user's module returns with these weights.

        Raises:
            ConfigError: It raised an exception, with the line of code in the message, or it
                replaced parameters.
        """
        known = {id(leaf) for leaf in self.leaves.values()}
        are_leaves = weights is None or all(id(leaf) in known for leaf in weights.values())
        call = partial(self._called, name, are_leaves, *arguments, **named)
        called_before, self._is_called = self._is_called, True
        try:
            if weights is None:
                return call()
            return torch.func.functional_call(
                _Call(self.net, call), {f"net.{key}": leaf for key, leaf in weights.items()}, ()
            )
        except (UserError, RunError):
            raise
        except Exception as error:
            if "out of memory" in str(error):
                raise
            raise ConfigError(
                f"{self.net.title}.{name} raised {type(error).__name__}: {error}"
                f"{user_line(error)}. Correct the module."
            ) from error
        finally:
            self._is_called = called_before

    def _called(self, name: str, are_leaves: bool, *arguments: Any, **named: Any) -> Any:
        """Return what a method of the module returns, and check the parameters after it."""
        found = getattr(self.net.module, name)(*arguments, **named)
        if name != "training_step" or self._position.global_step == 0:
            self._check_parameters(name, are_leaves=are_leaves)
        return found

    def _check_parameters(self, name: str, *, are_leaves: bool) -> None:
        """Raise a ConfigError if a method of the module has replaced, moved or cast parameters.

        Args:
            name: Name of the method of the module.
            are_leaves: Whether the parameters are leaves, and not computed for this call.
        """
        what = f"{self.net.title}.{name}"
        now = dict(self.net.named_parameters())
        known = self._seen if are_leaves else {}
        other = [key for key, (one, _, _) in known.items() if now.get(key) is not one]
        if changed := [*other, *(now.keys() - self._seen.keys())]:
            raise ConfigError(
                f"{what} adds, removes or replaces parameters"
                f" ({', '.join(key.removeprefix('module.') for key in changed[:3])}). A client"
                " trains those that the module has when it is made: make them in __init__, and"
                " change their values in place: with torch.no_grad(): p.copy_(...)."
            )
        for key, (one, dtype, device) in known.items():
            place = key.removeprefix("module.")
            if key in self.net.frozen and one.requires_grad:
                raise ConfigError(
                    f"{what} unfreezes `{place}`, which was frozen when the module was given."
                    " Methods do not see such a parameter, so it cannot be trained. Freeze it in"
                    " on_fit_start instead of before."
                )
            if (one.dtype, one.device) != (dtype, device):
                raise ConfigError(
                    f"{what} moves or casts the module (to, cuda, double, ...): `{place}` was"
                    f" {dtype} on {device} and is {one.dtype} on {one.device}. Set engine.device"
                    " and engine.precision instead."
                )
            if getattr(one, "_post_accumulate_grad_hooks", None):
                raise ConfigError(
                    f"{what} calls register_post_accumulate_grad_hook of `{place}`, whose hooks"
                    " are not called: gradients are not accumulated. Use register_hook."
                )

    def _log(
        self,
        name: str,
        value: Any,
        prog_bar: bool = False,
        logger: bool | None = None,
        on_step: bool | None = None,
        on_epoch: bool | None = None,
        reduce_fx: Any = "mean",
        enable_graph: bool = False,
        sync_dist: bool = False,
        sync_dist_group: Any = None,
        add_dataloader_idx: bool = True,
        batch_size: int | None = None,
        metric_attribute: str | None = None,
        rank_zero_only: bool = False,
    ) -> None:
        """Take the place of `LightningModule.log`, with its arguments.

        `batch_size` weighs the value in the mean over steps. The names of other options that change
        what a Trainer shows are put into `ignored`; the rest has no effect on one process either.
        Values are left out if `forward` logs them while a method calls it on its own.
        """
        if not self._is_called or self._position.validating != self._logs_validation:
            return
        given = (prog_bar or None, None if logger is True else logger, on_step, on_epoch)
        self.ignored.update(
            option
            for option, chosen in zip(LOG_WITHOUT_EFFECT, given, strict=True)
            if chosen is not None
        )
        metric_names.check(name, f"{self.net.title} logs")
        if isinstance(value, Metric):
            self._metrics[name] = value
            return
        if reduce_fx not in REDUCTIONS:
            raise ConfigError(
                f"{self.net.title} logs `{name}` with reduce_fx={reduce_fx!r}. Use mean, sum, min"
                " or max."
            )
        if isinstance(value, Tensor) and value.numel() != 1:
            raise ConfigError(
                f"{self.net.title} logs `{name}`, a tensor of shape {list(value.shape)}. Log one"
                " number."
            )
        try:
            number = _number(value)
        except (TypeError, ValueError, RuntimeError, OverflowError) as error:
            raise ConfigError(
                f"{self.net.title} logs `{name}`, an object of type {type(value).__name__}. Log one"
                " number."
            ) from error
        known = self._rows_of_batch if self._validates else 1
        weight = float(known if batch_size is None else batch_size)
        self._logged.add(name, number, REDUCTIONS[reduce_fx], weight)


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
        self._loss: Tensor | None = None
        self._calls: list[Call] = []

    def loss(self) -> Tensor:
        """Return the loss, 0-dim; the training step is called once."""
        if self._loss is None:
            if self._net.no_features is not None:
                self._loss = self._step()
            else:
                with recorded(self._net.head_module()) as self._calls:
                    self._loss = self._step()
        return self._loss

    def outputs(self) -> Outputs:
        """Return features [B, D] and logits [B, C]: inputs and outputs of the head in this step.

        Raises:
            ConfigError: The training step has not called the head with all samples.
        """
        self.loss()
        what = f"{self._net.title}.training_step"
        return Outputs(*features_of(self._calls, self._rows, what, self._net.head))


class _Call(nn.Module):
    """A call of the user's code as a module, for `torch.func.functional_call`."""

    def __init__(self, net: nn.Module, step: Callable[[], Any]) -> None:
        super().__init__()
        self.net = net
        self.step = step

    def forward(self) -> Any:
        """Return what the call returns."""
        return self.step()


class _Position:
    """What `self.trainer` is in a client's training: the position in it, and nothing else.

    Args:
        net: The user's module as a net.
        phase: The phase that is trained.
        now: The round, and the numbers of the client's samples.

    Attributes:
        round: Number of the round, from 0.
        max_rounds: Number of rounds of the run.
        num_training_samples: Number of the client's training samples.
        class_counts: Number of these samples of each class, [C] in the type of the parameters; None
            for targets that are not classes.
        current_epoch: Number of epochs completed in the phase.
        global_step: Number of optimizer steps taken in the phase.
        should_stop: Whether the phase ends before its next step; the module may set it.
        num_training_batches: Number of batches of an epoch of the client.
        estimated_stepping_batches: Number of optimizer steps of the phase, at least 1.
        is_last_batch: Whether the batch is the last one of its epoch.
        optimizers: The optimizer, as a list; there is none before `configure_optimizers` returns.
        lr_scheduler_configs: Its schedulers.
    """

    def __init__(self, net: LightningNet, phase: Phase, now: Round) -> None:
        steps = -1 if phase.steps is None else phase.steps
        self.__dict__.update(
            title=net.title,
            round=now.number,
            max_rounds=now.rounds,
            num_training_samples=now.samples,
            class_counts=now.class_counts,
            current_epoch=0,
            global_step=0,
            max_epochs=-1 if phase.epochs is None else phase.epochs,
            max_steps=steps,
            should_stop=False,
            num_training_batches=0,
            estimated_stepping_batches=1,
            is_last_batch=False,
            accumulate_grad_batches=1,
            progress_bar_callback=None,
            **dict.fromkeys(("global_rank", "local_rank", "node_rank"), 0),
            **dict.fromkeys(("world_size", "num_nodes", "num_devices"), 1),
            **dict.fromkeys(("is_global_zero", "training"), True),
            **dict.fromkeys(("validating", "testing", "predicting", "sanity_checking"), False),
            evaluating=False,
        )

    def begin(self, batches: int) -> None:
        """Set how many batches an epoch has."""
        whole = self.max_epochs * batches
        steps = whole if self.max_steps < 0 else self.max_steps
        self.__dict__.update(num_training_batches=batches, estimated_stepping_batches=max(1, steps))

    def validate(self) -> None:
        """Say that the module is validated."""
        self.__dict__.update(training=False, validating=True, evaluating=True)

    def step_by(self, optimizer: torch.optim.Optimizer, schedules: Sequence[Schedule]) -> None:
        """Set the optimizer and its schedulers. `LightningModule.optimizers` reads `strategy`."""
        self.__dict__.update(
            optimizers=[optimizer],
            lr_scheduler_configs=list(schedules),
            strategy=SimpleNamespace(_lightning_optimizers=[optimizer]),
        )

    def place(self, batch_idx: int) -> None:
        """Set which batch of the epoch is trained on."""
        self.__dict__["is_last_batch"] = batch_idx + 1 == self.num_training_batches

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        there = [key for key in vars(self) if key not in ("title", "strategy")]
        raise ConfigError(
            f"{self.title} reads `{name}` of its Trainer (self.trainer.{name}, or a property that"
            " needs it). Clients are trained by an engine of flbench, which has no Trainer: of it"
            f" there are {', '.join(there)}."
        )

    def __setattr__(self, name: str, value: Any) -> None:
        if name not in ("current_epoch", "global_step", "should_stop"):
            raise ConfigError(
                f"{self.title} sets `{name}` of its Trainer (self.trainer.{name}), which has no"
                " effect: clients are trained by an engine of flbench. Only should_stop can be set."
            )
        self.__dict__[name] = value


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


def _number(value: Any) -> Tensor:
    """Return a logged value as a 0-dim tensor of float64, without a copy to the host."""
    if isinstance(value, int | float):  # a tensor of float32 would have fewer digits
        return torch.tensor(float(value), dtype=torch.float64)
    found = torch.as_tensor(value).detach()
    if found.is_complex():
        raise TypeError("a complex number has no order")
    return found.to(torch.float64).reshape(())


def _attach(module: nn.Module, position: _Position | None) -> None:
    """Set what `self.trainer` of a LightningModule and of those within it is."""
    for one in module.modules():
        if base_of(type(one)) is not None:
            one.__dict__["_trainer"] = position
            if position is None:
                one.__dict__.pop("log", None)
