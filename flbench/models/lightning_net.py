"""A LightningModule of the user, which is trained by its own step and optimizer."""

import inspect
from collections.abc import Callable, Iterator
from copy import deepcopy
from typing import Any, Final

import torch
from torch import Tensor, nn

from flbench.config.schema import OwnModelConfig
from flbench.core.errors import ConfigError
from flbench.core.types import Outputs

REFUSED_HOOKS: Final = (
    "backward",
    "configure_gradient_clipping",
    "configure_model",
    "lr_scheduler_step",
    "on_after_backward",
    "on_after_batch_transfer",
    "on_before_backward",
    "on_before_batch_transfer",
    "on_before_optimizer_step",
    "on_before_zero_grad",
    "optimizer_step",
    "optimizer_zero_grad",
    "transfer_batch_to_device",
)
"""Hooks that change what is computed, and that a Trainer alone calls."""


class LightningNet(nn.Module):
    """A LightningModule as the net of a federation.

    Args:
        module: The user's module.
        head: Name of its submodule that computes the output; None if the user names none.

    Attributes:
        module: The user's module.
        head: Name of the head in this net, such as `module.fc`; None if there is none.
        frozen: Names of the parameters in this net that the user has frozen
            (`requires_grad=False`).
    """

    def __init__(self, module: nn.Module, head: str | None) -> None:
        super().__init__()
        self.module = module
        self.head = None if head is None else f"module.{head}"
        self.frozen = frozenset(
            name for name, one in self.named_parameters() if not one.requires_grad
        )

    @property
    def title(self) -> str:
        """Name of the user's class."""
        return type(self.module).__name__

    def forward(self, x: Tensor) -> Outputs:
        """Return what the module's `forward` returns for inputs [B, ...], as logits.

        For targets that are not classes it may have any shape [B, ...]. The features have the shape
        [B, 0]: a LightningModule does not tell which they are.
        """
        logits = self.module(x)
        features = logits[:, :0] if logits.ndim == 2 else x.new_empty(x.shape[0], 0)
        return Outputs(features, logits)


def make(
    source: Any, config: OwnModelConfig, shape: tuple[int, ...], classes: int | None, what: str
) -> LightningNet:
    """Return the net of a LightningModule.

    Args:
        source: A LightningModule, or a class or function that makes one. Arguments named `shape`,
            `classes` or `num_classes` get the shape of a sample and the number of classes.
        config: Section `model`.
        shape: Shape of one sample.
        classes: Number of classes C; None for targets that are not classes.
        what: The key and its value, for messages.

    Raises:
        ConfigError: It is not a LightningModule, or cannot be trained by an engine; the message
            says why.
    """
    module = _made(source, deepcopy(config.args or {}), shape, classes, what)
    base = base_of(type(module))
    if base is None:
        raise ConfigError(
            f"{what}: {type(module).__name__} is no LightningModule, so it has no training step of"
            " its own. Use fl.run(model=...), which trains any net, or leave `model.lightning` out."
        )
    reasons = list(_reasons(module, base))
    if reasons:
        name = type(module).__name__
        raise ConfigError("\n".join(f"{what}: {name} {reason}" for reason in reasons))
    head, modules = config.head, dict(module.named_modules())
    if head is not None and (not head or head not in modules):
        known = [name for name, one in modules.items() if isinstance(one, nn.Linear)]
        raise ConfigError(
            f"{what} has no submodule `{head}`, which `model.head` names. Its linear layers:"
            f" {', '.join(known) or 'none'}."
        )
    return LightningNet(module, head)


def base_of(kind: type) -> type | None:
    """Return the class LightningModule that a class is derived from; None for another class.

    The packages `lightning` and `pytorch_lightning` have one each.

    Args:
        kind: A class.
    """
    return next((one for one in kind.__mro__ if one.__name__ == "LightningModule"), None)


