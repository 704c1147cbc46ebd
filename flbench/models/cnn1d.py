"""A convolutional net for series of sensors: `cnn1d`."""

from collections import OrderedDict
from typing import Annotated, ClassVar

from pydantic import Field
from torch import nn

from flbench.config.schema import ModelConfig
from flbench.core.errors import ConfigError
from flbench.core.registry import MODELS
from flbench.models.base import Net, unlike


class Cnn1dConfig(ModelConfig):
    """Section `model` for the convolutional net for series."""

    kernel: int = Field(9, ge=1, description="length of the convolutions' kernels")
    channels: tuple[Annotated[int, Field(ge=1)], ...] = Field(
        (32, 64), min_length=1, description="channels of the convolutions, one after the other"
    )
    hidden: int = Field(128, ge=1, description="width of the features")


@MODELS.register("cnn1d")
class Cnn1d(Net):
    """Convolutions over time, each with ReLU and max pooling over 2 steps, and a linear layer.

    Convolutions have no padding, so a series must have a smallest length. The net has 235,014
    parameters for series of 9 channels, length 128 and 6 classes, as in UCI HAR.

    Source: the convention for sensors of motion, after Ronao and Cho, "Human activity recognition
    with smartphone sensors using deep learning neural networks" (2016): kernels that are long and
    reach over time alone.
    """

    Config: ClassVar[type[ModelConfig]] = Cnn1dConfig

    def __init__(self, config: Cnn1dConfig, shape: tuple[int, ...], classes: int) -> None:
        super().__init__()
        if len(shape) != 2:
            raise unlike(self.name, "series [channels, length]", shape)
        width, length = shape
        least = 1
        for _ in config.channels:
            least = 2 * least + config.kernel - 1
        if length < least:
            raise ConfigError(
                f"`model.kernel={config.kernel}` is too long: {len(config.channels)} convolutions,"
                f" each with pooling, need series of length {least} or more, and those of the data"
                f" have length {length}. Set a smaller model.kernel, or fewer model.channels."
            )
        layers: OrderedDict[str, nn.Module] = OrderedDict()
        for k, channels in enumerate(config.channels, start=1):
            layers[f"conv{k}"] = nn.Conv1d(width, channels, config.kernel)
            layers[f"relu{k}"] = nn.ReLU()
            layers[f"pool{k}"] = nn.MaxPool1d(2)
            width, length = channels, (length - config.kernel + 1) // 2
        layers["flatten"] = nn.Flatten()
        layers["fc"] = nn.Linear(width * length, config.hidden)
        layers["relu"] = nn.ReLU()
        self.backbone = nn.Sequential(layers)
        self.head = nn.Linear(config.hidden, classes)
