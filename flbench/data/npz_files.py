"""Reading of NPZ files in the layout of MedMNIST.

Required arrays: `train_images`, uint8 or floating point, [n, height, width] or, as `data.layout`
says, [n, height, width, channels] or [n, channels, height, width]; or a table, [n, columns] in
floating point; or series, [n, channels, length] with `data.kind=series` or `data.layout`; or
sequences of tokens, [n, length] in integers; and `train_labels` [n] or [n, 1]. Optional arrays:
`test_images` and `test_labels`; `val_images` and `val_labels`, which are appended to the train
part, because every client has a validation part of its own; `train_groups` [n] (likewise `val_`
and `test_`), names or numbers of natural clients; `class_names` [C]; and `vocabulary`, the number
of token ids, or what each of them stands for [V]. `data.arrays` names other arrays in the place of
these.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from flbench.config.schema import DataConfig
from flbench.core import files
from flbench.core.errors import DataError, did_you_mean
from flbench.data import labels as labels_of
from flbench.data import pixels
from flbench.data.dataset import Dataset

MAX_BYTES: Final = 16 * 2**30
CHANNELS: Final = (1, 3)  # numbers of channels by which `data.layout=auto` finds their axis
AXES: Final = {
    "images": ((3, 4), "uint8 or floating point, [n, H, W] or with an axis of channels"),
    "series": ((2, 3), "[n, channels, length], or [n, length] for one channel"),
    "table": ((2,), "[n, columns]"),
    "tokens": ((2,), "[n, length] in integers"),
}
"""Numbers of axes of each kind of samples, and what they are."""


def read(path: Path, config: DataConfig) -> Dataset:
    """Read a data set from an NPZ file. Pickled objects are refused, not loaded.

    Raises:
        DataError: The file is damaged, has another layout, or would unpack to more than 16 GiB.
    """
    arrays, renamed, group = read_arrays(path), config.arrays.renamed(), config.group
    for key, found in (*(("arrays", one) for one in renamed.values()), ("group", group)):
        if found is not None and found not in arrays:
            raise DataError(
                f"{path} has no array `{found}`, which `data.{key}` names."
                f"{did_you_mean(found, arrays)} It contains {', '.join(sorted(arrays))}."
            )
    blocks = arrays[group] if group else None
    others = {key: array for key, array in arrays.items() if key not in renamed.values()}
    arrays = others | {wanted: arrays[found] for wanted, found in renamed.items()}
    dataset = from_arrays(arrays, path, config.title, config.layout, config.kind)
    if not group or blocks is None:
        return dataset
    return labels_of.with_blocks(dataset, blocks, group, f"{path}: `{group}`")


def from_arrays(
    arrays: dict[str, NDArray[Any]],
    path: Path | str,
    name: str,
    layout: str = "auto",
    kind: str = "auto",
) -> Dataset:
    """Return the data set of arrays that have the names of those in an NPZ file.

    The classes are those whose labels occur, unless `class_names` names them.

    Args:
        arrays: Arrays by name. Those of samples are taken out, to free their memory; the samples of
            the data set may share it.
        path: The file, or what the arrays are, for error messages.
        name: Name of the data set.
        layout: `data.layout`: `channels_last`, `channels_first` or `auto`.
        kind: `data.kind`: what the samples are, or `auto`.

    Raises:
        DataError: The arrays have another layout.
    """
    if not {"train_images", "train_labels"} <= arrays.keys():
        raise DataError(
            f"{path} must have `train_images`, the samples, and `train_labels`, and it has"
            f" {', '.join(sorted(arrays)) or 'nothing'}. Other names are given by data.arrays, such"
            " as 'data.arrays={samples: windows, labels: activity, clients: subject}'."
        )
    parts = [part for part in ("train", "val", "test") if f"{part}_images" in arrays]
    named = arrays.get("class_names")
    if named is not None and named.ndim != 1:
        raise DataError(f"{path}: `class_names` must be [C], got {list(named.shape)}.")
    names, labels = labels_of.number_classes(
        {f"{part}_labels": arrays.get(f"{part}_labels", np.zeros(0, np.int64)) for part in parts},
        str(path),
        None if named is None else [*map(_text, named.tolist())],
    )
    samples: list[NDArray[Any]] = []
    for part, y in zip(parts, labels, strict=True):
        what = f"{path}: `{part}_images`"
        x = as_samples(arrays.pop(f"{part}_images"), what, layout, kind)
        if len(x) != len(y) or (part == "train" and not len(y)):
            raise DataError(
                f"{what} has {len(x)} samples, and `{part}_labels` {len(y)}. Save one label for"
                f" each sample, its class. {labels_of.NO_CLASSES}"
            )
        samples.append(x)
        pixels.check_alike(samples[0], x, what, "`train_images`")
    vocabulary = arrays.get("vocabulary", np.zeros((), np.int64))
    is_of_tokens = samples[0].ndim == 2 and samples[0].dtype.kind in "iu"
    if "vocabulary" in arrays and not (vocabulary.size and vocabulary.ndim < 2 and is_of_tokens):
        raise DataError(
            f"{path}: `vocabulary` must be the number of token ids, or one text for each id [V],"
            " and the samples tokens [n, length] in integers."
        )
    groups, group_names = _groups(arrays, dict(zip(parts, labels, strict=True)), path)
    return Dataset(
        name,
        samples[0] if len(samples) == 1 else np.concatenate(samples),
        np.concatenate(labels),
        names,
        train=sum(len(y) for part, y in zip(parts, labels, strict=True) if part != "test"),
        groups=groups,
        group_names=group_names,
        vocabulary=len(vocabulary) if vocabulary.ndim else int(vocabulary),
        tokens=tuple(map(_text, vocabulary.tolist())) if vocabulary.ndim else (),
    )


def _text(name: object) -> str:
    """Return a name, a text, a byte string or a number, as a text."""
    if isinstance(name, bytes):
        return name.decode("utf-8", "backslashreplace")
    return "" if name is None else str(name)


def read_arrays(
    path: Path, limit: int | None = None, names: Sequence[str] | None = None
) -> dict[str, NDArray[Any]]:
    """Return the arrays of an NPZ file by name: all, or those of `names` that are there.

    Raises:
        DataError: The file is damaged, would unpack to more than `limit` bytes (None: 16 GiB), or
            has other objects than arrays.
    """
    limit = MAX_BYTES if limit is None else limit
    try:
        files.check_regular(path)
        with path.open("rb") as file, np.load(file, allow_pickle=False) as arrays:
            # NumPy makes room for the shape of a header, and finds out when it reads the values.
            if (size := sum(entry.file_size for entry in arrays.zip.infolist())) > limit:
                raise ValueError(f"it would unpack to {size:,} bytes; the limit is {limit:,}")
            kept = arrays.files if names is None else [key for key in names if key in arrays.files]
            found = {key: arrays[key] for key in kept}
        if other := [key for key, value in found.items() if not isinstance(value, np.ndarray)]:
            raise ValueError(f"the entry `{other[0]}` is not an array")
    except Exception as error:  # zipfile and NumPy raise exceptions of many kinds
        raise DataError(
            f"{path} is not an intact NPZ file of plain arrays ({error}). Save it again, without"
            " objects: np.savez(FILE, train_images=x, train_labels=y)."
        ) from error
    return found


def as_samples(x: NDArray[Any], what: str, layout: str, kind: str = "auto") -> NDArray[Any]:
    """Return samples as a data set has them; they may share memory with the array.

    Args:
        x: The array of the file.
        what: Name of the file and the array, as the beginning of an error message.
        layout: `data.layout`.
        kind: `data.kind`. With `auto`, integers [n, length] are tokens, floating-point numbers
            [n, columns] a table, and [n, ., .] series if `layout` is set and grey images otherwise.

    Returns:
        Images [n, channels, height, width], uint8 or float32; series [n, channels, length] float32;
        a table [n, columns] float32; or tokens [n, length] in their integer type.

    Raises:
        DataError: The array has another shape or type, or values that are not finite, or it is not
            clear where its channels are.
    """
    got = f"{what} of the shape {list(x.shape)} in {x.dtype}"
    is_float = x.dtype.kind == "f"
    if kind == "auto":
        kind = "series" if x.ndim == 3 and is_float and layout != "auto" else "images"
        kind = ("table" if is_float else "tokens") if x.ndim == 2 else kind
    types = {"images": "f", "tokens": "iu"}.get(kind, "iuf")
    is_pixels = kind == "images" and x.dtype == np.uint8
    is_right = is_pixels or x.dtype.kind in types
    has_channels = kind == "series" or (kind == "images" and x.ndim == 4)
    if x.ndim not in AXES[kind][0] or not is_right or (len(x) and not x[0].size):
        raise DataError(
            f"{got} cannot be {kind}, which are {AXES[kind][1]}. Convert them (such as by"
            " astype(np.float32)), or set data.kind. Volumes are not supported: save slices."
        )
    if layout != "auto" and not has_channels:
        raise DataError(
            f"`data.layout`={layout} says where the channels are, and {got} are {kind} without"
            " an axis of channels. Leave it out, or set data.kind=series."
        )
    if kind == "tokens":
        return x
    if has_channels and x.ndim == 4 and layout == "auto":
        first, last = x.shape[1] in CHANNELS, x.shape[3] in CHANNELS
        if first == last:
            raise DataError(
                f"{got} have {'two axes' if first else 'no axis'} of 1 or 3 channels. Set"
                " data.layout=channels_last for [n, H, W, channels], or data.layout=channels_first"
                " for [n, channels, H, W]. Volumes are not supported: save slices [n, H, W]."
            )
        layout = "channels_last" if last else "channels_first"
    if kind != "table" and x.ndim == min(AXES[kind][0]):
        x = x[:, None]  # [n, H, W] -> [n, 1, H, W], and [n, length] -> [n, 1, length]
    if layout == "channels_last":
        x = np.moveaxis(x, -1, 1)  # [n, H, W, channels] -> [n, channels, H, W]
    return np.ascontiguousarray(x if is_pixels else _as_float32(x, what))


def _as_float32(x: NDArray[Any], what: str) -> NDArray[np.float32]:
    """Return samples as float32; raise a DataError if a value is not finite in it."""
    with np.errstate(over="ignore"):
        x = x.astype(np.float32, copy=False)
    # In pieces, because a mask takes a quarter of the memory of the samples.
    for k in range(0, len(x), 1024):
        if not (is_finite := np.isfinite(x[k : k + 1024])).all():
            sample = k + int(np.argwhere(~is_finite)[0, 0])
            raise DataError(
                f"{what}: sample {sample} (counted from 0) has values that are NaN, infinite or too"
                " large for float32. Replace them."
            )
    return x


def _groups(
    arrays: Mapping[str, NDArray[Any]], labels: Mapping[str, NDArray[np.int64]], path: Path | str
) -> tuple[NDArray[np.int64] | None, tuple[str, ...]]:
    """Return the number of the natural client of every sample, and the clients' names.

    Samples of parts without groups get the number -1. None and no names if there are no groups.
    """
    if "train_groups" not in arrays:
        return None, ()
    named: list[str] = []
    for part, y in labels.items():
        where = f"{path}: `{part}_groups`"
        group = arrays.get(f"{part}_groups")
        found = [""] * len(y) if group is None else labels_of.as_texts(group, where, "client")
        if len(found) != len(y):
            raise DataError(f"{where} has {len(found)} groups for {len(y)} samples. Save one each.")
        named += found
    names, numbers = np.unique(np.array(named), return_inverse=True)
    unnamed = int(names[0] == "")  # "" sorts first: no name becomes -1
    return numbers.astype(np.int64) - unnamed, tuple(map(str, names[unnamed:]))
