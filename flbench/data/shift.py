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
KINDS: Final = {"table": "rows of tables", "series": "series", "tokens": "tokens"}
"""What samples that are no images are, for messages."""
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


def groups_of(config: ShiftConfig, clients: int) -> int:
    """Return the number of groups G.

    Args:
        config: Section `shift`.
        clients: Number of clients N.

    Raises:
        ConfigError: There are more groups than clients.
    """
    lengths = [len(values) for _, values in config.degrees()]
    found = config.groups or (max(lengths) if lengths and not config.draw else clients)
    if found > clients:
        raise ConfigError(
            f"`shift` has {found} groups, but there are only {clients} clients. Lower"
            " `shift.groups` or give fewer degrees, or raise partition.clients."
        )
    return found


def make(config: ShiftConfig, clients: int, channels: int, classes: int, seed: int) -> list[Shift]:
    """Return the shift of each group.

    Group 0 keeps the channels and labels of the data; the other groups draw permutations.

    Args:
        config: Section `shift`.
        clients: Number of clients N.
        channels: Number of channels of the images.
        classes: Number of classes C.
        seed: Seed of the partition.

    Raises:
        ConfigError: The section does not fit the number of clients, or itself.
    """
    count = groups_of(config, clients)
    for name, values in config.degrees():
        if config.draw and (len(values) != 2 or values[0] > values[1]):
            raise ConfigError(
                f"`shift.{name}` must be [lowest, highest] with shift.draw=true, got"
                f" {list(values)}."
            )
        if not config.draw and len(values) not in (1, count):
            raise ConfigError(
                f"`shift.{name}` has {len(values)} values for {count} groups. Give one value for"
                " each group, one for all, or [lowest, highest] with shift.draw=true."
            )
    found = []
    for group in range(count):
        strengths: dict[str, float] = {}
        for number, (name, given) in enumerate(config.degrees()):
            if config.draw:
                rng = generator(seed, "shift", STREAMS.index("draw"), group, number)
                strengths[name] = float(rng.uniform(given[0], given[1]))
            else:
                strengths[name] = given[group % len(given)]
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

    Args:
        dataset: The data set; it is not changed.
        partition: The partition.
        config: Section `shift`, with at least one shift.
        seed: Seed of the partition.

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

    Args:
        dataset: The data set; it is not changed.
        partition: The partition, with the function as `transform`.
        seed: Seed of the partition.
        what: The key and its value, for messages.

    Raises:
        ConfigError: The function raises an exception, returns something else than samples and
            classes of the same shapes, or returns others in a second call.
    """
    function = partition.transform
    assert function is not None
    x, classes = dataset.x.copy(), dataset.y.copy()
    sha = hashlib.sha256()
    for client in range(partition.clients):
        rows = partition.rows(client)
        found = []
        for _ in range(2):
            rng = generator(seed, "shift", STREAMS.index("scheme"), client)
            cure = "It must be a function transform(x, y, client, rng) that returns x and y."
            with calling(f"{what}: its transformation for client {client}", cure):
                with seeded(seed % 2**32):
                    new, labels = function(dataset.x[rows], dataset.y[rows], client, rng)
                found.append((np.asarray(new), np.asarray(labels)))
        (new, labels), (other, others) = found
        if new.shape != (len(rows), *x.shape[1:]) or labels.shape != (len(rows),):
            raise ConfigError(
                f"{what}: its transformation returns samples {list(new.shape)} and classes"
                f" {list(labels.shape)} for client {client}, and must keep the shapes"
                f" {[len(rows), *x.shape[1:]]} and {[len(rows)]}."
            )
        if labels.dtype.kind not in "iu" or not bool(
            ((labels >= 0) & (labels < len(dataset.classes))).all()
        ):
            raise ConfigError(
                f"{what}: the classes of client {client} must be whole numbers in [0,"
                f" {len(dataset.classes)}) after the transformation."
            )
        if x.dtype == np.uint8 and new.dtype != np.uint8:
            raise ConfigError(
                f"{what}: its transformation returns samples of {new.dtype} for client {client},"
                " and must return uint8, as it gets them. Round and clip them."
            )
        is_same = np.array_equal(new, other, equal_nan=new.dtype.kind == "f")
        if not (is_same and np.array_equal(labels, others)):
            raise ConfigError(
                f"{what}: two calls of its transformation with the same samples and random"
                f" generator differ for client {client}. Draw from the generator that it gets."
            )
        x[rows], classes[rows] = new, labels
        sha.update(np.ascontiguousarray(x[rows]).data)
        sha.update(np.ascontiguousarray(classes[rows]).data)
    return x, replace(partition, classes=classes, transform=None, transformed=sha.hexdigest())


def _check(dataset: Dataset, config: ShiftConfig) -> None:
    """Raise a ConfigError if the samples of a data set cannot be shifted so."""
    names = [name for name, _ in config.degrees()] + ["channels"] * config.channels
    if names and dataset.kind != "images":
        raise ConfigError(
            f"`shift.{names[0]}` is for images, and the samples of `{dataset.name}` are"
            f" {KINDS[dataset.kind]}. Leave it out; `shift.labels=true` permutes the labels of any"
            " data with classes."
        )
    if config.labels and dataset.targets is not None:
        raise ConfigError(
            f"`shift.labels` permutes classes, and `{dataset.name}` has targets that are not"
            " classes. Leave it out."
        )
    colours = dataset.x.shape[1] if dataset.x.ndim == 4 else 0
    if config.colour is not None and colours != 3:
        raise ConfigError(
            f"`shift.colour` turns colours, and the images of `{dataset.name}` have"
            f" {colours} instead of 3 channels. Leave it out."
        )
    if config.channels and colours < 2:
        raise ConfigError(
            f"`shift.channels` permutes channels, and the images of `{dataset.name}` have one."
            " Leave it out."
        )


def _range(dataset: Dataset) -> tuple[float, float]:
    """Return the smallest and the largest possible value of pixels; of float images those found."""
    if dataset.is_pixels:
        return 0.0, dataset.scale
    return float(dataset.x.min()), float(dataset.x.max())


def _shifted(
    images: NDArray[Any], shift: Shift, low: float, high: float, rng: np.random.Generator
) -> NDArray[Any]:
    """Return shifted images [n, channels, height, width] in the type of the images.

    Args:
        images: The images.
        shift: The shift.
        low: Smallest value of a pixel.
        high: Largest value of a pixel.
        rng: Random generator of the noise.
    """
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


def notes_on(partition: ClientParts, common: NDArray[np.int64]) -> list[str]:
    """Return notes on shifted samples."""
    different = list(dict.fromkeys(partition.shifts))
    shown = "; ".join(different[:4]) + ("; ..." if len(different) > 4 else "")
    notes = [f"shift: client k is in group k mod {len(different)}: {shown}."]
    if len(common):
        notes.append(
            "shift: the common test set belongs to no client, so its samples and labels are those"
            " of the data set, without any shift."
        )
    return notes
