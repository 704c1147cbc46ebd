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

import tokenize
import zlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final
from zipfile import BadZipFile

import numpy as np
from numpy.typing import NDArray

from flbench.core import files
from flbench.core.errors import DataError, did_you_mean
from flbench.data import labels as labels_of
from flbench.data import pixels
from flbench.data.dataset import Dataset

DAMAGED: Final = (
    *(AttributeError, EOFError, LookupError, MemoryError, OSError, RuntimeError, SyntaxError),
    *(TypeError, ValueError, OverflowError, BadZipFile, zlib.error, tokenize.TokenError),
)
"""What zipfile and NumPy raise for damaged files."""
MAX_BYTES: Final = 16 * 2**30
CHANNELS: Final = (1, 3)  # numbers of channels by which `data.layout=auto` finds their axis
AXES: Final = {
    "images": ((3, 4), "uint8 or floating point, [n, H, W] or with an axis of channels"),
    "series": ((2, 3), "[n, channels, length], or [n, length] for one channel"),
    "table": ((2,), "[n, columns]"),
    "tokens": ((2,), "[n, length] in integers"),
}
"""Numbers of axes of each kind of samples, and what they are."""


def read(
    path: Path,
    name: str,
    layout: str = "auto",
    kind: str = "auto",
    renamed: Mapping[str, str] = MappingProxyType({}),
) -> Dataset:
    """Read a data set from an NPZ file. Pickled objects are refused, not loaded.

    Args:
        path: The file.
        name: Name of the data set.
        layout: `data.layout`: `channels_last`, `channels_first` or `auto`.
        kind: `data.kind`: what the samples are, or `auto`.
        renamed: Name of an array in the file by the name that it stands for.

    Raises:
        DataError: The file is damaged, has another layout, or would unpack to more than 16 GiB.
    """
    arrays = read_arrays(path)
    for found in renamed.values():
        if found not in arrays:
            raise DataError(
                f"{path} has no array `{found}`, which `data.arrays` names."
                f"{did_you_mean(found, arrays)} It contains {', '.join(sorted(arrays))}."
            )
    others = {key: array for key, array in arrays.items() if key not in renamed.values()}
    arrays = others | {wanted: arrays[found] for wanted, found in renamed.items()}
    return from_arrays(arrays, path, name, layout, kind, owned=True)


def from_arrays(
    arrays: Mapping[str, NDArray[Any]],
    path: Path | str,
    name: str,
    layout: str = "auto",
    kind: str = "auto",
    *,
    owned: bool = False,
) -> Dataset:
    """Return the data set of arrays that have the names of those in an NPZ file.

    The classes are those whose labels occur, unless `class_names` names them.

    Args:
        arrays: Arrays by name.
        path: The file, or what the arrays are, for error messages.
        name: Name of the data set.
        layout: `data.layout`: `channels_last`, `channels_first` or `auto`.
        kind: `data.kind`: what the samples are, or `auto`.
        owned: Whether nobody else uses the arrays, so that the samples need not be copied. Each
            array of samples is then removed from the mapping when it has been read.

    Raises:
        DataError: The arrays have another layout.
    """
    for key in ("train_images", "train_labels"):
        if key not in arrays:
            raise DataError(
                f"{path} has no array `{key}`; it contains"
                f" {', '.join(sorted(arrays)) or 'nothing'}. Name samples `train_images` and labels"
                " `train_labels`, or say what they are called by `data.arrays`, such as"
                " 'data.arrays={samples: windows, labels: activity, clients: subject}'."
            )
    parts = [part for part in ("train", "val", "test") if f"{part}_images" in arrays]
    images: list[NDArray[Any]] = []
    groups: list[NDArray[Any] | None] = []
    given = arrays.get("class_names")
    if given is not None and given.ndim != 1:
        raise DataError(f"{path}: `class_names` must be [C], got {list(given.shape)}.")
    names, labels, notes = labels_of.number_classes(
        {f"{part}_labels": arrays.get(f"{part}_labels", np.zeros(0, np.int64)) for part in parts},
        str(path),
        None if given is None else _class_names(given),
    )
    for part, y in zip(parts, labels, strict=True):
        what = f"{path}: `{part}_images`"
        x = as_samples(arrays[f"{part}_images"], what, layout, kind, owned=owned)
        if len(x) != len(y):
            raise DataError(
                f"{path}: {len(x)} `{part}_images` but {len(y)} `{part}_labels`. Save one label for"
                f" each sample, its class. {labels_of.NO_CLASSES}"
            )
        if images and x.shape[1:] != images[0].shape[1:]:
            raise DataError(
                f"{path}: `{part}_images` have the shape {x.shape[1:]}, but `train_images`"
                f" {images[0].shape[1:]}. Bring all samples to one shape."
            )
        if images and x.dtype != images[0].dtype:
            raise DataError(
                f"{path}: `{part}_images` are {x.dtype}, but `train_images` {images[0].dtype}. Save"
                " both in one type and one range of values."
            )
        if x.ndim == 4 and images and len(x) and len(images[0]):
            there, here = pixels.range_of(images[0]), pixels.range_of(x)
            if pixels.has_other_units(here, there):
                raise DataError(
                    f"{path}: `{part}_images` have values in [{here[0]:g}, {here[1]:g}], but"
                    f" `train_images` in [{there[0]:g}, {there[1]:g}]. Save both in one type and"
                    " one range of values."
                )
        images.append(x)
        groups.append(arrays.get(f"{part}_groups"))
    if not len(images[0]):
        raise DataError(f"{path} has no training samples. Save some in `train_images`.")
    numbers, group_names = _as_groups(groups, labels, parts, path)
    train = sum(len(x) for part, x in zip(parts, images, strict=True) if part != "test")
    vocabulary, token_names = _vocabulary(arrays.get("vocabulary"), images[0], path)
    if images[0].ndim == 3:
        channels, length = images[0].shape[1:]
        notes += (f"data: samples are series of {channels} channels and length {length}.",)
    if owned and isinstance(arrays, dict):
        for part in parts:
            del arrays[f"{part}_images"]
    x = images[0] if owned and len(images) == 1 else _joined(images)
    return Dataset(
        name,
        x,
        np.concatenate(labels),
        names,
        train=train,
        groups=numbers,
        group_names=group_names,
        notes=notes,
        vocabulary=vocabulary,
        tokens=token_names,
    )


