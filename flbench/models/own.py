"""Nets of the user: any `nn.Module`, as an object or as a function that makes one."""

import inspect
from collections.abc import Callable
from copy import deepcopy
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from flbench.config.schema import OwnModelConfig
from flbench.core import parts, source_hash
from flbench.core.errors import ConfigError
from flbench.core.shapes import examples
from flbench.core.tree import digest
from flbench.core.types import Outputs
from flbench.models import freezing, lightning_net, pretrained, trial


class OwnNet(nn.Module):
    """A net of the user in two parts: the head, and all that comes before it.

    Args:
        backbone: The user's net, in which the head is replaced by an identity.
        head: The head.
        place: Name of the head in the user's net.
    """

    def __init__(self, backbone: nn.Module, head: nn.Module, place: str) -> None:
        super().__init__()
        self.backbone = backbone
        self.head = head
        self.place = place

    def forward(self, x: Tensor) -> Outputs:
        """Return features [B, D] and logits [B, C] of inputs [B, ...]."""
        features = self.backbone(x)  # [B, ...] -> [B, D]
        return Outputs(features, self.head(features))


def make(
    config: OwnModelConfig, shape: tuple[int, ...], classes: int | None
) -> tuple[nn.Module, str | None]:
    """Return the user's net, with a backbone and a head, and the name of its head if it is known.

    Args:
        config: Section `model`.
        shape: Shape of one sample.
        classes: Number of classes C; None for targets that are not classes.

    Raises:
        ConfigError: There is no such net, or it cannot be used; the message says why.
    """
    what, again = f"`model.name={config.name}`", "model=..."
    source = parts.part(config.name, "model", "the net of this run", again)
    if classes is None and not config.lightning:
        raise needs_classes(config.name)
    module, weights = _made(source, config, shape, classes, what)
    pretrained.with_channels(module, config.channels, shape, what)
    x = examples(shape, 2, next(module.parameters()).dtype)
    original = source if isinstance(source, nn.Module) else module
    seen = x if config.channels is None else x.expand(-1, config.channels, -1, -1)
    trial.check_copies(original, seen, classes, what)
    if config.lightning:
        net: nn.Module = lightning_net.make(module, config.head, x, classes, what)
    else:
        if not any(one.training for one in module.modules()):
            module.train()
        net = _divided(module, config.head, x, classes, what)
    if weights is not None:
        net.__dict__[pretrained.ATTRIBUTE] = weights
    return net, net.head if isinstance(net, lightning_net.LightningNet) else "head"


def _made(
    source: Any, config: OwnModelConfig, shape: tuple[int, ...], classes: int | None, what: str
) -> tuple[nn.Module, pretrained.Weights | None]:
    """Return a net of its own, and where its weights come from if the function gives them."""
    args, weights = deepcopy(config.args or {}), config.weights
    pretrained.check_arguments(source, args)
    library = pretrained.library(source)
    if library == "timm" and len(shape) == 3:
        args.setdefault("in_chans", config.channels or shape[0])
    is_file = weights is None or library is None or Path(weights).expanduser().exists()
    if weights is not None and classes is not None and not is_file:
        return pretrained.by_name(source, args, weights, config.head, classes, what)
    try:
        if isinstance(source, nn.Module):
            net: Any = deepcopy(source).cpu()
        else:
            net = source(**{**_known(source, shape, classes), **args})
    except Exception as error:
        raise ConfigError(
            f"{what} cannot be made: {type(error).__name__}: {error}. Give an nn.Module, a function"
            " f(shape, classes) that returns one, or one with the argument `num_classes`; others"
            " are in `model.args`."
        ) from error
    if not isinstance(net, nn.Module):
        raise ConfigError(f"{what} must return an nn.Module, got {type(net).__name__}.")
    if not list(net.parameters()):
        raise ConfigError(
            f"{what} has no parameters when it is made. Make layers in __init__, not in setup."
        )
    if lazy := [name for name, one in net.named_parameters() if is_lazy(one)]:
        raise ConfigError(
            f"{what}: `{lazy[0]}` is not initialized (a Lazy layer). Call the net once with a"
            " sample before you give it."
        )
    return net, None


def _known(
    source: Callable[..., Any], shape: tuple[int, ...], classes: int | None
) -> dict[str, object]:
    """Return the arguments of a function that the data tell: of its own names, or num_classes."""
    parameters = inspect.signature(source).parameters
    values: dict[str, object] = {"shape": shape, "classes": classes, "num_classes": classes}
    found = {name: value for name, value in values.items() if name in parameters}
    takes_any = any(one.kind is one.VAR_KEYWORD for one in parameters.values())
    if not found and takes_any and not isinstance(source, type):  # nets of torchvision and timm
        return {"num_classes": classes}
    return found


