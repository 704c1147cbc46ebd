import os
import shutil
import zipfile
from io import BytesIO
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from PIL import Image

from flbench.config.schema import DataConfig
from flbench.core.errors import DataError
from flbench.data import folders, npz_files, sources, tables
from flbench.data import images as image_files
from flbench.data.folders import Folder
from flbench.data.partition_files import data_hash
from flbench.data.tables import features_of
from tests.support import config_of, write_npz


def load(path: Path, **keys):
    return sources.load(DataConfig(path=path, **keys))


def picture(value: int, *, grey: bool = True, kind: str = "PNG", size: int = 6) -> bytes:
    pixels = np.full((size, size, 3), value, dtype=np.uint8)
    pixels[0, 0] = (value, value, value) if grey else (255, 0, 0)
    data = BytesIO()
    Image.fromarray(pixels).save(data, kind, **({"lossless": True} if kind == "WEBP" else {}))
    return data.getvalue()


def write_zip(path: Path, entries: dict[str, bytes]) -> Path:
    with zipfile.ZipFile(path, "w") as file:
        for name, content in entries.items():
            file.writestr(name, content)
    return path


def images(**keys) -> dict[str, bytes]:
    return {
        f"{part}/{label}/{k}.png": picture(20 * k + 100 * (label == "b"), **keys)
        for part in ("train", "test")
        for label in ("a", "b")
        for k in range(3)
    }


def test_digits_have_a_train_and_a_test_part():
    data = sources.load(DataConfig())

    assert data.x.shape == (1797, 1, 8, 8)
    assert data.train == 1500
    assert data.x.max() == data.scale == 16


def test_names_are_looked_up_as_npz_then_zip_then_folder(tmp_path):
    write_zip(tmp_path / "mine.zip", images())
    assert sources.load(DataConfig(name="mine", root=tmp_path)).classes == ("a", "b")

    write_npz(tmp_path / "mine.npz")
    assert sources.load(DataConfig(name="mine", root=tmp_path)).classes == ("0", "1", "2", "3")


def test_npz_joins_validation_to_train_and_names_natural_clients(tmp_path):
    extra = {"val_images": np.zeros((5, 8, 8), np.uint8), "val_labels": np.zeros((5, 1))}
    data = load(write_npz(tmp_path / "x.npz", n=40, **extra))
    assert (len(data.y), data.train) == (65, 45)

    groups = np.array(["ward b", "ward a"] * 20)
    data = load(write_npz(tmp_path / "x.npz", n=40, train_groups=groups))
    assert data.groups[:4].tolist() == [1, 0, 1, 0]
    assert (data.groups[40:] == -1).all()
    assert data.group_names == ("ward a", "ward b")


def coloured(shape: tuple[int, ...], dtype: type = np.uint8) -> np.ndarray:
    return np.random.default_rng(0).integers(0, 256, size=shape).astype(dtype)


def save(path: Path, x: np.ndarray) -> Path:
    np.savez(path, train_images=x, train_labels=np.arange(len(x)) % 2)
    return path


@pytest.mark.parametrize(
    ("shape", "layout", "axes"),
    [
        ((4, 8, 9, 3), "auto", (0, 3, 1, 2)),
        ((4, 8, 9, 1), "auto", (0, 3, 1, 2)),
        ((4, 3, 8, 9), "auto", (0, 1, 2, 3)),
        ((4, 1, 8, 9), "auto", (0, 1, 2, 3)),
        ((4, 3, 9, 3), "channels_last", (0, 3, 1, 2)),
        ((4, 3, 9, 3), "channels_first", (0, 1, 2, 3)),
        ((4, 8, 9, 5), "channels_last", (0, 3, 1, 2)),
        ((4, 5, 8, 9), "channels_first", (0, 1, 2, 3)),
    ],
)
@pytest.mark.parametrize("dtype", [np.uint8, np.float64])
def test_npz_images_come_out_with_channels_first_from_both_layouts(
    tmp_path, shape, layout, axes, dtype
):
    x = coloured(shape, dtype)

    data = load(save(tmp_path / "x.npz", x), layout=layout)

    assert np.array_equal(data.x, x.transpose(axes))
    assert data.x.dtype == (np.uint8 if dtype is np.uint8 else np.float32)
    assert data.is_pixels == (dtype is np.uint8)


def test_npz_of_rows_of_floats_is_a_table(tmp_path):
    rng = np.random.default_rng(0)
    arrays = {
        "train_images": rng.normal(size=(40, 5)),
        "train_labels": np.arange(40) % 3,
        "train_groups": np.repeat(["north", "south"], 20),
        "test_images": rng.normal(size=(10, 5)),
        "test_labels": np.arange(10) % 3,
    }
    np.savez(tmp_path / "x.npz", **arrays)

    data = load(tmp_path / "x.npz")

    assert data.is_table
    assert data.x.dtype == np.float32
    assert np.array_equal(data.x[:40], arrays["train_images"].astype(np.float32))
    assert (data.train, len(data.x)) == (40, 50)
    assert data.group_names == ("north", "south")
    for keys in ({"layout": "channels_last"}, {"augment": ("flip",)}):
        with pytest.raises(DataError, match=rf"data\.{min(keys)}"):
            load(tmp_path / "x.npz", **keys)


