"""The base class of nets, building of nets, and the description of their leaves."""

import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Literal, TypeGuard

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.modules.linear import NonDynamicallyQuantizableLinear

from flbench.config.schema import ModelConfig, OwnModelConfig
from flbench.core import shapes
from flbench.core.errors import ConfigError
from flbench.core.registry import MODELS
from flbench.core.rng import seeded, torch_seed
from flbench.core.types import Outputs, Tree
from flbench.models import freezing, trial

if TYPE_CHECKING:
    from flbench.models.lightning_net import LightningNet
    from flbench.models.lora import Adapter

Role = Literal["all", "backbone", "head", "batchnorm", "linear", "lora_A", "lora_B"]
Norm = Literal["batch", "group", "none"]


class Net(nn.Module):
    """Base class of all nets.

    A subclass sets `backbone` and `head` in `__init__(config, shape, classes)`, where `shape` is
    the shape of one sample and `classes` the number C of classes. A registered net may also be any
    other module with the same `forward` whose parameters and buffers are named `backbone.*` and
    `head.*`.

    Attributes:
        Config: Class of the section `model` for this net.
        name: Registered name.
        takes_tokens: Whether inputs are tokens [B, L] int64 instead of floating point; `shape` is
            then a `flbench.core.shapes.TokenShape`.
        backbone: Maps inputs [B, ...] to features [B, D].
        head: Maps features [B, D] to logits [B, C].
    """

    Config: ClassVar[type[ModelConfig]] = ModelConfig
    name: ClassVar[str]
    takes_tokens: ClassVar[bool] = False
    backbone: nn.Module
    head: nn.Module

    def forward(self, x: Tensor) -> Outputs:
        """Return features [B, D] and logits [B, C] of inputs [B, ...]."""
        features = self.backbone(x)  # [B, ...] -> [B, D]
        return Outputs(features, self.head(features))