def _divided(
    net: nn.Module, place: str | None, x: Tensor, classes: int | None, what: str
) -> nn.Module:
    """Return a net with a backbone and a head, which computes what the user's net computes."""
    split = net
    has_parts = isinstance(trial.called(net, x, what), Outputs)
    wanted = [trial.logits(net, x, classes, what, train=train) for train in (False, True)]
    if has_parts and place is not None:
        raise ConfigError(f"{what} has a head of its own. Leave `model.head` out.")
    if not has_parts:
        split = _split(net, place, what)
    name = getattr(split, "place", "head")
    try:
        found = [trial.called(split, x, what, train=train) for train in (False, True)]
        is_head = found[0].features.ndim == 2 and all(
            torch.equal(one.logits.nan_to_num(), other.nan_to_num())
            for one, other in zip(found, wanted, strict=True)
        )
    except (ConfigError, AttributeError) as error:
        raise ConfigError(f"{what} cannot be divided at its head `{name}`: {error}") from error
    if not is_head:
        raise ConfigError(
            f"{what}: its output is not that of the head `{name}` applied to features [B, D], in"
            " both modes and in each call. A net must return the logits of its head, without"
            " softmax, and read neither a clock nor a generator of its own; otherwise set"
            " `model.head` to the submodule that computes the logits."
        )
    return split


def _split(net: nn.Module, place: str | None, what: str) -> OwnNet:
    """Divide a net at its head: the last linear layer, or the submodule of a name."""
    place = pretrained.last_linear(net) if place is None else place
    head = dict(net.named_modules()).get(place or "") if place is not None else None
    if head is None:
        linear = [name for name, one in net.named_modules() if isinstance(one, nn.Linear)]
        lacks = "no linear layer" if place is None else f"no submodule `{place}`"
        raise ConfigError(
            f"{what} has {lacks} as its head. Set `model.head` to the submodule that"
            " computes the logits from features [B, D], such as its linear layers:"
            f" {', '.join(linear) or 'none'}."
        )
    if not place:
        return OwnNet(nn.Identity(), head, "")
    net.set_submodule(place, nn.Identity())
    return OwnNet(net, head, place)


def needs_classes(name: str) -> ConfigError:
    """Return the error for targets without classes that a classifier is to be trained on."""
    return ConfigError(
        f"`model.name={name}` is trained and judged as a classifier, and the targets of the data"
        " are not classes. Train a LightningModule by its own step: fl.federate(module, data,"
        " metrics={'mae': torchmetrics.MeanAbsoluteError()}). If they are classes, give one whole"
        " number for each sample (one-hot labels: y.argmax(1))."
    )


def recorded(config: OwnModelConfig, net: nn.Module) -> dict[str, str | None]:
    """Return the keys of the section `model` that describe a net of the user.

    Args:
        config: Section `model`.
        net: The net with its weights before the first round.

    Raises:
        ConfigError: The net differs from the one that was recorded when the run began.
    """
    found = {"sha256": sha256(config, net), "fixed": str(freezing.of(net)) or None}
    return pretrained.unchanged(config, found)


def sha256(config: OwnModelConfig, net: nn.Module) -> str:
    """Return the SHA-256 (hex) of the source of a net; of an object also of its tensors.

    Args:
        config: Section `model`.
        net: The net with its weights before the first round.
    """
    if config.name != parts.OBJECT:
        return source_hash.of_path(config.name)
    every = (*net.named_parameters(), *net.named_buffers())
    # Adapters are drawn from the run's seed.
    tensors = {name: one for name, one in every if ".lora_" not in name}
    hashes = {"type": str(net), "weights": digest([tensors])}
    if code := source_hash.of_net(parts.given("model")):
        hashes["code"] = code
    return source_hash.combined(hashes)


def notes(net: nn.Module) -> list[str]:
    """Return notes on a net of the user: its head, what is frozen, and what trials have found."""
    found = []
    if isinstance(net, lightning_net.LightningNet):
        found += lightning_net.notes(net)
    elif isinstance(net, OwnNet):
        found.append(
            f"model: the head is `{net.place or type(net.head).__name__}`; its inputs are the"
            " features. Set `model.head` for another one."
        )
    return [*found, *pretrained.notes(net), *freezing.notes(net), *trial.notes(net)]
