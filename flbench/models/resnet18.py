"""ResNet-18 for small images, with a 3x3 stem without pooling (He et al., CVPR 2016)."""

from collections import OrderedDict
from typing import ClassVar

from pydantic import Field
from torch import Tensor, nn

from flbench.config.schema import ModelConfig
from flbench.core.registry import MODELS
from flbench.models.base import Net, Norm, image_shape, norm_2d


class ResNet18Config(ModelConfig):
    """Section `model` for ResNet-18."""

    norm: Norm = Field(
        "batch", description="normalization after each convolution; group: GroupNorm with 32 groups"
    )


class Block(nn.Module):
    """Residual block: two 3x3 convolutions and a shortcut.

    The shortcut is the identity, or a 1x1 convolution if the block changes the size of the maps or
    the number of channels.

    Args:
        in_channels: Number of input channels.
        out_channels: Number of output channels.
        stride: Stride of the first convolution.
        norm: Normalization after each convolution.
    """

    def __init__(self, in_channels: int, out_channels: int, stride: int, norm: Norm) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(in_channels, out_channels, 3, stride, padding=1, bias=False)
        self.norm1 = norm_2d(norm, out_channels)
        self.conv2 = nn.Conv2d(out_channels, out_channels, 3, padding=1, bias=False)
        self.norm2 = norm_2d(norm, out_channels)
        changes = stride != 1 or in_channels != out_channels
        self.shortcut: nn.Module = (
            nn.Sequential(
                nn.Conv2d(in_channels, out_channels, 1, stride, bias=False),
                norm_2d(norm, out_channels),
            )
            if changes
            else nn.Identity()
        )
        self.relu = nn.ReLU()

    def forward(self, x: Tensor) -> Tensor:
        """Return relu(f(x) + shortcut(x)), [B, out_channels, H / stride, W / stride]."""
        y = self.norm2(self.conv2(self.relu(self.norm1(self.conv1(x)))))
        return self.relu(y + self.shortcut(x))  # type: ignore[no-any-return]


@MODELS.register("resnet18")
class ResNet18(Net):
    """Four stages of two residual blocks with 64, 128, 256 and 512 channels, and a linear head.

    The features [B, 512] are the averages of the last maps. The net has 11,173,962 parameters for
    10 classes.
    """

    Config: ClassVar[type[ModelConfig]] = ResNet18Config

    def __init__(self, config: ResNet18Config, shape: tuple[int, ...], classes: int) -> None:
        super().__init__()
        channels, _, _ = image_shape(shape, self.name)
        layers: OrderedDict[str, nn.Module] = OrderedDict(
            conv=nn.Conv2d(channels, 64, 3, padding=1, bias=False),
            norm=norm_2d(config.norm, 64),
            relu=nn.ReLU(),
        )
        in_channels = 64
        for stage, out_channels in enumerate((64, 128, 256, 512), start=1):
            for block in (1, 2):
                stride = 2 if stage > 1 and block == 1 else 1
                layers[f"stage{stage}_block{block}"] = Block(
                    in_channels, out_channels, stride, config.norm
                )
                in_channels = out_channels
        layers |= OrderedDict(average=nn.AdaptiveAvgPool2d(1), flatten=nn.Flatten())
        self.backbone = nn.Sequential(layers)
        self.head = nn.Linear(512, classes)
