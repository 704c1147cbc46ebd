"""Files as users have them: spreadsheets, cameras and other programs write them.

Each file is made from values that are known. What is read is equal to them, or the file is refused.
docs/files.md has the table of these files.
"""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final, NamedTuple

import numpy as np
import pandas as pd
import pytest
from numpy.typing import NDArray
from PIL import Image

from flbench.config.schema import DataConfig
from flbench.core.errors import DataError
from flbench.data import sources

ROWS: Final = 60


def frame() -> pd.DataFrame:
    """Return a table of patients."""
    rng = np.random.default_rng(0)
    return pd.DataFrame(
        {
            "age": rng.integers(20, 90, ROWS),
            "bp": rng.normal(120, 15, ROWS).round(2),
            "site": rng.choice(["nord", "süd", "west"], ROWS),
            "ill": np.arange(ROWS) % 3 % 2,
        }
    )


def as_numbers(table: pd.DataFrame) -> tuple[NDArray[Any], NDArray[Any]]:
    """Return what is to be read of a table: words are positions among the sorted words."""
    codes: dict[str, Any] = {
        str(name): column.astype("category").cat.codes.where(column.notna())
        for name, column in table.iloc[:, :-1].items()
        if column.dtype.kind not in "iuf"
    }
    return table.assign(**codes).iloc[:, :-1].to_numpy(np.float32), table.iloc[:, -1].to_numpy()


class Case(NamedTuple):
    """A file that a function writes to a path, and what is to be read; None if it is refused."""

    title: str
    name: str
    write: Callable[[Path], Any]
    expected: tuple[NDArray[Any], NDArray[Any]] | None
    keys: Any = ()


