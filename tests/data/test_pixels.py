"""Images as they are seen: upright, and without colours under transparent pixels."""

import os
from io import BytesIO

import numpy as np
import pytest
from PIL import Image, ImageOps

import flbench as fl
from flbench.core.errors import DataError
from flbench.data import unlabelled
from tests.data.test_sources import load, write_zip

PIXELS = np.random.default_rng(0).integers(0, 256, (4, 6, 3)).astype(np.uint8)
NO_SAMPLES = np.zeros((0, 3, 6, 4), np.uint8)
LAYOUT = unlabelled.Layout("", NO_SAMPLES, np.zeros(0, np.int64), (), 0)


def encoded(image: Image.Image, kind: str = "PNG", **keys) -> bytes:
    data = BytesIO()
    image.save(data, kind, **({"lossless": True} if kind == "WEBP" else {}), **keys)
    return data.getvalue()


def read(folder, content: bytes, name: str = "0.png"):
    """The pixels [height, width, channels] of a data set of one image."""
    data = load(write_zip(folder / "x.zip", {f"{label}/{name}": content for label in "ab"}))
    return np.moveaxis(data.x[0], 0, -1)


@pytest.mark.parametrize("orientation", [0, 1, 3, 4, 6, 7])
@pytest.mark.parametrize(
    ("kind", "name"), [("PNG", "0.png"), ("JPEG", "0.jpg"), ("WEBP", "0.webp")]
)
def test_exif_orientation_is_that_of_pillow(tmp_path, orientation, kind, name):
    exif = Image.Exif()
    exif[0x0112] = orientation
    content = encoded(Image.fromarray(PIXELS), kind, exif=exif)
    expected = np.asarray(ImageOps.exif_transpose(Image.open(BytesIO(content))).convert("RGB"))

    found = read(tmp_path, content, name)

    assert np.array_equal(found, expected)
    if orientation in (6, 7):  # the model takes upright images of 4 x 6 pixels
        (tmp_path / name).write_bytes(content)
        [samples] = unlabelled.read(tmp_path / name, LAYOUT)
        assert np.array_equal(samples.x[0], np.moveaxis(expected, -1, 0))


def test_damaged_exif_is_ignored(tmp_path):
    content = encoded(
        Image.fromarray(PIXELS), exif=b"Exif\0\0MM\0*\0\0\0\x08\xff\xff" + b"\xff" * 9
    )

    assert np.array_equal(read(tmp_path, content), PIXELS)


def transparent(hidden: tuple[int, int, int], mode: str) -> Image.Image:
    """An image whose pixel (0, 0) is transparent, with a hidden colour."""
    image = Image.fromarray(PIXELS).convert("RGBA")
    image.putpixel((0, 0), (*hidden, 0))
    if mode == "P":
        image = Image.new("P", (6, 4), 1)
        image.putpalette([*hidden, 90, 80, 70] + [0] * 762)
        image.putpixel((0, 0), 0)
        image.info["transparency"] = 0
    return image.convert(mode) if mode == "LA" else image


@pytest.mark.parametrize("mode", ["RGBA", "LA", "P"])
@pytest.mark.parametrize("as_object", [False, True])
def test_hidden_colours_of_transparent_pixels_do_not_count(tmp_path, mode, as_object):
    found = []
    for k, hidden in enumerate([(255, 0, 0), (0, 255, 255)]):
        image = transparent(hidden, mode)
        if as_object:
            x = np.moveaxis(fl.Data(Pairs(image)).dataset.x[0], 0, -1)
        else:
            (tmp_path / str(k)).mkdir()
            x = read(tmp_path / str(k), encoded(image))
        found.append(x)

    assert np.array_equal(*found)
    assert not found[0][0, 0].any()
    opaque = transparent((0, 0, 0), mode).convert("L" if mode == "LA" else "RGB")
    assert np.array_equal(found[0].squeeze()[1:], np.asarray(opaque)[1:])
    half = Image.new("RGBA", (6, 4), (200, 100, 50, 128))  # blended with black
    assert read(tmp_path, encoded(half))[0, 0].tolist() == [100, 50, 25]


class Pairs:
    """A map-style data set of one image with two labels."""

    def __init__(self, image):
        self.image = image

    def __len__(self):
        return 4

    def __getitem__(self, k):
        return self.image, k % 2


@pytest.mark.parametrize("mode", ["P", "CMYK", "1", "L"])
def test_images_in_memory_have_colours_and_grey_levels(mode):
    image = Image.fromarray(PIXELS).convert(mode)
    expected = np.asarray(image.convert("L" if mode in "1L" else "RGB"))

    x = np.moveaxis(fl.Data(Pairs(image)).dataset.x[0], 0, -1)

    assert np.array_equal(x.squeeze(), expected)


@pytest.mark.parametrize(
    ("kind", "name"), [("PNG", "0.png"), ("WEBP", "0.webp"), ("GIF", "0.gif"), ("TIFF", "0.tif")]
)
def test_animations_are_refused(tmp_path, kind, name):
    frames = [Image.new("RGB", (6, 4), (9, 9, 9))]
    content = encoded(Image.new("RGB", (6, 4)), kind, save_all=True, append_images=frames)

    with pytest.raises(DataError, match=name):
        read(tmp_path, content, name)


def test_prediction_follows_links_and_counts_what_it_skips(tmp_path):
    for folder in ("new", "pool"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "0.png").write_bytes(encoded(Image.new("RGB", (4, 6))))
    (tmp_path / "new" / "x.heic").touch()
    os.symlink(tmp_path / "pool", tmp_path / "new" / "more")
    notes: list[str] = []

    found = unlabelled.read(tmp_path / "new", LAYOUT, notes.append)

    assert [samples.file.rpartition("new/")[2] for samples in found] == ["0.png", "more/0.png"]
    assert len(notes) == 1
    assert "x.heic" in notes[0]
    (tmp_path / "x.csv").touch()
    with pytest.raises(DataError, match=r"\.png"):
        unlabelled.read(tmp_path / "x.csv", LAYOUT)


@pytest.mark.parametrize("name", ["typo.png", "typo.npz", "typo"])
def test_a_file_to_predict_that_does_not_exist_is_named_alone(tmp_path, monkeypatch, name):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))

    with pytest.raises(DataError, match=name) as raised:
        unlabelled.read(tmp_path / name, LAYOUT)

    assert raised.value.__cause__ is None
