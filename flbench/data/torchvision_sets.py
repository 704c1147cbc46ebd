"""Data sets that torchvision loads and downloads."""

from collections.abc import Callable
from pathlib import Path
from pickle import UnpicklingError
from typing import Any

import numpy as np

from flbench.core.errors import DataError
from flbench.data.dataset import Dataset, KnownDataset

# Exceptions that torchvision raises for damaged files.
DAMAGED = (OSError, EOFError, ValueError, AssertionError, KeyError, IndexError, UnpicklingError)
# Number of classes of each split.
EMNIST_SPLITS = {
    "byclass": 62,
    "bymerge": 47,
    "balanced": 47,
    "letters": 26,
    "digits": 10,
    "mnist": 10,
}


def known() -> dict[str, KnownDataset]:
    """Return the data sets that torchvision can load, by their names in flbench."""
    parts: dict[str, list[Any]] = {"train": [True, False]}
    grey, colour = (1, 28, 28), (3, 32, 32)
    sets = {
        "mnist": _known("MNIST", "mnist", "MNIST", 10, grey, "MNIST/raw", parts),
        "fashionmnist": _known(
            "Fashion-MNIST", "fashionmnist", "FashionMNIST", 10, grey, "FashionMNIST/raw", parts
        ),
        "cifar10": _known(
            "CIFAR-10", "cifar10", "CIFAR10", 10, colour, "cifar-10-batches-py", parts
        ),
        "cifar100": _known(
            "CIFAR-100", "cifar100", "CIFAR100", 100, colour, "cifar-100-python", parts
        ),
        "svhn": _known(
            "SVHN (train and test)",
            "svhn",
            "SVHN",
            10,
            colour,
            "train_32x32.mat",
            {"split": ["train", "test"]},
        ),
    }
    for split, classes in EMNIST_SPLITS.items():
        name, title = f"emnist_{split}", f"EMNIST, split {split}"
        options = {"split": split}
        sets[name] = _known(title, name, "EMNIST", classes, grey, "EMNIST/raw", parts, options)
    return sets


def _known(
    title: str,
    name: str,
    kind: str,
    classes: int,
    shape: tuple[int, ...],
    downloaded: str,
    parts: dict[str, list[Any]],
    options: dict[str, Any] | None = None,
) -> KnownDataset:
    """Return the description of one data set.

    Args:
        title: Title for people.
        name: Name in flbench.
        kind: Name of torchvision's class.
        classes: Number of classes.
        shape: Shape of one sample.
        downloaded: Path below `data.root` that a download creates.
        parts: Name of the argument that selects train or test, and its two values.
        options: Further arguments of torchvision's class.
    """
    return KnownDataset(
        title=title,
        classes=classes,
        shape=shape,
        where="a file, or torchvision's download into data.root",
        load=_loader(name, kind, options, **parts),
        downloaded=downloaded,
    )


def _loader(
    name: str, kind: str, options: dict[str, Any] | None = None, **parts: list[Any]
) -> Callable[[Path], Dataset]:
    """Return a function that loads a data set from `data.root`; see `_known` for the arguments."""

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
        if name == "emnist_letters":  # torchvision's labels begin at 1; its class 0 is empty
            y, classes = [part - 1 for part in y], classes[1:]
        return Dataset(name, np.concatenate(x), np.concatenate(y), classes, train=len(x[0]))

    return load


def _fetch(kind: Any, root: Path, name: str, options: dict[str, Any]) -> Any:
    """Load one part of a data set, downloading it if it is missing.

    Raises:
        DataError: The files are damaged, or the download failed.
    """
    try:
        return kind(str(root), download=False, **options)
    except (RuntimeError, *DAMAGED) as error:
        if "download=True" not in str(error):  # in torchvision's message if files are missing
            raise DataError(
                f"torchvision's files of `{name}` in {root} are damaged ({error}). Remove them, and"
                " torchvision downloads them again."
            ) from error
    try:
        return kind(str(root), download=True, **options)
    except (RuntimeError, *DAMAGED) as error:
        raise DataError(
            f"`{name}` was not found as {root / name}.npz, {root / name}.zip or {root / name}/, and"
            f" torchvision could not download it to {root} ({error}). Provide one of these files,"
            " or give one with `data.path`."
        ) from error


def _as_images(part: Any) -> np.ndarray[Any, np.dtype[np.uint8]]:
    """Return the images of one part, [n, channels, height, width] uint8."""
    x = np.asarray(part.data, dtype=np.uint8)
    if x.ndim == 3:
        x = x[:, None]
    elif x.shape[-1] == 3:
        x = np.moveaxis(x, -1, 1)
    if type(part).__name__ == "EMNIST":  # stored transposed
        x = np.swapaxes(x, 2, 3)
    return np.ascontiguousarray(x)
