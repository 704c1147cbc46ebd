"""Data sets by name, by path, from a function of the user, from Hugging Face and torchvision.

A data set is searched in `data.root` as `NAME.npz`, `NAME.zip` and `NAME/`; otherwise torchvision
loads or downloads it. The content of files is never executed. A .zip file is unpacked to the cache.
"""

from dataclasses import replace
from importlib.metadata import distribution
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from flbench.config.schema import HUGGING_FACE, DataConfig
from flbench.core import parts
from flbench.core.errors import DataError, did_you_mean
from flbench.data.dataset import Dataset

if TYPE_CHECKING:
    from flbench.data.folders import Folder

NPZ, TABLES, IMAGES, TEXTS = "NPZ files", "tables", "folders of images", "texts"
LEAF, HAR = "folders of LEAF", "folders of UCI HAR"
OBJECTS, HUB = "data of Python", f"{HUGGING_FACE}OWNER/NAME"
FORMATS: Final = {
    "layout": (NPZ, OBJECTS),
    "kind": (NPZ, OBJECTS, HUB),
    "arrays": (NPZ,),
    "padding": (NPZ, OBJECTS, HUB),
    "resize": (IMAGES,),
    "text": (TEXTS,),
    "client": (IMAGES, HUB),
    "label": (TABLES, OBJECTS, HUB),
    "drop": (TABLES, OBJECTS, HUB),
    "group": (NPZ, TABLES, OBJECTS, HUB),
}
"""The formats that have a key of the section `data`."""
KINDS: Final = {"augment": "images", "padding": "tokens"}
"""What the samples must be for a key of the section `data`."""


def load(config: DataConfig) -> Dataset:
    """Load the data set that the section `data` names.

    Raises:
        DataError: The data set is not found (the message names the expected files), cannot be read
            or downloaded, or its format does not have a key that is set.
    """
    if config.source is not None:
        return _of_source(config)
    if config.path is not None:
        if not config.path.exists():
            raise DataError(
                f"`data.path` {config.path} does not exist, seen from the folder {Path.cwd()}. Give"
                " an existing file or folder."
            )
        return read_file(config.path, config)
    if config.name == "digits":
        _check_keys(config, "scikit-learn's digits", "`digits`")
        return digits()
    if config.name.startswith(HUGGING_FACE):
        from flbench.data import hugging_face

        return _of_object(hugging_face.load(config.name[len(HUGGING_FACE) :]), config, HUB)
    if not config.name or config.name.startswith(".") or any(c in config.name for c in "/\\\0"):
        raise DataError(
            f"`data.name` must be a plain name, got {config.name!r}. Use `data.path` for a file."
        )
    for candidate in candidates(config):
        if candidate.exists():
            return read_file(candidate, config)
    from flbench.data.known_sets import known

    entry = known().get(config.name)
    if entry is not None and entry.load is not None:
        _check_keys(config, "data sets of torchvision", f"`{config.name}`")
        return entry.load(config.root)
    places = ", ".join(str(path) for path in candidates(config))
    hint = f" {entry.where}." if entry else did_you_mean(config.name, known())
    raise DataError(
        f"the data set `{config.name}` was not found (data.name, data.root={config.root}).{hint}"
        f" Provide one of these: {places}; or give a file with `data.path`."
    )


def candidates(config: DataConfig) -> list[Path]:
    """Return the paths at which a data set is searched, in this order."""
    return [config.root / f"{config.name}{suffix}" for suffix in (".npz", ".zip", "")]


def read_file(path: Path, config: DataConfig) -> Dataset:
    """Read a data set from a file or folder: an NPZ file, images, tables, texts, UCI HAR or LEAF.

    Raises:
        DataError: The file is damaged or has none of these layouts, its format does not have a key
            that is set, or its samples have a single class.
    """
    from flbench.data import har_files, images, leaf_files, npz_files, tables, text_files
    from flbench.data.folders import Folder

    if path.suffix == ".npz":
        _check_keys(config, NPZ, path)
        return _checked(npz_files.read(path, config), path, config)
    readers = {TABLES: tables, HAR: har_files, LEAF: leaf_files, TEXTS: text_files, IMAGES: images}
    folder = Folder(path)
    kind = _format(folder)
    _check_keys(config, kind, path)
    return _checked(readers[kind].read(folder, config), path, config)