def _made(
    source: Any, args: dict[str, Any], shape: tuple[int, ...], classes: int | None, what: str
) -> nn.Module:
    """Return a module of its own: a copy of an object, or what a function or class returns."""
    try:
        if isinstance(source, nn.Module):
            if args:
                raise TypeError("`model.args` are for functions and classes")
            made: Any = deepcopy(source).cpu()
        else:
            made = source(**{**_known(source, shape, classes), **args})
    except Exception as error:
        raise ConfigError(
            f"{what} cannot be made: {type(error).__name__}: {error}. Give a LightningModule, or a"
            " class or function whose arguments are `shape`, `classes` or have defaults or values"
            " in `model.args`."
        ) from error
    if not isinstance(made, nn.Module):
        raise ConfigError(
            f"{what} must return a LightningModule, got {type(made).__name__}. Correct the"
            " function."
        )
    return made


def _known(
    source: Callable[..., Any], shape: tuple[int, ...], classes: int | None
) -> dict[str, object]:
    """Return what the data tell about the arguments of a class or function."""
    values: dict[str, object] = {"shape": shape}
    if classes is not None:
        values |= {"classes": classes, "num_classes": classes}
    names = inspect.signature(source).parameters
    return {name: value for name, value in values.items() if name in names}


def _reasons(module: nn.Module, base: type) -> Iterator[str]:
    """Yield reasons why an engine cannot train a LightningModule as a Trainer does."""
    kind = type(module)

    def has_own(name: str) -> bool:
        return getattr(kind, name, None) is not getattr(base, name, None)

    for name in ("training_step", "configure_optimizers"):
        if not has_own(name):
            yield f"has no `{name}`. Write one: it is what each client trains by."
    if not getattr(module, "automatic_optimization", True):
        yield (
            "sets automatic_optimization=False. Manual optimization is a loop of its own, which"
            " methods cannot add terms to: return the loss from training_step instead."
        )
    for name in REFUSED_HOOKS:
        if has_own(name):
            yield (
                f"overrides `{name}`, which only a Trainer calls, so the clients would train"
                " something else. Remove the hook, or move its work into training_step."
            )


def check_output(net: LightningNet, shape: tuple[int, ...], classes: int | None, what: str) -> None:
    """Raise a ConfigError if the module does not return logits [B, C], or outputs [B, ...].

    Args:
        net: The net, in eval mode.
        shape: Shape of one sample.
        classes: Number of classes C; None for targets that are not classes.
        what: The key and its value, for messages.
    """
    x = torch.linspace(-1.0, 1.0, 2 * torch.Size(shape).numel()).reshape(2, *shape)
    x = x.to(next(net.parameters()).dtype)
    for count in (2, 1):  # a module may leave out the axis of a single sample
        _check_logits(net, x[:count], classes, f"{what}: {net.title}.forward")


def _check_logits(net: LightningNet, x: Tensor, classes: int | None, what: str) -> None:
    """Raise a ConfigError if the module does not return such logits for samples [B, ...]."""
    try:
        with torch.no_grad():
            found = net.module(x)
    except Exception as error:
        raise ConfigError(
            f"{what} does not accept samples of the shape {list(x.shape[1:])}:"
            f" {type(error).__name__}: {error}. Change the module or the data."
        ) from error
    if not isinstance(found, Tensor) or not found.is_floating_point():
        got = found.dtype if isinstance(found, Tensor) else type(found).__name__
        raise ConfigError(
            f"{what} returns {got}, and must return logits [B, C], one tensor of floating point."
        )
    if classes is None:
        if found.ndim == 0 or len(found) != len(x):
            raise ConfigError(
                f"{what} returns {list(found.shape)} for a batch of {len(x)}, and must return"
                " outputs [B, ...], one for each sample. Do not reduce over the batch."
            )
        return
    expected = [len(x), classes]
    if list(found.shape) != expected:
        raise ConfigError(
            f"{what} returns {list(found.shape)} for a batch of {len(x)}, and must return logits"
            f" {expected} for {classes} classes, because the models are evaluated as classifiers."
            " Change the module's last layer. If the labels are targets of a regression, give"
            " fl.Data(x, y, targets=True) and `metrics`."
        )


def note(net: LightningNet) -> str:
    """Return a note that says what the module decides itself.

    Args:
        net: The net.
    """
    head = "" if net.head is None else f" The head is `{net.head.removeprefix('module.')}`."
    return (
        f"model: {net.title} is trained by its own training_step and configure_optimizers, with a"
        f" new optimizer in each round; `train.optimizer` is not used.{head}"
    )
