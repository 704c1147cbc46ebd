"""Reading of images in folders or .zip files.

Images are laid out as `train/CLASS/*` and `test/CLASS/*` (or `Training` and `Testing`), as
`CLASS/*` (torchvision's ImageFolder), or, with `data.client=folder`, as `CLIENT/CLASS/*`. In the
second and third layout all of them belong to the train part, whose samples are split for every
client. All folders may lie in a common top folder. The classes are the names of the class folders,
in the order of `labels.in_order`. Images are PNG, JPEG or WebP files of one size, or are
resized to one (`data.resize`); `pixels` brings them upright and to opaque colours. If all images
are grey, they have one channel, otherwise three. Decoded images are cached.
"""

import json
import tempfile
import warnings
from io import BytesIO
from pathlib import Path, PurePosixPath
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from flbench.core import files
from flbench.core.errors import DataError
from flbench.core.text import one_line, warn
from flbench.data import labels, pixels
from flbench.data.archive import DAMAGED, OTHER_TABLES, Archive
from flbench.data.dataset import Dataset

Size = tuple[int, int]
"""Height and width of an image."""

SUFFIXES: Final = (".png", ".jpg", ".jpeg", ".webp")
MAX_PIXELS: Final = 1 << 22
MAX_BYTES: Final = 16 * 2**30
FORMAT: Final = "v2"
PARTS: Final = {"train": "train", "training": "train", "test": "test", "testing": "test"}
"""Part of the data by the name of its folder in lower case."""
PART_FOLDERS: Final = (*PARTS, "val", "valid", "validation")
ANIMATED: Final = ("PNG", "WEBP")  # a JPEG's further pictures are previews of the first
PNG: Final = b"\x89PNG\r\n\x1a\n"


def read(
    archive: Archive, name: str, *, by_client: bool = False, size: Size | None = None
) -> Dataset:
    """Read all images of an archive, from the cache if this content was decoded before.

    Args:
        archive: The folder or .zip file.
        name: Name of the data set.
        by_client: Whether the folders above the class folders are natural clients, `CLIENT/CLASS/*`
            (`data.client=folder`).
        size: Height and width that images are resized to; None if all have one size.

    Raises:
        DataError: The archive has another layout, an image cannot be decoded, or images differ in
            size.
    """
    entries = _client_folders(archive) if by_client else _entries(archive)
    found = {label for _, label, _ in entries}
    names = labels.class_names(sorted(found), str(archive.path), "class folders")
    if twice := [label for label, other in names.items() if label != other in found]:
        raise DataError(
            f"{archive.path}: the class folders {names[twice[0]]!r} and {twice[0]!r} are the same"
            " number. Merge them, or rename one."
        )
    classes = labels.in_order(found)
    cache = _cache_file(archive.fingerprint(), by_client=by_client, size=size)
    cached = _from_cache(cache, len(entries))
    if cached is None:
        cached = _decode(archive, [entry for _, _, entry in entries], size)
        _to_cache(cache, *cached)
    x, transparent = cached
    number = {label: k for k, label in enumerate(classes)}
    parts = [part for part, _, _ in entries]  # or the clients
    clients, groups = np.unique(parts, return_inverse=True)
    return Dataset(
        name,
        x,
        np.array([number[label] for _, label, _ in entries], dtype=np.int64),
        tuple(classes),
        train=len(entries) if by_client else parts.count("train"),
        groups=groups.astype(np.int64) if by_client else None,
        group_names=tuple(map(str, clients)) if by_client else (),
        notes=(*_notes(archive, entries, by_client=by_client), *pixels.notes(transparent)),
    )


def has_images(archive: Archive) -> bool:
    """Return whether an archive has an image in its train part.

    Args:
        archive: The folder or .zip file.
    """
    return any(part == "train" for part, _, _ in _placed(archive))


def has_class_folders(archive: Archive) -> bool:
    """Return whether an archive has images in two or more folders beside each other.

    Args:
        archive: The folder or .zip file.
    """
    folders = {PurePosixPath(entry).parent for entry in archive.names if is_image(entry)}
    return len(folders) > 1 and len({folder.parent for folder in folders}) == 1


