"""The four-layer convolutional net of PFLlib: two convolutions and two linear layers."""

from collections import OrderedDict

from torch import nn

from flbench.config.schema import ModelConfig
from flbench.core.registry import MODELS
from flbench.models.base import MaxPool, Net, image_shape, pad_to


@MODELS.register("cnn4")
class Cnn4(Net):
    """Two 5x5 convolutions of 32 and 64 channels, each with ReLU and pooling; linear layers 512, C.

    There is no normalization layer. The net has 582,026 parameters for images of 1x28x28 and
    878,538 for images of 3x32x32, both with 10 classes.

    Source: "4-layer CNN" of the leaderboard of PFLlib (Zhang et al., JMLR 2025), which is the net
    of McMahan et al. (AISTATS 2017) without padding.
    """

    def __init__(self, config: ModelConfig, shape: tuple[int, ...], classes: int) -> None:
        super().__init__()
        channels, height, width = image_shape(shape, self.name)
        pad, height, width = pad_to((channels, height, width), least=16)
        flat = 64 * (((height - 4) // 2 - 4) // 2) * (((width - 4) // 2 - 4) // 2)
        self.backbone = nn.Sequential(
            OrderedDict(
                pad=pad,
                conv1=nn.Conv2d(channels, 32, 5),
                relu1=nn.ReLU(),
                pool1=MaxPool(),
                conv2=nn.Conv2d(32, 64, 5),
                relu2=nn.ReLU(),
                pool2=MaxPool(),
                flatten=nn.Flatten(),
                fc1=nn.Linear(flat, 512),
                relu3=nn.ReLU(),
            )
        )
        self.head = nn.Linear(512, classes)