def _vocabulary(
    given: NDArray[Any] | None, x: NDArray[Any], path: Path | str
) -> tuple[int, tuple[str, ...]]:
    """Return the number of token ids, and what they stand for; 0 and no texts if not given.

    Args:
        given: The array `vocabulary`: a number of ids, or a text for each.
        x: Samples.
        path: The file, or what the arrays are, for error messages.

    Raises:
        DataError: It is something else, or the samples are not tokens.
    """
    if given is None:
        return 0, ()
    if x.ndim != 2 or x.dtype.kind == "f":
        raise DataError(
            f"{path}: `vocabulary` is for tokens [n, length] in integers, and the samples are"
            f" {x.dtype} of the shape {list(x.shape)}. Leave it out."
        )
    if given.ndim == 0 and given.dtype.kind in "iu" and given > 0:
        return int(given), ()
    if given.ndim == 1 and len(given):
        return len(given), tuple(_class_names(given))
    raise DataError(
        f"{path}: `vocabulary` must be the number of token ids, or one text for each id [V], got"
        f" {given.dtype} of the shape {list(given.shape)}."
    )


def _joined(parts: list[NDArray[Any]]) -> NDArray[Any]:
    """Return arrays of samples as one array, and remove each of them from the list."""
    count = sum(map(len, parts))
    whole = np.empty((count, *parts[0].shape[1:]), dtype=parts[0].dtype)
    begin = 0
    while parts:
        part = parts.pop(0)
        whole[begin : begin + len(part)] = part
        begin += len(part)
    return whole


def _class_names(names: NDArray[Any]) -> list[str]:
    """Return the names of classes, [C] texts, byte strings or numbers, as texts."""
    texts = (
        name.decode("utf-8", "backslashreplace") if isinstance(name, bytes) else name
        for name in names.tolist()
    )
    return ["" if text is None else str(text) for text in texts]


def read_arrays(
    path: Path, limit: int | None = None, names: Sequence[str] | None = None
) -> dict[str, NDArray[Any]]:
    """Return the arrays of an NPZ file by name.

    Args:
        path: The file.
        limit: Largest number of bytes of all arrays; None for 16 GiB.
        names: Arrays to read, as far as they are there; None for all.

    Raises:
        DataError: The file is damaged, would unpack to more than the limit, or contains pickled
            objects.
    """
    limit = MAX_BYTES if limit is None else limit
    try:
        files.check_regular(path)
        with path.open("rb") as file, np.load(file, allow_pickle=False) as arrays:
            # NumPy makes room for the shape of a header, and finds out when it reads the values.
            if (size := sum(entry.file_size for entry in arrays.zip.infolist())) > limit:
                raise DataError(
                    f"{path} would unpack to {size / 2**30:.1f} GiB; the limit is"
                    f" {limit // 2**30}. Save fewer or smaller samples."
                )
            kept = arrays.files if names is None else [key for key in names if key in arrays.files]
            found = {key: arrays[key] for key in kept}
    except DAMAGED as error:
        raise DataError(
            f"{path} is not an intact NPZ file of plain arrays ({error}). Save it again, without"
            " objects: np.savez(FILE, train_images=x, train_labels=y)."
        ) from error
    other = [key for key, value in found.items() if not isinstance(value, np.ndarray)]
    if other:
        raise DataError(f"{path}: the entry `{other[0]}` is not an array. Remove it.")
    return found


