"""EfficientNet-Lite0 with the names of parameters that its published weights have."""

from efficientnet_lite_pytorch import EfficientNet


def lite0(shape: tuple[int, ...], classes: int) -> EfficientNet:
    """Return the net for images of a shape and a number of classes."""
    return EfficientNet.from_name("efficientnet-lite0", num_classes=classes)
