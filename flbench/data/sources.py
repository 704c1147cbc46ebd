"""Loading of data sets: scikit-learn's digits, files, and downloads by torchvision.

A data set is searched in `data.root` as `NAME.npz`, `NAME.zip` and `NAME/`; otherwise torchvision
loads or downloads it. The content of files is never executed, and no file is written under a name
that an archive chooses.
"""

from collections.abc import Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from flbench.config.schema import HUGGING_FACE, DataConfig, TextConfig
from flbench.core import parts
from flbench.core.errors import DataError, did_you_mean
from flbench.data.dataset import Dataset, check_classes, check_lengths, notes_on_names
from flbench.data.partition_files import data_hash


def _cure(path: Path) -> str:
    """Return what to do about a path that does not exist; a relative one depends on the folder."""
    if path.is_absolute():
        return "Give an existing file or folder."
    return (
        f"A relative path begins at the current folder, {Path.cwd()}: give an existing file or"
        " folder, or go to the folder in which the path is right."
    )


def load(config: DataConfig) -> Dataset:
    """Load the data set that a configuration names.

    Args:
        config: Section `data`.

    Raises:
        DataError: The data set is not found (the message names the expected files) or cannot be
            read or downloaded, or it cannot have the groups of `data.group`.
    """
    dataset = _load(config)
    if config.group is not None and dataset.blocks is None:
        raise DataError(
            f"`data.group={config.group}` names a column of tables or an array of NPZ files, and"
            f" `{dataset.name}` has neither. Leave it out."
        )
    return dataset


def _load(config: DataConfig) -> Dataset:
    """Load a data set; see `load`."""
    if config.source is not None:
        return _own(config)
    if config.path is not None:
        _check_client(config)
        if not config.path.exists():
            raise DataError(f"`data.path` {config.path} does not exist. {_cure(config.path)}")
        return read_file(config.path, config)
    if config.name.startswith(HUGGING_FACE):
        _check_no_layout(config, f"`{config.name}`")
        from flbench.data import hugging_face
        from flbench.data.own import Data

        found = Data(
            hugging_face.load(config.name.removeprefix(HUGGING_FACE)),
            name=config.title,
            kind=config.kind,
            label=config.label,
            client=config.client,
            drop=config.drop,
            group=config.group,
            padding=config.padding,
        )
        return _checked(found.dataset, f"`{config.name}`", config)
    _check_client(config)
    if config.name == "digits":
        _check_plain(config, "scikit-learn's digits")
        return digits()
    if (
        not config.name
        or any(part in config.name for part in ("/", "\\", "\0"))
        or config.name.startswith(".")
    ):
        raise DataError(
            f"`data.name` must be a plain name, got {config.name!r}. Use `data.path` for a file."
        )
    for candidate in candidates(config):
        if candidate.exists():
            return read_file(candidate, config)
    from flbench.data.known_sets import known

    entry = known().get(config.name)
    if entry is not None and entry.load is not None:
        _check_plain(config, f"torchvision's `{config.name}`")
        return entry.load(config.root)
    places = ", ".join(str(path) for path in candidates(config))
    hint = (
        f" {entry.where[0].upper()}{entry.where[1:]}."
        if entry
        else did_you_mean(config.name, known())
    )
    raise DataError(
        f"the data set `{config.name}` was not found (data.name, data.root={config.root}).{hint}"
        f" Provide one of these: {places}; or give a file with `data.path`."
    )


def candidates(config: DataConfig) -> Sequence[Path]:
    """Return the paths at which a data set is searched, in this order.

    Args:
        config: Section `data`.
    """
    return [
        config.root / f"{config.name}.npz",
        config.root / f"{config.name}.zip",
        config.root / config.name,
    ]


def read_file(path: Path, config: DataConfig) -> Dataset:
    """Read a data set from a file or folder: an NPZ file, images, tables, texts, UCI HAR or LEAF.

    Args:
        path: The file or folder.
        config: Section `data`, for the name of the data set and the column of the label.

    Raises:
        DataError: The file is damaged or has none of these layouts, its samples have a single
            class, or `data.augment` is set for tables.
    """
    return _checked(_read(path, config), path, config, is_images=path.suffix != ".npz")


