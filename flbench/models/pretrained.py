"""Pretrained weights of nets: those of torchvision and timm by name, and weights from files."""

import hashlib
import inspect
import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Final

import torch
from torch import Tensor, nn

from flbench.core import files
from flbench.core.errors import ConfigError, UserError, did_you_mean
from flbench.core.tree import digest
from flbench.core.wording import listed
from flbench.models.lightning_head import linear_layers
from flbench.models.module_state import tried

ATTRIBUTE: Final = "pretrained_weights"  # of the net; copies of the net have it too
DEFAULT: Final = "DEFAULT"
"""Value of `model.weights` for the weights that torchvision or timm recommend."""
NESTED: Final = ("state_dict", "model_state_dict", "model", "net")
"""Keys of a checkpoint under which its state dict may be."""
COUNTER: Final = "num_batches_tracked"
"""Buffer of a BatchNorm that files of old versions of PyTorch do not have."""
LOADING: Final = ("checkpoint_path", "cache_dir")
"""Arguments of timm for files, beside those whose names begin with `pretrained`."""
SHOWN: Final = 4  # names in a message
SIZES: Final = (32, 64, 128, 224)
"""Heights and widths at which a net is tried that does not accept the images of the data."""
SIZE_ARGUMENTS: Final = ("image_size", "img_size")
"""Arguments by which transformers of torchvision and timm are made for images of a size."""


@dataclass(frozen=True)
class Weights:
    """Where the weights of a net come from.

    Attributes:
        source: The file, or the name of the weights.
        sha256: SHA-256 (hex) of the file; of weights of timm by name that of the tensors.
        new_head: Why the head has new weights; "" if its weights are those of the file.
    """

    source: str
    sha256: str
    new_head: str = ""


def of(net: nn.Module) -> Weights | None:
    """Return where the weights of a net come from; None for seeded random weights."""
    found: Weights | None = net.__dict__.get(ATTRIBUTE)
    return found


def copy_note(source: nn.Module, target: nn.Module) -> None:
    """Store in a net where its weights come from, as another net has it."""
    if (found := of(source)) is not None:
        target.__dict__[ATTRIBUTE] = found


def recorded(net: nn.Module) -> dict[str, str | None]:
    """Return the keys of the section `model` that describe the weights of a net."""
    found = of(net)
    return {} if found is None else {"weights_sha256": found.sha256}


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


def is_named(source: Any, weights: str | None) -> bool:
    """Return whether `model.weights` is a name of torchvision or timm, and not a file.

    Args:
        source: The function or class that makes the net.
        weights: Value of `model.weights`.
    """
    return weights is not None and (weights == DEFAULT or weights in _names(source))


def build(
    source: Any,
    args: dict[str, Any],
    weights: str,
    head: str | None,
    classes: int,
    what: str,
    recorded: str | None = None,
) -> nn.Module:
    """Return a net of torchvision or timm with pretrained weights and a head for the classes.

    Args:
        source: The function that makes the net.
        args: Its keyword arguments.
        weights: Name of the weights, such as `DEFAULT`.
        head: Name of the head; None for the last linear layer.
        classes: Number of classes C.
        what: The key and its value, for messages.
        recorded: SHA-256 of the weights when the run began.

    Raises:
        ConfigError: The function has no pretrained weights, they are neither on this machine nor
            can be downloaded, or the head cannot be replaced.
    """
    if is_timm(source):
        return _of_timm(source, args, weights, classes, what, recorded)
    names = _names(source)
    if not names:
        raise ConfigError(
            f"{what} has no weights with the name `{weights}`: only functions of torchvision.models"
            " and nets `timm:NAME` have. Give a file of weights: model.weights=PATH."
        )
    entry: Any = getattr(_enum(source), weights)
    file = Path(torch.hub.get_dir()) / "checkpoints" / Path(entry.url).name
    try:
        net: nn.Module = source(weights=entry, **args)
    except OSError as error:
        raise _unreachable(weights, what, error, f"{entry.url} as {file}") from error
    except Exception as error:
        raise ConfigError(
            f"{what} cannot be made with `model.weights={weights}`: {type(error).__name__}:"
            f" {error}. Leave out arguments (`model.args`) that change the layers of the net."
        ) from error
    sha256, new = _sha256(file), ""
    check_sha256(f"`model.weights={weights}`", recorded, sha256)
    if len(entry.meta.get("categories", ())) != classes:
        new = replace_head(net, head, classes, what)
    net.__dict__[ATTRIBUTE] = Weights(f"{weights} ({file.name})", sha256, new)
    return net


