"""Malformed inputs of the command line, drawn at random from a seed.

Each family is a function that writes what it needs into an empty folder and returns a `Call`.
"""

import csv
import io
import os
import shutil
import socket
import struct
import warnings
import zipfile
import zlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any, Final

import numpy as np
from PIL import Image

from flbench.config.schema import Config
from flbench.config.sources import leaves

# Overrides under which a small data set can be distributed.
FEW: Final = ("partition.clients=3", "partition.min_samples=1", "partition.scheme=iid")
KEYS: Final = tuple(leaves(Config().tree()))
SECTIONS: Final = (
    *("data", "partition", "model", "algorithm", "train", "train.optimizer", "train.schedule"),
    *("engine", "evaluation", "evaluation.common", "tracking", "output"),
)
NUMBERS: Final = tuple(
    key
    for key, value in leaves(Config().tree()).items()
    if isinstance(value, int | float) and not isinstance(value, bool)
)


@dataclass(frozen=True)
class Call:
    """A call of `flbench`.

    Attributes:
        title: What is tried, for the report.
        arguments: Arguments of the command line.
        folder: Working directory.
        is_wrong: Whether the input must be refused. Otherwise it may be accepted too.
    """

    title: str
    arguments: Sequence[str]
    folder: Path
    is_wrong: bool = False


@dataclass(frozen=True)
class Originals:
    """Intact folders and files to make damaged copies of.

    Attributes:
        finished: Folder of a finished run.
        interrupted: Folder of an interrupted run.
    """

    finished: Path
    interrupted: Path


Family = Callable[[Random, Path, Originals], Call]


def calls(seed: str, count: int, root: Path, originals: Originals) -> Iterator[Call]:
    """Yield calls with malformed inputs, the families in turn.

    Args:
        seed: Seed; call k depends on it and on k alone.
        count: Number of calls.
        root: Folder that gets a folder for each call.
        originals: Intact folders and files.
    """
    order = [family for family, share in FAMILIES.items() for _ in range(share)]
    for k in range(count):
        family = order[k % len(order)]
        rng = Random(f"{seed}/{k}")
        folder = root / f"{k:04d}"
        folder.mkdir(parents=True)
        call = family(rng, folder, originals)
        yield Call(
            f"{k} {family.__name__}: {call.title}", call.arguments, call.folder, call.is_wrong
        )


# --- YAML ---