def tables() -> Iterator[Case]:
    """Yield tables."""
    plain = frame()
    values = as_numbers(plain)

    def case(title: str, name: str, text: str, expected: Any, encoding: str = "utf-8") -> Case:
        return Case(title, name, lambda path: path.write_bytes(text.encode(encoding)), expected)

    comma, semicolon = plain.to_csv(index=False), plain.to_csv(index=False, sep=";", decimal=",")
    yield case("CSV", "plain.csv", comma, values)
    yield case("an open quote", "quote.csv", comma + '50,"1', None)
    yield case("CSV with a byte order mark", "bom.csv", comma, values, "utf-8-sig")
    yield case("CSV of Windows", "windows.csv", comma.replace("\n", "\r\n"), values)
    yield case("semicolons, decimal commas", "semicolons.csv", semicolon, values)
    yield case("a line `sep=;`", "sep.csv", "sep=;\r\n" + semicolon, values, "utf-8-sig")
    tabs = plain.to_csv(index=False, sep="\t", decimal=",")
    yield case("tabs, decimal commas", "tabs.tsv", tabs, values)
    tiny = plain.assign(bp=plain["bp"] / 1e7)
    text = tiny.to_csv(index=False, sep=";", decimal=",")
    yield case("semicolons, exponents", "exponents.csv", text, as_numbers(tiny))
    sodium = plain.rename(columns={"bp": "NA"}).to_csv(index=False)
    yield case("a column with the name `NA`", "sodium.csv", sodium, values)
    quoted = plain.assign(bp=[f"{value:.2f}".replace(".", ",") for value in plain["bp"]])
    yield case("commas, quoted decimal commas", "quoted.csv", quoted.to_csv(index=False), None)
    thousands = plain.assign(bp=[f"{100 * value:,.2f}" for value in plain["bp"]])
    yield case("thousands", "thousands.csv", thousands.to_csv(index=False), None)
    yield case("Latin-1", "latin.csv", comma, None, "latin-1")
    yield case("empty rows at the end", "rows.csv", comma + ",,,\n,,,\n", values)
    trailing = comma.replace("\n", ",\n").replace(",\n", "\n", 1)
    yield case("a comma at the end of each row", "commas.csv", trailing, values)
    gaps = plain.copy()
    gaps.loc[::7, "bp"] = np.nan
    gaps.loc[::11, "site"] = np.nan
    for name, mark in (("empty", ""), ("na", "NA"), ("question", "?")):
        title = f"missing values as `{mark}`" if mark else "missing values as empty fields"
        text = gaps.to_csv(index=False, na_rep=mark)
        yield case(title, f"{name}.csv", text, as_numbers(gaps))
    yield case("a missing label", "label.csv", comma + "50,1.5,nord,\n", None)
    yield case("a row that is too short", "short.csv", comma + "50,1.5,nord\n", None)
    cut = "ill,bp\n" + "".join(f"{k % 2},{k}.5\n" for k in range(30)) + "1\n"
    yield case("a row that is cut, whose label is not cut", "cut.csv", cut, None)
    yield case("a row that is too long", "long.csv", comma + "50,1.5,nord,1,2\n", None)
    lines = plain.assign(site=np.where(plain["site"] == "west", "far\nwest", plain["site"]))
    yield case("quoted newlines", "newlines.csv", lines.to_csv(index=False), as_numbers(lines))
    mixed = plain.astype({"bp": object})
    mixed.loc[7, "bp"] = "high"
    yield case("numbers and a word in one column", "mixed.csv", mixed.to_csv(index=False), None)
    dates = plain.assign(site=pd.date_range("2026-01-01", periods=ROWS).astype(str))
    yield case("a date for each row", "dates.csv", dates.to_csv(index=False), None)
    years = plain.assign(site=np.resize(["2024-01-01", "2025-01-01"], ROWS))
    yield case("few dates: categories", "years.csv", years.to_csv(index=False), as_numbers(years))
    twice = plain.set_axis(["age", "age", "site", "ill"], axis="columns")
    yield case("two columns of one name", "twice.csv", twice.to_csv(index=False), None)
    yield case("the index of pandas", "index.csv", plain.to_csv(), None)
    numbers = plain.assign(site=plain["age"] % 7)
    headless = numbers.to_csv(index=False, header=False)
    yield case("no names of columns", "headless.csv", headless, None)
    years = numbers.set_axis(["2024", "2025", "2026", "ill"], axis="columns")
    yield case(
        "years as names of columns", "names.csv", years.to_csv(index=False), as_numbers(years)
    )
    yield Case("Parquet", "plain.parquet", plain.to_parquet, values)
    typed = plain.astype({"site": "category", "age": "Int64"})
    yield Case("Parquet, categories", "typed.parquet", typed.to_parquet, values)
    integers = numbers.set_axis([2024, 2025, 2026, 1], axis="columns")
    yield Case(
        "Parquet, integers as names", "integers.parquet", integers.to_parquet, as_numbers(integers)
    )

    def excel(table: pd.DataFrame) -> Callable[[Path], Any]:
        return lambda path: table.to_excel(path, index=False)

    yield Case("Excel", "plain.xlsx", excel(plain), values)
    yield Case("Excel, missing values", "gaps.xlsx", excel(gaps), as_numbers(gaps))
    yield Case("Excel, two columns of one name", "twice.xlsx", excel(twice), None)
    yield Case("Excel, numbers as texts", "texts.xlsx", excel(quoted), None)