def is_timm(source: Any) -> bool:
    """Return whether a function makes a net of timm; see `flbench.core.parts.find`."""
    return isinstance(source, partial) and source.func.__module__.partition(".")[0] == "timm"


def check_arguments(source: Any, args: Mapping[str, Any]) -> None:
    """Raise a ConfigError if an argument of a net of timm names weights, or a file of them.

    `model.weights` names them: their hash is recorded, and nothing but tensors is read.

    Args:
        source: The function or class that makes the net.
        args: `model.args`.
    """
    code = source.func if is_timm(source) else source
    is_of_timm = str(getattr(code, "__module__", "")).partition(".")[0] == "timm"
    for name in args if is_of_timm else ():
        if name in LOADING or name.startswith("pretrained"):
            raise ConfigError(
                f"`model.args.{name}`: the weights of nets of timm are named by `model.weights`:"
                f" {DEFAULT}, or a file. Leave this argument out."
            )


def replace_head(net: nn.Module, head: str | None, classes: int, what: str) -> str:
    """Replace the head of a net by a linear layer with new weights for other classes.

    Args:
        net: The net; it is changed.
        head: Name of the head; None for the last linear layer.
        classes: Number of classes C.
        what: The key and its value, for messages.

    Returns:
        What was done, for a note.

    Raises:
        ConfigError: The head is not a linear layer.
    """
    place = last_linear(net) if head is None else head
    old = dict(net.named_modules()).get(place or "")
    if not isinstance(old, nn.Linear):
        kind = "no linear layer" if place is None else f"no linear layer `{place}`"
        raise ConfigError(
            f"{what} has {kind}, so its head cannot be replaced by one for {classes} classes. Take"
            " another net, or write a function f(shape, classes) that replaces the head."
        )
    new = nn.Linear(old.in_features, classes, bias=old.bias is not None)
    net.set_submodule(str(place), new)
    return (
        f"the head `{place}` has new weights, because that of the file is for {old.out_features}"
        f" classes and the data have {classes}"
    )


def last_linear(net: nn.Module) -> str | None:
    """Return the name of the last linear layer of a net; None if there is none."""
    return next(reversed(linear_layers(net)), None)


def load(
    net: nn.Module,
    weights: str,
    head: str | None,
    what: str,
    recorded: str | None = None,
    source: Any = None,
) -> None:
    """Load the weights of a file into a net.

    The head keeps its new weights if the file has none for it, or some of other shapes.

    Args:
        net: The net; it is changed.
        weights: A file: safetensors, or a state dict that `torch.save` has written.
        head: Name of the head; None if it is not known, so that all weights must fit.
        what: The key and its value, for messages.
        recorded: SHA-256 of the file when the run began.
        source: The function or class that makes the net, for messages.

    Raises:
        ConfigError: The file cannot be read, has changed, or is that of another net.
    """
    path = Path(os.path.expanduser(weights))
    key = f"`model.weights={weights}`"
    try:
        files.check_regular(path)
        sha256 = _sha256(path)
    except (OSError, UserError) as error:
        if weights == DEFAULT:  # of a net that is neither torchvision's nor timm's
            raise ConfigError(
                f"{key}: the net has no published weights: only functions of torchvision.models"
                " and nets `timm:NAME` have. Give a file of weights: model.weights=PATH."
            ) from error
        names = _names(source)
        cure = did_you_mean(path.name, [*names, *(one.name for one in _beside(path))])
        named = f" or one of its pretrained weights: {', '.join(names)}" if names else ""
        raise ConfigError(
            f"{key}: {str(getattr(error, 'strerror', None) or error).rstrip('.')}.{cure} Name a"
            f" file (.safetensors, .pth){named}."
        ) from error
    check_sha256(key, recorded, sha256)
    state = _fitted(_read(path, key), net, head)
    new = _assign(net, state, head, key, what)
    net.__dict__[ATTRIBUTE] = Weights(str(path), sha256, new)


def check_sha256(key: str, recorded: str | None, now: str) -> None:
    """Raise a ConfigError if weights are others than when the run began."""
    if recorded not in (None, now):
        raise ConfigError(
            f"{key}: SHA-256 of the weights was {recorded} (`model.weights_sha256`) and is now"
            f" {now}. Restore the file, or start a new run."
        )


def _names(source: Any) -> list[str]:
    """Return the names of the weights of a function of torchvision; none for other code."""
    found = _enum(source)
    return [] if found is None else [*found.__members__]


