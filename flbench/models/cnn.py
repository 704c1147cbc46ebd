"""The net of FedPC: two convolutions and three linear layers; features of width 192."""

from collections import OrderedDict

from torch import nn

from flbench.config.schema import ModelConfig
from flbench.core.registry import MODELS
from flbench.models.base import MaxPool, Net, image_shape, pad_to


@MODELS.register("cnn")
class Cnn(Net):
    """Two 5x5 convolutions of 64 channels, each with ReLU and pooling; linear layers 384, 192, C.

    There is no normalization layer. The backbone has 796,032 parameters for images of 3x32x32.

    Source: FedPC, table 3; the same net as in the code of FedNH.
    """

    def __init__(self, config: ModelConfig, shape: tuple[int, ...], classes: int) -> None:
        super().__init__()
        channels, height, width = image_shape(shape, self.name)
        pad, height, width = pad_to((channels, height, width), least=16)
        flat = 64 * (((height - 4) // 2 - 4) // 2) * (((width - 4) // 2 - 4) // 2)
        self.backbone = nn.Sequential(
            OrderedDict(
                pad=pad,
                conv1=nn.Conv2d(channels, 64, 5),
                relu1=nn.ReLU(),
                pool1=MaxPool(),
                conv2=nn.Conv2d(64, 64, 5),
                relu2=nn.ReLU(),
                pool2=MaxPool(),
                flatten=nn.Flatten(),
                fc1=nn.Linear(flat, 384),
                relu3=nn.ReLU(),
                fc2=nn.Linear(384, 192),
                relu4=nn.ReLU(),
            )
        )
        self.head = nn.Linear(192, classes)
