"""Images of Pillow as they are seen: upright, in opaque colours, grey levels or numbers.

Files, images in memory and the images of a prediction are read by these functions alone.
"""

from typing import TYPE_CHECKING, Any, Final

from numpy.typing import NDArray

from flbench.data.archive import DAMAGED

if TYPE_CHECKING:
    from PIL.Image import Image

ORIENTATION: Final = 0x0112  # EXIF tag
GREY: Final = ("LA", "La")
SCALES: Final = ((0.0, 1.0), (-1.0, 1.0), (0.0, 255.0))  # ranges in which images are stored
FAR: Final = 100  # images whose largest values differ by this factor have other units
INDEXED: Final = ("1", "P", "PA", "CMYK")  # modes whose numbers are no colours or grey levels


def upright(image: "Image") -> "Image":
    """Return an image as its EXIF orientation says, which cameras write; other tags are ignored.

    An orientation that cannot be read is ignored.

    Args:
        image: The image.
    """
    from PIL.Image import Transpose

    how = {
        2: Transpose.FLIP_LEFT_RIGHT,
        3: Transpose.ROTATE_180,
        4: Transpose.FLIP_TOP_BOTTOM,
        5: Transpose.TRANSPOSE,
        6: Transpose.ROTATE_270,
        7: Transpose.TRANSVERSE,
        8: Transpose.ROTATE_90,
    }
    try:
        turn = how.get(image.getexif().get(ORIENTATION, 1))
    except (*DAMAGED, Warning):
        turn = None
    return image if turn is None else image.transpose(turn)


def opaque(image: "Image") -> tuple["Image", bool]:
    """Return an image on a black background, and whether it has transparent pixels.

    The colour that a file stores for a transparent pixel, which is not seen, has no influence.
    Half-transparent pixels are blended with black.

    Args:
        image: The image. Without transparent pixels it is returned as it is.
    """
    from PIL import Image

    if not image.has_transparency_data:
        return image, False
    colours = image.convert("RGBA")
    if colours.getchannel("A").getextrema() == (255, 255):
        return image, False
    black = Image.new("RGBA", image.size, (0, 0, 0, 255))
    solid = Image.alpha_composite(black, colours).convert("RGB")
    return (solid.convert("L") if image.mode in GREY else solid), True


def as_seen(image: "Image") -> tuple["Image", bool]:
    """Return an image in memory upright and opaque, and whether it has transparent pixels.

    Positions in a palette, inks (CMYK) and bits become colours or grey levels. Other modes stay, so
    that grey levels and floating-point numbers are those of the image.

    Args:
        image: The image.
    """
    solid, is_transparent = opaque(upright(image))
    if solid.mode in INDEXED:
        solid = solid.convert("L" if solid.mode == "1" else "RGB")
    elif not is_transparent and image.has_transparency_data:  # an alpha channel of 255 everywhere
        solid = solid.convert("L" if solid.mode in GREY else "RGB")
    return solid, is_transparent


def range_of(x: NDArray[Any]) -> tuple[float, float]:
    """Return the smallest and the largest value of images [n, ...], at least one."""
    return float(x.min()), float(x.max())


def has_other_units(found: tuple[float, float], known: tuple[float, float]) -> bool:
    """Return whether the range of images shows that they have other units than known ones.

    It does if they leave the scale of the known ones, [0, 1], [-1, 1] or [0, 255], by half its
    width, or if the largest absolute values differ by a factor of 100. Images of zeros have any
    units.

    Args:
        found: Range of the images.
        known: Range of the known ones.

    >>> has_other_units((0, 255), (0, 1)), has_other_units((0, 1), (0, 250))
    (True, True)
    >>> has_other_units((-0.1, 1.1), (0, 1)), has_other_units((0, 3), (0, 250))
    (False, False)
    """
    for low, high in SCALES:
        if low <= known[0] and known[1] <= high:
            margin = (high - low) / 2
            if found[0] < low - margin or found[1] > high + margin:
                return True
            break
    size, other = (max(abs(low), abs(high)) for low, high in (found, known))
    return size > 0 and other > 0 and not 1 / FAR <= size / other <= FAR


def notes(transparent: int) -> tuple[str, ...]:
    """Return a note about images with transparent pixels.

    Args:
        transparent: Number of these images.
    """
    if not transparent:
        return ()
    return (
        f"data: {transparent:,} images have transparent pixels, which are read on a black"
        " background.",
    )