def as_samples(
    x: NDArray[Any], what: str, layout: str, kind: str = "auto", *, owned: bool = False
) -> NDArray[Any]:
    """Return samples as a data set has them.

    Args:
        x: The array of the file.
        what: Name of the file and the array, as the beginning of an error message.
        layout: `data.layout`.
        kind: `data.kind`. With `auto`, integers [n, length] are tokens, floating-point numbers
            [n, columns] a table, and [n, ., .] series if `layout` is set and grey images otherwise.
        owned: Whether the result may share memory with floating-point numbers of the file.

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
    if x.ndim not in AXES[kind][0] or not (is_pixels or x.dtype.kind in types):
        raise DataError(
            f"{got} cannot be {kind}, which are {AXES[kind][1]}. Convert them (such as by"
            " astype(np.float32)), or set data.kind. Volumes are not supported: save slices."
        )
    if not x[:1].size and len(x):
        raise DataError(f"{got} have no values. Save samples with at least one value.")
    if layout != "auto" and (kind in ("table", "tokens") or (kind == "images" and x.ndim == 3)):
        raise DataError(
            f"`data.layout`={layout} says where the channels are, and {got} are {kind} without"
            " an axis of channels. Leave it out, or set data.kind=series."
        )
    if kind == "tokens":
        return x
    if kind == "series":
        x = x[:, None] if x.ndim == 2 else x  # [n, length] -> [n, 1, length]
        x = np.swapaxes(x, 1, 2) if layout == "channels_last" else x
    elif kind == "images" and x.ndim == 3:
        x = x[:, None]  # [n, H, W] -> [n, 1, H, W]
    elif kind == "images":
        first, last = x.shape[1] in CHANNELS, x.shape[3] in CHANNELS
        if layout == "auto" and first == last:
            raise DataError(
                f"{got} have {'two axes' if first else 'no axis'} of 1 or 3 channels. Set"
                " data.layout=channels_last for [n, H, W, channels], or data.layout=channels_first"
                " for [n, channels, H, W]. Volumes are not supported: save slices [n, H, W]."
            )
        if layout == "channels_last" or (layout == "auto" and last):
            x = np.moveaxis(x, -1, 1)  # [n, H, W, channels] -> [n, channels, H, W]
    return np.ascontiguousarray(x if is_pixels else _as_float32(x, what, owned=owned and is_float))


def _as_float32(x: NDArray[Any], what: str, *, owned: bool) -> NDArray[np.float32]:
    """Return floating-point images, or a table, as float32.

    Raises:
        DataError: A value is NaN or infinite, or too large for float32.
    """
    with np.errstate(over="ignore"):
        x = x.astype(np.float32, copy=not owned)
    # In pieces, because a mask takes a quarter of the memory of the samples.
    if not all(np.isfinite(x[k : k + 1024]).all() for k in range(0, len(x), 1024)):
        sample = int(np.flatnonzero(~np.isfinite(x).all(axis=tuple(range(1, x.ndim))))[0])
        raise DataError(
            f"{what}: sample {sample} (counted from 0) has values that are NaN, infinite or too"
            " large for float32. Replace them."
        )
    return x


def _as_groups(
    groups: list[NDArray[Any] | None],
    labels: list[NDArray[np.int64]],
    parts: list[str],
    path: Path | str,
) -> tuple[NDArray[np.int64] | None, tuple[str, ...]]:
    """Return the number of the natural client of every sample, and the clients' names.

    Samples of parts without groups get the number -1. None and no names if there are no groups.

    Raises:
        DataError: The client of a sample is missing, or there are not as many groups as samples.
    """
    if groups[0] is None:
        return None, ()
    named: list[str] = []
    for group, y, part in zip(groups, labels, parts, strict=True):
        if group is not None and group.reshape(-1).shape != y.shape:
            raise DataError(
                f"{path}: `{part}_groups` have the shape {list(group.shape)}, and there are"
                f" {len(y)} samples. Save one group for each sample."
            )
        where = f"{path}: `{part}_groups`"
        named += [""] * len(y) if group is None else labels_of.as_texts(group, where, "client")
    names, numbers = np.unique(np.array(named), return_inverse=True)
    unnamed = int(names[0] == "")  # "" sorts first: no name becomes -1
    return numbers.astype(np.int64) - unnamed, tuple(map(str, names[unnamed:]))
