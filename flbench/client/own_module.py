"""The local step of a client whose net is a LightningModule of the user.

The module's `training_step` computes the task loss, to which a method adds its terms, and its
`configure_optimizers` makes the optimizer. All else (batches, gradients, clipping, projections) is
that of `ClientModule`, so one client with all data trains the weights of Lightning's own Trainer,
bit for bit in float64.
"""

import copy
import math
import random
import traceback
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any, Final

import numpy as np
import torch
from lightning.pytorch.utilities.seed import isolate_rng
from lightning.pytorch.utilities.signature_utils import is_param_in_hook_signature
from torch import Tensor, nn
from torchmetrics import Metric

from flbench.client.forward import make_step_context
from flbench.client.logged import Log
from flbench.client.module import ClientModule
from flbench.client.own_optimizer import Schedule, learning_rates, parse, retarget
from flbench.client.program import Phase
from flbench.core.errors import ConfigError, RunError, UserError
from flbench.core.rng import Draw
from flbench.core.types import Batch, StepContext, Tree
from flbench.models.lightning_net import LightningNet, base_of

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
# Attributes of modules that are not part of the state of the user's training.
NO_STATE: Final = frozenset({*vars(nn.Module()), "_trainer", "_fabric", "_hparams", "log"})


class OwnModule(ClientModule):
    """One phase of one client's training by the user's own training step and optimizer.

    The module's Python attributes are set back at the beginning of each phase, and its random
    numbers (PyTorch's, NumPy's and Python's global generators) come from the run's seed, the client
    and the round. So nothing passes from one client to the next but parameters and buffers.

    Args:
        net: The user's module as a net.
        phase: See `ClientModule`.
        leaves: See `ClientModule`.
        start: See `ClientModule`.
        ctx: See `ClientModule`.
        factor: Factor of the round on the learning rates.
        log: What the client has logged so far.
    """

    is_traceable = False
    net: LightningNet

    def __init__(
        self,
        net: LightningNet,
        phase: Phase,
        leaves: Tree,
        start: Tree,
        ctx: Tree,
        *,
        factor: float,
        log: Log,
    ) -> None:
        super().__init__(net, phase, leaves, start, ctx)
        self.writes_gradients = True  # the user's optimizer may do so
        self.lr = math.nan
        self._factor = factor
        self._logged = log
        self._metrics: dict[str, Metric] = {}
        self._schedules: tuple[Schedule, ...] = ()
        self._position = _Position(net, phase)
        self._batch_idx = 0

    def step_context(self, batch: Batch) -> StepContext:
        """Return what loss terms read in the step on this batch."""
        return make_step_context(
            self.net,
            partial(self.forward, batch.x),
            batch,
            self.ctx,
            self.leaves,
            self.start,
            task=partial(self._task_loss, batch),
        )

    def training_step(self, batch: Batch, batch_idx: int = 0) -> Tensor:
        """Return the phase's loss on a batch, 0-dim: the module's own, and the method's terms."""
        self._batch_idx = batch_idx
        pair = (batch.x, batch.y)
        if self._call("on_train_batch_start", pair, batch_idx) == -1:
            raise ConfigError(
                f"{self.net.title}.on_train_batch_start returned -1, which skips the rest of an"
                " epoch. A client trains on all of its batches: remove it."
            )
        return super().training_step(batch, batch_idx)

    def configure_optimizers(self) -> torch.optim.Optimizer:
        """Return the module's optimizer over the leaves that the phase trains.

        If the phase trains a second model, its leaves take the place of the module's parameters.
        Parameters that the user has frozen, or left out of the optimizer, are not trained.
        """
        net, own = self.net, dict(self.net.named_parameters())
        _attach(net.module, self._position)
        self._reset()
        for name, parameter in own.items():
            parameter.requires_grad_(name not in net.frozen)
        optimizer, self._schedules = parse(self._call("configure_optimizers"), net.title)
        if self._factor != 1.0:
            if self._schedules:
                raise ConfigError(
                    f"{net.title} has a scheduler of its own, and `train.schedule` changes the"
                    " learning rate by round as well. Use one of them."
                )
            for group in optimizer.param_groups:
                group["lr"] = group["lr"] * self._factor
        for parameter in own.values():
            parameter.requires_grad_(False)
        wanted = {name: leaf for name, leaf in self.leaves.items() if self.phase.trains(name)}
        of = {parameter_of(name, own): leaf for name, leaf in wanted.items()}
        retarget(
            optimizer,
            {one: None if name in net.frozen else of.get(name) for name, one in own.items()},
        )
        taken = {id(leaf) for group in optimizer.param_groups for leaf in group["params"]}
        self.trained = {name: leaf for name, leaf in wanted.items() if id(leaf) in taken}
        if not self.trained:
            raise ConfigError(
                f"{net.title}.configure_optimizers returns an optimizer of none of the parameters"
                f" that the method trains ({', '.join(sorted(wanted)[:3])}, ...). Give it"
                " self.parameters()."
            )
        for leaf in self.trained.values():
            leaf.requires_grad_(True)
        rates = set(learning_rates(optimizer))
        self.lr = rates.pop() if len(rates) == 1 and not self._schedules else math.nan
        return optimizer

    @contextmanager
    def randomness(self, client: int, draw: Draw) -> Iterator[None]:
        """Return a context manager in which global generators begin at the seed of the client."""
        seed = draw.module_seed(client)
        with isolate_rng():
            torch.manual_seed(seed)
            np.random.seed(seed)
            random.seed(seed)
            yield

    def begin_epoch(self, number: int) -> None:
        """Call the module's hooks at the beginning of an epoch that has a batch."""
        self._position.current_epoch = number
        if number == 0:
            self._call("on_train_start")
        self._call("on_train_epoch_start")

    def end_step(self, batch: Batch, loss: Tensor) -> None:
        """Advance schedulers and call the module's hook after an optimizer step."""
        self._position.global_step += 1
        for schedule in self._schedules:
            schedule.advance("step", self._batch_idx)
        self._call("on_train_batch_end", {"loss": loss}, (batch.x, batch.y), self._batch_idx)

    def end_epoch(self, number: int) -> None:
        """Call the module's hook and advance schedulers after an epoch."""
        self._call("on_train_epoch_end")
        for schedule in self._schedules:
            schedule.advance("epoch", number)

    def end_phase(self) -> None:
        """Call the module's last hook, and log the values of metrics that it has logged."""
        if self._position.global_step:
            self._call("on_train_end")
        for name, metric in self._metrics.items():
            value = metric.compute()
            if not isinstance(value, Tensor) or value.numel() != 1:
                raise ConfigError(
                    f"{self.net.title} logs the metric {type(metric).__name__} as `{name}`, whose"
                    " value is not one number. Log its entries one by one."
                )
            self._logged.add(name, _number(value), torch.mean)
        _attach(self.net.module, None)

    def _reset(self) -> None:
        """Set the Python attributes of the user's module back, and let `self.log` come here."""
        _restore(self.net)
        self.net.module.__dict__["log"] = self._log

    def _task_loss(self, batch: Batch) -> Tensor:
        """Return what the module's training step returns for a batch: its loss, 0-dim."""
        arguments: tuple[Any, ...] = ((batch.x, batch.y),)
        own_step: Any = self.net.module.training_step
        if is_param_in_hook_signature(own_step, "batch_idx", min_args=2):
            arguments += (self._batch_idx,)
        step = partial(self._call, "training_step", *arguments)
        if self.phase.weights is None:
            found = step()
        else:
            weights = self.phase.weights(self.leaves, self.ctx)
            found = torch.func.functional_call(
                _Call(self.net, step), {f"net.{name}": leaf for name, leaf in weights.items()}, ()
            )
        loss = found.get("loss") if isinstance(found, dict) else found
        if not isinstance(loss, Tensor) or loss.numel() != 1:
            got = f"a tensor of shape {list(loss.shape)}" if isinstance(loss, Tensor) else found
            raise ConfigError(
                f"{self.net.title}.training_step returned {got}. It must return the loss of each"
                " batch, a tensor of one number, or a dict with the key `loss`."
            )
        return loss.reshape(())

    def _call(self, name: str, *arguments: Any) -> Any:
        """Return what a method of the user's module returns.

        Raises:
            ConfigError: It raised an exception; the message names the line of code.
        """
        module = self.net.module
        base = base_of(type(module))
        if name.startswith("on_") and getattr(type(module), name, None) is getattr(
            base, name, None
        ):
            return None
        try:
            return getattr(module, name)(*arguments)
        except (UserError, RunError):
            raise
        except Exception as error:
            if "out of memory" in str(error):
                raise
            raise ConfigError(
                f"{self.net.title}.{name} raised {type(error).__name__}: {error}"
                f"{_place(error)}. Correct the module."
            ) from error

    def _log(
        self,
        name: str,
        value: Any,
        *_: Any,
        reduce_fx: Any = "mean",
        **__: Any,
    ) -> None:
        """Take the place of `LightningModule.log`.

        Options of a Trainer (progress bar, logger, steps or epochs, batch size) have no effect.
        """
        if isinstance(value, Metric):
            self._metrics[name] = value
            return
        if not isinstance(name, str) or not name or set(name) & set(',"\r\n'):
            raise ConfigError(
                f"{self.net.title} logs the name {name!r}. A name is a text without commas,"
                " quotation marks and line breaks."
            )
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
        self._logged.add(name, _number(value), REDUCTIONS[reduce_fx])


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

    Attributes:
        current_epoch: Number of the epoch within the phase, from 0.
        global_step: Number of optimizer steps taken in the phase.
    """

    def __init__(self, net: LightningNet, phase: Phase) -> None:
        self.title = net.title
        self.current_epoch = self.global_step = 0
        self.max_epochs, self.max_steps = phase.epochs, -1 if phase.steps is None else phase.steps
        self.global_rank = self.local_rank = 0
        self.world_size, self.is_global_zero, self.training = 1, True, True

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        raise ConfigError(
            f"{self.title} reads `{name}` of its Trainer (self.trainer.{name}, or a property that"
            " needs it). Clients are trained by an engine of flbench, which has no Trainer: of it"
            " there are current_epoch, global_step, max_epochs and max_steps."
        )


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
    return torch.as_tensor(value).detach().to(torch.float64).reshape(())


def _attach(module: nn.Module, position: _Position | None) -> None:
    """Set what `self.trainer` of a LightningModule and of those within it is."""
    for one in module.modules():
        if base_of(type(one)) is not None:
            one.__dict__["_trainer"] = position
            if position is None:
                one.__dict__.pop("log", None)


def _restore(net: LightningNet) -> None:
    """Set the Python attributes of the user's modules to what they were before the first client."""
    users = {name: one for name, one in net.module.named_modules() if _has_state(one)}
    # A second name of a submodule or parameter, such as in a list, stays that very object.
    shared = [*net.modules(), *net.parameters(), *net.buffers()]
    if "first_attributes" not in net.__dict__:
        net.__dict__["first_attributes"] = {
            name: _copied(
                {key: value for key, value in one.__dict__.items() if key not in NO_STATE}, shared
            )
            for name, one in users.items()
        }
    first: dict[str, dict[str, Any]] = net.__dict__["first_attributes"]
    for name, one in users.items():
        for key in [key for key in one.__dict__ if key not in NO_STATE]:
            del one.__dict__[key]
        one.__dict__.update(_copied(first[name], shared))
    for one in net.modules():
        if isinstance(one, Metric):
            one.reset()


def _has_state(module: nn.Module) -> bool:
    """Return whether a module is of a class of the user's, which may change its attributes."""
    return not isinstance(module, Metric) and not type(module).__module__.startswith("torch.nn.")


def _copied(attributes: dict[str, Any], shared: list[Any]) -> dict[str, Any]:
    """Return a copy of Python attributes in which some objects stay the same."""
    return copy.deepcopy(attributes, {id(one): one for one in shared})


def _place(error: Exception) -> str:
    """Return the innermost line of code outside of installed packages, in parentheses."""
    frames = traceback.extract_tb(error.__traceback__)
    here = str(Path(__file__).parent.parent)
    mine = [
        frame
        for frame in frames
        if "site-packages" not in frame.filename and not frame.filename.startswith(here)
    ]
    return f" ({mine[-1].filename}:{mine[-1].lineno})" if mine else ""
