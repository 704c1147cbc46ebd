"""Nets of the user: any `nn.Module`, as an object or as a function that makes one."""

import hashlib
import inspect
import pickle
from collections.abc import Callable
from copy import deepcopy
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.parameter import UninitializedBuffer, UninitializedParameter

from flbench.config.schema import OwnModelConfig
from flbench.core import parts, source_hash
from flbench.core.errors import ConfigError
from flbench.core.shapes import examples, token_cure
from flbench.core.tree import digest
from flbench.core.types import Outputs
from flbench.models import fixed, freezing, lightning_head, lightning_net, lora, pretrained, trial
from flbench.models.copies import bound_functions, hooked_parameters, sentence_on
from flbench.models.module_state import tried


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


def make(config: OwnModelConfig, shape: tuple[int, ...], classes: int | None) -> nn.Module:
    """Return the user's net, with a backbone and a head.

    Args:
        config: Section `model`.
        shape: Shape of one sample.
        classes: Number of classes C; None for targets that are not classes.

    Raises:
        ConfigError: There is no such net, or it cannot be used; the message says why.
    """
    what = f"`model.name={config.name}`"
    source = _source(config)
    if isinstance(source, type) and not issubclass(source, nn.Module):
        raise ConfigError(
            f"{what} is the class {source.__name__}, not an nn.Module. Name a class of nets, or a"
            " function that makes one."
        )
    if config.lightning:
        return _lightning(source, config, shape, classes, what)
    if classes is None:
        raise needs_classes(config.name)
    net = _weighted(source, config, shape, classes, what)
    for module in net.modules():
        # Adam, clipping and stacks of clients need dense gradients, whose values are the same.
        if isinstance(module, nn.Embedding | nn.EmbeddingBag):
            module.sparse = False
    _check_leaves(net, what)
    _check_functions(source if isinstance(source, nn.Module) else net, what)
    pretrained.with_channels(net, config.channels, shape, what)
    given_in_eval_mode = not any(module.training for module in net.modules())
    if given_in_eval_mode:
        net.train()
    whole = trial.copied(net, what)
    split = _divided(net, source, config, shape, classes, what)
    pretrained.copy_note(net, split)
    freeze = freezing.freeze if config.lora.rank is None else lora.freeze_base
    for place in freeze(split, config):
        whole.get_submodule(freezing.in_net_of_user(split, place)).training = False
    _write_fixed(split, config, what)
    trial.check(whole, split, shape, classes, what, given_in_eval_mode=given_in_eval_mode)
    if config.lora.rank is not None:
        lora.inject(split, config)
        _write_fixed(split, config, what)
    return split


def _source(config: OwnModelConfig) -> Any:
    """Return what the user has named or given: a net, or a function or class that makes one."""
    again = "module=..." if config.lightning else "model=..."
    return parts.part(config.name, "model", "the net of this run", again)


def _weighted(
    source: Any, config: OwnModelConfig, shape: tuple[int, ...], classes: int, what: str
) -> nn.Module:
    """Return the user's net with the weights that all clients start from."""
    args, weights = deepcopy(config.args or {}), config.weights
    pretrained.check_arguments(source, args)
    if pretrained.is_timm(source) and len(shape) == 3:
        args.setdefault("in_chans", config.channels or shape[0])
    if weights is None or not pretrained.is_named(source, weights):
        net = _built(source, args, shape, classes, what)
        if weights is not None:
            parts = {"backbone", "head"} <= dict(net.named_children()).keys()
            head = config.head or ("head" if parts else pretrained.last_linear(net))
            pretrained.load(net, weights, head, what, config.weights_sha256, source)
        return net
    return pretrained.build(
        source, args, weights, config.head, classes, what, config.weights_sha256
    )


def _divided(
    net: nn.Module,
    source: Any,
    config: OwnModelConfig,
    shape: tuple[int, ...],
    classes: int,
    what: str,
) -> nn.Module:
    """Return a net with a backbone and a head; its modules keep their modes."""
    x = examples(shape, 2, next(net.parameters()).dtype)
    with fixed.eval_mode(net):
        outputs = _outputs(net, x, what, source, shape)
    if isinstance(outputs, Outputs):
        if config.head is not None:
            raise ConfigError(f"{what} has a head of its own. Leave `model.head` out.")
        _check_logits(outputs.logits, classes, what)
        return net
    _check_logits(outputs, classes, what)
    split = _split(net, config.head, what)
    with torch.no_grad(), fixed.eval_mode(split), tried(split):
        try:
            both = split(x)
        except Exception as error:
            # An auxiliary head, which works in training mode alone, may be the last linear layer.
            if split.place:
                net.set_submodule(split.place, split.head)
            auxiliary = _outputs(deepcopy(net).train(), x, f"{what}, in training mode,")
            _check_logits(auxiliary, classes, f"{what}, in training mode,")
            role = "its last linear layer" if config.head is None else "the value of `model.head`"
            raise ConfigError(
                f"{what} cannot be divided at `{split.place}`, {role}: {type(error).__name__}:"
                f" {error}. Set `model.head` to the submodule that computes the logits."
            ) from error
    features: Any = both.features
    if (
        not isinstance(features, Tensor)
        or features.ndim != 2
        or not torch.equal(both.logits, outputs)
    ):
        _check_repeats(split, x, what)
        raise ConfigError(
            f"{what}: its output is not that of the head `{split.place}` applied to features"
            " [B, D]. A net must return the logits of its head, without softmax; otherwise set"
            " `model.head` to the submodule that computes them."
        )
    return split