@pytest.mark.parametrize("kind", ["PNG", "JPEG", "WEBP", "TIFF", "BMP", "GIF"])
@pytest.mark.parametrize("folder", [False, True])
def test_images_of_every_kind_from_zip_and_folder(tmp_path, kind, folder):
    entries = {f"{name[:-3]}{kind.lower()}": picture(40, kind=kind) for name in images()}
    path = write_zip(tmp_path / "x.zip", entries)
    if folder:
        path = tmp_path / "x"
        with zipfile.ZipFile(tmp_path / "x.zip") as file:
            file.extractall(path)

    data = load(path)

    assert data.x.shape == (12, 1, 6, 6)
    assert (data.x == 40).all()
    assert (data.train, data.classes, data.y.tolist()) == (6, ("a", "b"), [0, 0, 0, 1, 1, 1] * 2)


def test_a_zip_with_two_entries_of_one_name_is_refused(tmp_path):
    path = write_zip(tmp_path / "x.zip", images())
    with zipfile.ZipFile(path, "a") as file, pytest.warns(UserWarning, match="Duplicate"):
        file.writestr("train/a/0.png", picture(77))

    with pytest.raises(DataError, match=r"x\.zip.*train/a/0\.png"):
        load(path)


@pytest.mark.parametrize("top", ["", "flowers/"])
@pytest.mark.parametrize("folder", [False, True])
def test_class_folders_without_parts_belong_to_the_train_part(tmp_path, top, folder):
    entries = {f"{top}{label}/{k}.png": picture(k) for label in ("valid", "a") for k in (5, 9)}
    path = write_zip(tmp_path / "x.zip", entries)
    if folder:
        zipfile.ZipFile(path).extractall(path := tmp_path / "x")

    data = load(path)

    assert (data.classes, data.train) == (("a", "valid"), 4)
    assert data.y.tolist() == [0, 0, 1, 1]
    assert data.x[:, 0, 1, 1].tolist() == [5, 9, 5, 9]


@pytest.mark.parametrize("top", ["", "clinics/"])
def test_folders_of_clients_are_natural_clients(tmp_path, top):
    entries = {
        f"{top}{client}/{label}/0.png": picture(100 * (client == "west") + ord(label))
        for client, labels in (("west", "ab"), ("east", "bc"))
        for label in labels
    }
    path = write_zip(tmp_path / "x.zip", entries)

    data = load(path, client="folder")

    assert data.group_names == ("east", "west")
    assert data.groups.tolist() == [0, 0, 1, 1]
    assert (data.classes, data.y.tolist(), data.train) == (("a", "b", "c"), [1, 2, 0, 1], 4)
    assert data.x[:, 0, 1, 1].tolist() == [98, 99, 197, 198]  # `b` has the code 98
    with pytest.raises(DataError, match=r"data\.client=folder"):
        load(path)


def test_one_coloured_image_makes_the_set_coloured_and_images_are_decoded_once(
    tmp_path, monkeypatch
):
    path = write_zip(tmp_path / "x.zip", images() | {"train/a/0.png": picture(9, grey=False)})
    first = load(path)
    assert first.x.shape == (12, 3, 6, 6)
    assert first.x[0, :, 0, 0].tolist() == [255, 0, 0]
    with monkeypatch.context() as patch:
        patch.setattr(image_files, "decode", None)
        assert np.array_equal(load(path).x, first.x)

    changed = load(write_zip(tmp_path / "x.zip", images() | {"train/a/0.png": picture(77)}))

    assert changed.x[0, 0, 3, 3] == 77


WARDS = {
    "north.csv": b"age,bp,ill\n30,1.5,0\n40,,1\n50,?,0\n",
    "south.csv": b"age,bp,ill\n60,2,2\n70,3,0\n",
}


def test_tables_are_one_client_per_file_and_keep_gaps(tmp_path):
    data = load(write_zip(tmp_path / "x.zip", WARDS))

    assert data.x.shape == (5, 2)
    assert np.isnan(data.x[1:3, 1]).all()
    assert data.groups.tolist() == [0, 0, 0, 1, 1]
    assert data.classes == ("0", "1", "2")


KEYS_OF_OTHERS = [
    *(("digits", keys) for keys in ({"layout": "channels_first"}, {"label": "num"})),
    *(("images.zip", keys) for keys in ({"layout": "channels_last"}, {"drop": ["a"]})),
    *(("wards.zip", keys) for keys in ({"augment": ("crop",)}, {"client": "folder"})),
    *(("x.npz", keys) for keys in ({"client": "folder"}, {"label": "num"}, {"resize": 5})),
]