def images() -> Iterator[Case]:
    """Yield folders of images."""
    rng = np.random.default_rng(0)
    x = rng.integers(0, 256, (6, 12, 8, 3), dtype=np.uint8)
    expected = np.moveaxis(x, -1, 1), np.arange(6) // 3

    def pictures(suffix: str, **keys: Any) -> Callable[[Path], None]:
        def write(path: Path) -> None:
            for k, image in enumerate(x):
                file = path / f"class {k // 3}" / f"{k}.{suffix}"
                file.parent.mkdir(parents=True, exist_ok=True)
                Image.fromarray(image).save(file, **keys)

        return write

    for suffix in ("png", "tiff", "bmp"):
        yield Case(f"class folders, .{suffix}", f"folders-{suffix}", pictures(suffix), expected)
    turned = Image.Exif()
    turned[0x0112] = 6  # the camera was turned by 90 degrees
    upright = np.rot90(x, -1, axes=(1, 2)).transpose(0, 3, 1, 2)
    photos = Case("rotated photos", "photos", pictures("png", exif=turned), (upright, expected[1]))
    yield photos

    def linked(path: Path) -> None:
        pictures("png")(path.with_name("pool"))
        path.mkdir()
        for k in range(2):
            (path / f"class {k}").symlink_to(path.with_name("pool") / f"class {k}")

    yield Case("class folders that are links", "links", linked, expected)

    def broken(path: Path) -> None:
        linked(path)
        (path / "class 2").symlink_to(path / "nowhere")

    yield Case("a link that leads nowhere", "broken", broken, None)

    def large(path: Path) -> None:
        for k in range(2):
            (path / str(k)).mkdir(parents=True)
            Image.new("RGB", (3000, 2000), (9, 8, 7 + k)).save(path / str(k) / "0.png")

    colours = np.array([[9, 8, 7], [9, 8, 8]], dtype=np.uint8)[:, :, None, None]
    small = np.broadcast_to(colours, (2, 3, 16, 24)), np.arange(2)
    yield Case("photos of six million pixels", "large", large, small, {"resize": (16, 24)})

    def deep(path: Path) -> None:
        (path / "a").mkdir(parents=True)
        Image.fromarray(np.full((6, 6), 40_000, dtype=np.uint16)).save(path / "a" / "0.tiff")

    yield Case("16 bits per pixel", "deep", deep, None)


def arrays() -> Iterator[Case]:
    """Yield NPZ files."""
    rng = np.random.default_rng(0)
    parts = {"train": 30, "val": 6, "test": 12}
    x = {part: rng.integers(0, 256, (n, 8, 8, 3), dtype=np.uint8) for part, n in parts.items()}
    y = {part: np.arange(n)[:, None] % 3 for part, n in parts.items()}

    def npz(**content: Any) -> Callable[[Path], None]:
        return lambda path: np.savez(path, **content)

    whole: dict[str, NDArray[Any]] = {f"{part}_images": x[part] for part in parts}
    whole |= {f"{part}_labels": y[part] for part in parts}
    joined = np.concatenate([*x.values()]), np.concatenate([*y.values()])[:, 0]
    colour = np.moveaxis(joined[0], -1, 1), joined[1]
    yield Case("NPZ as of MedMNIST, colour", "colour.npz", npz(**whole), colour)
    grey = {name: one[..., 0] if "images" in name else one for name, one in whole.items()}
    yield Case("NPZ as of MedMNIST, grey", "grey.npz", npz(**grey), (colour[0][:, :1], colour[1]))
    pair = {"train_images": rng.integers(0, 9, (9, 3, 8, 3), dtype=np.uint8)}
    labels = {"train_labels": np.arange(9) % 3}
    yield Case("NPZ, two axes of three entries", "axes.npz", npz(**pair, **labels), None)
    objects = {"train_images": np.array([{}] * 9, dtype=object)}
    yield Case("NPZ of pickled objects", "objects.npz", npz(**objects, **labels), None)


@pytest.mark.parametrize("case", [*tables(), *images(), *arrays()], ids=lambda case: case.title)
def test_a_file_is_read_right_or_refused_by_its_name(case, tmp_path):
    if case.name.endswith(".xlsx"):
        pytest.importorskip("openpyxl")
    path = tmp_path / case.name
    case.write(path)
    config = DataConfig(path=path, **dict(case.keys))

    if case.expected is None:
        with pytest.raises(DataError, match=case.name):
            sources.load(config)
    else:
        found, (x, y) = sources.load(config), case.expected
        assert np.array_equal(found.x, x, equal_nan=True)
        assert np.array_equal(found.y, y)