class MaxPool(nn.MaxPool2d):
    """Max pooling over 2 x 2 windows; the last row or column of an odd size is left out.

    Equal to `nn.MaxPool2d(2)`, but faster on the CPU when no gradients are computed.
    """

    def __init__(self) -> None:
        super().__init__(2)

    def forward(self, x: Tensor) -> Tensor:
        """Return the maxima [..., H // 2, W // 2] of feature maps [..., H, W]."""
        if x.is_cuda or torch.is_grad_enabled():
            pooled: Tensor = super().forward(x)
            return pooled
        # PyTorch's CPU kernel also computes the index of every maximum, one window after another.
        height, width = (size // 2 * 2 for size in x.shape[-2:])
        # [..., H, W] -> [..., H // 2, W] -> [..., H // 2, W // 2]
        x = torch.maximum(x[..., :height:2, :], x[..., 1:height:2, :])
        return torch.maximum(x[..., :width:2], x[..., 1:width:2])


@dataclass(frozen=True)
class LayerSpec:
    """Description of one module that has parameters or buffers of its own.

    Attributes:
        name: Name of the module in the net, such as `backbone.conv1`.
        kind: Kind of the layer, by the module's type. `norm` is a GroupNorm or LayerNorm; the
            output layer of `nn.MultiheadAttention`, which is never called, is `other`.
        parameters: Names of its parameters in the net, such as `backbone.conv1.weight`.
        buffers: Names of its buffers in the net.
    """

    name: str
    kind: Literal["conv", "linear", "batchnorm", "norm", "other"]
    parameters: tuple[str, ...]
    buffers: tuple[str, ...]

    @property
    def leaves(self) -> tuple[str, ...]:
        """Names of the parameters, then of the buffers."""
        return self.parameters + self.buffers


@dataclass(frozen=True)
class NetSpec:
    """Description of a net: its layers and its leaves (parameters and buffers).

    What is frozen (see `flbench.models.freezing`) is not described: neither are such tensors
    leaves, nor are modules without other tensors layers.

    Attributes:
        layers: All layers with leaves, in the order of their definition, which is that of the
            forward pass.
        features: Width D of the features; 0 for a LightningModule whose head is not known.
        size: Total number of scalars of the parameters, fixed ones included.
        head: Name of the submodule that is the head; None if it is not known.
        fixed: Names of the parameters and running statistics that the user has fixed.
        tied: Pairs of the name of a tensor that layers share, as a leaf, and another of its names.
        adapters: The low-rank adapters of `model.lora`, in the net's order.
    """

    layers: tuple[LayerSpec, ...]
    features: int
    size: int
    head: str | None = "head"
    fixed: frozenset[str] = frozenset()
    tied: tuple[tuple[str, str], ...] = ()
    adapters: "tuple[Adapter, ...]" = ()

    def names(self, role: Role) -> frozenset[str]:
        """Return the names of the leaves of a role, buffers included.

        Args:
            role: `head` is the net's submodule of that name (the one that `model.head` names in a
                LightningModule), `backbone` the rest. `batchnorm` and `linear` are all layers of
                these types. Layers are recognized by their type, never by a part of their name: a
                BatchNorm in a ResNet's shortcut may be called `downsample.1`, and a layer called
                `fc1` need not be the head. `lora_A` and `lora_B` are the factors of the low-rank
                adapters.

        Raises:
            ConfigError: Backbone or head is asked for, and the head is not known, the user has
                frozen all parameters of the role, or backbone and head share a tensor; or factors
                of adapters are asked for, and the net has none.
        """
        if role in ("lora_A", "lora_B"):
            if not self.adapters:
                raise ConfigError(
                    f"the method asks for `{role}`, a factor of low-rank adapters, and the net has"
                    " no adapters. Set their rank, for example `model.lora.rank=8`."
                )
            factors = (one.a if role == "lora_A" else one.b for one in self.adapters)
            return frozenset(factors) - self.fixed
        if self.head is None and role in ("backbone", "head"):
            linear = [layer.name for layer in self.layers if layer.kind == "linear"]
            known = ", ".join(name.removeprefix("module.") for name in linear)
            raise ConfigError(
                "the method divides the net into a backbone and a head, and none of the linear"
                " layers of the LightningModule returns what its `forward` returns. Set"
                " `model.head` (in Python head=...) to the submodule that computes the output;"
                f" linear layers: {known or 'none'}."
            )
        inside = f"{self.head}."
        for one, other in self.tied if role in ("backbone", "head") else ():
            if one.startswith(inside) != other.startswith(inside):
                raise ConfigError(
                    "the method divides the net into a backbone and a head, and both have the same"
                    f" tensor: `{one}` is `{other}`. Give the head weights of its own, or take a"
                    " method that does not divide the net, such as fedavg."
                )
        layers = {
            "all": self.layers,
            "backbone": [one for one in self.layers if not f"{one.name}.".startswith(inside)],
            "head": [one for one in self.layers if f"{one.name}.".startswith(inside)],
            "batchnorm": [layer for layer in self.layers if layer.kind == "batchnorm"],
            "linear": [layer for layer in self.layers if layer.kind == "linear"],
        }[role]
        if role in ("backbone", "head") and not any(layer.parameters for layer in layers):
            frozen = sorted(n for n in self.fixed if n.startswith(inside) == (role == "head"))
            if frozen:
                raise ConfigError(
                    f"the method needs the {role} of the net, and all of its parameters are frozen"
                    f" (requires_grad=False or model.freeze): {freezing.listed(frozen)}. Unfreeze"
                    " some, or take a method that does not divide the net, such as fedavg."
                )
        return frozenset(leaf for layer in layers for leaf in layer.leaves)

    @property
    def leaves(self) -> tuple[str, ...]:
        """Names of all leaves, buffers included, layer by layer."""
        return tuple(leaf for layer in self.layers for leaf in layer.leaves)

    @property
    def parameters(self) -> tuple[str, ...]:
        """Names of all parameters, layer by layer."""
        return tuple(leaf for layer in self.layers for leaf in layer.parameters)

    @property
    def statistics(self) -> frozenset[str]:
        """Names of the buffers of all BatchNorm layers: running mean, variance and counter."""
        return frozenset(
            leaf for layer in self.layers if layer.kind == "batchnorm" for leaf in layer.buffers
        )


def build(config: ModelConfig, shape: tuple[int, ...], classes: int | None, seed: int) -> nn.Module:
    """Build a net with seeded random weights, or those that `model.weights` names.

    The weights depend on the arguments alone, and the states of the global generators of PyTorch,
    NumPy and Python are not changed. Server and clients all start from them.

    Args:
        config: Name and options of the net.
        shape: Shape of one sample: `(channels, height, width)`, `(channels, length)`,
            `(features,)`, or a `TokenShape`.
        classes: Number of classes C; None for targets that are not classes, for which only a
            LightningModule can be trained.
        seed: Seed of the run.

    Raises:
        ConfigError: There is no such net, it does not accept such samples or targets, or its
            weights are not found or those of another net.
    """
    first = torch_seed(seed, "model")
    is_own, what = isinstance(config, OwnModelConfig), f"`model.name={config.name}`"
    # Not `torch.manual_seed` for nets of flbench: it would reseed all GPUs as well.
    with seeded(first % 2**32) if is_own else torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(first)
        net, head = _made(config, shape, classes)
        if config.weights is not None:
            from flbench.models import pretrained

            if pretrained.of(net) is None:
                pretrained.load(net, config.weights, head, what)
        if config.lora.rank is not None:
            from flbench.models import lora

            lora.inject(net, config, head)
        elif config.freeze != "none":
            freezing.freeze(net, config, head)
        freezing.record(net, what)
        if isinstance(config, OwnModelConfig):
            x = shapes.examples(shape, 2, next(net.parameters()).dtype)
            trial.check(net, x, classes, what)
    return net


def _made(
    config: ModelConfig, shape: tuple[int, ...], classes: int | None
) -> tuple[nn.Module, str | None]:
    """Return a net in training mode, and the name of its head."""
    if isinstance(config, OwnModelConfig):
        from flbench.models import own

        return own.make(config, shape, classes)
    if classes is None:
        from flbench.models import own

        raise own.needs_classes(config.name)
    kind = MODELS.find(config.name)
    if isinstance(shape, shapes.TokenShape) and not getattr(kind, "takes_tokens", False):
        raise unlike(config.name, "no tokens", shape)
    net: nn.Module = kind(config, shape, classes)
    if not any(module.training for module in net.modules()):
        net.train()
    return net, "head"


def describe(net: nn.Module, shape: tuple[int, ...]) -> NetSpec:
    """Return the description of a net.

    One forward pass in eval mode determines the width of the features. The modes of the
    net (training or eval) do not change.

    Args:
        net: A net with at least one parameter.
        shape: Shape of one sample.
    """
    first = next(net.parameters())
    x = shapes.examples(shape, 1, first.dtype).to(first.device)
    with torch.no_grad(), freezing.mode(net, train=False), trial.tried(net):
        features = net(x).features.shape[1]  # [1, D] -> D
    known = freezing.of(net).leaves
    leaves = net_leaves(net)
    layers = []
    for name, module in net.named_modules():
        prefix = f"{name}." if name else ""
        parameters, buffers = (
            tuple(
                prefix + leaf
                for leaf, _ in own
                if prefix + leaf in leaves and prefix + leaf not in known
            )
            for own in (
                module.named_parameters(recurse=False),
                module.named_buffers(recurse=False),
            )
        )
        if parameters or buffers:
            layers.append(LayerSpec(name, _kind(module), parameters, buffers))
    return NetSpec(
        tuple(layers),
        int(features),
        sum(parameter.numel() for parameter in net.parameters()),
        net.head if is_lightning(net) else "head",
        known,
        _tied(net, leaves),
        _adapters(net),
    )


def is_lightning(net: nn.Module) -> "TypeGuard[LightningNet]":
    """Return whether a net is a LightningModule of the user, whose code few runs import."""
    module = sys.modules.get("flbench.models.lightning_net")
    return module is not None and isinstance(net, module.LightningNet)


def _adapters(net: nn.Module) -> "tuple[Adapter, ...]":
    """Return the adapters of a net; none if nothing has imported PEFT."""
    if "peft" not in sys.modules:
        return ()
    from flbench.models import lora

    return lora.adapters(net)


def _tied(net: nn.Module, leaves: Tree) -> tuple[tuple[str, str], ...]:
    """Return pairs of a leaf and another name of the same tensor.

    Args:
        net: The net.
        leaves: Its parameters and buffers; see `net_leaves`.
    """
    first = {id(tensor): name for name, tensor in leaves.items()}
    every = (
        *net.named_parameters(remove_duplicate=False),
        *net.named_buffers(remove_duplicate=False),
    )
    return tuple((first[id(one)], name) for name, one in every if first[id(one)] != name)


def net_leaves(net: nn.Module) -> Tree:
    """Return the parameters and buffers of a net by name, without copying them.

    They are ordered layer by layer, the parameters of a layer before its buffers. A tensor that
    several layers share (tied weights) has the name that the first of them gives it.
    """
    tree: Tree = {}
    seen: set[int] = set()
    for name, module in net.named_modules():
        prefix = f"{name}." if name else ""
        for leaf, tensor in (
            *module.named_parameters(recurse=False),
            *module.named_buffers(recurse=False),
        ):
            if id(tensor) not in seen:
                seen.add(id(tensor))
                tree[prefix + leaf] = tensor
    return tree


def image_shape(shape: tuple[int, ...], name: str) -> tuple[int, int, int]:
    """Return the shape of images, `(channels, height, width)`.

    Args:
        shape: Shape of one sample.
        name: Name of the net, for the error message.

    Raises:
        ConfigError: The samples are not images.
    """
    if len(shape) != 3:
        raise unlike(name, "images", shape)
    return shape[0], shape[1], shape[2]


def unlike(name: str, taken: str, shape: tuple[int, ...]) -> ConfigError:
    """Return the error for a net that takes other samples than the data have."""
    others = {1: "mlp or logistic", 2: "cnn1d or mlp", 3: "lenet5 or resnet18"}[len(shape)]
    others = "gru or transformer" if isinstance(shape, shapes.TokenShape) else others
    return ConfigError(
        f"`model.name={name}` takes {taken}, and the data are {shapes.described(shape)}. Use"
        f" {others}, or set data.kind if the data are something else."
    )


def pad_to(shape: tuple[int, int, int], least: int) -> tuple[nn.Module, int, int]:
    """Return a layer that zero-pads images to a smallest size.

    Args:
        shape: Shape of the images, `(channels, height, width)`.
        least: Smallest height and width.

    Returns:
        The layer (an identity if the images are large enough), and the height and width of its
        output.
    """
    _, height, width = shape
    tall, wide = max(0, least - height), max(0, least - width)
    pad = nn.ZeroPad2d((wide // 2, wide - wide // 2, tall // 2, tall - tall // 2))
    return (pad if tall or wide else nn.Identity()), height + tall, width + wide


def norm_2d(kind: Norm, channels: int) -> nn.Module:
    """Return a normalization layer for feature maps [B, channels, H, W].

    Args:
        kind: `batch` for BatchNorm; `group` for GroupNorm with at most 32 groups of at least two
            channels; `none` for an identity.
        channels: Number of channels.
    """
    if kind == "batch":
        return nn.BatchNorm2d(channels)
    if kind == "group":
        groups = next(g for g in (32, 16, 8, 4, 3, 2, 1) if channels % g == 0 and 2 * g <= channels)
        return nn.GroupNorm(groups, channels)
    return nn.Identity()


def _kind(module: nn.Module) -> Literal["conv", "linear", "batchnorm", "norm", "other"]:
    """Return the kind of a layer by its type."""
    if isinstance(module, _BatchNorm):
        return "batchnorm"
    if isinstance(module, NonDynamicallyQuantizableLinear):
        return "other"
    if isinstance(module, nn.Linear):
        return "linear"
    if isinstance(module, nn.modules.conv._ConvNd):
        return "conv"
    if isinstance(module, nn.GroupNorm | nn.LayerNorm):
        return "norm"
    return "other"
