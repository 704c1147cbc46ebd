"""What every net is: a backbone, a linear head, and a description of its leaves."""

from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from flbench.config.schema import ModelConfig
from flbench.core.errors import ConfigError
from flbench.core.registry import MODELS
from flbench.core.rng import torch_seed
from flbench.core.types import Outputs, Tree

Role = Literal["all", "backbone", "head", "batchnorm", "linear"]
Norm = Literal["batch", "group", "none"]


class Net(nn.Module):
    """Base of the nets: `backbone` maps inputs to features, `head` maps features to logits.

    A subclass sets both in `__init__(config, shape, classes)`. A net of one's own may be any module
    with the same `forward` whose leaves are named `backbone.*` and `head.*`.
    """

    Config: ClassVar[type[ModelConfig]] = ModelConfig
    name: ClassVar[str]
    backbone: nn.Module
    head: nn.Module

    def forward(self, x: Tensor) -> Outputs:
        """Return features and logits of inputs [B, ...]."""
        features = self.backbone(x)
        return Outputs(features, self.head(features))


class MaxPool(nn.MaxPool2d):
    """Maximum over windows of 2 x 2; an odd last row or column is left out."""

    def __init__(self) -> None:
        super().__init__(2)

    def forward(self, x: Tensor) -> Tensor:
        """Return the maxima [..., H // 2, W // 2] of maps [..., H, W]."""
        if x.is_cuda or torch.is_grad_enabled():
            pooled: Tensor = super().forward(x)
            return pooled
        # PyTorch's kernel for the CPU looks for the maxima's places too, one window at a time.
        height, width = (size // 2 * 2 for size in x.shape[-2:])
        x = torch.maximum(x[..., :height:2, :], x[..., 1:height:2, :])
        return torch.maximum(x[..., :width:2], x[..., 1:width:2])


@dataclass(frozen=True)
class LayerSpec:
    """One layer with leaves of its own: its module's name, its kind, the names of its leaves."""

    name: str
    kind: Literal["conv", "linear", "batchnorm", "norm", "other"]
    parameters: tuple[str, ...]
    buffers: tuple[str, ...]

    @property
    def leaves(self) -> tuple[str, ...]:
        """Parameters, then buffers."""
        return self.parameters + self.buffers


@dataclass(frozen=True)
class NetSpec:
    """A net's leaves by role, and its layers in the order of the forward pass.

    Attributes:
        layers: all layers that have leaves.
        features: width D of the features.
        size: number of scalars of all parameters.
    """

    layers: tuple[LayerSpec, ...]
    features: int
    size: int

    def names(self, role: Role) -> frozenset[str]:
        """Return the leaves of a role, buffers included.

        `batchnorm` and `linear` go by the layer's type, never by its name: ResNet's `downsample.1`
        is a BatchNorm (C7); `head` is what the net calls so, not any layer with "fc" in its name
        (C8).
        """
        layers = {
            "all": self.layers,
            "backbone": [layer for layer in self.layers if layer.name.split(".")[0] != "head"],
            "head": [layer for layer in self.layers if layer.name.split(".")[0] == "head"],
            "batchnorm": [layer for layer in self.layers if layer.kind == "batchnorm"],
            "linear": [layer for layer in self.layers if layer.kind == "linear"],
        }[role]
        return frozenset(leaf for layer in layers for leaf in layer.leaves)

    @property
    def leaves(self) -> tuple[str, ...]:
        """All leaves, buffers included, in order."""
        return tuple(leaf for layer in self.layers for leaf in layer.leaves)

    @property
    def parameters(self) -> tuple[str, ...]:
        """All trainable leaves, in order."""
        return tuple(leaf for layer in self.layers for leaf in layer.parameters)

    @property
    def statistics(self) -> frozenset[str]:
        """The buffers of all BatchNorm layers."""
        return frozenset(
            leaf for layer in self.layers if layer.kind == "batchnorm" for leaf in layer.buffers
        )


def build(config: ModelConfig, shape: tuple[int, ...], classes: int, seed: int) -> Net:
    """Return the seeded net for inputs of this shape.

    Weights depend on the seed alone: they are drawn inside a fork of the global generator, which
    stays as it was. No pretrained weights exist here (C1).

    Args:
        config: name and options of the net.
        shape: of one sample, `(channels, height, width)` or `(features,)`.
        classes: C.
        seed: the run's.
    Raises: ConfigError if the net cannot take such inputs.
    """
    with torch.random.fork_rng(devices=[]):
        # The CPU's generator alone: `torch.manual_seed` would reseed every GPU as well.
        torch.default_generator.manual_seed(torch_seed(seed, "model"))
        net: Net = MODELS.find(config.name)(config, shape, classes)
        return net


def describe(net: nn.Module, shape: tuple[int, ...]) -> NetSpec:
    """Return the description of a net; its feature width is found by one forward pass of zeros."""
    was_training = net.training
    with torch.no_grad():
        first = next(net.parameters())
        features = net.eval()(
            torch.zeros(1, *shape, dtype=first.dtype, device=first.device)
        ).features.shape[1]
    net.train(was_training)
    layers = []
    for name, module in net.named_modules():
        prefix = f"{name}." if name else ""
        parameters = tuple(prefix + leaf for leaf, _ in module.named_parameters(recurse=False))
        buffers = tuple(prefix + leaf for leaf, _ in module.named_buffers(recurse=False))
        if parameters or buffers:
            layers.append(LayerSpec(name, _kind(module), parameters, buffers))
    return NetSpec(
        tuple(layers), int(features), sum(parameter.numel() for parameter in net.parameters())
    )


def net_leaves(net: nn.Module) -> Tree:
    """Return the net's own tensors (not copies), layer by layer: parameters, then buffers."""
    tree: Tree = {}
    for name, module in net.named_modules():
        prefix = f"{name}." if name else ""
        for leaf, tensor in (
            *module.named_parameters(recurse=False),
            *module.named_buffers(recurse=False),
        ):
            tree[prefix + leaf] = tensor
    return tree


def image_shape(shape: tuple[int, ...], name: str) -> tuple[int, int, int]:
    """Return `(channels, height, width)`.

    Raises: ConfigError if the samples are rows of a table.
    """
    if len(shape) != 3:
        raise ConfigError(
            f"`model.name={name}` takes images, but the data are tables. Use mlp or logistic."
        )
    return shape[0], shape[1], shape[2]


def pad_to(shape: tuple[int, int, int], least: int) -> tuple[nn.Module, int, int]:
    """Return a layer that zero-pads images to at least `least` x `least`, and their new size."""
    _, height, width = shape
    tall, wide = max(0, least - height), max(0, least - width)
    pad = nn.ZeroPad2d((wide // 2, wide - wide // 2, tall // 2, tall - tall // 2))
    return (pad if tall or wide else nn.Identity()), height + tall, width + wide


def padding_note(net: nn.Module) -> str | None:
    """Return a sentence if the net pads its inputs."""
    for module in net.modules():
        if isinstance(module, nn.ZeroPad2d):
            left, right, top, bottom = module.padding
            return (
                f"model: images are zero-padded by {left}+{right} columns and {top}+{bottom} rows"
                " to the smallest size that the net takes."
            )
    return None


def norm_2d(kind: Norm, channels: int) -> nn.Module:
    """Return BatchNorm, GroupNorm (at most 32 groups of two channels or more), or none."""
    if kind == "batch":
        return nn.BatchNorm2d(channels)
    if kind == "group":
        groups = next(g for g in (32, 16, 8, 4, 3, 2, 1) if channels % g == 0 and 2 * g <= channels)
        return nn.GroupNorm(groups, channels)
    return nn.Identity()


def _kind(module: nn.Module) -> Literal["conv", "linear", "batchnorm", "norm", "other"]:
    if isinstance(module, _BatchNorm):
        return "batchnorm"
    if isinstance(module, nn.Linear):
        return "linear"
    if isinstance(module, nn.modules.conv._ConvNd):
        return "conv"
    if isinstance(module, nn.GroupNorm | nn.LayerNorm):
        return "norm"
    return "other"
