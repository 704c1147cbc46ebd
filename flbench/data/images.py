"""Images in folders or .zip files, as Pillow reads them.

Images are laid out as `train/CLASS/*` and `test/CLASS/*` (or `Training` and `Testing`), as
`CLASS/*` (torchvision's ImageFolder), or, with `data.client=folder`, as `CLIENT/CLASS/*`. In the
second and third layout all of them belong to the train part, whose samples are split for every
client. All folders may lie in a common top folder. torchvision's ImageFolder itself is not used: it
takes clients for classes, and follows links in circles. Images have one size, or are resized to one
(`data.resize`). If all images are grey, they have one channel, otherwise three. Decoded images are
cached in one file.
"""

import tempfile
import warnings
from contextlib import suppress
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any, Final

import numpy as np
from numpy.typing import NDArray

from flbench.config.schema import DataConfig
from flbench.core import files
from flbench.core.errors import DataError
from flbench.data import labels
from flbench.data.dataset import Dataset
from flbench.data.folders import Folder

if TYPE_CHECKING:
    from PIL.Image import Image

Size = tuple[int, int]
"""Height and width of an image."""

SUFFIXES: Final = (".png", ".jpg", ".jpeg", ".webp", ".bmp", ".gif", ".tif", ".tiff")
FORMATS: Final = ("PNG", "JPEG", "WEBP", "BMP", "GIF", "TIFF")  # no PostScript
MAX_BYTES: Final = 16 * 2**30
PARTS: Final = {"train": "train", "training": "train", "test": "test", "testing": "test"}
"""Part of the data by the name of its folder in lower case."""
PART_FOLDERS: Final = {*PARTS, "val", "valid", "validation"}


def read(folder: Folder, config: DataConfig) -> Dataset:
    """Read all images of a folder, from the cache if they were decoded before.

    Raises:
        DataError: The folder has another layout, an image cannot be decoded, or images differ in
            size.
    """
    by_client, size = config.client is not None, config.image_size
    if config.client not in (None, "folder"):
        raise DataError(f"`data.client` of the images in {folder.path} must be `folder`.")
    parted = not by_client and has_parts(folder)
    if parted:
        entries = sorted(_parts(folder), key=lambda entry: (entry[0] != "train", *entry[1:]))
    else:
        entries = _class_folders(folder, by_client=by_client)
    names = labels.class_names(sorted({label for _, label, _ in entries}))
    classes = labels.in_order(set(names.values()))
    used = [entry for _, _, entry in entries]
    images = "images of train/CLASS/ and test/CLASS/" if parted else "images"
    notes = folder.left_out(used, f"{images}, {', '.join(SUFFIXES)} files, are")
    resized = f"-{size[0]}x{size[1]}" if size else ""
    cache = files.cache_folder() / f"images-{folder.fingerprint(used)[:32]}{resized}.npy"
    try:
        x: NDArray[np.uint8] = np.load(cache, allow_pickle=False)
    except (OSError, ValueError, EOFError):
        x = _decode(folder, used, size)
        _to_cache(cache, x)
    parts = [part for part, _, _ in entries]  # or the clients
    clients, groups = np.unique(parts, return_inverse=True)
    return Dataset(
        config.title,
        x,
        np.array([classes.index(names[label]) for _, label, _ in entries], dtype=np.int64),
        tuple(classes),
        train=len(entries) if by_client else parts.count("train"),
        groups=groups.astype(np.int64) if by_client else None,
        group_names=tuple(map(str, clients)) if by_client else (),
        notes=notes,
    )


def has_parts(folder: Folder) -> bool:
    """Return whether a folder has images `train/CLASS/*`."""
    return any(part == "train" for part, _, _ in _parts(folder))


def decode(path: Path, where: str, size: Size | None = None) -> NDArray[np.uint8]:
    """Return one image [height, width, 3], upright and opaque; see `as_seen`.

    `size` is the height and width that it is resized to by bilinear interpolation over all pixels
    that a new one covers; the proportions may change. None leaves it as it is.

    Raises:
        DataError: The image cannot be decoded, is grey with more than 8 bits, which Pillow would
            clip, or has several frames.
    """
    from PIL import Image

    try:
        with warnings.catch_warnings(), Image.open(path, formats=FORMATS) as image:
            warnings.simplefilter("error", Image.DecompressionBombWarning)
            if image.mode.startswith(("I", "F")):
                raise ValueError("it has more than 8 bits per pixel, which would be lost")
            frames = getattr(image, "n_frames", 1)
            if frames > 1 and image.format not in ("JPEG", "MPO"):  # which have previews
                raise ValueError(f"it has {frames} frames; save each in a file of its own")
            shown = as_seen(image).convert("RGB")
            if size is not None and (shown.height, shown.width) != size:
                shown = shown.resize(size[::-1], Image.Resampling.BILINEAR)
            return np.asarray(shown)
    except (Warning, Exception) as error:  # Pillow raises exceptions of many kinds
        raise DataError(
            f"{where} cannot be decoded ({error}). Convert, replace or remove it."
        ) from error


