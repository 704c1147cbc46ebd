"""Shifts between clients: transformed images (feature shift) and permuted labels (concept shift).

Client k is in group k mod G. All samples of a client, those of its train, validation and test part,
are shifted in the same way. Samples that no client has, such as the common test set, stay as they
are.
"""

import hashlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from math import ceil, cos, pi, sin
from typing import Any, Final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from flbench.config.schema import ShiftConfig
from flbench.core.errors import ConfigError
from flbench.core.rng import generator, seeded
from flbench.core.user_code_errors import calling
from flbench.data.dataset import Dataset
from flbench.data.partition import ClientParts

STREAMS: Final = ("draw", "channels", "labels", "noise", "scheme")
"""Uses of the random stream `shift`; the position is a part of the stream's key. Only append."""
SHOWN_CLASSES: Final = 10  # classes whose permutation is written out
PIECE: Final = 4096  # images that are shifted at once


@dataclass(frozen=True)
class Shift:
    """How the samples of a group of clients are shifted.

    Attributes:
        values: Strength of each feature shift by its key, such as 90 degrees of `rotation`.
        channels: Order of the channels; None for the order of the data.
        labels: New class of each class; None for those of the data.
    """

    values: Mapping[str, float]
    channels: tuple[int, ...] | None = None
    labels: tuple[int, ...] | None = None

    def __str__(self) -> str:
        found = [f"{name}={value:.4g}" for name, value in self.values.items()]
        if self.channels is not None:
            found.append(f"channels={''.join(map(str, self.channels))}")
        if self.labels is not None:
            whole = len(self.labels) <= SHOWN_CLASSES
            found.append(f"labels={'-'.join(map(str, self.labels)) if whole else 'permuted'}")
        return " ".join(found)


def make(config: ShiftConfig, clients: int, channels: int, classes: int, seed: int) -> list[Shift]:
    """Return the shift of each group.

    Group 0 keeps the channels and labels of the data; the other groups draw permutations.

    Raises:
        ConfigError: The section does not fit the number of clients, or itself.
    """
    lengths = [1 if config.draw else len(values) for _, values in config.degrees()]
    count = config.groups or (clients if config.draw else max(lengths, default=clients))
    if count > clients:
        raise ConfigError(
            f"`shift` has {count} groups, but there are only {clients} clients. Lower"
            " `shift.groups` or give fewer degrees, or raise partition.clients."
        )
    for name, values in config.degrees():
        is_range = len(values) == 2 and values[0] <= values[1]
        if not (is_range if config.draw else len(values) in (1, count)):
            raise ConfigError(
                f"`shift.{name}`={list(values)} must be [lowest, highest] with shift.draw=true, and"
                f" otherwise one value, or one for each of {count} groups."
            )
    found = []
    for group in range(count):
        strengths: dict[str, float] = {}
        for number, (name, given) in enumerate(config.degrees()):
            strengths[name] = given[group % len(given)]
            if config.draw:
                rng = generator(seed, "shift", STREAMS.index("draw"), group, number)
                strengths[name] = float(rng.uniform(given[0], given[1]))
        found.append(
            Shift(
                strengths,
                _permutation(seed, "channels", group, channels) if config.channels else None,
                _permutation(seed, "labels", group, classes) if config.labels else None,
            )
        )
    return found


def _permutation(seed: int, use: str, group: int, n: int) -> tuple[int, ...]:
    """Return a drawn order of n things other than the original one; the original for group 0."""
    first = tuple(range(n))
    rng = generator(seed, "shift", STREAMS.index(use), group)
    found = first
    while group and n > 1 and found == first:
        found = tuple(int(k) for k in rng.permutation(n))
    return found