def _enum(source: Any) -> Any:
    """Return the enumeration of the weights of a function of torchvision, or None."""
    if not str(getattr(source, "__module__", "")).startswith("torchvision.models."):
        return None
    from torchvision.models import get_model_weights

    try:
        return get_model_weights(source)
    except ValueError:  # a class, for example
        return None


def _of_timm(
    source: Any,
    args: dict[str, Any],
    weights: str,
    classes: int,
    what: str,
    recorded: str | None,
) -> nn.Module:
    """Return a net of timm with its pretrained weights; timm replaces the head."""
    from timm.models import get_pretrained_cfg

    name = str(source.args[0])
    about = get_pretrained_cfg(name, allow_unregistered=True)
    repository = getattr(about, "hf_hub_id", None)
    try:
        net: nn.Module = source(pretrained=True, num_classes=classes, **args)
    except OSError as error:
        where = f"the repository {repository} of the Hugging Face Hub"
        if not repository:
            where = str(getattr(about, "url", None) or "the file")
        raise _unreachable(weights, what, error, f"{where} into its cache") from error
    except Exception as error:
        raise ConfigError(
            f"{what} cannot be made with `model.weights={weights}`: {type(error).__name__}:"
            f" {error}. Take a net with pretrained weights (timm.list_pretrained()), or"
            " leave out arguments (`model.args`) that change the layers of the net."
        ) from error
    place = str(getattr(about, "classifier", "") or last_linear(net) or "")
    kept = {k: v for k, v in net.state_dict().items() if not k.startswith(f"{place}.")}
    new = ""
    trained_on = getattr(about, "num_classes", classes)
    if trained_on != classes:
        new = (
            f"the head `{place}` has new weights, because the net was trained on"
            f" {trained_on} classes and the data have {classes}"
        )
    sha256 = digest([kept])
    check_sha256(f"`model.weights={weights}`", recorded, sha256)
    net.__dict__[ATTRIBUTE] = Weights(f"{weights} (timm, {name})", sha256, new)
    return net


def _unreachable(weights: str, what: str, error: OSError, file: str) -> ConfigError:
    """Return the error for weights that are neither on this machine nor can be downloaded."""
    first = (str(error).splitlines() or [type(error).__name__])[0]
    return ConfigError(
        f"{what}: the weights `{weights}` are not on this machine and cannot be downloaded"
        f" ({first.rstrip('.')[:80]}).\nDownload {file}\nelsewhere and copy it to that place, or"
        " give the file itself: model.weights=PATH."
    )


def _beside(path: Path) -> Iterable[Path]:
    """Return the files of the folder of a file."""
    return sorted(path.parent.iterdir()) if path.parent.is_dir() else ()


def _sha256(file: Path) -> str:
    """Return the SHA-256 (hex) of a file."""
    with file.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def _read(path: Path, key: str) -> dict[str, Tensor]:
    """Return the tensors of a file by name. Nothing that the file names is called.

    Raises:
        ConfigError: The file has another format, or more than tensors.
    """
    try:
        if path.suffix == ".safetensors":
            from safetensors.torch import load_file

            return dict(load_file(path))
        found: Any = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:
        # PyTorch's reason stands behind its advice to load the file without `weights_only`.
        reason = str(error).rpartition("WeightsUnpickler error: ")[2].strip()
        first = (reason.splitlines() or [""])[0].split(". ")[0].rstrip(".")
        raise ConfigError(
            f"{key} is not a file of weights: {type(error).__name__}: {first[:100]}.\nGive a"
            " .safetensors file, or one that torch.save(net.state_dict(), PATH) has written. A file"
            " with other objects, such as a whole net, is not read, because reading it could run"
            " code."
        ) from error
    for _ in range(2):
        inner = [found[one] for one in NESTED if one in found] if isinstance(found, Mapping) else []
        found = next((one for one in inner if isinstance(one, Mapping)), found)
    names = found if isinstance(found, Mapping) else {}
    tensors = {str(k): v for k, v in names.items() if isinstance(v, Tensor)}
    if not tensors or len(tensors) != len(names):
        has = f"the keys {listed(map(str, names), SHOWN)}" if names else type(found).__name__
        raise ConfigError(
            f"{key} has {has}, which is not a state dict: tensors by the names of parameters and"
            " buffers. Save one by torch.save(net.state_dict(), PATH)."
        )
    return tensors