def yaml_value(rng: Random) -> tuple[str, bool]:
    """Return the text of a value, and whether it must be refused wherever it stands."""
    n = rng.choice([30, 300, 3_000, 30_000])
    text, is_wrong = rng.choice(
        [
            (f"!!int {rng.choice(['abc', '', '1.5', '٣', '--1', '0x', '1:'])}", True),
            (f"!!float {rng.choice(['abc', '', '1e', '.', '1:x'])}", True),
            (f"!!bool {rng.choice(['maybe', '', '2', 'wahr'])}", True),
            (f"!!timestamp {rng.choice(['abc', '2001-99-99', '0000-00-00'])}", True),
            ("2001-99-99", True),
            ("2001-01-01 25:61:61", True),
            ("2001-01-01T00:00:00+99:99", True),
            (f"!!binary {rng.choice(['@', 'abc', 'é'])}", True),
            (f"!!{rng.choice(['omap', 'pairs', 'set', 'map', 'str'])} [1, [2]]", True),
            (f"!!{rng.choice(['omap', 'pairs', 'set', 'map', 'seq'])} word", True),
            ("!!python/object/apply:os.getpid []", True),
            ("!!python/name:os.system", True),
            (f"!{rng.choice(['local', '', '<tag:x>'])} 3", True),
            ("9" * 5_000, True),
            ("-" + "9" * n, True),
            ("0x" + "f" * n, True),
            ("0b" + "1" * n, True),
            ("0" + "7" * n, True),
            (":".join(["59"] * n), True),
            (":".join(["59"] * n) + ".5", True),
            ("1" + "0" * rng.choice([19, 30, 400]), True),
            ('"\\0"', True),
            ('"a\\0b"', True),
            ('"\\ud800"', True),
            ("a\x00b", True),
            ("\x1b[31m", True),
            ("\ufffe", True),
            ("[" * n, True),
            ("[" * n + "]" * n, True),
            ("{a: " * n + "1" + "}" * n, True),
            ("{? " * n + "1" + "}" * n, True),
            ("&a [*a]", True),
            ("&a {a: *a}", True),
            ("*nowhere", True),
            (f"[&a [{', '.join('x' * 10)}], {bomb(rng)}]", True),
            (f"[{', '.join(['1'] * n)}]", n > 10_000),
            (f"{{{', '.join(f'k{k}: 1' for k in range(n))}}}", True),
            ("{[1, 2]: 3}", True),
            ("{{a: 1}: 3}", True),
            ("{1: 2}", True),
            ("{<<: 3}", True),
            ("{<<: [1, 2]}", True),
            ("{<<: *nowhere}", True),
            ("[1, 2", True),
            ("'open", True),
            ('"\\q"', True),
            ("%", True),
            ("@", True),
            ("`", True),
            ("- 1", False),
            ("\t1", False),
            (" " * n, False),
            ("x" * n, False),
            ("'" + " " * n + "'", False),
            (".nan", False),
            ("1e400", False),
            ("-1", False),
            ("0", False),
            ("null", False),
            ("true", False),
            ("[]", False),
            ("{}", False),
            ("''", False),
            ("[null]", False),
            ("=", False),
            ("٣", False),
            ("1_000_000", False),
            ("--- 1", False),
        ]
    )
    return text, is_wrong


def bomb(rng: Random) -> str:
    """Return items of a YAML list in which each repeats the one before it."""
    width = rng.randint(2, 9)
    names = "abcdefghij"
    return ", ".join(
        f"&{names[k + 1]} [{', '.join([f'*{names[k]}'] * width)}]" for k in range(len(names) - 1)
    )


def yaml_text(rng: Random) -> tuple[bytes, bool]:
    """Return the content of a configuration file, and whether it must be refused."""
    key = rng.choice([*KEYS, *SECTIONS, "nonsense", "x" * 5_000])
    value, is_wrong = yaml_value(rng)
    lines = [f"{'  ' * k}{part}:" for k, part in enumerate(key.split("."))]
    placed = ("\n".join(lines) + f" {value}\n").encode("utf-8", "surrogatepass")
    whole = b"seed: 1\ntrain:\n  rounds: 3\n  optimizer: {lr: 0.1}\nalgorithm: fedavg\n"
    n = rng.choice([100, 1_000, 20_000])
    return rng.choice(
        [
            (placed, is_wrong or key == "nonsense" or key.startswith("xx")),
            (placed, is_wrong or key == "nonsense" or key.startswith("xx")),
            (placed, is_wrong or key == "nonsense" or key.startswith("xx")),
            (damaged(rng, whole), False),
            (damaged(rng, whole), False),
            (whole + b"--- \nseed: 2\n", True),
            (b"\xff\xfe" + whole.decode().encode("utf-16-le"), False),
            ("\ufeff".encode() + whole, False),
            (whole + "# é\n".encode("latin-1"), True),
            (whole + b"\x00", True),
            ("".join(f"{' ' * k}a:\n" for k in range(min(n, 1_400))).encode(), True),
            (b"- " * n, True),
            (b"? " * n, True),
            (b"a: [" + b"1," * 490_000 + b"]", True),
            (b"".join(b"k%d: 1\n" % k for k in range(70_000)), True),
            (b"seed: " + b" " * 900_000 + b"1\n", False),
            (b"seed: '" + b"x" * 900_000 + b"'\n", True),
            (b"seed: |\n" + b"  x\n" * 200_000, True),
            (b"3", True),
            (b"word", True),
            (b"[1, 2]", True),
            (b"data:\npartition: null\n", False),
            (f"{rng.choice(SECTIONS[:4])}: [1, 2]\n".encode(), True),
            (b"train.rounds: 3\n", False),
            (b"seed: 1\nseed: 2\n", True),
            (rng.randbytes(n), True),
            (rng.randbytes(n).hex().encode(), True),
        ]
    )


