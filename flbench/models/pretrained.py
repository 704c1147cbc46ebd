"""Pretrained weights of nets: those of torchvision and timm by name, and weights from files."""

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Final

import torch
from torch import Tensor, nn
from torch.nn.modules.utils import consume_prefix_in_state_dict_if_present

from flbench.config.schema import ModelConfig
from flbench.core import files
from flbench.core.errors import ConfigError, UserError
from flbench.core.tree import digest
from flbench.core.wording import listed
from flbench.models.freezing import in_net_of_user

ATTRIBUTE: Final = "pretrained_weights"  # of the net; copies of the net have it too
NESTED: Final = ("state_dict", "model_state_dict", "model", "net")
"""Keys of a checkpoint under which its state dict may be."""
LIBRARIES: Final = ("torchvision", "timm")
LOADING: Final = ("weights", "checkpoint_path", "cache_dir")
"""Arguments of their functions for weights, beside those whose names begin with `pretrained`."""
SHOWN: Final = 4  # names in a message


@dataclass(frozen=True)
class Weights:
    """Where the weights of a net come from.

    Attributes:
        source: The file, or the name of the weights.
        sha256: SHA-256 (hex) of the file; of weights by name that of the tensors below the head.
        new_head: Why the head has new weights; "" if its weights are those of the file.
    """

    source: str
    sha256: str
    new_head: str = ""


def of(net: nn.Module) -> Weights | None:
    """Return where the weights of a net come from; None for seeded random weights."""
    found: Weights | None = net.__dict__.get(ATTRIBUTE)
    return found


def recorded(config: ModelConfig, net: nn.Module) -> dict[str, str | None]:
    """Return the keys of the section `model` that describe the weights of a net.

    Raises:
        ConfigError: The weights are others than when the run began.
    """
    found = of(net)
    return {} if found is None else unchanged(config, {"weights_sha256": found.sha256})


def unchanged(config: ModelConfig, found: dict[str, str | None]) -> dict[str, str | None]:
    """Return values of keys of the section `model`, if the section has the same ones or none.

    Raises:
        ConfigError: A key has another value, which it had when the run began.
    """
    for key, now in found.items():
        if (before := getattr(config, key)) not in (None, now):
            raise ConfigError(
                f"`model.{key}` of `{config.name}` was {before} when the run began, and is now"
                f" {now}. Restore the net and its weights (a net made by a function starts from the"
                " run's seed), or start a new run."
            )
    return found


def notes(net: nn.Module) -> list[str]:
    """Return a note on the weights of a net; an empty list for seeded random weights."""
    found = of(net)
    if found is None:
        return []
    head = f", {found.new_head}" if found.new_head else ""
    return [
        f"model: all clients start from the weights {found.source} (SHA-256"
        f" {found.sha256[:12]}){head}."
    ]


def library(source: Any) -> str | None:
    """Return the library with published weights that a function is of, or None."""
    code = source.func if isinstance(source, partial) else source
    first = str(getattr(code, "__module__", "")).partition(".")[0]
    return first if first in LIBRARIES else None


def check_arguments(source: Any, args: Mapping[str, Any]) -> None:
    """Raise a ConfigError if an argument of a net of a library names weights, or a file of them.

    `model.weights` names them: their hash is recorded, and nothing but tensors is read.
    """
    for name in args if library(source) else ():
        if name in LOADING or name.startswith("pretrained"):
            raise ConfigError(
                f"`model.args.{name}`: weights are named by the key `model.weights` (DEFAULT, or a"
                " file), which replaces the head too. Leave this argument out."
            )


def by_name(
    source: Any, args: dict[str, Any], weights: str, head: str | None, classes: int, what: str
) -> tuple[nn.Module, Weights]:
    """Return a net of torchvision or timm with published weights and a head for C classes.

    The function `source` makes the net. Without a name of the head it is the last linear layer.

    Raises:
        ConfigError: The function has no such weights, they are neither on this machine nor can be
            downloaded, or the head cannot be replaced.
    """
    of_timm = library(source) == "timm"
    try:
        named = {"pretrained": True, "num_classes": classes} if of_timm else {"weights": weights}
        net: nn.Module = source(**named, **args)
    except Exception as error:
        raise ConfigError(
            f"`model.weights={weights}` of {what} cannot be loaded: {type(error).__name__}:"
            f" {error}. Give a file (model.weights=PATH), or a name that the library lists; without"
            " a network, copy the library's cache from a machine that has downloaded them."
        ) from error
    place = head or last_linear(net)
    new = ""
    if of_timm:
        about: Any = getattr(net, "pretrained_cfg", {})
        place = about.get("classifier") or place
        if (trained_on := about.get("num_classes", classes)) != classes:
            new = f"the head `{place}` has new weights for {classes} classes, not {trained_on}"
    kept = {k: v for k, v in net.state_dict().items() if not k.startswith(f"{place}.")}
    if not of_timm:
        new = replace_head(net, place, classes, what)
    return net, Weights(f"{weights} ({library(source)})", digest([kept]), new)