def _format(folder: "Folder") -> str:
    """Return the format of the files in a folder or .zip file."""
    from flbench.data import har_files, images, tables

    pictures, of_tables = folder.ending(images.SUFFIXES), folder.ending(tables.SUFFIXES)
    if of_tables and not images.has_parts(folder):
        if len({name.rpartition("/")[0] for name in pictures}) > 1 or len(pictures) > len(
            of_tables
        ):
            raise DataError(
                f"{folder.path} has images beside the table {of_tables[0]}, and the labels of"
                " images are not read from a table. Move the images to folders of their classes,"
                " CLASS/*, without the table; or, for the table alone, remove the images."
            )
        return TABLES
    if not pictures:
        if any(map(har_files.SIGNAL.fullmatch, folder.names)):
            return HAR
        for kind, suffix in ((LEAF, ".json"), (TEXTS, ".txt")):
            if folder.ending(suffix):
                return kind
    return IMAGES


def _of_source(config: DataConfig) -> Dataset:
    """Return the data of `data.source`: what a function returns, or an object from Python.

    Raises:
        ConfigError: There is no such function, its file was edited after the import, or the object
            must be given again.
        DataError: The data cannot be used, or their hash differs from `data.sha256`.
    """
    from flbench.data.own import result_of
    from flbench.data.partition_files import data_hash

    found = parts.part(str(config.source), "data", "`data` of this run", "data=...")
    if config.source != parts.OBJECT:
        from flbench.core import source_hash

        source_hash.of_path(str(config.source))
        found = result_of(found, f"`data.source={config.source}`")
    dataset = _of_object(found, config, OBJECTS)
    sha256 = data_hash(dataset)
    if config.sha256 not in (None, sha256):
        raise DataError(
            f"the data have changed: the SHA-256 of the samples of `data.source={config.source}`"
            f" was {config.sha256} and is now {sha256}. Give the same data, or start a new run."
        )
    return replace(dataset, sha256=sha256)


def _of_object(found: Any, config: DataConfig, kind: str) -> Dataset:
    """Return the data set of data of Python, which the keys of the section describe."""
    from flbench.data.own import Data

    where = f"`data.source={config.source}`" if kind == OBJECTS else f"`{config.name}`"
    _check_keys(config, kind, where)
    keys = {key: getattr(config, key) for key in FORMATS if kind in FORMATS[key]}
    keys = {key: value for key, value in keys.items() if value != _default(key)}
    if not isinstance(found, Data):
        found = Data(found, name=config.title, **keys)
    elif wrong := keys.keys() - {"padding"}:
        raise DataError(
            f"`data.{min(wrong)}` describes data as they are read, and the data of this run are an"
            f" fl.Data. Give it to fl.Data: fl.Data(..., {min(wrong)}=...)."
        )
    return _checked(found.dataset, where, config)


def _check_keys(config: DataConfig, kind: str, where: Path | str) -> None:
    """Raise a DataError if a key of the section `data` is set that a format does not have."""
    for key, kinds in FORMATS.items():
        if kind not in kinds and getattr(config, key) != _default(key):
            raise DataError(
                f"`data.{key}` is for {', '.join(kinds)}, and {where} is read as {kind}. Leave"
                " it out."
            )


def _default(key: str) -> Any:
    return DataConfig.model_fields[key].default


def _checked(dataset: Dataset, where: Path | str, config: DataConfig) -> Dataset:
    """Return a data set of the user if its classes and the keys for its samples are right."""
    from flbench.data import labels, tokens

    labels.check_classes(dataset, where)
    for key, kind in KINDS.items():
        if dataset.kind != kind and getattr(config, key) != _default(key):
            raise DataError(
                f"`data.{key}` is for {kind}, and {where} has {dataset.kind}. Leave it out."
            )
    return tokens.complete(dataset, config.padding, str(where))


def digits() -> Dataset:
    """Return scikit-learn's 1,797 images of digits, 8x8 pixels each.

    scikit-learn defines no test part; flbench uses the last 297 images.
    """
    # Its file alone: importing scikit-learn and what it imports takes 0.8 s.
    file = distribution("scikit-learn").locate_file("sklearn/datasets/data/digits.csv.gz")
    table = np.loadtxt(str(file), np.int64, delimiter=",")  # [1797, 64 pixels and the label]
    return Dataset(
        "digits",
        table[:, :64].reshape(-1, 1, 8, 8).astype(np.uint8),
        table[:, 64].copy(),
        tuple(str(digit) for digit in range(10)),
        train=1500,
        scale=16.0,
    )