def configuration(rng: Random, folder: Path, originals: Originals) -> Call:
    """A configuration file, or the config.yaml of a run folder."""
    content, is_wrong = yaml_text(rng)
    road = rng.choice(["--config", "--config", "--config", "data", "show", "resume", "space"])
    if road in ("show", "resume"):
        run = copied(originals.finished if road == "show" else originals.interrupted, folder)
        (run / "config.yaml").write_bytes(content)
        arguments = ["show", str(run)] if road == "show" else ["run", "--resume", str(run)]
        return Call(f"{road} {shown(content)}", arguments, folder, is_wrong)
    file = folder / "my.yaml"
    file.write_bytes(content)
    if road == "space":
        # Nothing listens at this address, so no study can start.
        study = ("--algo", "fedavg", "--address", "127.0.0.1:1", "engine.threads=1")
        return Call(
            f"space {shown(content)}", ["tune", *study, "--space", str(file)], folder, is_wrong=True
        )
    command = ["data", "digits"] if road == "data" else ["run", "--print-config"]
    return Call(f"{road} {shown(content)}", [*command, "--config", str(file)], folder, is_wrong)


def override(rng: Random, folder: Path, _: Originals) -> Call:
    """One or two items `key=value`."""
    value, is_wrong = yaml_value(rng)
    n = rng.choice([50, 500, 5_000])
    item, is_wrong = rng.choice(
        [
            (f"{rng.choice(KEYS)}={value}", is_wrong),
            (f"{rng.choice(KEYS)}={value}", is_wrong),
            (f"{rng.choice(SECTIONS)}={value}", is_wrong),
            (f"{rng.choice(SECTIONS)}={rng.choice(['[1]', '3', 'true', '[{name: x}]'])}", True),
            (f"{rng.choice(KEYS)}.{rng.choice(['x', 'name', '0'])}={value}", True),
            (f"algorithm.{rng.choice(['tau', 'mu', 'x', 'name'])}={value}", is_wrong),
            (f"{'a.' * n}b=1", True),
            (f"{'x' * n}=1", True),
            (f"{'.' * n}=1", True),
            (f"{'[' * n}=1", True),
            (f"\ud800={value}", True),
            (f"data.label={' ' * n}", False),
            (f"data.label={'>' * n}", False),
            (f"{rng.choice(NUMBERS)}={rng.choice(['-1', '1e300', 'x', '[1]', 'null'])}", False),
            (f"engine.device=cuda:{rng.choice(['٣', '৩', '-1', '9' * 30, '1' * n, ''])}", True),
            (f"partition.split={rng.choice(['[1]', '[1,1,1]', '{a: 1}', '[a,b,c]', '1'])}", True),
        ]
    )
    with_algo = ["--algo", "fedavg"] if rng.random() < 0.3 else []
    command = rng.choice([["run", "--print-config", *with_algo], ["data", "digits"]])
    others = [f"{rng.choice(KEYS)}={yaml_value(rng)[0]}"] if rng.random() < 0.2 else []
    others = [other for other in others if "\x00" not in other]
    return Call(shown(item), [*command, item, *others], folder, is_wrong)


# --- data ---