def as_seen(image: "Image") -> "Image":
    """Return an image upright, in opaque colours, grey levels or numbers.

    It is turned as its EXIF orientation says. Transparent pixels are shown on a black background,
    whatever colour the file stores for them. Positions in a palette, inks (CMYK) and bits become
    colours or grey levels; other modes stay.
    """
    from PIL import Image, ImageOps

    mode = image.mode
    with suppress(Exception):  # damaged EXIF
        image = ImageOps.exif_transpose(image)
    if image.has_transparency_data:
        black = Image.new("RGBA", image.size, (0, 0, 0, 255))
        solid = Image.alpha_composite(black, image.convert("RGBA")).convert("RGB")
        return solid.convert("L") if mode in ("LA", "La") else solid
    return image.convert({"1": "L", "P": "RGB", "CMYK": "RGB"}.get(mode, mode))


def _parts(folder: Folder) -> list[tuple[str, str, str]]:
    """Return (part, class, name) of every image in a class folder of a train or test part."""
    above: dict[str, PurePosixPath] = {}
    found = []
    for image in map(PurePosixPath, folder.ending(SUFFIXES)):
        if len(image.parts) < 3 or (part := PARTS.get(image.parts[-3].lower())) is None:
            continue
        if above.setdefault(part, image.parents[1]) != image.parents[1]:
            raise DataError(
                f"{folder.path} has several folders of a {part} part, such as {above[part]} and"
                f" {image.parents[1]}. Move the images of clients to CLIENT/CLASS/* and set"
                f" data.client=folder, and those of one part to one folder {part}/CLASS/*."
            )
        found.append((part, image.parts[-2], str(image)))
    return found


def _class_folders(folder: Folder, *, by_client: bool) -> list[tuple[str, str, str]]:
    """Return ("train" or the client, class, name) of every image in `CLASS/*` or `CLIENT/CLASS/*`.

    Raises:
        DataError: There is no image, or an image lies elsewhere.
    """
    found = [*map(PurePosixPath, folder.ending(SUFFIXES))]
    layouts = "train/CLASS/* and test/CLASS/*, CLASS/*, or CLIENT/CLASS/* with data.client=folder"
    depth = 3 if by_client else 2
    top = found[0].parts[:-depth] if found else ()
    owners = {image.parts[-depth].lower() for image in found if len(image.parts) >= depth}
    named = owners & PART_FOLDERS  # parts of the data are neither clients nor classes
    are_parts = bool(named) if by_client else owners == named
    wrong = [
        str(image)
        for image in found
        if len(image.parts) < depth or image.parts[:-depth] != top or are_parts or "test" in top
    ]
    if wrong or not found:
        has = f"{wrong[0]} is in another place" if wrong else "it has no images, tables or texts"
        names = ", ".join(folder.names[:3]) or "nothing"
        raise DataError(
            f"{folder.path} has {names} ...: images ({', '.join(SUFFIXES)}) are laid out as"
            f" {layouts}, each folder beside the others of its kind, and {has}."
        )
    return [
        (image.parts[-3] if by_client else "train", image.parts[-2], str(image)) for image in found
    ]


def _decode(folder: Folder, names: list[str], size: Size | None) -> NDArray[Any]:
    """Return the decoded images [n, 3 or 1, height, width]."""
    first = decode(folder.file(names[0]), folder.place(names[0]), size)
    if (needed := len(names) * first.size) > MAX_BYTES:
        raise DataError(
            f"{folder.path}: {len(names):,} images of {first.shape[1]}x{first.shape[0]} pixels take"
            f" {needed / 2**30:.1f} GiB; the limit is {MAX_BYTES // 2**30}. Use fewer images, or"
            " smaller ones (data.resize)."
        )
    images = np.empty((len(names), *first.shape), dtype=np.uint8)
    for position, name in enumerate(names):
        image = decode(folder.file(name), folder.place(name), size)
        if image.shape != first.shape:
            raise DataError(
                f"{folder.path}: {name} has {image.shape[1]}x{image.shape[0]} pixels, but"
                f" {names[0]} has {first.shape[1]}x{first.shape[0]}. Bring all images to one size,"
                " for example by data.resize=64."
            )
        images[position] = image
    is_grey = all(np.array_equal(images[..., 0], images[..., k]) for k in (1, 2))
    # [n, height, width, channels] -> [n, channels, height, width]
    return np.ascontiguousarray(np.moveaxis(images[..., :1] if is_grey else images, -1, 1))


def _to_cache(file: Path, x: NDArray[np.uint8]) -> None:
    """Write decoded images to the cache atomically, if it can be written."""
    with suppress(OSError):
        file.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile(dir=file.parent, suffix=".npy", delete=False) as beside:
            np.save(beside, x, allow_pickle=False)
        Path(beside.name).replace(file)