def apply(
    dataset: Dataset, partition: ClientParts, config: ShiftConfig, seed: int
) -> tuple[NDArray[Any], ClientParts]:
    """Return the shifted samples of a data set, and the partition with what was done to clients.

    Raises:
        ConfigError: The data are no images, or have no channels or classes to permute, or the
            section does not fit the number of clients.
    """
    _check(dataset, config)
    channels = dataset.x.shape[1] if dataset.x.ndim == 4 else 1
    shifts = make(config, partition.clients, channels, len(dataset.classes), seed)
    groups = [client % len(shifts) for client in range(partition.clients)]
    x = dataset.x
    if config.degrees() or config.channels:
        x = x.copy()
        low, high = _range(dataset)
        for client, group in enumerate(groups):
            rows = partition.rows(client)
            for start in range(0, len(rows), PIECE):
                piece = rows[start : start + PIECE]
                rng = generator(seed, "shift", STREAMS.index("noise"), client, start)
                x[piece] = _shifted(dataset.x[piece], shifts[group], low, high, rng)
    classes = partition.classes
    if config.labels:
        before = partition.classes_of(dataset.y)
        classes = before.copy()
        for client, group in enumerate(groups):
            rows = partition.rows(client)
            classes[rows] = np.array(shifts[group].labels, dtype=np.int64)[before[rows]]
    texts = tuple(f"group {group}: {shifts[group]}" for group in groups)
    return x, replace(partition, shifts=texts, classes=classes)


def transformed(
    dataset: Dataset, partition: ClientParts, seed: int, what: str
) -> tuple[NDArray[Any], ClientParts]:
    """Return the samples of a data set as a scheme of the user transforms them, and the partition.

    The function is called once for each client, with copies of all its samples.

    Raises:
        ConfigError: The function raises an exception, returns something else than samples and
            classes of the same shapes, or returns others in a second call.
    """
    function, count = partition.transform, len(dataset.classes)
    assert function is not None
    x, classes, sha = dataset.x.copy(), dataset.y.copy(), hashlib.sha256()
    cure = "It must be a function transform(x, y, client, rng) that returns x and y."
    for client in range(partition.clients):
        rows, whose = partition.rows(client), f"{what}: its transformation for client {client}"
        found = []
        for _ in range(2):
            rng = generator(seed, "shift", STREAMS.index("scheme"), client)
            with calling(whose, cure), seeded(seed % 2**32):
                new, labels = function(dataset.x[rows], dataset.y[rows], client, rng)
                found.append((np.asarray(new), np.asarray(labels)))
        (new, labels), (other, others) = found
        is_like = new.shape == (len(rows), *x.shape[1:]) and labels.shape == (len(rows),)
        is_pixels = x.dtype != np.uint8 or new.dtype == np.uint8
        are_classes = labels.dtype.kind in "iu" and ((labels >= 0) & (labels < count)).all()
        if not (is_like and is_pixels and are_classes):
            raise ConfigError(
                f"{whose} must keep the shapes {[len(rows), *x.shape[1:]]} and {[len(rows)]}, the"
                f" type uint8 of pixels, and classes in [0, {count}); it returns {list(new.shape)}"
                f" {new.dtype} and {list(labels.shape)} {labels.dtype}."
            )
        is_same = np.array_equal(new, other, equal_nan=new.dtype.kind == "f")
        if not (is_same and np.array_equal(labels, others)):
            raise ConfigError(
                f"{whose}: two calls with the same samples and random generator differ. Draw from"
                " the generator that it gets."
            )
        x[rows], classes[rows] = new, labels
        sha.update(np.ascontiguousarray(x[rows]).data)
        sha.update(np.ascontiguousarray(classes[rows]).data)
    return x, replace(partition, classes=classes, transform=None, transformed=sha.hexdigest())


def _check(dataset: Dataset, config: ShiftConfig) -> None:
    """Raise a ConfigError if the samples of a data set cannot be shifted so."""
    colours = dataset.x.shape[1] if dataset.kind == "images" else 0
    needs = [
        *((name, "images", dataset.kind == "images") for name, _ in config.degrees()),
        ("labels", "classes", not config.labels or dataset.targets is None),
        ("colour", "images of three channels", config.colour is None or colours == 3),
        ("channels", "images of several channels", not config.channels or colours > 1),
    ]
    for name, what, is_there in needs:
        if not is_there:
            raise ConfigError(
                f"`shift.{name}` is for {what}, and `{dataset.name}` has none. Leave it out;"
                " `shift.labels=true` permutes the labels of any data with classes."
            )


