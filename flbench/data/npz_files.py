"""Reading of NPZ files in the layout of MedMNIST.

Required arrays: `train_images` uint8, [n, height, width] or [n, height, width, 1 or 3], and
`train_labels` [n] or [n, 1]. Optional arrays: `test_images` and `test_labels`; `val_images` and
`val_labels`, which are appended to the train part, because every client has a validation part of
its own; `train_groups` [n] (likewise `val_` and `test_`), names or numbers of natural clients; and
`class_names` [C].
"""

from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from flbench.core.errors import DataError
from flbench.data.archive import DAMAGED, open_zip
from flbench.data.dataset import Dataset, check_labels

MAX_BYTES: Final = 16 * 2**30


def read(path: Path, name: str) -> Dataset:
    """Read a data set from an NPZ file. Pickled objects are refused, not loaded.

    Args:
        path: The file.
        name: Name of the data set.

    Raises:
        DataError: The file is damaged, has another layout, or would unpack to more than 16 GiB.
    """
    arrays = read_arrays(path)
    for key in ("train_images", "train_labels"):
        if key not in arrays:
            raise DataError(
                f"{path} has no array `{key}`; it contains"
                f" {', '.join(sorted(arrays)) or 'nothing'}."
            )
    parts = [part for part in ("train", "val", "test") if f"{part}_images" in arrays]
    images: list[NDArray[np.uint8]] = []
    labels: list[NDArray[np.int64]] = []
    groups: list[NDArray[Any] | None] = []
    for part in parts:
        x = _as_images(arrays[f"{part}_images"], f"{path}: `{part}_images`")
        y = check_labels(arrays.get(f"{part}_labels", np.zeros(0)), f"{path}: `{part}_labels`")
        if len(x) != len(y):
            raise DataError(f"{path}: {len(x)} `{part}_images` but {len(y)} `{part}_labels`.")
        if images and x.shape[1:] != images[0].shape[1:]:
            raise DataError(
                f"{path}: `{part}_images` have the shape {x.shape[1:]}, but `train_images`"
                f" {images[0].shape[1:]}."
            )
        images.append(x)
        labels.append(y)
        groups.append(arrays.get(f"{part}_groups"))
    y = np.concatenate(labels)
    if not len(images[0]):
        raise DataError(f"{path} has no training images.")
    names = arrays.get("class_names")
    if names is not None and names.ndim != 1:
        raise DataError(f"{path}: `class_names` must be [C], got {list(names.shape)}.")
    count = int(y.max()) + 1 if names is None else len(names)
    check_labels(y, f"{path}: labels", count)
    return Dataset(
        name,
        np.concatenate(images),
        y,
        tuple(str(k) for k in (range(count) if names is None else names)),
        train=sum(len(x) for part, x in zip(parts, images, strict=True) if part != "test"),
        groups=_as_groups(groups, labels, path),
    )


def read_arrays(path: Path) -> dict[str, NDArray[Any]]:
    """Return the arrays of an NPZ file by name.

    Args:
        path: The file.

    Raises:
        DataError: The file is damaged, would unpack to more than 16 GiB, or contains pickled
            objects.
    """
    with open_zip(path) as archive:
        size = sum(entry.file_size for entry in archive.infolist())
    if size > MAX_BYTES:
        raise DataError(
            f"{path} would unpack to {size / 2**30:.1f} GiB; the limit is {MAX_BYTES // 2**30}."
        )
    try:
        with np.load(path, allow_pickle=False) as arrays:
            found = {key: arrays[key] for key in arrays.files}
    except DAMAGED as error:
        if "pickle" in str(error):
            raise DataError(
                f"{path} contains pickled objects, which could run code. Save plain arrays only."
            ) from error
        raise DataError(
            f"{path} is not an intact NPZ file ({error}). Download or create it again."
        ) from error
    other = [key for key, value in found.items() if not isinstance(value, np.ndarray)]
    if other:
        raise DataError(f"{path}: the entry `{other[0]}` is not an array. Remove it.")
    return found


def _as_images(x: NDArray[Any], what: str) -> NDArray[np.uint8]:
    """Return images as [n, channels, height, width]."""
    if x.ndim == 3:
        x = x[:, None]  # [n, H, W] -> [n, 1, H, W]
    elif x.ndim == 4 and x.shape[-1] in (1, 3):
        x = np.moveaxis(x, -1, 1)  # [n, H, W, channels] -> [n, channels, H, W]
    else:
        raise DataError(f"{what} must be [n, H, W] or [n, H, W, 1 or 3], got {list(x.shape)}.")
    if x.dtype != np.uint8:
        raise DataError(f"{what} must be uint8 in [0, 255], got {x.dtype}.")
    if not x[:1].size and len(x):
        raise DataError(f"{what} have no pixels: their shape is {list(x.shape)}.")
    return np.ascontiguousarray(x)


def _as_groups(
    groups: list[NDArray[Any] | None], labels: list[NDArray[np.int64]], path: Path
) -> NDArray[np.int64] | None:
    """Return the number of the natural client of every sample; None if there are none.

    Samples of parts without groups get the number -1.
    """
    if groups[0] is None:
        return None
    named = []
    for group, y in zip(groups, labels, strict=True):
        if group is not None and group.reshape(-1).shape != y.shape:
            raise DataError(f"{path}: {group.size} groups for {len(y)} samples.")
        named.append(
            np.full(len(y), "", dtype=str) if group is None else group.reshape(-1).astype(str)
        )
    names, numbers = np.unique(np.concatenate(named), return_inverse=True)
    return numbers.astype(np.int64) - int(names[0] == "")  # "" sorts first: no name becomes -1