def _fitted(state: dict[str, Tensor], net: nn.Module, head: str | None) -> dict[str, Tensor]:
    """Return the tensors of a file by the names that they have in a net.

    A name that all tensors begin with, such as `module` from nn.DataParallel, is left out, and
    `backbone` and `head` of a file that flbench has exported become the names of the user's net.
    """
    children = dict(net.named_children())
    first = {name.partition(".")[0] for name in state}
    while len(first) == 1 and not first & children.keys() and all("." in name for name in state):
        state = {name.partition(".")[2]: value for name, value in state.items()}
        first = {name.partition(".")[0] for name in state}
    if first == {"backbone", "head"} and not first & children.keys() and head:
        state = {
            name.removeprefix("backbone.") if name.startswith("backbone.") else head + name[4:]: one
            for name, one in state.items()
        }
    return state


def _assign(net: nn.Module, state: dict[str, Tensor], head: str | None, key: str, what: str) -> str:
    """Copy tensors into a net.

    Returns:
        Why the head keeps its new weights; "" if it has those of the file.

    Raises:
        ConfigError: Names or shapes differ.
    """
    wanted = net.state_dict()
    inside = {name for name in {*wanted, *state} if head and name.startswith(f"{head}.")}
    differ = {name for name in inside if _shape(wanted, name) != _shape(state, name)}
    new = ""
    if differ:
        has = inside & state.keys()
        why = (
            f"that of the file is for {len(state[min(has)])} classes"
            if has
            else "the file has none"
        )
        new = f"the head `{head}` has new weights, because {why}"
        wanted = {name: one for name, one in wanted.items() if name not in inside}
        state = {name: one for name, one in state.items() if name not in inside}
    missing = [one for one in wanted if one not in state and not one.endswith(f".{COUNTER}")]
    others = [name for name in state if name not in wanted]
    shapes = [
        f"{name} ({_shape(state, name)} in the file, {_shape(wanted, name)} in the net)"
        for name in state
        if name in wanted and _shape(state, name) != _shape(wanted, name)
    ]
    problems = [
        f"{text}: {listed(names, SHOWN)}"
        for text, names in (
            (f"the file lacks {len(missing)} tensors of the net", missing),
            (f"the net lacks {len(others)} tensors of the file", others),
            (f"{len(shapes)} tensors have other shapes", shapes),
        )
        if names
    ]
    if problems:
        lines = "".join(f"\n  {one}" for one in problems)
        raise ConfigError(
            f"{key} does not fit {what}:{lines}\nGive weights of this net, made with the same"
            " arguments, or the net that the weights belong to."
        )
    with torch.no_grad():
        for name, value in state.items():
            wanted[name].copy_(value)
    return new


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


def input_cure(net: nn.Module, source: Any, shape: tuple[int, ...]) -> str:
    """Return what to do if a net does not accept images of a shape; "" if that is not known.

    Args:
        net: The net.
        source: The function or class that makes it.
        shape: Shape of one sample.
    """
    takes = next((one.in_channels for one in net.modules() if isinstance(one, nn.Conv2d)), None)
    if len(shape) != 3 or takes is None:
        return ""
    if takes != shape[0]:
        grey = f": model.channels={takes} repeats the grey one" if shape[0] == 1 else ""
        return f" The net takes images of {takes} channels, and the data have {shape[0]}{grey}."
    for size in SIZES:
        if size != shape[1] and _accepts(net, (shape[0], size, size)):
            made = next((one for one in SIZE_ARGUMENTS if one in _parameters(source)), None)
            other = "" if made is None else f", or make it for these: model.args.{made}={shape[1]}"
            return (
                f" The net accepts images of {size} x {size}, and the data have"
                f" {shape[1]} x {shape[2]}. Resize them (image files: data.resize={size}){other}."
            )
    return ""


def _accepts(net: nn.Module, shape: tuple[int, ...]) -> bool:
    """Return whether a net accepts a sample of a shape."""
    try:
        with torch.no_grad(), tried(net):
            net(torch.zeros(1, *shape, dtype=next(net.parameters()).dtype))
    except Exception:  # noqa: BLE001 any code may refuse a shape
        return False
    return True


def _parameters(source: Any) -> Iterable[str]:
    """Return the names of the arguments of a function or class; none if they are not known."""
    if is_timm(source):
        return ("img_size",)
    try:
        found = set(inspect.signature(source).parameters)
    except (TypeError, ValueError):
        return ()
    # The functions of torchvision.models, such as vit_b_16, hand arguments on to a class.
    return found | {"image_size"} if "vit" in getattr(source, "__name__", "") else found