def _placed(archive: Archive) -> list[tuple[str, str, str]]:
    """Return (part, class, entry) of every image in a class folder of a part of the data.

    The folders of the parts are called `train` and `test`; if no image lies in `train`, they can
    also be called `Training` and `Testing`, in upper or lower case.

    Raises:
        DataError: There are several folders of one part, such as those of several hospitals.
    """
    images = [(PurePosixPath(entry).parts, entry) for entry in archive.names if is_image(entry)]
    images = [(parts, entry) for parts, entry in images if len(parts) >= 3]
    exact = {"train": "train", "test": "test"}
    for part in exact:
        places = sorted({parts[:-2] for parts, _ in images if PARTS.get(parts[-3].lower()) == part})
        above = {place[:-1] for place in places}
        if len(above) > 1:
            raise DataError(
                f"{archive.path} has several folders of a {part} part, such as"
                f" {'/'.join(places[0])} and {'/'.join(places[-1])}. If they are clients, move"
                " their images to CLIENT/CLASS/* and set data.client=folder (the samples of each"
                " client are split by partition.split). If not, move all to one folder"
                f" {part}/CLASS/*."
            )
    by_name = [
        (exact[parts[-3]], parts[-2], entry) for parts, entry in images if parts[-3] in exact
    ]
    if any(part == "train" for part, _, _ in by_name):
        return by_name
    found = [
        (PARTS[parts[-3].lower()], parts[-2], entry)
        for parts, entry in images
        if parts[-3].lower() in PARTS
    ]
    for part in exact:
        names = sorted({of[-3] for of, _ in images if PARTS.get(of[-3].lower()) == part})
        if len(names) > 1:
            raise DataError(
                f"{archive.path}: the folders {' and '.join(names)} both have the name of the"
                f" {part} part. Rename the one that is not."
            )
    return found


def is_image(entry: str) -> bool:
    """Return whether the name of a file has the suffix of an image."""
    return entry.lower().endswith(SUFFIXES)


def _entries(archive: Archive) -> list[tuple[str, str, str]]:
    """Return (part, class, entry) of every image: the train part first, then by name."""
    found = _placed(archive) or _class_folders(archive)
    if not any(part == "train" for part, _, _ in found):
        shown = ", ".join(archive.names[:3]) or "nothing"
        if any(PurePosixPath(entry).suffix.lower() in OTHER_TABLES for entry in archive.names):
            shown += ". Tables are read from .csv files with commas: save them as such"
        raise DataError(
            f"{archive.path} has no images `train/CLASS/*{{{','.join(SUFFIXES)}}}` or"
            f" `CLASS/*{{{','.join(SUFFIXES)}}}`, and no `*.csv`; it contains {shown}. Arrange the"
            " files in one of these ways."
        )
    return sorted(found, key=lambda item: (item[0] != "train", item[1], item[2]))


def _class_folders(archive: Archive) -> list[tuple[str, str, str]]:
    """Return ("train", class, entry) of every image in the layout `CLASS/*`.

    Raises:
        DataError: Images lie outside of class folders, or class folders are not beside each other.
    """
    images = [PurePosixPath(entry) for entry in archive.names if is_image(entry)]
    has_parts_alone = {image.parent.name.lower() for image in images} <= set(PART_FOLDERS)
    for image in images:
        if len(image.parts) < 2 or has_parts_alone:
            raise DataError(
                f"{archive.path}: the image {image} is in no class folder. Move the images into one"
                " folder for each class: CLASS/*, or train/CLASS/* and test/CLASS/*."
            )
        if image.parent.parent != images[0].parent.parent:
            raise DataError(
                f"{archive.path}: the folders of {images[0]} and {image} are not beside each other,"
                " so they cannot both be class folders. Use CLASS/*, or train/CLASS/* and"
                " test/CLASS/*; or, for CLIENT/CLASS/*, set data.client=folder."
            )
    return [("train", image.parent.name, str(image)) for image in images]


