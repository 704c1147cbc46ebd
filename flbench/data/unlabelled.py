"""Reading of samples without labels, to predict their classes: images, tables, texts, NPZ files."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view
from numpy.typing import NDArray

from flbench.core.errors import DataError
from flbench.data import images, npz_files, pixels, tables, text_files, tokens
from flbench.data.dataset import Dataset
from flbench.data.folders import Folder

SUFFIXES: Final = {"images": images.SUFFIXES, "table": tables.SUFFIXES}
# Ends of the names of other arrays in NPZ files.
NO_SAMPLES = ("_labels", "_groups", "class_names", "vocabulary")


@dataclass(frozen=True)
class Layout(Dataset):
    """What samples a model takes: its data set without samples, and how files of others are read.

    Attributes:
        arrays: Arrays that `data.arrays` names as samples; a file that has one of them has samples
            in no other array.
        resize: Height and width that files of images are resized to; None for no change.
        range: Smallest and largest value of images; None if it is not known.
    """

    arrays: tuple[str, ...] = ()
    resize: tuple[int, int] | None = None
    range: tuple[float, float] | None = None

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of one sample, as the data set stores it."""
        return self.x.shape[1:]

    @property
    def characters(self) -> tuple[str, ...]:
        """Character of each token id of a model of texts; empty for others."""
        return self.tokens if self.starts is not None else ()


@dataclass(frozen=True)
class Unlabelled:
    """Samples of one file.

    Attributes:
        file: The file: a path, behind a colon the entry of an archive or the array of an NPZ file.
        rows: Row of each sample in the file [n], from 0; None if the file is one sample.
        x: Samples [n, ...] as the data set stores them.
    """

    file: str
    rows: Sequence[int] | None
    x: NDArray[Any]


def read(
    path: Path, layout: Layout, note: Callable[[str], None] = lambda sentence: None
) -> list[Unlabelled]:
    """Read the samples of a file or of all files of a folder or .zip file, sorted by name.

    Args:
        path: An image, a table, an .npz or .txt file, or a folder or .zip file of images or tables.
        layout: What samples the model takes.
        note: Function that is called with a sentence about files that are not read.

    Raises:
        DataError: A file cannot be read, or its samples have another shape than the model's.
    """
    if not path.exists():
        raise DataError(f"{path} does not exist. Give an existing file or folder.")
    if path.suffix.lower() == ".npz":
        return _arrays(path, layout)
    folder = Folder(path)
    if layout.characters and path.is_file() and folder.ending(".txt") == [path.name]:
        return [_windows(folder, layout)]
    suffixes = SUFFIXES.get(layout.kind, ())
    entries = folder.ending(suffixes)
    if not entries:
        taken = (*suffixes, ".npz", *([".txt"] if layout.characters else []))
        raise DataError(f"{path} has no file that the model takes: {', '.join(taken)}. Give one.")
    for sentence in folder.left_out(entries, f"the model takes {', '.join(suffixes)} files"):
        note(sentence)
    found = []
    for entry in entries:
        file = str(path if entry == path.name and path.is_file() else path / entry)
        if layout.kind == "table":
            x = tables.features_of(folder, entry, layout.columns, layout.words)
        else:
            x = _image(folder, entry, layout)
        found.append(Unlabelled(file, range(len(x)) if layout.kind == "table" else None, x))
    return found


