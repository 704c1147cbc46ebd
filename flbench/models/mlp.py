"""Fully connected nets for small images, series and tables: `mlp` and `logistic`."""

from collections import OrderedDict
from math import prod
from typing import Annotated, ClassVar

from pydantic import Field
from torch import nn

from flbench.config.schema import ModelConfig
from flbench.core.registry import MODELS
from flbench.models.base import Net


class MlpConfig(ModelConfig):
    """Section `model` for the multilayer perceptron."""

    hidden: tuple[Annotated[int, Field(ge=1)], ...] = Field(
        (128, 64),
        min_length=1,
        description="widths of the hidden layers; the last is the width of the features",
    )


@MODELS.register("mlp")
class Mlp(Net):
    """Multilayer perceptron: hidden linear layers, each with ReLU, and a linear head."""

    Config: ClassVar[type[ModelConfig]] = MlpConfig

    def __init__(self, config: MlpConfig, shape: tuple[int, ...], classes: int) -> None:
        super().__init__()
        layers: OrderedDict[str, nn.Module] = OrderedDict(flatten=nn.Flatten())
        width = prod(shape)
        for k, hidden in enumerate(config.hidden, start=1):
            layers[f"fc{k}"] = nn.Linear(width, hidden)
            layers[f"relu{k}"] = nn.ReLU()
            width = hidden
        self.backbone = nn.Sequential(layers)
        self.head = nn.Linear(width, classes)


@MODELS.register("logistic")
class Logistic(Net):
    """Multinomial logistic regression.

    The features are the flattened inputs, so the backbone has no parameters.
    """

    def __init__(self, config: ModelConfig, shape: tuple[int, ...], classes: int) -> None:
        super().__init__()
        self.backbone = nn.Flatten()
        self.head = nn.Linear(prod(shape), classes)