def _range(dataset: Dataset) -> tuple[float, float]:
    """Return the smallest and the largest possible value of pixels; of float images those found."""
    if dataset.is_pixels:
        return 0.0, dataset.scale
    return float(dataset.x.min()), float(dataset.x.max())


def _shifted(
    images: NDArray[Any], shift: Shift, low: float, high: float, rng: np.random.Generator
) -> NDArray[Any]:
    """Return shifted images [n, channels, height, width], of pixels in [low, high]."""
    if shift.channels is not None:
        images = images[:, list(shift.channels)]
    width = max(high - low, 1e-12)
    x = (torch.from_numpy(images.astype(np.float32)) - low) / width  # in [0, 1]
    for name, value in shift.values.items():
        if name == "noise":
            x = x + value * torch.from_numpy(rng.standard_normal(x.shape, dtype=np.float32))
        elif value != NEUTRAL[name]:
            x = FEATURES[name](x, value)
    x = x.clamp(0.0, 1.0) * width + low
    values = (x.round() if images.dtype == np.uint8 else x).numpy()
    return np.asarray(values.astype(images.dtype))


def rotated(x: Tensor, degrees: float) -> Tensor:
    """Return images [n, channels, height, width] turned counter-clockwise around their centre.

    Multiples of 90 degrees move pixels where the shape stays the same; other angles interpolate
    linearly. Pixels from outside of the image are 0.

    >>> x = torch.arange(4.0).view(1, 1, 2, 2)
    >>> rotated(x, 90.0).flatten().tolist()
    [1.0, 3.0, 0.0, 2.0]
    """
    quarters = round(degrees / 90)
    if degrees == 90 * quarters and (x.shape[2] == x.shape[3] or quarters % 2 == 0):
        return torch.rot90(x, quarters % 4, (2, 3))
    from torchvision.transforms import InterpolationMode
    from torchvision.transforms.functional import rotate

    turned: Tensor = rotate(x, degrees, InterpolationMode.BILINEAR)
    return turned


def contrasted(x: Tensor, factor: float) -> Tensor:
    """Return images whose distances from their mean value are multiplied by a factor."""
    mean = x.mean(dim=(1, 2, 3), keepdim=True)
    return mean + factor * (x - mean)


def blurred(x: Tensor, sigma: float) -> Tensor:
    """Return images smoothed by a Gaussian with a standard deviation in pixels."""
    from torchvision.transforms.functional import gaussian_blur

    widest = 2 * min(x.shape[2], x.shape[3]) - 1  # reflection at the edges allows no larger kernel
    smooth: Tensor = gaussian_blur(x, [min(2 * ceil(3 * sigma) + 1, widest)] * 2, [sigma] * 2)
    return smooth


def recoloured(x: Tensor, degrees: float) -> Tensor:
    """Return images [n, 3, height, width] whose colours are turned around the grey axis.

    120 degrees turn red into green, green into blue and blue into red.
    """
    a, b = cos(degrees * pi / 180), sin(degrees * pi / 180) / 3**0.5
    same, next_, last = (1 + 2 * a) / 3, (1 - a) / 3 - b, (1 - a) / 3 + b
    rows = [[same, next_, last], [last, same, next_], [next_, last, same]]
    return torch.einsum("ij,njhw->nihw", x.new_tensor(rows), x)


FEATURES: Final[dict[str, Callable[[Tensor, float], Tensor]]] = {
    "rotation": rotated,
    "blur": blurred,
    "contrast": contrasted,
    "brightness": lambda x, factor: x * factor,
    "colour": recoloured,
}
NEUTRAL: Final = {"rotation": 0.0, "blur": 0.0, "contrast": 1.0, "brightness": 1.0, "colour": 0.0}
"""Values of feature shifts that leave images as they are."""
