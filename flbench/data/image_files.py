"""Reading of images in folders or .zip files.

Images are laid out as `train/CLASS/*` and `test/CLASS/*`, as `CLASS/*` (torchvision's ImageFolder),
or, with `data.client=folder`, as `CLIENT/CLASS/*`. In the second and third layout all of them
belong to the train part, whose samples are split for every client. All folders may lie in a common
top folder. The classes are the sorted names of the class folders. Images are PNG, JPEG or WebP
files of one size. If all images are grey, they have one channel, otherwise three. Decoded images
are cached.
"""

import os
import tempfile
import warnings
from io import BytesIO
from pathlib import Path, PurePosixPath
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from flbench.core.errors import DataError
from flbench.core.printable import one_line
from flbench.data.archive import DAMAGED, Archive
from flbench.data.dataset import Dataset

SUFFIXES: Final = (".png", ".jpg", ".jpeg", ".webp")
MAX_PIXELS: Final = 1 << 22
MAX_BYTES: Final = 16 * 2**30
FORMAT: Final = "v1"
PART_FOLDERS: Final = ("train", "test", "val", "valid", "validation")
PNG: Final = b"\x89PNG\r\n\x1a\n"


def read(archive: Archive, name: str, *, by_client: bool = False) -> Dataset:
    """Read all images of an archive, from the cache if this content was decoded before.

    Args:
        archive: The folder or .zip file.
        name: Name of the data set.
        by_client: Whether the folders above the class folders are natural clients, `CLIENT/CLASS/*`
            (`data.client=folder`).

    Raises:
        DataError: The archive has another layout, an image cannot be decoded, or images differ in
            size.
    """
    entries = _client_folders(archive) if by_client else _entries(archive)
    classes = sorted({label for _, label, _ in entries})
    cache = _cache_file(archive.fingerprint(), by_client=by_client)
    x = _from_cache(cache)
    if x is None or len(x) != len(entries):
        x = _decode(archive, [entry for _, _, entry in entries])
        _to_cache(cache, x)
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
        notes=_unused(archive, {entry for _, _, entry in entries}),
    )


def has_images(archive: Archive) -> bool:
    """Return whether an archive has an image in its train part.

    Args:
        archive: The folder or .zip file.
    """
    return any(_place(entry)[:1] == ("train",) for entry in archive.names)


def has_class_folders(archive: Archive) -> bool:
    """Return whether an archive has images in two or more folders beside each other.

    Args:
        archive: The folder or .zip file.
    """
    folders = {PurePosixPath(entry).parent for entry in archive.names if is_image(entry)}
    return len(folders) > 1 and len({folder.parent for folder in folders}) == 1


def _place(entry: str) -> tuple[str, ...]:
    """Return (part, class) of the entry of an image; an empty tuple for other entries."""
    parts = PurePosixPath(entry).parts
    is_placed = is_image(entry) and len(parts) >= 3 and parts[-3] in ("train", "test")
    return parts[-3:-1] if is_placed else ()


def is_image(entry: str) -> bool:
    """Return whether the name of a file has the suffix of an image."""
    return entry.lower().endswith(SUFFIXES)


def _entries(archive: Archive) -> list[tuple[str, str, str]]:
    """Return (part, class, entry) of every image: the train part first, then by name."""
    found = []
    for entry in archive.names:
        if place := _place(entry):
            found.append((place[0], place[1], entry))
    if not found:
        found = _class_folders(archive)
    if not any(part == "train" for part, _, _ in found):
        shown = ", ".join(archive.names[:3]) or "nothing"
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
    has_parts_alone = {image.parent.name for image in images} <= set(PART_FOLDERS)
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
    if parts := {image.parts[-3] for image in images} & set(PART_FOLDERS):
        raise DataError(
            f"{archive.path}: {wanted}, but the folder {min(parts)} has the name of a part of the"
            " data. Leave data.client out, or rename the folder."
        )
    return [(image.parts[-3], image.parts[-2], str(image)) for image in images]