def test_keys_of_other_formats_are_refused(tmp_path):
    write_zip(tmp_path / "images.zip", images())
    write_zip(tmp_path / "wards.zip", WARDS)
    write_npz(tmp_path / "x.npz")
    for name, keys in KEYS_OF_OTHERS:
        path = None if name == "digits" else tmp_path / name
        with pytest.raises(DataError, match=rf"data\.{min(keys)}"):
            sources.load(DataConfig(path=path, **keys))


WRONG = [
    ({"name": "cinic1"}, "cinic10"),
    ({"name": "tinyimagenet"}, r"tinyimagenet\.npz"),
    *(({"name": name}, r"data\.name") for name in ("../x", "a/b", "a\\b")),
    ({"path": "samples.npz"}, r"samples\.npz"),
    ({"path": "x.png"}, r"x\.png"),
    *(
        ({"path": "x.zip", "label": label}, r"data\.label")
        for label in ("ill > .", "ill > nan", "ill > 1e999", ">" * 100_000, " ")
    ),
]


@pytest.mark.parametrize(("keys", "named"), WRONG, ids=str)
def test_data_that_are_not_there_are_refused(tmp_path, monkeypatch, keys, named):
    monkeypatch.chdir(tmp_path)
    write_zip(tmp_path / "x.zip", WARDS)
    (tmp_path / "x.png").write_bytes(picture(1))

    with pytest.raises(DataError, match=named):
        sources.load(DataConfig(root=tmp_path, **keys))


N = 24


