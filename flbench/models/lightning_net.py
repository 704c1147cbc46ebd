"""A LightningModule of the user, which is trained by its own step and optimizer."""

import inspect
from collections.abc import Callable, Iterator
from copy import deepcopy
from typing import Any, Self

import torch
from torch import Tensor, nn

from flbench.config.schema import OwnModelConfig
from flbench.core.errors import ConfigError
from flbench.core.shapes import examples, token_cure
from flbench.core.types import Outputs
from flbench.models.copies import bound_functions, hooked_parameters, sentence_on
from flbench.models.lightning_head import Head, features_error, recorded
from flbench.models.lightning_hooks import REFUSED_HOOKS, base_of, overrides, without_effect
from flbench.models.module_state import tried


class LightningNet(nn.Module):
    """A LightningModule as the net of a federation.

    Args:
        module: The user's module.
        head: Name of its submodule that computes the output; None if the user names none.

    Attributes:
        module: The user's module.
        head: Name of the head in this net, such as `module.fc`; None if it is not known. Unless the
            user names one, it is found by `lightning_head.find`.
        head_call: Which call of the head in `forward` has the outputs, from 0.
        no_features: Why the inputs of the head are not features [B, D] that methods can read, as a
            clause; None if they are.
        frozen: Names of the parameters in this net that the user has frozen
            (`requires_grad=False`).
        compiled: Names of the submodules whose method `compile` was called.
        optimizer: Class and arguments of the optimizer that the module has made last.
        labels: Labels of the present batch while a client trains.
    """

    def __init__(self, module: nn.Module, head: str | None, compiled: tuple[str, ...] = ()) -> None:
        super().__init__()
        self.compiled = compiled
        self.optimizer: dict[str, Any] = {}
        self.labels: Tensor = torch.empty(0)
        self.module = module
        self.head = None if head is None else f"module.{head}"
        self.head_call = 0
        self.no_features: str | None = "the head of the module is not known"
        self.note_frozen()

    def note_frozen(self) -> None:
        """Set `frozen` to the parameters that are frozen now."""
        self.frozen = frozenset(
            name for name, one in self.named_parameters() if not one.requires_grad
        )

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
        # Sizes are not compared, because an export would take them for constants.
        if len(calls) <= self.head_call:
            raise features_error(calls, f"{self.title}.forward", self.head)
        return Outputs(calls[self.head_call].features, logits)

    def set_head(self, found: Head) -> None:
        """Set the head, and how features are read at it."""
        self.head = None if found.name is None else f"module.{found.name}"
        self.head_call, self.no_features = found.place, found.no_features

    def head_module(self) -> nn.Module:
        """Return the submodule that is the head.

        Raises:
            ValueError: The head is not known.
        """
        if self.head is None:
            raise ValueError(f"the head of {self.title} is not known")
        return self.get_submodule(self.head)


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
    _check_class(source if isinstance(source, type) else None, what)  # before it is called
    module = _made(source, deepcopy(config.args or {}), shape, classes, what)
    _check_class(type(module), what)
    # Copies of a module have neither hooks of its parameters nor compiled calls.
    original = source if isinstance(source, nn.Module) else module
    reasons = [*_reasons(module), *_hooked(original)]
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
    compiled = tuple(
        name or type(original).__name__
        for name, one in original.named_modules()
        if getattr(one, "_compiled_call_impl", None) is not None
    )
    return LightningNet(module, head, compiled)


def _check_class(kind: type | None, what: str) -> None:
    """Raise a ConfigError if a class is not one of LightningModules."""
    if kind is not None and base_of(kind) is None:
        raise ConfigError(
            f"{what}: {kind.__name__} is no LightningModule, so it has no training step of its own."
            " Use fl.run(model=...), which trains any net, or leave `model.lightning` out."
        )


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


def _reasons(module: nn.Module) -> Iterator[str]:
    """Yield reasons why an engine cannot train a LightningModule as a Trainer does."""
    for name in ("training_step", "configure_optimizers"):
        if not overrides(module, name):
            yield f"has no `{name}`. Write one: it is what each client trains by."
    if not getattr(module, "automatic_optimization", True):
        yield (
            "sets automatic_optimization=False. Manual optimization is a loop of its own, which"
            " methods cannot add terms to: return the loss from training_step instead."
        )
    if overrides(module, "setup") and not any(True for _ in module.parameters()):
        yield f"has no parameters when it is made.{_about_setup(module)}"
    for name, cure in sorted(REFUSED_HOOKS.items()):
        if overrides(module, name):
            yield (
                f"overrides `{name}`, which only a Trainer calls, so the clients would train"
                f" something else. Remove the hook, or {cure}."
            )
    if overrides(module, "log"):
        yield (
            "overrides `log`, which is replaced while a client trains. Give the method another"
            " name, and call self.log in it."
        )


def _hooked(module: nn.Module) -> Iterator[str]:
    """Yield a reason for each hook and function that copies of the module would not have."""
    for name in hooked_parameters(module):
        yield (
            f"has registered a hook of the parameter `{name}` (register_hook), which copies of the"
            " module lose. Register it in on_fit_start, which each client calls."
        )
    yield from map(sentence_on, bound_functions(module))


def check_output(net: LightningNet, shape: tuple[int, ...], classes: int | None, what: str) -> None:
    """Raise a ConfigError if the module does not return logits [B, C], or outputs [B, ...].

    Args:
        net: The net, in eval mode.
        shape: Shape of one sample.
        classes: Number of classes C; None for targets that are not classes.
        what: The key and its value, for messages.
    """
    x = examples(shape, 2, next(net.parameters()).dtype)
    for count in (2, 1):  # a module may leave out the axis of a single sample
        _check_logits(net, x[:count], classes, f"{what}: {net.title}.forward", shape)


def _check_logits(
    net: LightningNet, x: Tensor, classes: int | None, what: str, shape: tuple[int, ...]
) -> None:
    """Raise a ConfigError if the module does not return such logits for samples [B, ...]."""
    try:
        with torch.no_grad(), tried(net):
            found = net.module(x)
    except ConfigError:
        raise
    except Exception as error:
        raise ConfigError(
            f"{what} does not accept samples of the shape {list(x.shape[1:])}:"
            f" {type(error).__name__}: {error}."
            f"{token_cure(shape, error) or ' Change the module or the data.'}"
            f"{_about_setup(net.module)}"
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


def _about_setup(module: nn.Module) -> str:
    """Return a sentence about layers that a module makes in `setup`, which is not called yet."""
    if not overrides(module, "setup"):
        return ""
    return " Layers that `setup` makes must be made in __init__: each client calls `setup`."


def notes(net: LightningNet) -> list[str]:
    """Return notes that say what the module decides itself, and what of it has no effect.

    Args:
        net: The net.
    """
    head = "" if net.head is None else f" The head is `{net.head.removeprefix('module.')}`."
    found = [
        f"model: {net.title} is trained by its own training_step and configure_optimizers, with a"
        f" new optimizer in each round; `train.optimizer` is not used.{head}"
    ]
    by_reason: dict[str, list[str]] = {}
    for name, reason in without_effect(net.module):
        by_reason.setdefault(reason, []).append(f"`{name}`")
    if by_reason:
        listed = "; ".join(f"{', '.join(names)} ({why})" for why, names in by_reason.items())
        found.append(f"model: of {net.title} these have no effect: {listed}.")
    if net.compiled:
        listed = ", ".join(f"`{name}`" for name in net.compiled)
        found.append(
            f"model: of {net.title} `compile` of {listed} has no effect: each client trains a copy"
            " of the module, which is not compiled."
        )
    return found