def _write_fixed(net: nn.Module, config: OwnModelConfig, what: str) -> None:
    """Find what the user has fixed in a net, and store it in the net.

    A run of a version that trained all parameters, in training mode, has `model.sha256` without
    `model.fixed`. It is continued and read as it began.

    Raises:
        ConfigError: Nothing can be trained, or something else is fixed than when the run began.
    """
    found = fixed.find(net)
    frozen = [name for name, one in net.named_parameters() if not one.requires_grad]
    if len(frozen) == len(list(net.parameters())):
        raise ConfigError(
            f"{what}: all {len(frozen)} parameters are frozen (requires_grad=False), so nothing can"
            " be trained. Set requires_grad=True for those to train, such as the head's."
        )
    if config.sha256 is not None and config.fixed is None and config.freeze == freezing.NONE:
        return
    if config.fixed not in (None, str(found)):
        raise ConfigError(
            f"{what}: `model.fixed` is `{config.fixed}`, but the net has"
            f" `{found or 'nothing fixed'}`. Freeze the same parameters and put the same modules in"
            " eval mode as when the run began, or start a new run."
        )
    fixed.write(net, found)


def recorded(config: OwnModelConfig, net: nn.Module) -> dict[str, str | None]:
    """Return the keys of the section `model` that describe a net of the user.

    Args:
        config: Section `model`.
        net: The net with its weights before the first round.

    Raises:
        ConfigError: The net differs from the one that `model.sha256` stands for.
    """
    return {"sha256": sha256(config, net), "fixed": str(fixed.of(net)) or None}


def needs_classes(name: str) -> ConfigError:
    """Return the error for targets without classes that a classifier is to be trained on.

    Args:
        name: Name of the net.
    """
    return ConfigError(
        f"`model.name={name}` is trained and judged as a classifier, and the targets of the data"
        " are not classes. Train a LightningModule by its own step: fl.federate(module, data,"
        " metrics={'mae': torchmetrics.MeanAbsoluteError()}). If they are classes, give one whole"
        " number for each sample (one-hot labels: y.argmax(1))."
    )


def _lightning(
    source: Any, config: OwnModelConfig, shape: tuple[int, ...], classes: int | None, what: str
) -> nn.Module:
    """Return the net of a LightningModule that is trained by its own training step."""
    net = lightning_net.make(source, config, shape, classes, what)
    if config.channels is not None:
        raise ConfigError(
            f"{what}: `model.channels` is not for a LightningModule, whose training_step gets the"
            " samples as they are. Repeat the channel there."
        )
    if config.weights is not None:
        pretrained.load(net.module, config.weights, config.head, what, config.weights_sha256)
        pretrained.copy_note(net.module, net)
    _check_leaves(net.module, what)
    if config.lora.rank is None:
        freezing.freeze(net, config, net.head)
    else:
        with fixed.eval_mode(net):  # the head gets no adapter, so it must be known before
            net.set_head(lightning_head.find(net.module, config.head, shape, classes))
        lora.freeze_base(net, config, net.head)
        lora.inject(net, config, net.head)
    net.note_frozen()
    _write_fixed(net, config, what)
    with fixed.eval_mode(net):
        lightning_net.check_output(net, shape, classes, what)
        net.set_head(lightning_head.find(net.module, config.head, shape, classes))
    trial.compare_batches(net, shape)
    trial.check_repeats(net, shape, what)
    return net


