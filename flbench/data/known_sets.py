"""The data sets that flbench knows by name, most of which torchvision loads and downloads.

The import loads no PyTorch.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from pickle import UnpicklingError
from typing import Any, Final

import numpy as np

from flbench.core.errors import DataError
from flbench.data.dataset import Dataset

# Exceptions that torchvision raises for damaged files.
DAMAGED: Final = (
    *(OSError, EOFError, ValueError, AssertionError, LookupError, RuntimeError, UnpicklingError),
)
GREY, COLOUR = (1, 28, 28), (3, 32, 32)
# Of each data set of torchvision: title, class, number of classes, shape, and what is downloaded.
TORCHVISION: Final = {
    "mnist": ("MNIST", "MNIST", 10, GREY, "MNIST/raw"),
    "fashionmnist": ("Fashion-MNIST", "FashionMNIST", 10, GREY, "FashionMNIST/raw"),
    "cifar10": ("CIFAR-10", "CIFAR10", 10, COLOUR, "cifar-10-batches-py"),
    "cifar100": ("CIFAR-100", "CIFAR100", 100, COLOUR, "cifar-100-python"),
    "svhn": ("SVHN (train and test)", "SVHN", 10, COLOUR, "train_32x32.mat"),
    **{
        f"emnist_{split}": (f"EMNIST, split {split}", "EMNIST", classes, GREY, "EMNIST/raw")
        for split, classes in (
            *(("byclass", 62), ("bymerge", 47), ("balanced", 47)),
            *(("letters", 26), ("digits", 10), ("mnist", 10)),
        )
    },
}


@dataclass(frozen=True)
class KnownDataset:
    """Description of a data set that flbench knows by name.

    Attributes:
        title: Title for people.
        classes: Number of classes C.
        shape: Shape of one sample.
        where: Where its files come from, for messages.
        load: Function that loads it from `data.root`, downloading if necessary; None for data sets
            that must be given as a file.
        downloaded: Path below `data.root` that a download by torchvision creates.
    """

    title: str
    classes: int
    shape: tuple[int, ...]
    where: str
    load: Callable[[Path], Dataset] | None = None
    downloaded: str = ""


def known() -> dict[str, KnownDataset]:
    """Return the data sets that flbench knows, by name, in the order in which they are listed."""
    file = "a file that you make: NPZ, or a folder or .zip of images"
    download = "a file, or torchvision's download into data.root"
    return {
        "digits": KnownDataset(
            "scikit-learn's digits, 8x8", 10, (1, 8, 8), "comes with scikit-learn"
        ),
        **{
            name: KnownDataset(title, classes, shape, download, partial(_load, name), downloaded)
            for name, (title, _, classes, shape, downloaded) in TORCHVISION.items()
        },
        "cinic10": KnownDataset("CINIC-10 (give its train and test parts)", 10, (3, 32, 32), file),
        "tinyimagenet": KnownDataset("Tiny-ImageNet-200", 200, (3, 64, 64), file),
        "organamnist": KnownDataset(
            "OrganAMNIST of MedMNIST (MedMNISTA)", 11, (1, 28, 28), "MedMNIST's organamnist.npz"
        ),
    }


def _load(name: str, root: Path) -> Dataset:
    """Return a data set of torchvision from `data.root`, where it is downloaded if missing."""
    train, test = (_fetch(name, root, is_train=is_train) for is_train in (True, False))
    x = [_as_images(part) for part in (train, test)]
    y = [
        np.asarray(part.labels if name == "svhn" else part.targets, dtype=np.int64)
        for part in (train, test)
    ]
    classes = tuple(str(label) for label in getattr(train, "classes", range(10)))
    if name == "emnist_letters":  # torchvision's labels begin at 1; its class 0 is empty
        y, classes = [part - 1 for part in y], classes[1:]
    return Dataset(name, np.concatenate(x), np.concatenate(y), classes, train=len(x[0]))


def _fetch(name: str, root: Path, *, is_train: bool) -> Any:
    """Return the train or the test part of a data set of torchvision, which downloads what lacks.

    Raises:
        DataError: The files are damaged, or the download failed.
    """
    from torchvision import datasets

    options: dict[str, Any] = {"train": is_train}
    if name == "svhn":
        options = {"split": "train" if is_train else "test"}
    if name.startswith("emnist_"):
        options["split"] = name.removeprefix("emnist_")
    try:
        return getattr(datasets, TORCHVISION[name][1])(str(root), download=True, **options)
    except DAMAGED as error:
        raise DataError(
            f"`{name}` was not found as {root / name}.npz, {root / name}.zip or {root / name}/, and"
            f" torchvision could neither read nor download it in {root} ({error}). Remove its"
            " files if they are damaged; or provide one of these, or a file with `data.path`."
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
