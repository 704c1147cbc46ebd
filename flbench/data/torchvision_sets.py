"""torchvision's data sets, through its own loading and download code."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from flbench.data.sources import Dataset, Known
from flbench.errors import DataError

EMNIST_SPLITS = {
    "byclass": 62,
    "bymerge": 47,
    "balanced": 47,
    "letters": 26,
    "digits": 10,
    "mnist": 10,
}


def known() -> dict[str, Known]:
    """Return the data sets that torchvision can load, by flbench's names."""
    where = "a file, or torchvision's download into data.root"
    sets = {
        "mnist": Known(
            "MNIST", 10, (1, 28, 28), where, _loader("mnist", "MNIST", train=[True, False])
        ),
        "fashionmnist": Known(
            "Fashion-MNIST",
            10,
            (1, 28, 28),
            where,
            _loader("fashionmnist", "FashionMNIST", train=[True, False]),
        ),
        "cifar10": Known(
            "CIFAR-10", 10, (3, 32, 32), where, _loader("cifar10", "CIFAR10", train=[True, False])
        ),
        "cifar100": Known(
            "CIFAR-100",
            100,
            (3, 32, 32),
            where,
            _loader("cifar100", "CIFAR100", train=[True, False]),
        ),
        "svhn": Known(
            "SVHN (train and test)",
            10,
            (3, 32, 32),
            where,
            _loader("svhn", "SVHN", split=["train", "test"]),
        ),
    }
    for split, classes in EMNIST_SPLITS.items():
        name = f"emnist_{split}"
        load = _loader(name, "EMNIST", {"split": split}, train=[True, False])
        sets[name] = Known(f"EMNIST, split {split}", classes, (1, 28, 28), where, load)
    return sets


def _loader(
    name: str, kind: str, options: dict[str, Any] | None = None, **parts: list[Any]
) -> Callable[[Path], Dataset]:
    """Return a function from `data.root` to the data set.

    `parts` is the argument that tells train from test.
    """

    def load(root: Path) -> Dataset:
        from torchvision import datasets

        [(key, values)] = parts.items()
        loaded = [
            _fetch(getattr(datasets, kind), root, name, {**(options or {}), key: value})
            for value in values
        ]
        x = [_as_images(part) for part in loaded]
        y = [
            np.asarray(part.labels if kind == "SVHN" else part.targets, dtype=np.int64)
            for part in loaded
        ]
        classes = tuple(str(label) for label in getattr(loaded[0], "classes", range(10)))
        if name == "emnist_letters":  # torchvision counts letters from 1 and keeps an empty class 0
            y, classes = [part - 1 for part in y], classes[1:]
        return Dataset(name, np.concatenate(x), np.concatenate(y), classes, train=len(x[0]))

    return load


def _fetch(kind: Any, root: Path, name: str, options: dict[str, Any]) -> Any:
    """Load one part, downloading it where it is missing."""
    try:
        return kind(str(root), download=False, **options)
    except RuntimeError:
        pass  # torchvision's way to say that the files are not there
    try:
        return kind(str(root), download=True, **options)
    except (OSError, RuntimeError) as error:
        raise DataError(
            f"`{name}` is neither {root / name}.npz, {root / name}.zip nor {root / name}/, and"
            " torchvision could not"
            f" download it to {root} ({error}). Put one of these files there, or name one with"
            " `data.path`."
        ) from error


def _as_images(part: Any) -> np.ndarray[Any, np.dtype[np.uint8]]:
    """Return uint8 images [n, C, H, W]."""
    x = np.asarray(part.data, dtype=np.uint8)
    if x.ndim == 3:
        x = x[:, None]
    elif x.shape[-1] == 3:
        x = np.moveaxis(x, -1, 1)
    if type(part).__name__ == "EMNIST":  # stored transposed
        x = np.swapaxes(x, 2, 3)
    return np.ascontiguousarray(x)