def npz(rng: Random, folder: Path, _: Originals) -> Call:
    """An NPZ file of images."""
    file = folder / "x.npz"
    x = np.arange(40 * 64, dtype=np.uint8).reshape(40, 8, 8)
    arrays: dict[str, Any] = {"train_images": x, "train_labels": np.arange(40) % 4}
    if rng.random() < 0.5:
        arrays |= {"test_images": x[:8], "test_labels": np.arange(8) % 4}
    kind = rng.choice(["array", "array", "array", "classes", "labels", "bytes", "entry", "flag"])
    is_wrong, extra = False, []
    if kind == "array":
        name = rng.choice([*arrays, "class_names", "train_groups", "val_images"])
        arrays[name] = wrong_array(rng, arrays.get(name, np.arange(40)))
        title = f"{name} {arrays[name].dtype} {arrays[name].shape}"
    elif kind == "classes":
        # Many classes or clients in a small file.
        n = rng.choice([40, 500, 3_000])
        arrays = {"train_images": np.zeros((n, 8, 8), np.uint8)}
        arrays["train_labels"] = np.arange(n) * rng.choice([1, 1, max(1, 9_999 // n)])
        arrays["train_groups"] = np.arange(n) // rng.choice([1, 2, 10])
        clients = rng.choice([3, n // 4, n])
        scheme = rng.choice(["iid", "dirichlet", "pathological", "grouped", "quantity", "natural"])
        extra = [f"partition.scheme={scheme}", f"partition.clients={clients}"]
        extra += [rng.choice(["partition.alpha=0.01", "partition.balanced=true", "seed=1"])]
        title = f"{n} samples, {arrays['train_labels'].max() + 1} classes, {scheme} {clients}"
    elif kind == "labels":
        value = rng.choice([0, 7, 9_999, 10_000, -1, 2**62])
        arrays["train_labels"] = np.full(40, value)
        arrays.pop("test_images", None)
        title, is_wrong = f"labels {value}", True
    else:
        title = kind
    np.savez(file, **arrays)
    if kind == "bytes":
        file.write_bytes(damaged(rng, file.read_bytes()))
    elif kind == "entry":
        with warnings.catch_warnings(), zipfile.ZipFile(file, "a") as archive:
            warnings.simplefilter("ignore")  # of a second entry with the same name
            name = rng.choice(["x.txt", "../up.npy", "train_images.npy", "\x1b[31m.npy", "a/b.npy"])
            archive.writestr(name, damaged(rng, b"\x93NUMPY\x01\x00" + b" " * 30))
    elif kind == "flag":
        title += f" {wrong_flag(rng, file)}"
    return Call(f"npz {title}", ["data", *FEW, *extra, f"data.path={file}"], folder, is_wrong)


def images(rng: Random, folder: Path, _: Originals) -> Call:
    """A folder or ZIP file of images."""
    entries = {
        f"{part}/{label}/{k}.png": picture(10 * k)
        for part in ("train", "test")
        for label in ("a", "b")
        for k in range(4)
    }
    victim = rng.choice(list(entries))
    good = entries[victim]
    is_wrong = True
    kind = rng.choice(
        [
            *("bytes", "bytes", "deep", "deep", "one class", "empty", "sizes", "mode", "claim"),
            *("name", "special", "zip", "zip", "flag", "utf8", "text", "header", "nothing"),
        ]
    )
    title, archive = kind, rng.random() < 0.5
    if kind == "bytes":
        entries[victim], is_wrong = damaged(rng, good), False
    elif kind == "deep":
        mode = rng.choice([0, 2, 4, 6])
        entries = {name: deep_png(rng, mode) for name in entries}
        title, is_wrong = f"16 bits, colour type {mode}", mode == 0  # Pillow reads colours as bytes
    elif kind == "one class":
        entries = {name: content for name, content in entries.items() if "/a/" in name}
    elif kind == "empty":
        entries[victim] = b""
    elif kind == "sizes":
        entries[victim] = picture(3, size=(rng.choice([1, 7, 9]), 8))
    elif kind == "mode":
        entries[victim] = picture(3, kind=rng.choice(["BMP", "GIF", "TIFF", "PPM"]))
        is_wrong = False  # Pillow reads them by their content
    elif kind == "claim":
        size = rng.choice([0, 2**31 - 1, 2**32 - 1, 60_000])
        head = good[12:16] + struct.pack(">II", size, rng.choice([8, size])) + good[24:29]
        check = struct.pack(">I", zlib.crc32(head))
        entries[victim] = good[:12] + head + check + good[33:]
    elif kind == "name":
        odd = ["..", "\n", "=1+1", "\x1b[31mred", "x" * 200, " ", "'", "[bold]", "e\u0301\u202e"]
        entries = {
            name.replace("/a/", f"/{rng.choice(odd[1:])}/"): content
            for name, content in entries.items()
        }
        is_wrong = False
    elif kind == "text":
        entries = {"train/a.txt": b"x", "readme.md": b"x"}
    elif kind == "header":
        entries[victim] = good[: rng.randint(1, 40)]
    elif kind == "nothing":
        entries = {}
    place = folder / "pics"
    if kind in ("special", "utf8") or (not archive and kind not in ("zip", "flag")):
        for name, content in entries.items():
            (place / name).parent.mkdir(parents=True, exist_ok=True)
            (place / name).write_bytes(content)
        place.mkdir(exist_ok=True)
        if kind == "special":
            title = special_file(rng, place / victim)
            is_wrong = title != "folder"  # then the others are read
        elif kind == "utf8":
            odd_class = os.fsencode(place) + rng.choice([b"/train/\xff", b"/train/a/\xff"])
            os.makedirs(odd_class)
            with open(odd_class + b"/0.png", "wb") as file:
                file.write(good)
    else:
        place = folder / "pics.zip"
        with zipfile.ZipFile(place, "w", rng.choice([zipfile.ZIP_STORED, 8])) as file:
            for name, content in entries.items():
                file.writestr(name, content)
        if kind == "zip":
            place.write_bytes(damaged(rng, place.read_bytes()))
            is_wrong = False
        elif kind == "flag":
            title += f" {wrong_flag(rng, place)}"
            is_wrong = False  # zipfile refuses some, and reads the others as they are
    return Call(f"images {title}", ["data", *FEW, f"data.path={place}"], folder, is_wrong)


def tables(rng: Random, folder: Path, _: Originals) -> Call:
    """A folder or ZIP file of CSV tables."""
    rows = [["a", "b", "num"], *([str(k), str(k % 3), str(k % 4)] for k in range(20))]
    files = {"one.csv": as_csv(rows), "two.csv": as_csv(rows)}
    label, is_wrong = None, False
    n = rng.choice([1_000, 100_000])
    kind = rng.choice(
        [
            *("bytes", "bytes", "cell", "label", "label", "label", "clients", "classes", "columns"),
            *("augment", "one class", "header", "quote", "special", "utf8", "rows"),
        ]
    )
    title, extra = kind, []
    if kind == "bytes":
        files["one.csv"] = damaged(rng, files["one.csv"])
    elif kind == "cell":
        cell = rng.choice(["x", "inf", "1e39", "9" * 5_000, "٣", "1_0", "\x00", "=1+1", " " * n])
        rows[rng.randint(1, 20)][rng.randrange(3)] = cell
        files["one.csv"] = as_csv(rows)
        title = f"cell {shown(cell)}"
    elif kind == "label":
        label = rng.choice(
            [
                *("num > 1.2.3", "num > .", "num > -", "num > 1e999", "num >", "> 1", "", " "),
                *("num => 1", "num ! 1", "x", "num > nan", "num > 1_0", "a > b > 1"),
                *(
                    " " * n,
                    "num" + " " * n + "> 1",
                    "num > " + " " * n,
                    "num > " + "1" * n,
                    "x" * n,
                ),
                *(">" * n, "num " + ">= " * n, "num > " + "." * n, ".", "1.2.3"),
            ]
        )
        is_wrong, title = not label.startswith("num  "), f"label {shown(label)}"
    elif kind == "clients":
        files = {f"{k}.csv": as_csv(rows[:5]) for k in range(rng.choice([500, 2_000]))}
        extra = [rng.choice(["partition.scheme=natural", "seed=1"]), "partition.clients=null"]
    elif kind == "classes":
        many = [[str(k), str(k), f"c{k // 2}"] for k in range(3_000)]
        files = {"one.csv": as_csv([rows[0], *many])}
        extra = [f"partition.scheme={rng.choice(['dirichlet', 'iid', 'pathological'])}"]
        extra += [f"partition.clients={rng.choice([3, 300, 1_000])}"]
    elif kind == "columns":
        names = [f"c{k}" for k in range(2_000)]
        files = {"one.csv": as_csv([names, ["1"] * 2_000, ["0"] * 2_000])}
        label = rng.choice([None, "x"])
        is_wrong = label is not None
    elif kind == "augment":
        extra, is_wrong = [f"data.augment=[{rng.choice(['crop', 'flip'])}]"], True
    elif kind == "one class":
        files = {"one.csv": as_csv([rows[0], *([str(k), "1", "7"] for k in range(20))])}
        is_wrong = True
    elif kind == "header":
        files["one.csv"] = as_csv([rng.choice([["a"], ["a", "b", "c"], ["a", "a", "num"], []])])
        is_wrong = True
    elif kind == "quote":
        files["one.csv"], is_wrong = files["one.csv"] + b'1,"2', True
    elif kind == "rows":
        files["one.csv"], is_wrong = as_csv([*rows, ["1"] * rng.choice([1, 2, 4, 50])]), True
    place = folder / "tab"
    if kind in ("special", "utf8") or rng.random() < 0.5:
        place.mkdir()
        for name, content in files.items():
            (place / name).write_bytes(content)
        if kind == "special":
            title = special_file(rng, place / "one.csv")
            is_wrong = title != "folder"  # then the others are read
        elif kind == "utf8":
            with open(os.fsencode(place) + b"/\xff.csv", "wb") as file:
                file.write(as_csv(rows))
            is_wrong = True
    else:
        place = folder / "tab.zip"
        with zipfile.ZipFile(place, "w") as archive:
            for name, content in files.items():
                archive.writestr(name, content)
    given = [] if label is None else [f"data.label='{label}'"]
    return Call(
        f"tables {title}", ["data", *FEW, *extra, *given, f"data.path={place}"], folder, is_wrong
    )


FAMILIES: Final[dict[Family, int]] = {configuration: 6, override: 6, npz: 5, images: 5, tables: 5}
"""How many of 27 inputs are of each family. Folders of runs: see `mutations.py`."""


# --- damage ---


def damaged(rng: Random, content: bytes) -> bytes:
    """Return content after one to three random changes."""
    for _ in range(rng.randint(1, 3)):
        low = rng.randint(0, len(content))
        high = min(len(content), low + rng.choice([1, 2, 10, 100]))
        content = rng.choice(
            [
                content[:low],
                content[low:],
                content[:low] + content[high:],
                content[:low] + rng.randbytes(high - low) + content[high:],
                content[:low] + rng.randbytes(rng.randint(1, 20)) + content[low:],
                content[:high] + content[low:],
                content[:low] + bytes(high - low) + content[high:],
                content[:low] + b"\xff" + content[high:],
                content.replace(b"\n", b"\r"),
                content.replace(rng.choice([b"0", b"1", b".", b","]), b"9" * 50, 1),
            ]
        )
    return content


def special_file(rng: Random, file: Path) -> str:
    """Replace a file by something that is not a regular file; return what it is."""
    kind = rng.choice(
        ["pipe", "pipe", "zero", "random", "null", "socket", "folder", "loop", "link"]
    )
    file.unlink(missing_ok=True)
    if kind == "pipe":
        os.mkfifo(file)
    elif kind in ("zero", "random", "null"):
        file.symlink_to(f"/dev/{kind}")
    elif kind == "socket":
        # A socket's path must be short, so it is bound by its relative name.
        here = os.open(file.parent, os.O_RDONLY)
        with socket.socket(socket.AF_UNIX) as server:
            server.bind(f"/proc/self/fd/{here}/{file.name}")
        os.close(here)
    elif kind == "folder":
        file.mkdir()
    elif kind == "loop":
        file.symlink_to(file.name)
    else:
        file.symlink_to("nowhere")
    return kind


def wrong_array(rng: Random, array: np.ndarray) -> np.ndarray:
    """Return an array of another type or shape, or with other values."""
    n = len(array) if array.ndim else 1
    kind = rng.choice(["type", "type", "shape", "shape", "values", "empty", "length"])
    if kind == "type":
        return array.astype(
            rng.choice(
                ["f4", "f8", "c16", "u2", "i1", "U5", "S5", "?", "M8[s]", "m8[s]", "f2", "O"]
            )
        )
    if kind == "shape":
        shape = rng.choice(
            [(n, 0, 8), (n, 8, 0), (0,), (n, 1, 1, 2), (n, 8, 8, 3), (), (n, n), (1,)]
        )
        return np.zeros(shape, array.dtype)
    if kind == "values":
        if array.dtype.kind not in "iu":
            return array[::-1]
        top = np.iinfo(array.dtype)
        return np.full_like(array, rng.choice([top.max, top.min, top.max - 1]))
    if kind == "empty":
        return array[:0]
    return np.concatenate([array, array])[: rng.choice([1, n - 1, n + 1])]


def wrong_flag(rng: Random, file: Path) -> str:
    """Mark an entry of a ZIP file as encrypted, or as packed by an unknown method."""
    content = bytearray(file.read_bytes())
    is_local = rng.random() < 0.5
    mark, flags, method = (b"PK\x03\x04", 6, 8) if is_local else (b"PK\x01\x02", 8, 10)
    spots = [k for k in range(len(content) - 4) if content[k : k + 4] == mark]
    spot = rng.choice(spots)
    if rng.random() < 0.5:
        content[spot + flags] |= rng.choice([0x01, 0x20, 0x40])
        what = "flag"
    else:
        content[spot + method : spot + method + 2] = struct.pack("<H", rng.choice([1, 9, 98, 999]))
        what = "method"
    file.write_bytes(content)
    return f"{what} {'local' if is_local else 'central'}"


def picture(value: int, *, size: tuple[int, int] = (8, 8), kind: str = "PNG") -> bytes:
    """Return a grey image with one darker pixel."""
    pixels = np.full((*size, 3), value, dtype=np.uint8)
    pixels[0, 0] = value // 2
    data = io.BytesIO()
    Image.fromarray(pixels).save(data, kind)
    return data.getvalue()


def deep_png(rng: Random, colour: int) -> bytes:
    """Return a PNG with 16 bits per channel: grey (0), RGB (2), grey and alpha (4) or RGBA (6)."""
    channels = {0: 1, 2: 3, 4: 2, 6: 4}[colour]
    lines = b"".join(b"\0" + rng.randbytes(8 * channels * 2) for _ in range(8))

    def chunk(kind: bytes, data: bytes) -> bytes:
        check = struct.pack(">I", zlib.crc32(kind + data))
        return struct.pack(">I", len(data)) + kind + data + check

    head = struct.pack(">IIBBBBB", 8, 8, 16, colour, 0, 0, 0)
    chunks = chunk(b"IHDR", head) + chunk(b"IDAT", zlib.compress(lines)) + chunk(b"IEND", b"")
    return b"\x89PNG\r\n\x1a\n" + chunks


def as_csv(rows: Sequence[Sequence[str]]) -> bytes:
    """Return rows as a CSV file."""
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows(rows)
    return text.getvalue().encode("utf-8", "surrogatepass")


def copied(original: Path, folder: Path) -> Path:
    """Return a copy of a folder."""
    target = folder / "copy"
    shutil.copytree(original, target, ignore=shutil.ignore_patterns(".lock"))
    return target


def shown(content: bytes | str) -> str:
    """Return the beginning of an input, for the report."""
    text = content if isinstance(content, str) else content.decode("latin-1")
    return ascii(text if len(text) <= 60 else f"{text[:50]}...({len(text)})")