def _own(config: DataConfig) -> Dataset:
    """Return the data of `data.source`: what a function returns, or an object from Python.

    Raises:
        ConfigError: There is no such function, its file was edited after the import, or the object
            must be given again.
        DataError: The data cannot be used, or their hash differs from `data.sha256`.
    """
    from flbench.data.own import Data, result_of

    _check_no_client_folders(config, "`data.source`")
    found = parts.part(str(config.source), "data", "`data` of this run", "data=...")
    if config.source != parts.OBJECT:
        from flbench.core import source_hash

        source_hash.of_path(str(config.source))
        found = result_of(found, f"`data.source={config.source}`")
    if not isinstance(found, Data):
        found = Data(
            found,
            name=config.title,
            layout=config.layout,
            kind=config.kind,
            label=config.label,
            drop=config.drop,
            group=config.group,
            padding=config.padding,
        )
    elif config.drop or config.group is not None:
        key = "drop" if config.drop else "group"
        raise DataError(
            f"`data.{key}` is for files and tables, and the data of this run are an fl.Data. Give"
            f" it to fl.Data: fl.Data(frame, {key}=...)."
        )
    dataset = _checked(found.dataset, found.where, config)
    sha256 = data_hash(dataset)
    if config.sha256 not in (None, sha256):
        raise DataError(
            f"the data have changed: the SHA-256 of the samples of `data.source={config.source}`"
            f" was {config.sha256} and is now {sha256}. Give the same data, or start a new run."
        )
    return replace(dataset, sha256=sha256)


def _checked(
    dataset: Dataset, path: Path | str, config: DataConfig, *, is_images: bool = False
) -> Dataset:
    """Return a data set of the user if its classes and the keys of the section are right.

    Args:
        dataset: The data set.
        path: The file or folder, or what the data are, for error messages.
        config: Section `data`.
        is_images: Whether images of the data set come from files of images.
    """
    check_classes(dataset, path)
    what = "tables" if dataset.is_table else dataset.kind
    if config.kind not in ("auto", dataset.kind):
        raise DataError(
            f"`data.kind={config.kind}` is for arrays, and {path} has {what}. Leave it out."
        )
    if config.resize is not None and not (is_images and dataset.kind == "images"):
        raise DataError(
            f"`data.resize={config.resize}` is for image files, and {path} has none. Leave it out."
        )
    if config.text != TextConfig() and dataset.starts is None:
        raise DataError(f"`data.text` is for texts (.txt), and {path} has {what}. Leave it out.")
    if dataset.kind == "tokens":
        from flbench.data import tokens

        dataset = tokens.complete(dataset, config.padding, str(path))
    elif config.padding is not None:
        raise DataError(
            f"`data.padding={config.padding}` is for tokens, and {path} has {what}. Leave it out."
        )
    check_lengths(dataset.group_names, "client", path)
    if config.augment and dataset.kind != "images":
        raise DataError(
            f"`data.augment`={list(config.augment)} is for images, but {path} has"
            f" {what}. Leave it out."
        )
    notes = notes_on_names(dataset.classes, "class")
    notes += notes_on_names(dataset.group_names, "client")
    for column, words in zip(dataset.columns, dataset.words, strict=False):
        notes += notes_on_names(words, "word", f" of the column `{column}`")
    return replace(dataset, notes=(*dataset.notes, *notes))


def _read(path: Path, config: DataConfig) -> Dataset:
    """Read a data set from a file or folder; see `read_file`."""
    from flbench.data import har_files, image_files, leaf_files, npz_files, table_files, text_files
    from flbench.data.archive import Archive, SingleFile, check_format

    name = config.title
    if path.suffix == ".npz":
        _check_no_client_folders(config, str(path))
        _check_no_label(config, str(path))
        found = npz_files.read(path, name, config.layout, config.kind, config.arrays.renamed())
        return found if config.group is None else _with_array(found, path, config.group)
    _check_no_layout(config, str(path))
    if path.is_file() and path.suffix.lower() == ".csv":
        _check_no_client_folders(config, str(path))
        # One file names no clients.
        return replace(
            table_files.read(SingleFile(path), name, config.label, config.drop, group=config.group),
            groups=None,
            group_names=(),
        )
    if path.is_file() and image_files.is_image(path.name):
        raise DataError(
            f"{path} is a single image. Give `data.path` the folder or .zip file that has the"
            " images in class folders: CLASS/*."
        )
    check_format(path)
    with Archive(path) as archive:
        tables = [entry for entry in archive.names if entry.lower().endswith(".csv")]
        if tables and not image_files.has_images(archive):
            if image_files.has_class_folders(archive):
                raise DataError(
                    f"{path} has CSV tables and images in class folders, so it could be read as"
                    " either. Keep one of the two, or move the images to train/CLASS/*."
                )
            images = [entry for entry in archive.names if image_files.is_image(entry)]
            if len(images) > len(tables):
                raise DataError(
                    f"{path} has {len(images):,} images, such as {images[0]}, beside the table"
                    f" {tables[0]}, and the labels of images are not read from a table. Move the"
                    " images to folders of their classes, CLASS/*, without the table; or, for the"
                    " table alone, remove the images."
                )
            _check_no_client_folders(config, str(path))
            return table_files.read(archive, name, config.label, config.drop, group=config.group)
        _check_no_label(config, str(path))
        if config.client is None and not any(map(image_files.is_image, archive.names)):
            if har_files.is_har(archive):
                return har_files.read(archive, name)
            if any(map(leaf_files.is_leaf_file, archive.names)):
                _check_no_windows(config, str(path))
                return leaf_files.read(archive, name, config.text.vocabulary)
            if any(map(text_files.is_text_file, archive.names)):
                return text_files.read(archive, name, config.text)
        by_client = config.client == "folder"
        return image_files.read(archive, name, by_client=by_client, size=config.image_size)


