"""LeNet-5 with BatchNorm, as FL-bench and FedCPMD use it (tables 16 and 17 of FedCPMD)."""

from collections import OrderedDict
from typing import ClassVar, Literal

from pydantic import Field
from torch import nn

from flbench.config.schema import ModelConfig
from flbench.models.base import MaxPool, Net, Norm, image_shape, norm_2d, pad_to
from flbench.models.registry import MODELS


class LeNet5Config(ModelConfig):
    """Options of LeNet-5."""

    norm: Norm = Field("batch", description="after each convolution")
    hidden: Literal[1, 2] = Field(
        2, description="hidden linear layers: 2 (120, 84; table 16) or 1 (120; table 17)"
    )


@MODELS.register("lenet5")
class LeNet5(Net):
    """Two 5x5 convolutions of 6 and 16 channels, each normalised, ReLU, pooled; linear 120, 84, C.

    62,050 parameters for 3x32x32 and 10 classes. FedCPMD's table 16 prints one pooling layer and no
    normalisation; its code (FL-bench) has both after each convolution, and so has this net.
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