def replace_head(net: nn.Module, place: str | None, classes: int, what: str) -> str:
    """Replace the head of a net, unless it is for C classes, and return what was done, for a note.

    Raises:
        ConfigError: The head is not a linear layer.
    """
    old = dict(net.named_modules()).get(place or "")
    if not isinstance(old, nn.Linear):
        raise ConfigError(
            f"{what} has no linear layer `{place}`, so its head cannot be replaced by one for"
            f" {classes} classes. Take another net, or write a function f(shape, classes)."
        )
    if old.out_features == classes:
        return ""
    net.set_submodule(str(place), nn.Linear(old.in_features, classes, old.bias is not None))
    return f"the head `{place}` has new weights for {classes} classes, not {old.out_features}"


def last_linear(net: nn.Module) -> str | None:
    """Return the name of the last linear layer of a net; None if there is none."""
    linear = [name for name, module in net.named_modules() if isinstance(module, nn.Linear)]
    return linear[-1] if linear else None


def load(net: nn.Module, weights: str, head: str | None, what: str) -> None:
    """Load the weights of a file into a net.

    The head keeps its new weights if the file has none for it, or some of other shapes. The names
    in the file are those of the user's net, or those that an export of flbench has.

    Args:
        net: The net; it is changed.
        weights: A file: safetensors, or a state dict that `torch.save` has written.
        head: Name of the head in the net; None if it is not known, so that all weights must fit.
        what: The key and its value, for messages.

    Raises:
        ConfigError: The file cannot be read, or is that of another net.
    """
    path, key = Path(weights).expanduser(), f"`model.weights={weights}`"
    try:
        files.check_regular(path)
        with path.open("rb") as stream:
            sha256 = hashlib.file_digest(stream, "sha256").hexdigest()
        state = _read(path)
    except (OSError, UserError) as error:
        raise ConfigError(
            f"{key} of {what} is no file of weights (.safetensors, .pth), and no name of published"
            f" weights of this net: {error}"
        ) from error
    except Exception as error:
        raise ConfigError(
            f"{key} is not a file of weights: {type(error).__name__}: {error}.\nGive a .safetensors"
            " file, or one that torch.save(net.state_dict(), PATH) has written. A file with other"
            " objects, such as a whole net, is not read, because reading it could run code."
        ) from error
    own = net.state_dict()
    names = {in_net_of_user(net, name): name for name in own}
    if state.keys().isdisjoint({*own, *names}):
        consume_prefix_in_state_dict_if_present(state, "module.")  # of nn.DataParallel
    state = {names.get(name, name): value for name, value in state.items()}
    inside = {name for name in {*own, *state} if head and name.startswith(f"{head}.")}
    new = ""
    if any(_shape(own, name) != _shape(state, name) for name in inside):
        has = sorted(inside & state.keys())
        why = (
            f"that of the file is for {len(state[has[0]])} classes" if has else "the file has none"
        )
        new = f"the head has new weights, because {why}"
        state = {name: value for name, value in state.items() if name not in inside}
    try:
        unlike = net.load_state_dict(state, strict=False)
    except RuntimeError as error:
        raise ConfigError(f"{key} does not fit {what}: {error}") from error
    left_out = inside if new else set()
    missing = [one for one in unlike.missing_keys if one not in left_out]
    if missing or unlike.unexpected_keys:
        raise ConfigError(
            f"{key} does not fit {what}: the file lacks"
            f" {listed(missing, SHOWN) or 'nothing'}, and the net lacks"
            f" {listed(unlike.unexpected_keys, SHOWN) or 'nothing'}. Give weights of this net, made"
            " with the same arguments, or the net that the weights belong to."
        )
    net.__dict__[ATTRIBUTE] = Weights(str(path), sha256, new)


def _read(path: Path) -> dict[str, Tensor]:
    """Return the tensors of a file by name. Nothing that the file names is called."""
    if path.suffix == ".safetensors":
        from safetensors.torch import load_file

        return dict(load_file(path))
    found: Any = torch.load(path, map_location="cpu", weights_only=True)
    for key in NESTED:
        if isinstance(found, Mapping) and isinstance(found.get(key), Mapping):
            found = found[key]
    if not isinstance(found, Mapping) or not all(isinstance(v, Tensor) for v in found.values()):
        raise TypeError(f"it has {type(found).__name__}, not tensors by names of parameters")
    return dict(found)


def _shape(tree: Mapping[str, Tensor], name: str) -> list[int] | None:
    """Return the shape of a tensor; None if there is none of this name."""
    return list(tree[name].shape) if name in tree else None


def with_channels(net: nn.Module, channels: int | None, shape: tuple[int, ...], what: str) -> None:
    """Let a net repeat grey images to the number of channels that it takes.

    Args:
        net: The net; it gets a hook that repeats the only channel.
        channels: Value of `model.channels`; None leaves the net as it is.
        shape: Shape of one sample.
        what: The key and its value, for messages.

    Raises:
        ConfigError: The samples are not images, or have several channels already.
    """
    if channels is None or (len(shape) == 3 and shape[0] == channels):
        return
    if len(shape) != 3 or shape[0] != 1:
        raise ConfigError(
            f"{what}: `model.channels={channels}` repeats the channel of grey images, and samples"
            f" have the shape {list(shape)}. Leave it out."
        )
    net.register_forward_pre_hook(partial(_repeat, channels))


def _repeat(channels: int, module: nn.Module, inputs: tuple[Any, ...]) -> tuple[Any, ...]:
    """Return the inputs of a net with images [B, 1, H, W] as [B, channels, H, W]."""
    x, *others = inputs
    return (x.expand(-1, channels, -1, -1), *others)
