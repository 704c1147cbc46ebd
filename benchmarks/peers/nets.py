"""Nets of published comparisons that flbench does not have."""

from torch import nn


def simple_cnn(shape: tuple[int, ...], classes: int, *, glorot: bool = False) -> nn.Module:
    """Return a net of two 3x3 convolutions with 32 and 64 channels and a layer of width 128.

    pfl-research calls it `simple_cnn` and has Glorot's initial weights; FLUTE has it as the net of
    Federated EMNIST, with those of PyTorch.

    Args:
        shape: [channels, height, width], height and width at least 6.
        classes: Number of classes C.
        glorot: Whether weights are drawn by Glorot's uniform rule.
    """
    channels, height, width = shape
    convolutions = [nn.Conv2d(channels, 32, 3), nn.ReLU(), nn.Conv2d(32, 64, 3), nn.ReLU()]
    flat = 64 * ((height - 4) // 2) * ((width - 4) // 2)
    hidden = [nn.Dropout(0.25), nn.Flatten(), nn.Linear(flat, 128), nn.ReLU(), nn.Dropout(0.5)]
    net = nn.Sequential(*convolutions, nn.MaxPool2d(2), *hidden, nn.Linear(128, classes))
    for layer in net if glorot else ():
        if isinstance(layer, nn.Conv2d | nn.Linear):
            nn.init.xavier_uniform_(layer.weight)
    return net