@pytest.mark.parametrize(
    ("name", "values", "is_noted"),
    [
        ("id", range(1, N + 1), True),
        ("n", range(N), True),
        ("n", [k % (N // 2) for k in range(N)], True),  # in each file
        ("patient_id", [k * k + 7 for k in range(N)], True),
        ("age", [k * k + 7 for k in range(N)], False),
        ("n", [k % 7 for k in range(N)], False),
        ("patient", [k % 9 for k in range(N)], True),
    ],
)
def test_columns_that_number_the_rows_are_noted(tmp_path, name, values, is_noted):
    rng = np.random.default_rng(0)
    lines = [f"{value},{rng.normal()},{k % 2}\n" for k, value in enumerate(values)]
    header = f"{name},x,y\n"
    files = {"a.csv": lines[: N // 2], "b.csv": lines[N // 2 :]}
    entries = {file: (header + "".join(part)).encode() for file, part in files.items()}

    data = load(write_zip(tmp_path / "x.zip", entries))

    assert data.columns == (name, "x")
    assert [f"`{name}`" in note for note in data.notes] == [True] * is_noted


@pytest.mark.parametrize("as_zip", [False, True])
def test_files_that_are_not_read_are_counted_by_a_note(tmp_path, as_zip):
    more = {"a/x.heic": b"", "b/y.psd": b"", "README.md": b"", "Thumbs.db": b""}
    hidden = {".c/0.png": b"", "__MACOSX/a/._0.png": b"", ".DS_Store": b""}
    path = write_folder(tmp_path / "x", class_folders() | more | hidden)
    (path / "empty").mkdir()
    if as_zip:
        path = Path(shutil.make_archive(str(tmp_path / "x"), "zip", path))

    data = load(path)

    assert data.classes == ("a", "b")
    [note] = data.notes
    assert "a/x.heic" in note
    [note] = load(write_zip(tmp_path / "y.zip", WARDS | {"east.ods": b"", "LICENSE": b""})).notes
    assert "east.ods" in note
    beside = {f"val/a/{k}.png": picture(k) for k in range(2)}
    named = {k.replace("train", "Training").replace("test", "TEST"): v for k, v in images().items()}
    data = load(write_zip(tmp_path / "z.zip", named | beside))
    assert (len(data.x), data.train, len(data.notes)) == (12, 6, 1)


@pytest.mark.parametrize(
    ("table", "named"),
    [
        (b"ill\n0\n1\n", "`ill`"),
        (b"x,ill\n1,0\n2,0\n", "`ill`"),
        (b"x,y\n" + b"".join(b"1,%d.5\n" % k for k in range(50)), r"`y` .*data\.label"),
        (b"-3e2,7,7.5,1\n1,1,1,0\n", r"a\.csv"),
        (b"5.1,3.5,1.4,setosa\n1,1,1,0\n", r"a\.csv"),
        *(
            (f'a,b,y\n"{value}",1,0\n"{value}",2,1\n'.encode(), "`a`")
            for value in ("1.200,50", "45%", "($20.50)", "3 €", "1 050")
        ),
        (b"a;b;y\n" + b"1.007;0,5;0\n1.007;0,5;1\n" * 10, r"'1\.007'"),
    ],
)
def test_tables_whose_columns_cannot_be_used_are_refused(tmp_path, table, named):
    with pytest.raises(DataError, match=named):
        load(write_zip(tmp_path / "x.zip", {"a.csv": table}))


def test_names_that_results_cannot_have_are_refused_before_training(tmp_path):
    for arrays in (
        {"class_names": np.array(["a", "b", "c", "\ud800"])},
        {"train_groups": np.array(["c", "x" * 1001] * 20)},
    ):
        with pytest.raises(DataError):
            load(write_npz(tmp_path / "x.npz", n=40, **arrays))


def test_label_is_a_column_or_a_rule(tmp_path):
    path = write_zip(tmp_path / "x.zip", WARDS)
    for label, y in {
        "ill > 0": [0, 1, 0, 1, 0],
        "age<=50": [1, 1, 1, 0, 0],
        "age >= 60": [0, 0, 0, 1, 1],
        "ill == 2.": [0, 0, 0, 1, 0],
        "ill<+.5e0": [1, 0, 1, 0, 1],
        "ill": [0, 1, 0, 2, 0],
    }.items():
        assert load(path, label=label).y.tolist() == y
    text = b"x,a<b,word\n1,1234567,cat\n2,1234568,ape\n3,1234567.0,cat\n"
    file = write_zip(tmp_path / "y.zip", {"a.csv": text})
    assert load(file, label="a<b").classes == ("1234567", "1234568")
    assert load(file, label="a<b > 1234567").y.tolist() == [0, 1, 0]
    assert load(file).y.tolist() == [1, 0, 1]


HEIGHTS = {
    "north/data.csv": b"colour,size,y\nred,1,0\n,2,1\nblue,3,0\n",
    "south/data.csv": b"colour,size,y\n'green',4,1\nred,5,0\nred,6,1\n",
}


def test_words_become_positions_among_the_sorted_words_of_all_files(tmp_path):
    data = load(write_zip(tmp_path / "x.zip", HEIGHTS))

    assert data.columns == ("colour", "size")
    assert data.words == (("'green'", "blue", "red"), ())
    assert np.array_equal(data.x[:, 0], [2, np.nan, 1, 0, 2, 2], equal_nan=True)
    assert data.x[:, 1].tolist() == [1, 2, 3, 4, 5, 6]


def test_column_of_identifiers_is_refused_by_its_name(tmp_path):
    def read(words):
        lines = "".join(f"{word},{k},{k % 2}\n" for k, word in enumerate(words))
        return load(write_zip(tmp_path / "x.zip", {"a.csv": f"id,x,y\n{lines}".encode()}))

    for words in ([f"name {k}" for k in range(60)], [f"name {k % 1001}" for k in range(3003)]):
        with pytest.raises(DataError, match=r"`id`.*data\.drop"):
            read(words)
    for words in ([f"name {k % 30}" for k in range(60)], ["one", *[""] * 59]):
        assert len(read(words).words[0]) == len(set(words) - {""})


def test_clients_of_tables_have_the_names_of_their_files(tmp_path):
    for files, names in {
        ("north.csv", "south.csv"): ("north", "south"),
        ("top/north.csv", "top/south.csv"): ("north", "south"),
        ("north/data.csv", "south/data.csv"): ("north", "south"),
        ("a/1.csv", "b/1.csv", "b/2.csv"): ("a/1", "b/1", "b/2"),
        ("v1.0.csv", "v1.1.csv"): ("v1.0", "v1.1"),
        ("a.CSV", "a.csv"): ("a.CSV", "a.csv"),
    }.items():
        path = write_zip(tmp_path / "x.zip", dict.fromkeys(files, WARDS["north.csv"]))
        assert load(path).group_names == names


def write_idx(path: Path, array: np.ndarray) -> None:
    header = bytes([0, 0, 8, array.ndim]) + b"".join(
        size.to_bytes(4, "big") for size in array.shape
    )
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(header + array.astype(np.uint8).tobytes())


def test_torchvision_reads_its_own_files_in_data_root(tmp_path):
    x = np.random.default_rng(0).integers(0, 255, (6, 28, 28))
    raw = tmp_path / "MNIST" / "raw"
    for part, count in (("train", 6), ("t10k", 4)):
        write_idx(raw / f"{part}-images-idx3-ubyte", x[:count])
        write_idx(raw / f"{part}-labels-idx1-ubyte", np.arange(count))

    data = sources.load(DataConfig(name="mnist", root=tmp_path))

    assert (len(data.y), data.train, data.x.shape[1:]) == (10, 6, (1, 28, 28))
    assert np.array_equal(data.x[:6, 0], x)
    file = raw / "train-images-idx3-ubyte"
    file.write_bytes(file.read_bytes()[:500])
    with pytest.raises(DataError, match="mnist"):
        sources.load(DataConfig(name="mnist", root=tmp_path))


def test_torchvision_emnist_letters_are_upright_and_start_at_zero(tmp_path):
    x = np.random.default_rng(0).integers(0, 255, (26, 28, 28))
    raw = tmp_path / "EMNIST" / "raw"
    for part in ("train", "test"):
        write_idx(raw / f"emnist-letters-{part}-images-idx3-ubyte", x)
        write_idx(raw / f"emnist-letters-{part}-labels-idx1-ubyte", np.arange(1, 27))

    data = sources.load(DataConfig(name="emnist_letters", root=tmp_path))

    assert data.y[:26].tolist() == list(range(26))
    assert len(data.classes) == 26
    assert np.array_equal(data.x[3, 0], x[3].T)


def test_error_about_a_failed_download_names_the_files_to_provide(tmp_path, monkeypatch):
    from torchvision.datasets import SVHN

    def offline(*_):
        raise OSError("no network")

    monkeypatch.setattr(SVHN, "download", offline)

    with pytest.raises(DataError, match=r"svhn\.npz.*no network"):
        sources.load(DataConfig(name="svhn", root=tmp_path))


@pytest.mark.real_data
@pytest.mark.slow
def test_real_files_have_the_published_sizes():
    from tests.support import REAL_DATA

    expected = {
        "mnist": (60_000, 10_000, 10),
        "fashionmnist": (60_000, 10_000, 10),
        "usps": (7_291, 2_007, 10),
    }
    for name, (train, test, classes) in expected.items():
        data = sources.load(DataConfig(name=name, root=REAL_DATA))
        assert (data.train, len(data.y) - data.train, len(data.classes)) == (train, test, classes)


def write_folder(path: Path, entries: dict[str, bytes]) -> Path:
    for name, content in entries.items():
        (path / name).parent.mkdir(parents=True, exist_ok=True)
        (path / name).write_bytes(content)
    return path


def class_folders(labels: str = "ab") -> dict[str, bytes]:
    return {f"{label}/{k}.png": picture(20 * k + ord(label)) for label in labels for k in range(2)}


@pytest.mark.parametrize("column", ["1.5", "word"])
def test_missing_values_are_those_of_pandas(tmp_path, column):
    from pandas._libs.parsers import STR_NA_VALUES

    values = [*sorted(STR_NA_VALUES), *[column] * 4]
    content = "\n".join(["a,b,y", *(f"{v},{k},{k % 2}" for k, v in enumerate(values))]).encode()

    data = load(write_zip(tmp_path / "x.zip", {"a.csv": content}))

    assert np.array_equal(np.isnan(data.x[:, 0]), pd.read_csv(BytesIO(content))["a"].isna())


@pytest.mark.parametrize("label", [None, "ill", "ill > 0"])
def test_columns_in_another_order_are_read_by_name(tmp_path, label):
    entries = {**WARDS, "south.csv": b"bp,age,ill\n2,60,2\n3,70,0\n"}

    data = load(write_zip(tmp_path / "x.zip", entries), label=label)

    expected = load(write_zip(tmp_path / "y.zip", WARDS), label=label)
    assert data.columns == expected.columns
    assert data_hash(data) == data_hash(expected)
    file = write_zip(tmp_path / "z.zip", {**WARDS, "south.csv": b"ill,age,bp\n2,60,2\n0,70,3\n"})
    with pytest.raises(DataError, match=r"data\.label"):
        load(file)
    assert load(file, label="ill").x[3:].tolist() == [[60, 2], [70, 3]]


def test_dropped_columns_are_as_if_the_files_had_not_had_them(tmp_path):
    """They may have anything, may be in some files alone, and may have no proper name."""
    header, lines = "x,word,y\n", [f"{k / 7},{'ab'[k % 2]},{k % 3 > 0}\n" for k in range(24)]
    wide = [f"patient {k},{line[:-1]},{'' if k % 2 else k}\n" for k, line in enumerate(lines)]
    plain = {"a.csv": header + "".join(lines[:12]), "b.csv": header + "".join(lines[12:])}
    more = {
        "a.csv": "id,x,word,y,Unnamed: 4\n" + "".join(wide[:12]),
        "b.csv": "x,word,y,Unnamed: 4,Unnamed: 4\n"
        + "".join(f"{line[:-1]},1,two\n" for line in lines[12:]),
    }
    paths = [
        write_zip(tmp_path / name, {file: text.encode() for file, text in entries.items()})
        for name, entries in (("plain.zip", plain), ("more.zip", more))
    ]

    keys = {"drop": ["Unnamed: 4", "id"]}
    expected, found = load(paths[0]), load(paths[1], **keys)

    assert data_hash(found) == data_hash(expected)
    assert found.columns == expected.columns == ("x", "word")
    others = ["id", "Unnamed: 4"]
    for keys, named in (
        ({"drop": [*others, "iid"]}, r"data\.drop.*`iid`"),
        ({"drop": [*others, "y", "word", "x"]}, "label"),
        ({"drop": [*others, "y"], "label": "y"}, r"data\.label.*`y`"),
    ):
        with pytest.raises(DataError, match=named):
            load(paths[1], **keys)
    file = write_zip(tmp_path / "x.zip", {"a.csv": b"a,2020,7,y\n1,2,0,3\n2,3,1,4\n2.5,3,0,3\n"})
    data = load(file, drop=[2020, "y"], label=7)
    assert (data.columns, data.y.tolist()) == (("a",), [0, 1, 0])


def test_the_order_of_dropped_columns_changes_no_hash():
    one, other, none = (
        config_of(f"data.drop={drop}").hash() for drop in ("[a, b]", "[b, a, b]", "[]")
    )
    assert one == other != none == config_of().hash()


def test_one_table_is_read_as_a_folder_of_one_table_without_clients(tmp_path):
    folder = load(write_folder(tmp_path / "x", {"north.csv": WARDS["north.csv"]}))

    data = load(tmp_path / "x" / "north.csv")

    assert np.array_equal(data.x, folder.x, equal_nan=True)
    assert (data.y.tolist(), data.columns) == (folder.y.tolist(), folder.columns)
    assert data.groups is None
    empty = WARDS["north.csv"] + b",,\n,,\n"  # rows at the end that a spreadsheet writes
    (tmp_path / "end.csv").write_bytes(empty)
    assert data_hash(load(tmp_path / "end.csv")) == data_hash(data)


X = np.zeros((40, 8, 8), np.uint8)
WRONG_ARRAYS = [
    ("train_labels", np.full((40, 1), -1)),
    ("train_labels", np.full((40, 1), 70_000)),
    ("train_labels", np.full((40, 1), 0.5)),
    ("train_labels", np.full(40, np.nan)),
    ("train_labels", np.zeros(39)),
    ("train_images", X.astype(np.int64)),
    ("train_images", X.astype(bool)),
    ("train_images", X[:, :0]),
    ("train_images", np.where(X == 0, np.nan, 0)),
    ("train_images", np.where(X == 0, 1e300, 0)),
    ("train_images", np.array([{}] * 40, dtype=object)),
    ("test_images", np.zeros((20, 9, 9), np.uint8)),
    ("test_images", np.zeros((20, 8, 8))),
    ("class_names", np.array("a")),
    ("train_groups", np.zeros(3)),
    ("train_groups", np.array(["a", "b", "", "a"] * 10)),
    ("train_groups", np.array([1.0, np.nan] * 20)),
]


def test_npz_of_wrong_content_is_refused_by_the_name_of_the_array(tmp_path):
    for name, array in WRONG_ARRAYS:
        with pytest.raises(DataError, match=name if "groups" not in name else "client|groups"):
            load(write_npz(tmp_path / "x.npz", n=40, **{name: array}))
    for shape in ((40, 3, 9, 3), (40, 8, 9, 5), (40, 9, 9, 9), (40, 9, 9, 9, 1)):
        with pytest.raises(DataError, match=r"x\.npz"):
            load(save(tmp_path / "x.npz", np.zeros(shape, np.uint8)))


def test_damaged_and_foreign_npz_files_are_refused(tmp_path, monkeypatch):
    np.savez(tmp_path / "other.npz", something=np.zeros(3))
    whole = write_npz(tmp_path / "x.npz")
    content = whole.read_bytes()
    (tmp_path / "short.npz").write_bytes(content[:-300])
    write_npz(tmp_path / "text.npz")
    with zipfile.ZipFile(tmp_path / "text.npz", "a") as file:
        file.writestr("readme.txt", "hello")
    (tmp_path / "locked.npz").write_bytes(locked(content))
    os.mkfifo(tmp_path / "pipe.npz")
    for name in ("other", "short", "text", "locked", "pipe"):
        with pytest.raises(DataError, match=rf"{name}\.npz"):
            load(tmp_path / f"{name}.npz")
    monkeypatch.setattr(npz_files, "MAX_BYTES", 1000)
    with pytest.raises(DataError, match=whole.name):
        load(whole)


def locked(content: bytes) -> bytes:
    """A ZIP file whose first entry is marked as encrypted."""
    spot = content.index(b"PK\x01\x02") + 8
    return content[:spot] + b"\x01" + content[spot + 1 :]


def test_zip_files_that_cannot_be_unpacked_are_refused(tmp_path, monkeypatch):
    whole = write_zip(tmp_path / "x.zip", class_folders())
    content = whole.read_bytes()
    for name, changed in (
        ("short", content[:-40]),
        ("damaged", content[:60] + bytes(10) + content[70:]),
        ("locked", locked(content)),
        ("no", b"PK"),
    ):
        (tmp_path / f"{name}.zip").write_bytes(changed)
    for name in ("short", "damaged", "locked", "no"):
        with pytest.raises(DataError, match=f"{name}.zip"):
            load(tmp_path / f"{name}.zip")
    monkeypatch.setattr(folders, "MAX_BYTES", 100)
    with pytest.raises(DataError, match=whole.name):
        load(whole)
    monkeypatch.undo()
    assert len(load(whole).x) == 4


def test_no_entry_of_a_zip_file_is_unpacked_elsewhere_or_becomes_a_link(tmp_path):
    link, out = zipfile.ZipInfo("a/link.png"), tmp_path / "out"
    link.external_attr = 0o120777 << 16
    names = ("../escape/0.png", f"{out}/0.png", "/a/x.png", "a\\..\\..\\escape\\1.png")
    path = write_zip(tmp_path / "x.zip", class_folders() | dict.fromkeys(names, picture(0)))
    with zipfile.ZipFile(path, "a") as file:
        file.writestr(link, str(tmp_path / "secret.png"))
    (tmp_path / "secret.png").write_bytes(picture(1))

    inside = Folder(path)

    unpacked = [inside.file(name) for name in inside.names]
    assert len(unpacked) == 9
    assert not any(file.is_symlink() for file in unpacked)
    assert {file.resolve().is_relative_to(inside.file("a").parent) for file in unpacked} == {True}
    assert not out.exists()
    assert not (tmp_path / "escape").exists()


def test_backslashes_of_windows_are_slashes(tmp_path):
    entries = {name.replace("/", "\\"): content for name, content in images().items()}

    data = load(write_zip(tmp_path / "x.zip", entries))

    assert (data.classes, data.train) == (("a", "b"), 6)


@pytest.mark.parametrize(
    ("entries", "keys", "named"),
    [
        ({"train/a/0.png": b"no image"}, {}, "train/a/0.png"),
        ({"a/0.png": picture(1), "b/0.png": picture(1, size=7)}, {}, r"b/0.png .*data\.resize"),
        ({"readme.md": b"x"}, {}, "readme.md"),
        ({}, {}, "nothing"),
        ({"0.png": picture(1), "a/1.png": picture(1)}, {}, "0.png"),
        ({"a/0.png": picture(1), "b/c/1.png": picture(1)}, {}, "b/c/1.png"),
        ({"test/a/0.png": picture(1)}, {}, "train/CLASS"),
        ({f"train/a/{k}.png": picture(1) for k in range(3)}, {}, "two"),
        ({f"{k}/Train/a/0.png": picture(1) for k in "ns"}, {}, r"n/Train.*data\.client=folder"),
        ({"a/0.png": picture(1), "b/1.png": picture(1), "x.csv": b"x,y\n1,0\n2,1\n"}, {}, "x.csv"),
        ({"a/0.png": picture(1), "b/1.png": picture(1)}, {"client": "folder"}, "a/0.png"),
        ({"n/a/0.png": picture(1), "x/n/b/1.png": picture(1)}, {"client": "folder"}, "x/n/b/1"),
        (images(), {"client": "folder"}, "test/a/0.png"),
        ({"a.csv": b"x,y\n1,0\n2,1\n"}, {"client": "folder"}, r"data\.client"),
    ],
)
def test_images_that_cannot_be_used_are_refused_by_name(tmp_path, entries, keys, named):
    with pytest.raises(DataError, match=named):
        load(write_zip(tmp_path / "x.zip", entries), **keys)


def test_a_cache_that_is_damaged_or_cannot_be_written_changes_nothing(tmp_path, monkeypatch):
    path = write_folder(tmp_path / "x", images())
    first = load(path)
    for file in (Path(os.environ["XDG_CACHE_HOME"]) / "flbench").glob("*.npy"):
        file.write_bytes(file.read_bytes()[:100])
    assert np.array_equal(load(path).x, first.x)
    (tmp_path / "file").touch()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    assert np.array_equal(load(path).x, first.x)
    monkeypatch.setattr(image_files, "MAX_BYTES", 100)
    with pytest.raises(DataError, match=path.name):
        load(path)


def test_links_to_a_folder_above_are_not_followed(tmp_path):
    folder = write_folder(tmp_path / "x", class_folders())
    link = folder / "a" / "up"
    for target in ("..", "."):
        link.symlink_to(target)
        assert len(load(folder).x) == 4
        link.unlink()
    (tmp_path / "y").mkdir()  # a loop over two folders
    link.symlink_to("../../y")
    (tmp_path / "y" / "down").symlink_to("../x/a")
    assert len(load(folder).x) == 4


def test_pipes_and_names_that_are_not_utf8_are_refused(tmp_path):
    folder = write_folder(tmp_path / "x", class_folders())
    os.mkfifo(folder / "a" / "9.png")
    (tmp_path / "y").mkdir()
    Path(os.fsdecode(os.fsencode(tmp_path / "y") + b"/\xff.csv")).write_bytes(WARDS["north.csv"])

    for path in (folder, tmp_path / "y"):
        with pytest.raises(DataError, match=str(path)):
            load(path)


@pytest.mark.parametrize(
    ("entry", "label", "named"),
    [
        (b"age,bp,ill\n30,low,0\n30,high,0\n", None, "row 1 .*`bp`"),
        (b"age,bp,ill\n30,inf,0\n", None, "row 1 .*`bp`"),
        (b"age,bp,ill\n30,1_0,0\n", None, "row 1 .*`bp`"),
        (b'age,bp,ill\n"3\n0",1,0\n1,2\n', None, "line 4 "),
        (b"age,ill,bp\n1,0,2\n30,1\n", "ill", "line 3 "),
        (b"age,bp,ill\n30,1,0\n3,5,-nan\n", None, "row 2 .*`ill`"),
        (b"age,bp,ill\n30,1,0\n,,\n30,1,0\n", None, "row 2 "),
        (b"", None, ""),
        (b"age,bp,ill\n30,1,0,4\n", None, ""),
        (b"age,bq,ill\n1,2,0\n", None, "bq"),
        (b"age,bp,ill\n1,2,0\n", "sick", "sick"),
        (b"age,bp,ill\n\n1,2,yes\n", "ill > 0", "row 1 .*'yes'"),
        (b"age;bp;ill\n3,5;1;0\n2,5,3;1;0\n", None, "row 2 .*'2,5,3'"),
    ],
    ids=lambda value: str(value)[:40],
)
def test_tables_that_cannot_be_used_are_refused_by_file_row_and_column(
    tmp_path, entry, label, named
):
    entries = {"a.csv": b"age,bp,ill\n30,1,0\n31,1,1\n", "b.csv": entry}

    with pytest.raises(DataError, match=rf"b\.csv.*{named}" if named != "sick" else named):
        load(write_zip(tmp_path / "x.zip", entries), label=label)


PLAIN = pd.DataFrame({"a": [1.5, 2.25, 3.5, 4], "b": [*"xyxy"], "y": [0, 1, 1, 0]})


def test_rows_of_a_table_to_predict_keep_their_places(tmp_path):
    (tmp_path / "x.csv").write_text("a,b\n1,2\n,\n3,4\n,\n")

    x = features_of(Folder(tmp_path / "x.csv"), "x.csv", ["b", "a"], [(), ()])

    assert np.array_equal(x, [[2, 1], [np.nan] * 2, [4, 3], [np.nan] * 2], equal_nan=True)


def test_words_of_tables_are_those_of_csv_files():
    days = pd.to_datetime(["2020-01-01", None, "2021-01-01"] * 6)
    frame = pd.DataFrame(
        {
            "n": pd.array([3, None, 5] * 6, dtype="Int64"),
            "w": ["NA ", "a", "b"] * 6,
            "d": days,
            "l": [[1], [2], None] * 6,
            "y": np.array([0.1, 0.5, 0.5] * 6, dtype=np.float32),
        }
    )

    data = tables.from_frames({"a": frame}, "the frame", "x")

    assert data.words == ((), ("a", "b"), ("2020-01-01", "2021-01-01"), ("[1]", "[2]"))
    assert data.classes == ("0.1", "0.5")
    assert np.isnan(data.x[:3]).tolist() == [
        [False, True, False, False],
        [True, False, True, False],
        [False, False, False, True],
    ]


def test_postscript_is_no_image(tmp_path, monkeypatch):
    eps = b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 8 8\n%%EndComments\nshowpage\n"
    monkeypatch.setattr("PIL.EpsImagePlugin.Ghostscript", None)  # fails if it is called

    with pytest.raises(DataError, match=r"0\.png"):
        load(write_zip(tmp_path / "x.zip", {f"train/{c}/0.png": eps for c in "ab"}))


def test_archives_are_unpacked_by_two_processes_at_once(tmp_path, monkeypatch):
    path = write_zip(tmp_path / "x.zip", images())
    rename = Path.rename

    def late(self, target):
        shutil.copytree(self, target)  # another process is faster
        return rename(self, target)

    monkeypatch.setattr(Path, "rename", late)
    assert len(load(path).x)


def test_linked_client_folders_and_tables_are_read(tmp_path):
    write_folder(tmp_path / "pool", class_folders())
    folder = write_folder(tmp_path / "x", {f"n/{k}": v for k, v in class_folders().items()})
    (folder / "s").symlink_to("../pool")
    tables = write_folder(tmp_path / "t", {"north.csv": WARDS["north.csv"]})
    (tables / "south").symlink_to(write_folder(tmp_path / "u", {"b.csv": WARDS["south.csv"]}))

    assert load(folder, client="folder").group_names == ("n", "s")
    assert load(tables).group_names == ("north", "south/b")


@pytest.mark.parametrize(
    "content",
    [
        PLAIN.to_csv(index=False, sep="|"),
        PLAIN.to_csv(index=False, quoting=1).replace(",", ", "),
    ],
)
def test_bars_and_quotes_are_read(tmp_path, content):
    data = load(write_zip(tmp_path / "x.zip", {"a.csv": content.encode()}))

    assert data.x.tolist() == [[1.5, 0], [2.25, 1], [3.5, 0], [4, 1]]
    assert data.y.tolist() == [0, 1, 1, 0]
