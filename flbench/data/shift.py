"""Shifts between clients: rotated or noisy images, and permuted labels (concept shift).

Client k is in group k mod G. All samples of a client, those of its train, validation and test part,
are shifted in the same way. Samples that no client has, such as the common test set, stay as they
are.
"""

import hashlib
from dataclasses import replace
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

LABELS: Final = 2  # streams of the purpose `shift`
NOISE: Final = 3
SCHEME: Final = 4
SHOWN_CLASSES: Final = 10  # classes whose permutation is written out
PIECE: Final = 4096  # images that are turned at once


def apply(
    dataset: Dataset, partition: ClientParts, config: ShiftConfig, seed: int
) -> tuple[NDArray[Any], ClientParts]:
    """Return the shifted samples of a data set, and the partition with what was done to clients.

    Raises:
        ConfigError: The data are no images, or have no classes to permute, or the section does not
            fit the number of clients.
    """
    clients, x = partition.clients, dataset.x
    both = {"rotation": config.rotation, "noise": config.noise}
    values = {key: given for key, given in both.items() if given}
    needs = [(key, "images", dataset.kind == "images") for key in values]
    needs += [("labels", "classes", dataset.targets is None)] * config.labels
    for key, what, is_there in needs:
        if not is_there:
            raise ConfigError(
                f"`shift.{key}` is for {what}, and `{dataset.name}` has none. Leave it out."
            )
    count = config.groups or max(map(len, values.values()), default=clients)
    if count > clients:
        raise ConfigError(
            f"`shift` has {count} groups, but there are only {clients} clients. Lower"
            " `shift.groups` or give fewer values, or raise partition.clients."
        )
    for key, given in values.items():
        if len(given) not in (1, count):
            raise ConfigError(
                f"`shift.{key}`={list(given)} must be one value, or one for each of {count} groups."
            )
    of_groups = [
        {key: given[group % len(given)] for key, given in values.items()} for group in range(count)
    ]
    texts = [" ".join(f"{key}={value:.4g}" for key, value in found.items()) for found in of_groups]
    if values:
        x = x.copy()
        low, high = 0.0, dataset.scale
        if not dataset.is_pixels:
            low, high = float(x.min()), float(x.max())
        for client in range(clients):
            rows = partition.rows(client)
            for start in range(0, len(rows), PIECE):
                piece = rows[start : start + PIECE]
                rng = generator(seed, "shift", NOISE, client, start)
                x[piece] = _shifted(dataset.x[piece], of_groups[client % count], low, high, rng)
    classes = partition.classes
    if config.labels:
        before = partition.classes_of(dataset.y)
        classes = before.copy()
        for group in range(count):
            rows = np.concatenate([partition.rows(k) for k in range(group, clients, count)])
            order = _permutation(seed, group, len(dataset.classes))
            classes[rows] = order[before[rows]]
            shown = "-".join(map(str, order)) if len(order) <= SHOWN_CLASSES else "permuted"
            texts[group] = f"{texts[group]} labels={shown}".strip()
    shifts = tuple(f"group {k % count}: {texts[k % count]}" for k in range(clients))
    return x, replace(partition, shifts=shifts, classes=classes)


def _permutation(seed: int, group: int, n: int) -> NDArray[np.int64]:
    """Return a drawn order of n classes other than the original one; the original for group 0."""
    first = found = np.arange(n)
    rng = generator(seed, "shift", LABELS, group)
    while group and n > 1 and np.array_equal(found, first):
        found = rng.permutation(n)
    return found


def _shifted(
    images: NDArray[Any],
    values: dict[str, float],
    low: float,
    high: float,
    rng: np.random.Generator,
) -> NDArray[Any]:
    """Return images [n, channels, height, width] turned and with noise, in [low, high]."""
    width = max(high - low, 1e-12)
    x = (torch.from_numpy(images.astype(np.float32)) - low) / width  # in [0, 1]
    if values.get("rotation"):
        x = rotated(x, values["rotation"])
    if "noise" in values:
        x = x + values["noise"] * torch.from_numpy(rng.standard_normal(x.shape, dtype=np.float32))
    x = x.clamp(0.0, 1.0) * width + low
    return np.asarray((x.round() if images.dtype == np.uint8 else x).numpy().astype(images.dtype))


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
            rng = generator(seed, "shift", SCHEME, client)
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