def sha256(config: OwnModelConfig, net: nn.Module) -> str:
    """Return the SHA-256 (hex) of the source of a net; of an object with its weights.

    Args:
        config: Section `model`.
        net: The net with its weights before the first round.

    Raises:
        ConfigError: The hash differs from `model.sha256`.
    """
    if config.name == parts.OBJECT:
        sha = hashlib.sha256(str(net).encode())
        for name, leaf in net.state_dict().items():
            if config.lora.rank is not None and ".lora_" in name:
                continue  # adapters are drawn from the run's seed
            if not isinstance(leaf, Tensor):  # of get_extra_state
                sha.update(name.encode() + _pickled(leaf))
                continue
            sha.update(f"{name}{leaf.dtype}{list(leaf.shape)}".encode())
            sha.update(leaf.contiguous().reshape(-1).view(torch.uint8).numpy().data)
        now, whose = sha.hexdigest(), "of the net that was given, with its weights,"
        hashes = {"weights": now}
        if code := source_hash.of_net(parts.given("model")):
            hashes["code"] = code
        if others := _unsaved(net):
            hashes["others"] = digest([others])
        now = source_hash.combined(hashes)
    else:
        now = source_hash.of_path(config.name)
        whose = f"of the source of `{config.name}`"
    if config.sha256 not in (None, now):
        raise ConfigError(
            f"SHA-256 {whose} was {config.sha256} and is now {now}. Use the same net (a net made by"
            " a function starts from the run's seed), or start a new run."
        )
    return now


def _unsaved(net: nn.Module) -> dict[str, Tensor]:
    """Return the tensors and arrays of a net that its state_dict does not have, by name."""
    saved = net.state_dict().keys()
    found = {name: one for name, one in net.named_buffers() if name not in saved}
    for place, module in net.named_modules():
        for name, value in vars(module).items():
            if isinstance(value, np.ndarray) and value.dtype.kind in "biuf":
                found[f"{place}.{name}"] = torch.tensor(value)
            elif isinstance(value, Tensor):
                found[f"{place}.{name}"] = value
    return {
        name: one.to_dense() if one.layout != torch.strided else one
        for name, one in found.items()
        if not one.is_meta
    }


def _pickled(value: object) -> bytes:
    """Return the bytes of an object; of one that cannot be pickled the name of its type."""
    try:
        return pickle.dumps(value)
    except (pickle.PicklingError, TypeError, AttributeError, ValueError, RuntimeError):
        return type(value).__qualname__.encode()


def notes(net: nn.Module) -> list[str]:
    """Return notes on a net of the user: its head, what is fixed, and what trials have found.

    Args:
        net: The net.
    """
    found = []
    if isinstance(net, lightning_net.LightningNet):
        found += lightning_net.notes(net)
    elif isinstance(net, OwnNet):
        found.append(
            f"model: the head is `{net.place or type(net.head).__name__}`; its inputs are the"
            " features. Set `model.head` for another one."
        )
    return [
        *found,
        *pretrained.notes(net),
        *_precision(net),
        *fixed.notes(net),
        *trial.notes(net),
    ]


def _precision(net: nn.Module) -> list[str]:
    """Return a note if the user has made parameters in another type than float32."""
    every = list(net.parameters())
    others = [one.dtype for one in every if one.dtype != torch.float32]
    if not others:
        return []
    return [
        f"model: {len(others)} of {len(every)} parameters are"
        f" {', '.join(sorted({str(one) for one in others}))}. A run casts all parameters to the"
        " type of `engine.precision`."
    ]


def _built(
    source: Any, args: dict[str, Any], shape: tuple[int, ...], classes: int, what: str
) -> nn.Module:
    """Return a net of its own: a copy of an object, or what a function or class returns."""
    try:
        if isinstance(source, nn.Module):
            if args:
                raise TypeError("`model.args` are for functions and classes")
            net: Any = deepcopy(source).cpu()
        else:
            net = _called(source, args, shape, classes)
    except Exception as error:
        if args.get("weights") is not None:
            raise ConfigError(
                f"{what} cannot be made with `model.args.weights={args['weights']}`:"
                f" {type(error).__name__}: {error}. Pretrained weights are for the number of"
                f" classes that they were trained with, and the data have {classes}. Set the key"
                f" `model.weights={args['weights']}` instead, which replaces the head."
            ) from error
        raise ConfigError(
            f"{what} cannot be made: {type(error).__name__}: {error}. Give an nn.Module, a function"
            " f(shape, classes) that returns one, or one with the argument `num_classes`."
        ) from error
    if not isinstance(net, nn.Module):
        raise ConfigError(
            f"{what} must return an nn.Module, got {type(net).__name__}. Correct the function."
        )
    if isinstance(net, torch.jit.ScriptModule):
        raise ConfigError(
            f"{what} is a TorchScript module ({type(net).__name__}), whose layers cannot be told"
            " apart. Give the nn.Module that it was compiled from."
        )
    return net


def _called(
    source: Callable[..., Any], args: dict[str, Any], shape: tuple[int, ...], classes: int
) -> Any:
    """Return source(shape, classes), or source(num_classes=classes) as torchvision's nets take."""
    parameters = inspect.signature(source).parameters
    needed = [
        one
        for one in parameters.values()
        if one.default is one.empty and one.kind in (one.POSITIONAL_ONLY, one.POSITIONAL_OR_KEYWORD)
    ]
    takes_any = any(one.kind is one.VAR_KEYWORD for one in parameters.values())
    if "num_classes" in parameters or (takes_any and not needed):
        return source(**{"num_classes": classes, **args})
    return source(shape, classes, **args)