def _with_array(dataset: Dataset, path: Path, name: str) -> Dataset:
    """Return a data set with the groups that an array of its NPZ file has."""
    from flbench.data import npz_files

    arrays = npz_files.read_arrays(path, names=[name])
    if name not in arrays:
        raise DataError(
            f"{path} has no array `{name}`, which `data.group` names. Save one with a value for"
            " each sample."
        )
    from flbench.data import labels

    return labels.with_blocks(dataset, arrays[name], name, f"{path}: `{name}`")


def _check_plain(config: DataConfig, what: str) -> None:
    """Raise a DataError if a key is set that is for files of the user."""
    key = next((key for key in ("padding", "resize") if getattr(config, key) is not None), "kind")
    if key != "kind" or config.kind not in ("auto", "images"):
        raise DataError(
            f"`data.{key}`={getattr(config, key)} is for data of your own, and {what} has images."
            " Leave it out."
        )
    _check_no_layout(config, what)
    _check_no_client_folders(config, what)
    _check_no_label(config, what)


def _check_no_label(config: DataConfig, what: str) -> None:
    """Raise a DataError if `data.label` or `data.drop` is set for data without named columns."""
    if config.drop:
        raise DataError(
            f"`data.drop={list(config.drop)}` names columns of tables, and {what} has no columns"
            " with names. Leave it out."
        )
    if config.label is not None:
        raise DataError(
            f"`data.label`={config.label} names a column of tables, and {what} has no columns."
            " Leave it out."
        )


def _check_client(config: DataConfig) -> None:
    """Raise a DataError if `data.client` names a column of data that are not of Hugging Face."""
    if config.client not in (None, "folder"):
        raise DataError(
            f"`data.client={config.client}` names a column, which data of Hugging Face"
            " (data.name=hf:OWNER/NAME) have. Set data.client=folder for images CLIENT/CLASS/*;"
            " save a table as one CSV file for each client in a folder; or leave it out."
            f"{did_you_mean(str(config.client), ['folder'])}"
        )


def _check_no_windows(config: DataConfig, what: str) -> None:
    """Raise a DataError if windows are asked for, and samples are windows already."""
    plain = TextConfig(vocabulary=config.text.vocabulary)
    for key, value in config.text:
        if value != getattr(plain, key):
            raise DataError(
                f"`data.text.{key}={value}` is for texts (.txt), and {what} has samples in JSON."
                " Leave it out."
            )


def _check_no_client_folders(config: DataConfig, what: str) -> None:
    """Raise a DataError if `data.client=folder` is set for other data than folders of images."""
    if config.client is not None:
        raise DataError(
            f"`data.client`={config.client} is for folders of images, which {what} is not. Leave it"
            " out."
        )


def _check_no_layout(config: DataConfig, what: str) -> None:
    """Raise a DataError if a key is set that is for NPZ files, and the data are none."""
    if renamed := config.arrays.renamed():
        raise DataError(
            f"`data.arrays` names arrays of NPZ files (`{min(renamed.values())}`), and {what} is no"
            " NPZ file. Leave it out."
        )
    if config.layout != "auto":
        raise DataError(
            f"`data.layout`={config.layout} is for NPZ files, which {what} is not. Leave it out."
        )


@cache  # scikit-learn parses a text file, which takes longer than the rest of a small experiment
def _digits_arrays() -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
    """Return images [N, 1, 8, 8] and labels [N] of scikit-learn's digits."""
    from sklearn.datasets import load_digits

    bunch = load_digits()
    return bunch.images.astype(np.uint8)[:, None], bunch.target.astype(np.int64)


def digits() -> Dataset:
    """Return scikit-learn's 1,797 images of digits, 8x8 pixels each.

    scikit-learn defines no test part; flbench uses the last 297 images.
    """
    images, labels = _digits_arrays()
    return Dataset(
        "digits",
        images.copy(),
        labels.copy(),
        tuple(str(digit) for digit in range(10)),
        train=1500,
        scale=16.0,
    )