def _unused(archive: Archive, used: set[str]) -> tuple[str, ...]:
    """Return a note if images lie outside the folders that are read, such as in `val/CLASS/`."""
    unused = [entry for entry in archive.names if is_image(entry) and entry not in used]
    if not unused:
        return ()
    return (
        f"data: {len(unused):,} images outside of train/CLASS/ and test/CLASS/ are not used, such"
        f" as {one_line(unused[0])}. Validation parts are split off the training samples of each"
        " client (partition.split); move images to train/CLASS/ to use them.",
    )


def _decode(archive: Archive, entries: list[str]) -> NDArray[np.uint8]:
    """Return the decoded images [n, 3 or 1, height, width]."""
    images: NDArray[np.uint8] | None = None
    for position, entry in enumerate(entries):
        image = decode(archive, entry)
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
                " one size."
            )
        images[position] = image
    if images is None:
        raise DataError(f"{archive.path} has no images.")
    grey = np.array_equal(images[..., 0], images[..., 1]) and np.array_equal(
        images[..., 0], images[..., 2]
    )
    # [n, height, width, channels] -> [n, channels, height, width]
    return np.ascontiguousarray(np.moveaxis(images[..., :1] if grey else images, -1, 1))


def decode(archive: Archive, entry: str) -> NDArray[Any]:
    """Return one image [height, width, 3] uint8.

    Args:
        archive: The folder or .zip file.
        entry: Name of the image.

    Raises:
        DataError: The image cannot be decoded, or has more than 8 bits per channel.
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
                        f"{archive.path}: {entry} has {image.width}x{image.height} pixels; the"
                        f" limits are 1 and {MAX_PIXELS:,}. Resize or remove it."
                    )
                if image.mode == "F" or image.mode.startswith("I"):
                    raise _too_deep(archive, entry)
                return np.asarray(image.convert("RGB"))
    except UnidentifiedImageError as error:
        raise DataError(
            f"{archive.path}: the image {entry} cannot be decoded: it is not a PNG, JPEG or WebP"
            " file. Convert or remove it."
        ) from error
    except (*DAMAGED, Image.DecompressionBombWarning, Image.DecompressionBombError) as error:
        raise DataError(
            f"{archive.path}: the image {entry} cannot be decoded ({error}). Replace or remove it."
        ) from error


def _too_deep(archive: Archive, entry: str) -> DataError:
    """Return the error about an image with more than 8 bits per channel."""
    return DataError(
        f"{archive.path}: {entry} has more than 8 bits per channel, which would be lost. Convert"
        " the images to 8 bits."
    )


def _cache_file(fingerprint: str, *, by_client: bool) -> Path:
    """Return the cache file for decoded images: in `flbench` in the user's cache folder.

    Its images are in the order of the entries, which depends on the layout.
    """
    home = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    layout = "-clients" if by_client else ""
    return Path(home) / "flbench" / f"images-{FORMAT}-{fingerprint[:32]}{layout}.npy"


def _from_cache(file: Path) -> NDArray[np.uint8] | None:
    """Return decoded images from the cache; None if they are not there or cannot be read."""
    try:
        x: NDArray[np.uint8] = np.load(file, allow_pickle=False)
    except (OSError, ValueError, EOFError):
        return None
    return x if x.dtype == np.uint8 and x.ndim == 4 else None


def _to_cache(file: Path, x: NDArray[np.uint8]) -> None:
    """Write decoded images to the cache atomically.

    If that fails, a warning is issued and the images are decoded again next time.
    """
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile(dir=file.parent, suffix=".npy", delete=False) as beside:
            np.save(beside, x, allow_pickle=False)
        Path(beside.name).replace(file)
    except OSError as error:
        if "beside" in locals():
            Path(beside.name).unlink(missing_ok=True)
        warnings.warn(f"decoded images could not be cached: {error}", stacklevel=2)