def _client_folders(archive: Archive) -> list[tuple[str, str, str]]:
    """Return (client, class, entry) of every image in the layout `CLIENT/CLASS/*`, by entry.

    Raises:
        DataError: There is no image, or the images are not in this layout.
    """
    images = [PurePosixPath(entry) for entry in archive.names if is_image(entry)]
    wanted = "`data.client=folder` needs images CLIENT/CLASS/*, all at one depth"
    if not images:
        raise DataError(f"{archive.path} has no images. {wanted}; leave it out for other data.")
    for image in images:
        if len(image.parts) < 3 or image.parts[:-3] != images[0].parts[:-3]:
            raise DataError(f"{archive.path}: {wanted}, which {image} is not. Move or remove it.")
    if parts := {image.parts[-3] for image in images if image.parts[-3].lower() in PART_FOLDERS}:
        raise DataError(
            f"{archive.path}: {wanted}, but the folder {min(parts)} has the name of a part of the"
            " data. Move the images of each client to CLIENT/CLASS/* (the samples of each client"
            " are split by partition.split); without clients, leave data.client out."
        )
    return [(image.parts[-3], image.parts[-2], str(image)) for image in images]


def _notes(
    archive: Archive, entries: list[tuple[str, str, str]], *, by_client: bool
) -> tuple[str, ...]:
    """Return notes about what is not read, and about class folders without training images."""
    used = {entry for _, _, entry in entries}
    notes = []
    unused = [entry for entry in archive.names if is_image(entry) and entry not in used]
    if unused:
        notes.append(
            f"data: {len(unused):,} images outside of train/CLASS/ and test/CLASS/ are not used,"
            f" such as {one_line(unused[0])}. Validation parts are split off the training samples"
            " of each client (partition.split); move images to train/CLASS/ to use them."
        )
    notes += archive.left_out([*used, *unused], f"images are {', '.join(SUFFIXES)} files")
    with_images = {entry.rpartition("/")[0] for entry in used}
    beside = {folder.rpartition("/")[0] for folder in with_images}
    above = {parent for folder in with_images for parent in _parents(folder)}
    # A client folder without images has no class folders either.
    beside |= {folder.rpartition("/")[0] for folder in beside} if by_client else set()
    not_empty = {entry.rpartition("/")[0] for entry in unused}
    empty = [
        folder
        for folder in archive.folders
        if folder.rpartition("/")[0] in beside
        and folder not in with_images
        and folder not in above
        and not any(f"{other}/".startswith(f"{folder}/") for other in not_empty)
    ]
    if empty:
        notes.append(
            f"data: {len(empty):,} folders beside those that are read have no images, such as"
            f" {one_line(empty[0])}. Add images, or remove them."
        )
    if not by_client:
        trained = {label for part, label, _ in entries if part == "train"}
        untrained = labels.in_order({label for _, label, _ in entries} - trained)
        if untrained:
            notes.append(
                f"data: {len(untrained):,} classes have test images alone, such as"
                f" {one_line(untrained[0])}: no client has training images of them."
            )
    return tuple(notes)


def _parents(folder: str) -> list[str]:
    """Return the folders above a folder."""
    return [str(parent) for parent in PurePosixPath(folder).parents]


def _decode(
    archive: Archive, entries: list[str], size: Size | None = None
) -> tuple[NDArray[np.uint8], int]:
    """Return the decoded images [n, 3 or 1, height, width], and the number of transparent ones."""
    images: NDArray[np.uint8] | None = None
    transparent = 0
    for position, entry in enumerate(entries):
        image, is_transparent = decode(archive, entry, size)
        transparent += is_transparent
        if images is None:
            needed = len(entries) * image.size
            if needed > MAX_BYTES:
                raise DataError(
                    f"{archive.path}: {len(entries):,} images of {image.shape[1]}x{image.shape[0]}"
                    f" pixels take {needed / 2**30:.1f} GiB; the limit is {MAX_BYTES // 2**30}. Use"
                    " fewer or smaller images."
                )
            images = np.empty((len(entries), *image.shape), dtype=np.uint8)
        if image.shape != images.shape[1:]:
            raise DataError(
                f"{archive.path}: {entry} has {image.shape[1]}x{image.shape[0]} pixels, but"
                f" earlier images have {images.shape[2]}x{images.shape[1]}. Bring all images to"
                " one size, for example by data.resize=64."
            )
        images[position] = image
    if images is None:
        raise DataError(f"{archive.path} has no images.")
    grey = np.array_equal(images[..., 0], images[..., 1]) and np.array_equal(
        images[..., 0], images[..., 2]
    )
    # [n, height, width, channels] -> [n, channels, height, width]
    x = np.ascontiguousarray(np.moveaxis(images[..., :1] if grey else images, -1, 1))
    return x, transparent