def _check_leaves(net: nn.Module, what: str) -> None:
    """Raise a ConfigError if parameters are missing, uninitialized or not floating."""
    leaves = [
        *net.named_parameters(remove_duplicate=False),
        *net.named_buffers(remove_duplicate=False),
    ]
    if not list(net.parameters()):
        raise ConfigError(f"{what} has no parameters. Give a net that can be trained.")
    for name, leaf in leaves:
        if isinstance(leaf, UninitializedParameter | UninitializedBuffer):
            raise ConfigError(
                f"{what}: `{name}` is not initialized (a Lazy layer). Call the net once with a"
                " sample before you give it."
            )
    for name, parameter in net.named_parameters():
        if not parameter.is_floating_point():
            raise ConfigError(f"{what}: `{name}` is {parameter.dtype}. Use floating point.")
    for name, buffer in net.named_buffers():
        if buffer.is_complex():
            raise ConfigError(
                f"{what}: the buffer `{name}` is {buffer.dtype}, which has no mean or maximum in"
                " the order of numbers. Store real and imaginary parts as two buffers."
            )


def _check_functions(net: nn.Module, what: str) -> None:
    """Raise a ConfigError if a net has hooks or functions that its copies would not have."""
    name = type(net).__name__
    for parameter in hooked_parameters(net):
        raise ConfigError(
            f"{what}: {name} has registered a hook of the parameter `{parameter}` (register_hook),"
            " which copies of the net lose, so the clients would train without it. Register it in"
            " `forward`, for a tensor that is computed there."
        )
    for place in bound_functions(net):
        raise ConfigError(f"{what}: {name} {sentence_on(place)}")


def _check_repeats(net: nn.Module, x: Tensor, what: str) -> None:
    """Raise a ConfigError if two calls in eval mode with the same samples and seeds differ."""
    with fixed.eval_mode(net):
        first, second = (_outputs(net, x, what).logits for _ in range(2))
    if not torch.equal(first.nan_to_num(), second.nan_to_num()):
        raise ConfigError(f"{what}: two calls with the same samples and seeds differ. {trial.CURE}")


def _outputs(
    net: nn.Module, x: Tensor, what: str, source: Any = None, shape: tuple[int, ...] | None = None
) -> Any:
    """Return what a net returns for two samples.

    `source` is what makes the net, and `shape` that of one sample, for messages.
    """
    try:
        with torch.no_grad(), tried(net):
            return net(x)
    except ConfigError:
        raise
    except Exception as error:
        cure = pretrained.input_cure(net, source, tuple(x.shape[1:]))
        cure = cure or token_cure(shape or (), error)
        raise ConfigError(
            f"{what} does not accept samples of the shape {list(x.shape[1:])}:"
            f" {type(error).__name__}: {str(error).rstrip('.!')}."
            f"{cure or ' Change the net or the data.'}"
        ) from error


def _check_logits(logits: Any, classes: int, what: str) -> None:
    """Raise a ConfigError if the output for two samples is not floating point, [2, C]."""
    if not isinstance(logits, Tensor):
        raise ConfigError(
            f"{what} returns {type(logits).__name__}. A net must return logits [B, C], one tensor."
        )
    if logits.shape != (2, classes):
        raise ConfigError(
            f"{what} returns {list(logits.shape)} for two samples, and must return logits [2,"
            f" {classes}] for {classes} classes. Change the net's last layer."
        )
    if not logits.is_floating_point():
        raise ConfigError(f"{what} returns {logits.dtype}. Logits must be floating point.")


def _split(net: nn.Module, place: str | None, what: str) -> OwnNet:
    """Divide a net at its head: the last linear layer, or the submodule of a name."""
    modules = dict(net.named_modules())
    linear = lightning_head.linear_layers(net)
    if place is None:
        if not linear:
            raise ConfigError(
                f"{what} has no linear layer. Set `model.head` to the submodule that computes the"
                " logits from features [B, D]. A net whose last layer is a convolution, such as"
                " SqueezeNet, has none: take another net."
            )
        place = linear[-1]
    if place not in modules:
        raise ConfigError(
            f"{what} has no submodule `{place}`, which `model.head` names. Its linear layers:"
            f" {', '.join(linear) or 'none'}."
        )
    head = modules[place]
    if not place:
        return OwnNet(nn.Identity(), head, place)
    net.set_submodule(place, nn.Identity())
    return OwnNet(net, head, place)
