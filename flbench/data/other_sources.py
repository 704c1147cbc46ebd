"""Data sets of files, of functions of the user, of Hugging Face, and downloads by torchvision.

A data set is searched in `data.root` as `NAME.npz`, `NAME.zip` and `NAME/`; otherwise torchvision
loads or downloads it. The content of files is never executed, and no file is written under a name
that an archive chooses.
"""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from flbench.config.schema import HUGGING_FACE, DataConfig, TextConfig
from flbench.core import parts
from flbench.core.errors import DataError, did_you_mean
from flbench.data.dataset import FOR_FILES, Dataset, check_unused
from flbench.data.labels import check_classes, check_lengths, notes_on_names
from flbench.data.partition_files import data_hash


def load(config: DataConfig) -> Dataset:
    """Load the data set that a configuration names; see `flbench.data.sources.load`."""
    dataset = _found(config)
    if config.group is not None and dataset.blocks is None:
        raise DataError(
            f"`data.group={config.group}` names a column of tables or an array of NPZ files, and"
            f" `{dataset.name}` has neither. Leave it out."
        )
    return dataset


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


def _found(config: DataConfig) -> Dataset:
    """Load a data set; see `load`."""
    if config.source is not None:
        return _own(config)
    if config.path is not None:
        if not config.path.exists():
            raise DataError(
                f"`data.path` {config.path} does not exist, seen from the folder {Path.cwd()}. Give"
                " an existing file or folder."
            )
        return read_file(config.path, config)
    if config.name.startswith(HUGGING_FACE):
        check_unused(config, ("layout", "arrays"), f"`{config.name}`")
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
        check_unused(config, FOR_FILES, f"torchvision's `{config.name}`")
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

    check_unused(config, ("client",), f"`data.source={config.source}`")
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
    where = f"{path}, which has {what}"
    if not (is_images and dataset.kind == "images"):
        check_unused(config, ("resize",), where)
    if dataset.starts is None:
        check_unused(config, ("text",), where)
    if dataset.kind != "images":
        check_unused(config, ("augment",), where)
    if dataset.kind == "tokens":
        from flbench.data import tokens

        dataset = tokens.complete(dataset, config.padding, str(path))
    else:
        check_unused(config, ("padding",), where)
    check_lengths(dataset.group_names, "client", path)
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
        check_unused(config, ("client", "label", "drop"), str(path))
        found = npz_files.read(path, name, config.layout, config.kind, config.arrays.renamed())
        return found if config.group is None else _with_array(found, path, config.group)
    check_unused(config, ("layout", "arrays"), str(path))
    if path.is_file() and path.suffix.lower() == ".csv":
        check_unused(config, ("client",), str(path))
        # One file names no clients.
        return replace(
            table_files.read(SingleFile(path), name, config.label, config.drop, group=config.group),
            groups=None,
            group_names=(),
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
            check_unused(config, ("client",), str(path))
            return table_files.read(archive, name, config.label, config.drop, group=config.group)
        check_unused(config, ("label", "drop"), str(path))
        if config.client is None and not any(map(image_files.is_image, archive.names)):
            if har_files.is_har(archive):
                return har_files.read(archive, name)
            if any(map(leaf_files.is_leaf_file, archive.names)):
                windows = config.text.altered(vocabulary=TextConfig().vocabulary)
                check_unused(config.altered(text=windows), ("text",), str(path))
                return leaf_files.read(archive, name, config.text.vocabulary)
            if any(map(text_files.is_text_file, archive.names)):
                return text_files.read(archive, name, config.text)
        if config.client not in (None, "folder"):
            raise DataError(
                f"`data.client={config.client}` names a column of data of Hugging Face, and {path}"
                f" has images: set data.client=folder.{did_you_mean(config.client, ['folder'])}"
            )
        by_client = config.client is not None
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
