"""Reading of samples without labels, to predict their classes: images, tables and NPZ files."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view
from numpy.typing import NDArray

from flbench.core.errors import DataError
from flbench.data import image_files, npz_files, table_files, text_files
from flbench.data.archive import Archive, SingleFile, check_format
from flbench.data.dataset import Kind

AXES: Final = {
    "images": "channels, height, width",
    "series": "channels, length",
    "table": "columns",
    "tokens": "length",
}
# Ends of the names of other arrays in NPZ files.
NO_SAMPLES = ("_labels", "_groups", "class_names", "vocabulary")


@dataclass(frozen=True)
class Layout:
    """What samples a model takes.

    Attributes:
        shape: Shape of one sample of the data set: (channels, height, width), (channels, length),
            (columns,), or (length,) for tokens.
        is_pixels: Whether the samples are images of whole numbers.
        columns: Names of a table's columns.
        words: Words of each column; empty for columns of numbers.
        layout: Key `data.layout` for NPZ files.
        kind: What the samples are, as `Dataset.kind`.
        resize: Height and width that files of images are resized to; None for no change.
        characters: Character of each token id of a model of texts; empty for others.
        arrays: Arrays that `data.arrays` names as samples; a file that has one of them has samples
            in no other array.
    """

    shape: tuple[int, ...]
    is_pixels: bool
    columns: tuple[str, ...]
    words: tuple[tuple[str, ...], ...]
    layout: str = "auto"
    kind: Kind = "images"
    arrays: tuple[str, ...] = ()
    characters: tuple[str, ...] = ()
    resize: tuple[int, int] | None = None


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
        path: An image, a .csv, .npz or .txt file, or a folder or .zip file of images or tables.
        layout: What samples the model takes.
        note: Function that is called with a sentence about files that are not read.

    Raises:
        DataError: The path does not exist, a file cannot be read, or its samples have another shape
            than the model's.
    """
    if not path.exists():
        raise DataError(f"{path} does not exist. Give an image, a .csv or .npz file, or a folder.")
    if path.suffix.lower() == ".npz":
        return _arrays(path, layout)
    if layout.characters and text_files.is_text_file(path.name) and path.is_file():
        return [_windows(path, layout)]
    if layout.kind in ("series", "tokens"):
        raise DataError(
            f"{path} is no .npz file, and the model takes {layout.kind}. Save them as an array"
            f" {'[n, channels, length]' if layout.kind == 'series' else '[n, length] of integers'}"
            f"{', or give a .txt file' if layout.characters else ''}."
        )
    check_format(path)
    is_single = path.is_file() and (_is_table(path.name) or image_files.is_image(path.name))
    with SingleFile(path) if is_single else Archive(path) as archive:
        is_wanted = _is_table if layout.kind == "table" else image_files.is_image
        entries = [entry for entry in archive.names if is_wanted(entry)]
        if not entries:
            wanted = "tables (.csv)" if layout.kind == "table" else "images (.png, .jpg, .webp)"
            raise DataError(
                f"{path} has no {wanted}, which the model takes. Give such files, or an .npz file."
            )
        kinds = "the model takes tables" if layout.kind == "table" else "the model takes images"
        for sentence in archive.left_out(entries, kinds):
            note(sentence)
        return [
            Unlabelled(str(path if is_single else path / entry), *_samples(archive, entry, layout))
            for entry in entries
        ]


def _windows(path: Path, layout: Layout) -> Unlabelled:
    """Return all windows of a text; the row of a window is the position of its first character."""
    with SingleFile(path) as archive:
        text = text_files.decoded(archive.read(archive.names[0]), str(path))
    length = layout.shape[0]
    if len(text) < length:
        raise DataError(
            f"{path} has {len(text)} characters, and the model takes windows of {length}. Give a"
            " longer text."
        )
    ids = text_files.numbers_of(text, layout.characters, str(path))
    windows = sliding_window_view(ids, length)
    return Unlabelled(str(path), range(len(windows)), windows)


def _is_table(entry: str) -> bool:
    return entry.lower().endswith(".csv")


def _samples(
    archive: Archive, entry: str, layout: Layout
) -> tuple[Sequence[int] | None, NDArray[Any]]:
    """Return the rows and the samples of one table, or one image."""
    if layout.kind == "table":
        x = table_files.read_features(archive, entry, layout.columns, layout.words)
        return range(len(x)), x
    return None, _image(archive, entry, layout)


def _image(archive: Archive, entry: str, layout: Layout) -> NDArray[np.uint8]:
    """Return one image [1, channels, height, width]."""
    where = archive.place(entry)
    if not layout.is_pixels:
        raise DataError(
            f"{where} has pixels of whole numbers, but the model takes images in floating point."
            " Give them in an .npz file, in the units of the training data."
        )
    image, _ = image_files.decode(archive, entry, layout.resize)  # [height, width, 3]
    channels, height, width = layout.shape
    if image.shape[:2] != (height, width):
        raise DataError(
            f"{where} has {image.shape[1]}x{image.shape[0]} pixels, but the model takes"
            f" {width}x{height}. Resize it."
        )
    if channels == 1:
        if (image != image[..., :1]).any():
            raise DataError(
                f"{where} is a colour image, but the model takes grey images (one channel). Convert"
                " it."
            )
        image = image[..., :1]
    return np.moveaxis(image, -1, 0)[None]


def _arrays(path: Path, layout: Layout) -> list[Unlabelled]:
    """Return the samples of an NPZ file, by array."""
    found = []
    arrays = npz_files.read_arrays(path)
    named = [key for key in layout.arrays if key in arrays]
    for key, array in arrays.items():
        if key not in named if named else key.endswith(NO_SAMPLES):
            continue
        kind = layout.kind if layout.kind in ("series", "tokens") else "auto"
        x = npz_files.as_samples(array, f"{path}: `{key}`", layout.layout, kind)
        if x.shape[1:] != layout.shape:
            raise DataError(
                f"{path}: `{key}` has samples of the shape {list(x.shape[1:])}, but the model takes"
                f" {list(layout.shape)} ({AXES[layout.kind]}). Bring them to that shape."
            )
        found.append(Unlabelled(f"{path}:{key}", range(len(x)), x))
    if not found:
        raise DataError(f"{path} has no array of samples. Save one, such as `test_images`.")
    return found
