"""A LightningModule of the user, which is trained by its own step and optimizer."""

from collections.abc import Callable
from typing import Any, Final, Self

import torch
from torch import Tensor, nn

from flbench.core.errors import ConfigError
from flbench.core.types import Outputs
from flbench.models import freezing
from flbench.models.lightning_head import find, recorded

CALLED: Final = frozenset(
    {
        *("forward", "training_step", "configure_optimizers", "setup", "teardown"),
        *("on_fit_start", "on_fit_end", "on_train_start", "on_train_end"),
        *("on_train_epoch_start", "on_train_epoch_end"),
        *("on_train_batch_start", "on_train_batch_end"),
    }
)
"""What clients and evaluations call of a LightningModule."""


class LightningNet(nn.Module):
    """A LightningModule as the net of a federation.

    Args:
        module: The user's module.
        head: Name of the head in the module; None if it is not known.
        no_features: See below.

    Attributes:
        module: The user's module.
        head: Name of the head in this net, such as `module.fc`; None if it is not known.
        no_features: Why the inputs of the head are not features [B, D] that methods can read, as a
            clause; None if they are.
        optimizer: Class and arguments of the optimizer that the module has made last.
        labels: Labels of the present batch while a client trains.
    """

    def __init__(self, module: nn.Module, head: str | None, no_features: str | None) -> None:
        super().__init__()
        self.optimizer: dict[str, Any] = {}
        self.labels: Tensor = torch.empty(0)
        self.module = module
        self.head = None if head is None else f"module.{head}"
        self.no_features = no_features

    @property
    def title(self) -> str:
        """Name of the user's class."""
        return type(self.module).__name__

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Self:
        """Move or cast the net, and let `device` and `dtype` of LightningModules say so."""
        super()._apply(fn, recurse)  # type: ignore[no-untyped-call]
        leaf = next(self.parameters())
        for one in self.module.modules():
            if base_of(type(one)) is not None:
                one.__dict__.update(_device=leaf.device, _dtype=leaf.dtype)
        return self

    def forward(self, x: Tensor) -> Outputs:
        """Return features [B, D], and what the module's `forward` returns for inputs [B, ...].

        The features are the inputs of the head in this call. For targets that are not classes the
        output may have any shape [B, ...]. If `no_features` is not None, the features have the
        shape [B, 0].
        """
        if self.no_features is not None:
            logits = self.module(x)
            features = logits[:, :0] if logits.ndim == 2 else x.new_empty(x.shape[0], 0)
            return Outputs(features, logits)
        with recorded(self.head_module()) as calls:
            logits = self.module(x)
        return Outputs(calls[0].features, logits)

    def head_module(self) -> nn.Module:
        """Return the submodule that is the head, which must be known."""
        return self.get_submodule(self.head or "")


def make(
    module: nn.Module, head: str | None, x: Tensor, classes: int | None, what: str
) -> LightningNet:
    """Return the net of a LightningModule.

    Args:
        module: The module.
        head: Name of its submodule that computes the output; None if the user names none.
        x: Samples [B, ...].
        classes: Number of classes C; None for targets that are not classes.
        what: The key and its value, for messages.

    Raises:
        ConfigError: It is not a LightningModule, or cannot be trained by an engine.
    """
    if base_of(type(module)) is None:
        raise ConfigError(
            f"{what}: {type(module).__name__} is no LightningModule, so it has no training step of"
            " its own. Leave `model.lightning` out (in Python: call fl.run, which trains any net)."
        )
    if not (overrides(module, "training_step") and overrides(module, "configure_optimizers")):
        raise ConfigError(
            f"{what}: {type(module).__name__} needs a `training_step` and a `configure_optimizers`:"
            " they are what each client trains by."
        )
    if not getattr(module, "automatic_optimization", True):
        raise ConfigError(
            f"{what}: {type(module).__name__} sets automatic_optimization=False, a loop of its own,"
            " which methods cannot add terms to. Return the loss from training_step instead."
        )
    modules = dict(module.named_modules())
    if head is not None and (not head or head not in modules):
        linear = [name for name, one in modules.items() if isinstance(one, nn.Linear)]
        raise ConfigError(
            f"{what} has no submodule `{head}`, which `model.head` names. Its linear layers:"
            f" {', '.join(linear) or 'none'}."
        )
    with freezing.mode(module, train=False):
        return LightningNet(module, *find(module, head, x, classes))


def base_of(kind: type) -> type | None:
    """Return the class LightningModule that a class is derived from; None for another class.

    The packages `lightning` and `pytorch_lightning` have one each.
    """
    return next((one for one in kind.__mro__ if one.__name__ == "LightningModule"), None)


def overrides(module: nn.Module, name: str) -> bool:
    """Return whether a LightningModule has a method of its own: of its class, or of the object."""
    kinds = type(module).__mro__
    own = kinds[: kinds.index(base_of(type(module)))]
    return name in vars(module) or any(name in vars(kind) for kind in own)


def without_effect(module: nn.Module) -> list[str]:
    """Return the names of Lightning that a module defines and that no client calls."""
    base = base_of(type(module))
    kinds = [one for one in (base.__mro__ if base else ()) if "lightning" in one.__module__]
    names = {name for kind in kinds for name in vars(kind) if not name.startswith("_")}
    return sorted(name for name in names - CALLED if overrides(module, name))


def notes(net: LightningNet) -> list[str]:
    """Return notes that say what the module decides itself, and what of it has no effect."""
    head = "" if net.head is None else f" The head is `{net.head.removeprefix('module.')}`."
    found = [
        f"model: {net.title} is trained by its own training_step and configure_optimizers, with a"
        f" new optimizer in each round; `train.optimizer` is not used.{head}"
    ]
    if names := without_effect(net.module):
        listed = ", ".join(f"`{name}`" for name in names)
        found.append(
            f"model: of {net.title} these have no effect, because no Trainer calls them: {listed}."
        )
    return found
