"""ResNet-18 for small images (He et al., CVPR 2016): a 3x3 stem without pooling."""

from collections import OrderedDict
from typing import ClassVar

from pydantic import Field
from torch import Tensor, nn

from flbench.config.schema import ModelConfig
from flbench.models.base import Net, Norm, image_shape, norm_2d
from flbench.models.registry import MODELS


class ResNet18Config(ModelConfig):
    """Options of ResNet-18."""

    norm: Norm = Field("batch", description="after each convolution; group: 32 groups")


class Block(nn.Module):
    """Two 3x3 convolutions with a shortcut, 1x1 convolved where size or width change."""

    def __init__(self, inside: int, outside: int, stride: int, norm: Norm) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(inside, outside, 3, stride, padding=1, bias=False)
        self.norm1 = norm_2d(norm, outside)
        self.conv2 = nn.Conv2d(outside, outside, 3, padding=1, bias=False)
        self.norm2 = norm_2d(norm, outside)
        changes = stride != 1 or inside != outside
        self.shortcut: nn.Module = (
            nn.Sequential(nn.Conv2d(inside, outside, 1, stride, bias=False), norm_2d(norm, outside))
            if changes
            else nn.Identity()
        )
        self.relu = nn.ReLU()

    def forward(self, x: Tensor) -> Tensor:
        """Return relu(f(x) + shortcut(x)), [B, outside, H / stride, W / stride]."""
        y = self.norm2(self.conv2(self.relu(self.norm1(self.conv1(x)))))
        return self.relu(y + self.shortcut(x))  # type: ignore[no-any-return]


@MODELS.register("resnet18")
class ResNet18(Net):
    """Four stages of two blocks with 64, 128, 256, 512 channels, average pooling, linear head.

    11,173,962 parameters for 10 classes.
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
        inside = 64
        for stage, outside in enumerate((64, 128, 256, 512), start=1):
            for block in (1, 2):
                stride = 2 if stage > 1 and block == 1 else 1
                layers[f"stage{stage}_block{block}"] = Block(inside, outside, stride, config.norm)
                inside = outside
        layers |= OrderedDict(average=nn.AdaptiveAvgPool2d(1), flatten=nn.Flatten())
        self.backbone = nn.Sequential(layers)
        self.head = nn.Linear(512, classes)