def as_stored(x: Any, layout: Layout, where: str) -> NDArray[Any]:
    """Return samples [n, *layout.shape] as the data set stores them.

    Images and series may have their channels last, and sequences of tokens may be shorter if there
    is a padding id. The columns of a DataFrame are found by their names, as those of a file; by
    their positions if the model was trained on an array, whose columns have no names.

    Raises:
        DataError: The samples have another shape, type or range than those of the data set.
    """
    kind, padding = layout.kind, layout.padding
    if padding is not None and isinstance(x, list | tuple):
        x = tokens.padded(x, padding, where)
    if kind == "table":
        x = _of_frame(x, layout, where)
    found: NDArray[Any] = np.asarray(x)
    if kind == "table" and found.ndim == 2 and found.dtype.kind in "iuf":
        with np.errstate(over="ignore"):
            found = found.astype(np.float32)  # NaN is a missing value
    else:
        is_stored = found.shape[1:] == layout.shape or found.ndim == 2
        order = "channels_first" if is_stored else "channels_last"
        has_order = kind == "series" or found.ndim == 4
        found = npz_files.as_samples(found, where, order if has_order else "auto", kind)
    if padding is not None and (gap := layout.shape[0] - found.shape[1]) > 0:
        found = np.pad(found, ((0, 0), (0, gap)), constant_values=padding)
    low, high = pixels.range_of(found) if found.size else (0.0, 0.0)
    known = (0, layout.vocabulary - 1) if kind == "tokens" else layout.range
    is_like = found.shape[1:] == layout.shape
    if kind == "images":
        is_like &= (found.dtype == np.uint8) == layout.is_pixels
    if known is not None and (kind == "tokens" or layout.is_pixels):
        is_like &= known[0] <= low and high <= known[1]
    elif known is not None:
        is_like &= not pixels.has_other_units((low, high), known)
    if (wrong := np.argwhere(np.isinf(found))).size:
        raise DataError(f"{where}: sample {wrong[0, 0]} (counted from 0) has an infinite value.")
    if not is_like:
        units = "" if known is None else f" with values in [{known[0]:g}, {known[1]:g}]"
        stored = "uint8" if layout.is_pixels else "tokens" if kind == "tokens" else "floating point"
        raise DataError(
            f"{where}: the samples have the shape {list(found.shape[1:])} in {found.dtype} with"
            f" values in [{low:g}, {high:g}], and those of the data set {list(layout.shape)} in"
            f" {stored}{units}. Give them so: the model normalizes them."
        )
    return found


def _of_frame(x: Any, layout: Layout, where: str) -> Any:
    """Return the features of a DataFrame; anything else as it is."""
    import pandas as pd

    if not isinstance(x, pd.DataFrame):
        return x
    columns, numbers = list(layout.columns), [str(k) for k in range(x.shape[1])]
    if columns == numbers and not {*columns} <= {*tables.stripped(x).columns}:
        x = x.set_axis(numbers, axis="columns")
    return tables.features_in(x, columns, layout.words, where)


def _windows(folder: Folder, layout: Layout) -> Unlabelled:
    """Return all windows of a text; the row of a window is the position of its first character."""
    where, length = str(folder.path), layout.shape[0]
    text = folder.text(folder.path.name)
    if len(text) < length:
        raise DataError(f"{where} has {len(text)} characters; the model takes windows of {length}.")
    windows = sliding_window_view(text_files.numbers_of(text, layout.characters, where), length)
    return Unlabelled(where, range(len(windows)), windows)


def _image(folder: Folder, entry: str, layout: Layout) -> NDArray[Any]:
    """Return one image [1, channels, height, width]."""
    where = folder.place(entry)
    image = images.decode(folder.file(entry), where, layout.resize)  # [height, width, 3]
    if layout.shape[0] == 1:
        if (image != image[..., :1]).any():
            raise DataError(f"{where} has colours, but the model takes grey images. Convert it.")
        image = image[..., :1]
    return as_stored(image[None], layout, where)


def _arrays(path: Path, layout: Layout) -> list[Unlabelled]:
    """Return the samples of an NPZ file, by array."""
    found = []
    arrays = npz_files.read_arrays(path)
    named = [key for key in layout.arrays if key in arrays]
    for key, array in arrays.items():
        if key not in named if named else key.endswith(NO_SAMPLES):
            continue
        x = as_stored(array, layout, f"{path}: `{key}`")
        found.append(Unlabelled(f"{path}:{key}", range(len(x)), x))
    if not found:
        raise DataError(f"{path} has no array of samples. Save one, such as `test_images`.")
    return found
