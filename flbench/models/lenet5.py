"""LeNet-5 with BatchNorm, as in the code base FL-bench and in tables 16 and 17 of FedCPMD."""

from collections import OrderedDict
from typing import ClassVar, Literal

from pydantic import Field
from torch import nn

from flbench.config.schema import ModelConfig
from flbench.core.registry import MODELS
from flbench.models.base import MaxPool, Net, Norm, image_shape, norm_2d, pad_to


class LeNet5Config(ModelConfig):
    """Section `model` for LeNet-5."""

    norm: Norm = Field("batch", description="normalization after each convolution")
    hidden: Literal[1, 2] = Field(
        2, description="number of hidden linear layers: 2 (widths 120 and 84) or 1 (width 120)"
    )


@MODELS.register("lenet5")
class LeNet5(Net):
    """Two 5x5 convolutions of 6 and 16 channels and linear layers of widths 120, 84 and C.

    Each convolution is followed by normalization, ReLU and pooling. The net has 62,050 parameters
    for images of 3x32x32 and 10 classes.

    Source: FedCPMD, table 16 (two hidden linear layers) and table 17 (one). Deviation: table 16
    lists one pooling layer and no normalization, but the authors' code, FL-bench, has both after
    each convolution, and so does this net.
    """

    Config: ClassVar[type[ModelConfig]] = LeNet5Config

    def __init__(self, config: LeNet5Config, shape: tuple[int, ...], classes: int) -> None:
        super().__init__()
        channels, height, width = image_shape(shape, self.name)
        pad, height, width = pad_to((channels, height, width), least=16)
        flat = 16 * (((height - 4) // 2 - 4) // 2) * (((width - 4) // 2 - 4) // 2)
        layers: OrderedDict[str, nn.Module] = OrderedDict(
            pad=pad,
            conv1=nn.Conv2d(channels, 6, 5),
            norm1=norm_2d(config.norm, 6),
            relu1=nn.ReLU(),
            pool1=MaxPool(),
            conv2=nn.Conv2d(6, 16, 5),
            norm2=norm_2d(config.norm, 16),
            relu2=nn.ReLU(),
            pool2=MaxPool(),
            flatten=nn.Flatten(),
            fc1=nn.Linear(flat, 120),
            relu3=nn.ReLU(),
        )
        if config.hidden == 2:
            layers |= OrderedDict(fc2=nn.Linear(120, 84), relu4=nn.ReLU())
        self.backbone = nn.Sequential(layers)
        self.head = nn.Linear(84 if config.hidden == 2 else 120, classes)
