"""Fully connected nets for small images and tables: `mlp`, and `logistic` with no hidden layer."""

from collections import OrderedDict
from math import prod
from typing import Annotated, ClassVar

from pydantic import Field
from torch import nn

from flbench.config.schema import ModelConfig
from flbench.models.base import Net
from flbench.models.registry import MODELS


class MlpConfig(ModelConfig):
    """Options of the multilayer perceptron."""

    hidden: tuple[Annotated[int, Field(ge=1)], ...] = Field(
        (128, 64), min_length=1, description="widths of the hidden layers; the last is D"
    )


@MODELS.register("mlp")
class Mlp(Net):
    """Hidden linear layers, each with ReLU, and a linear head."""

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
    """Multinomial logistic regression: features are the inputs, all leaves are the head's."""

    def __init__(self, config: ModelConfig, shape: tuple[int, ...], classes: int) -> None:
        super().__init__()
        self.backbone = nn.Flatten()
        self.head = nn.Linear(prod(shape), classes)
