"""VGG-11 for images of 32x32 (Simonyan and Zisserman, ICLR 2015; FedCPMD, table 18)."""

from collections import OrderedDict
from typing import ClassVar, Literal

from pydantic import Field
from torch import nn

from flbench.config.schema import ModelConfig
from flbench.core.registry import MODELS
from flbench.models.base import MaxPool, Net, Norm, image_shape, norm_2d, pad_to

# Output channels of the convolutions of each block.
BLOCKS = ((64,), (128,), (256, 256), (512, 512), (512, 512))


class Vgg11Config(ModelConfig):
    """Section `model` for VGG-11."""

    norm: Norm = Field("none", description="normalization after each convolution")
    classifier: Literal[512, 4096] = Field(
        512,
        description="width of the two hidden linear layers; 4096 is that of FedCPMD's table 18 and"
        " takes 515 MB per client",
    )


@MODELS.register("vgg11")
class Vgg11(Net):
    """Eight 3x3 convolutions in five pooled blocks, two hidden linear layers and a head.

    With `classifier=4096` an average pooling to 7x7 precedes the linear layers, as in torchvision
    and FL-bench. Deviation: there is no dropout between the hidden layers.
    """

    Config: ClassVar[type[ModelConfig]] = Vgg11Config

    def __init__(self, config: Vgg11Config, shape: tuple[int, ...], classes: int) -> None:
        super().__init__()
        size = image_shape(shape, self.name)
        pad, _, _ = pad_to(size, least=32)
        layers: OrderedDict[str, nn.Module] = OrderedDict(pad=pad)
        width, number = size[0], 0
        for block, channels in enumerate(BLOCKS, start=1):
            for out in channels:
                number += 1
                layers[f"conv{number}"] = nn.Conv2d(width, out, 3, padding=1)
                layers[f"norm{number}"] = norm_2d(config.norm, out)
                layers[f"relu{number}"] = nn.ReLU()
                width = out
            layers[f"pool{block}"] = MaxPool()
        grid = 7 if config.classifier == 4096 else 1
        layers |= OrderedDict(
            average=nn.AdaptiveAvgPool2d(grid),
            flatten=nn.Flatten(),
            fc1=nn.Linear(width * grid * grid, config.classifier),
            relu_fc1=nn.ReLU(),
            fc2=nn.Linear(config.classifier, config.classifier),
            relu_fc2=nn.ReLU(),
        )
        self.backbone = nn.Sequential(layers)
        self.head = nn.Linear(config.classifier, classes)