def decode(archive: Archive, entry: str, size: Size | None = None) -> tuple[NDArray[Any], bool]:
    """Return one image [height, width, 3] uint8, and whether it has transparent pixels.

    The image is upright and opaque; see `pixels.upright` and `pixels.opaque`.

    Args:
        archive: The folder or .zip file.
        entry: Name of the image.
        size: Height and width that the image is resized to by bilinear interpolation over all
            pixels that a new one covers; the proportions may change. None leaves it as it is.

    Raises:
        DataError: The image cannot be decoded, has more than 8 bits per channel, or is an
            animation.
    """
    from PIL import Image, UnidentifiedImageError

    content = archive.read(entry)
    # Pillow would open a PNG of 16 bits per channel with 8 bits, without a word.
    if content.startswith(PNG) and content[24:25] == b"\x10":
        raise _too_deep(archive, entry)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error", Image.DecompressionBombWarning)
            with Image.open(BytesIO(content), formats=("PNG", "JPEG", "WEBP")) as image:
                if not 0 < image.width * image.height <= MAX_PIXELS:
                    raise DataError(
                        f"{archive.place(entry)} has {image.width}x{image.height} pixels; the"
                        f" limits are 1 and {MAX_PIXELS:,}. Resize or remove it."
                    )
                if image.mode == "F" or image.mode.startswith("I"):
                    raise _too_deep(archive, entry)
                frames = getattr(image, "n_frames", 1)
                if image.format in ANIMATED and frames > 1:
                    raise DataError(
                        f"{archive.place(entry)} is an animation of {frames} frames. Save"
                        " one frame as an image, or each in a file of its own."
                    )
                solid, is_transparent = pixels.opaque(pixels.upright(image))
                shown = solid.convert("RGB")
                if size is not None and (shown.height, shown.width) != size:
                    shown = shown.resize(size[::-1], Image.Resampling.BILINEAR)
                return np.asarray(shown), is_transparent
    except UnidentifiedImageError as error:
        raise DataError(
            f"{archive.place(entry)} cannot be decoded: it is not a PNG, JPEG or WebP"
            " file. Convert or remove it."
        ) from error
    except (*DAMAGED, Image.DecompressionBombWarning, Image.DecompressionBombError) as error:
        raise DataError(
            f"{archive.place(entry)} cannot be decoded ({error}). Replace or remove it."
        ) from error


def _too_deep(archive: Archive, entry: str) -> DataError:
    """Return the error about an image with more than 8 bits per channel."""
    return DataError(
        f"{archive.place(entry)} has more than 8 bits per channel, which would be lost. Convert"
        " the images to 8 bits."
    )


def _cache_file(fingerprint: str, *, by_client: bool, size: Size | None) -> Path:
    """Return the cache file for decoded images: in `flbench` in the user's cache folder.

    Its images are in the order of the entries, which depends on the layout.
    """
    layout = "-clients" if by_client else ""
    layout += f"-{size[0]}x{size[1]}" if size else ""
    return files.cache_folder() / f"images-{FORMAT}-{fingerprint[:32]}{layout}.npy"


def _from_cache(file: Path, count: int) -> tuple[NDArray[np.uint8], int] | None:
    """Return what `_decode` returned; None if it is not in the cache or cannot be read.

    Args:
        file: The cache file.
        count: Number of images.
    """
    try:
        x: NDArray[np.uint8] = np.load(file, allow_pickle=False)
        transparent = json.loads(file.with_suffix(".json").read_text())["transparent"]
    except (OSError, ValueError, EOFError, LookupError, TypeError):
        return None
    is_intact = x.dtype == np.uint8 and x.ndim == 4 and len(x) == count
    return (x, transparent) if is_intact and isinstance(transparent, int) else None


def _to_cache(file: Path, x: NDArray[np.uint8], transparent: int) -> None:
    """Write decoded images, and how many have transparent pixels, to the cache atomically.

    If that fails, a warning is issued and the images are decoded again next time.
    """
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        files.write(file.with_suffix(".json"), json.dumps({"transparent": transparent}).encode())
        with tempfile.NamedTemporaryFile(dir=file.parent, suffix=".npy", delete=False) as beside:
            np.save(beside, x, allow_pickle=False)
        Path(beside.name).replace(file)
    except OSError as error:
        if "beside" in locals():
            Path(beside.name).unlink(missing_ok=True)
        warn(f"decoded images could not be cached: {error}", stacklevel=2)
