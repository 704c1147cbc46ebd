"""Malformed inputs: each gets a message and exit code 2, or is accepted; none gets a traceback.

They are drawn from the seed `FLBENCH_FAULTS_SEED`; `FLBENCH_FAULTS_INPUTS` is their number. Tables
of `tests/config` and `tests/data` have what must be refused; `test_folders.py` mutates folders.
"""

import csv
import io
import os
import resource
import shutil
import socket
import struct
import zipfile
import zlib
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import NamedTuple

import numpy as np
import pytest
from PIL import Image

from flbench.cli import app
from flbench.config.schema import Config
from flbench.config.sources import leaves
from tests.forks import Fork
from tests.support import interrupted_run, run

SEED = os.environ.get("FLBENCH_FAULTS_SEED", "0")
COUNT = int(os.environ.get("FLBENCH_FAULTS_INPUTS", "270"))
LIMIT = 30.0  # seconds of a call; an intact input of this size takes less than one
MEMORY = 16 * 2**30  # bytes of addresses: a device without an end must not take the machine's
FEW = ("partition.clients=3", "partition.min_samples=1", "partition.scheme=iid")
KEYS = tuple(leaves(Config().tree()))
SECTIONS = ("data", "partition", "model", "algorithm", "train", "train.optimizer", "engine")
N = 30_000
BOMB = "[&a [x, x, x], &b [*a, *a, *a, *a], &c [*b, *b, *b, *b], &d [*c, *c, *c, *c], *d]"
VALUES = (
    *("!!int abc", "!!int ٣", "!!float 1e", "!!bool maybe", "!!timestamp 2001-99-99", "2001-99-99"),
    *("!!binary '@'", "!!omap [1, [2]]", "!!set word", "!!python/object/apply:os.getpid []", "! 3"),
    *("9" * 5_000, "-" + "9" * N, "0x" + "f" * N, "0" + "7" * N, ":".join(["59"] * N), "1e400"),
    *('"\\0"', '"\\ud800"', "a\x00b", "\x1b[31m", "\ufffe", '"\\q"', "'open", "[1, 2", "%", "@"),
    *("[" * N, "[" * N + "]" * N, "{a: " * N + "1" + "}" * N, "&a [*a]", "&a {a: *a}", "*nowhere"),
    *(BOMB, f"[{', '.join(['1'] * N)}]", "{[1, 2]: 3}", "{{a: 1}: 3}", "{1: 2}", "{<<: [1, 2]}"),
    *(
        "- 1",
        "\t1",
        " " * N,
        "x" * N,
        ".nan",
        "-1",
        "0",
        "null",
        "true",
        "[]",
        "{}",
        "''",
        "[null]",
    ),
    *("=", "٣", "1_000_000", "--- 1", "[{name: x}]", "3"),
)
"""Values of YAML."""
WHOLE = b"seed: 1\ntrain:\n  rounds: 3\n  optimizer: {lr: 0.1}\nalgorithm: fedavg\n"
FILES = (
    *(
        WHOLE + b"--- \nseed: 2\n",
        b"\xff\xfe" + WHOLE.decode().encode("utf-16-le"),
        WHOLE + b"\x00",
    ),
    *(
        "\ufeff".encode() + WHOLE,
        WHOLE + "# é\n".encode("latin-1"),
        b"- " * N,
        b"? " * N,
        b"[1, 2]",
    ),
    *(b"a: [" + b"1," * 490_000 + b"]", b"".join(b"k%d: 1\n" % k for k in range(70_000)), b"word"),
    *(
        b"seed: " + b" " * 900_000 + b"1\n",
        b"seed: |\n" + b"  x\n" * 200_000,
        b"seed: 1\nseed: 2\n",
    ),
)
"""Contents of configuration files."""
LABELS = (
    *(
        "num > 1.2.3",
        "num > .",
        "num > 1e999",
        "num >",
        "> 1",
        "",
        "num => 1",
        "num > nan",
        "a > b > 1",
    ),
    *(" " * N, "num" + " " * N + "> 1", "num > " + "1" * N, ">" * N, "num " + ">= " * N, "."),
)
CELLS = ("x", "inf", "1e39", "9" * 5_000, "٣", "1_0", "\x00", "=1+1", " " * N)
NAMES = ("\n", "=1+1", "\x1b[31mred", "x" * 200, " ", "'", "[bold]", "e\u0301\u202e")
TYPES = ("f4", "f8", "c16", "u2", "i1", "U5", "S5", "?", "M8[s]", "m8[s]", "f2", "O")
SHAPES = ((40, 0, 8), (40, 8, 0), (0,), (40, 1, 1, 2), (40, 8, 8, 3), (), (40, 40), (1,))

pytestmark = [pytest.mark.faults, pytest.mark.timeout(1200)]


class Originals(NamedTuple):
    """Folders of a finished and of an interrupted run."""

    finished: Path
    interrupted: Path


Call = tuple[str, list[str]]
"""What is tried, and the arguments of the command line."""


@pytest.fixture(scope="module")
def originals(tmp_path_factory) -> Originals:
    root = tmp_path_factory.mktemp("originals")
    finished, _ = run(root / "finished", "algorithm=fedavg")
    return Originals(finished, interrupted_run(root / "interrupted", "algorithm=fedavg"))


def configuration(rng: Random, folder: Path, originals: Originals) -> Call:
    """A configuration file, the config.yaml of a run folder, or a search space."""
    key, value = rng.choice([*KEYS, *SECTIONS, "nonsense", "x" * 5_000]), rng.choice(VALUES)
    lines = [f"{'  ' * k}{part}:" for k, part in enumerate(key.split("."))]
    placed = ("\n".join(lines) + f" {value}\n").encode("utf-8", "surrogatepass")
    content = rng.choice([placed, placed, placed, damaged(rng, WHOLE), rng.choice(FILES)])
    road = rng.choice(["--config", "--config", "--config", "data", "show", "resume", "space"])
    file = folder / "my.yaml"
    if road in ("show", "resume"):
        original = originals.finished if road == "show" else originals.interrupted
        shutil.copytree(original, folder / "copy", ignore=shutil.ignore_patterns(".lock"))
        file = folder / "copy" / "config.yaml"
    file.write_bytes(content)
    # Nothing listens at the address of the study, so it cannot start.
    words = {
        "--config": ["run", "--print-config", "--config", str(file)],
        "data": ["data", "digits", "--config", str(file)],
        "show": ["show", str(file.parent)],
        "resume": ["run", "--resume", str(file.parent)],
        "space": ["tune", "fedavg", "--address", "127.0.0.1:1", "--space", str(file)],
    }
    return f"{road} {content[:60]!r}", words[road]


def override(rng: Random, folder: Path, _: Originals) -> Call:
    """Items `key=value`."""
    value, key = rng.choice(VALUES), rng.choice([*KEYS, *KEYS, *SECTIONS])
    other = rng.choice(["engine.device=cuda:٣", "partition.split=[1]", "data.label=" + ">" * N])
    odd = rng.choice(
        [f"{'a.' * 500}b=1", f"{'x' * N}=1", f"{'.' * N}=1", f"{'[' * N}=1", "\ud800=1"]
    )
    items = [rng.choice([f"{key}={value}"] * 4 + [f"{key}.x={value}", other, odd])]
    items = [item for item in items if "\x00" not in item] or ["seed="]
    return f"{items[0][:60]!r}", [
        *rng.choice([["run", "--print-config"], ["data", "digits"]]),
        *items,
    ]


def npz(rng: Random, folder: Path, _: Originals) -> Call:
    """An NPZ file of images."""
    file, x = folder / "x.npz", np.arange(40 * 64, dtype=np.uint8).reshape(40, 8, 8)
    arrays = {"train_images": x, "train_labels": np.arange(40) % 4}
    kind = rng.choice(["array", "array", "array", "classes", "bytes", "entry", "flag"])
    if kind == "array":
        name = rng.choice([*arrays, "class_names", "train_groups", "val_images", "test_images"])
        arrays[name] = wrong_array(rng, arrays.get(name, np.arange(40)))
    elif kind == "classes":  # many classes and clients in a small file
        n = rng.choice([40, 500, 3_000])
        arrays = {"train_images": np.zeros((n, 8, 8), np.uint8), "train_labels": np.arange(n)}
        arrays["train_groups"] = np.arange(n) // rng.choice([1, 2, 10])
    np.savez(file, **arrays)
    if kind == "bytes":
        file.write_bytes(damaged(rng, file.read_bytes()))
    elif kind == "entry":
        with zipfile.ZipFile(file, "a") as archive:
            name = rng.choice(["x.txt", "../up.npy", "\x1b[31m.npy", "a/b.npy"])
            archive.writestr(name, damaged(rng, b"\x93NUMPY\x01\x00" + b" " * 30))
    elif kind == "flag":
        flagged(rng, file)
    scheme = rng.choice(["iid", "dirichlet", "pathological", "grouped", "quantity", "natural"])
    return kind, ["data", *FEW, f"partition.scheme={scheme}", f"data.path={file}"]


def wrong_array(rng: Random, array: np.ndarray) -> np.ndarray:
    """Return an array of another type, shape or length, or with other values."""
    kind = rng.choice(["type", "type", "shape", "shape", "values", "length"])
    if kind == "type":
        return array.astype(rng.choice(TYPES))
    if kind == "shape":
        return np.zeros(rng.choice(SHAPES), array.dtype)
    if kind == "values":
        return np.full_like(
            array, rng.choice([np.iinfo(array.dtype).max, np.iinfo(array.dtype).min])
        )
    return np.concatenate([array, array])[: rng.choice([0, 1, 39, 41])]


def images(rng: Random, folder: Path, _: Originals) -> Call:
    """A folder or ZIP file of images."""
    entries = {
        f"{part}/{label}/{k}.png": picture(10 * k)
        for part in ("train", "test")
        for label in ("a", "b")
        for k in range(4)
    }
    victim = rng.choice(list(entries))
    kind = rng.choice(
        ["bytes", "bytes", "bytes", "empty", "size", "format", "claim", "name", "files"]
    )
    if kind == "bytes":
        entries[victim] = damaged(rng, entries[victim])
    elif kind == "empty":
        entries[victim] = b""
    elif kind == "size":
        entries[victim] = picture(3, size=rng.choice([1, 7, 9]))
    elif kind == "format":
        entries[victim] = picture(3, kind=rng.choice(["BMP", "GIF", "TIFF", "PPM"]))
    elif kind == "claim":  # of a size that the file has not
        size, good = rng.choice([0, 2**31 - 1, 2**32 - 1, 60_000]), entries[victim]
        head = good[12:16] + struct.pack(">II", size, rng.choice([8, size])) + good[24:29]
        entries[victim] = good[:12] + head + struct.pack(">I", zlib.crc32(head)) + good[33:]
    elif kind == "name":
        odd = rng.choice(NAMES)
        entries = {name.replace("/a/", f"/{odd}/"): content for name, content in entries.items()}
    else:
        entries = rng.choice([{}, {"train/a.txt": b"x", "readme.md": b"x"}])
    place = placed(rng, folder / "pics", entries)
    return f"{kind} {place.suffix}", ["data", *FEW, f"data.path={place}"]


def tables(rng: Random, folder: Path, _: Originals) -> Call:
    """A folder or ZIP file of CSV tables."""
    rows = [["a", "b", "num"], *([str(k), str(k % 3), str(k % 4)] for k in range(20))]
    files = {"one.csv": as_csv(rows), "two.csv": as_csv(rows)}
    kind, extra = (
        rng.choice(["bytes", "bytes", "cell", "cell", "label", "label", "clients", "wide"]),
        [],
    )
    if kind == "bytes":
        files["one.csv"] = damaged(rng, files["one.csv"])
    elif kind == "cell":
        rows[rng.randint(0, 20)][rng.randrange(3)] = rng.choice(CELLS)
        files["one.csv"] = as_csv(rows)
    elif kind == "label":
        extra = [f"data.label='{rng.choice(LABELS)}'"]
    elif kind == "clients":
        files = {f"{k}.csv": as_csv(rows[:5]) for k in range(rng.choice([500, 2_000]))}
        extra = [rng.choice(["partition.scheme=natural", "seed=1"]), "partition.clients=null"]
    else:
        files = {"one.csv": as_csv([[f"c{k}" for k in range(2_000)], ["1"] * 2_000, ["0"] * 2_000])}
    place = placed(rng, folder / "tab", files)
    return f"{kind} {place.suffix}", ["data", *FEW, *extra, f"data.path={place}"]


def placed(rng: Random, place: Path, entries: dict[str, bytes]) -> Path:
    """Write files into a folder, of which one may be no file, or into a ZIP file, maybe damaged."""
    if rng.random() < 0.5:
        file = place.with_suffix(".zip")
        with zipfile.ZipFile(
            file, "w", rng.choice([zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED])
        ) as made:
            for name, content in entries.items():
                made.writestr(name, content)
        if rng.random() < 0.2:
            file.write_bytes(damaged(rng, file.read_bytes()))
        elif rng.random() < 0.2 and entries:
            flagged(rng, file)
        return file
    place.mkdir()
    for name, content in entries.items():
        (place / name).parent.mkdir(parents=True, exist_ok=True)
        (place / name).write_bytes(content)
    if rng.random() < 0.3 and entries:
        special_file(rng, place / rng.choice(list(entries)))
    elif rng.random() < 0.2:
        Path(os.fsdecode(os.fsencode(place) + b"/\xff.csv")).write_bytes(b"a,num\n1,2\n")
    return place


def damaged(rng: Random, content: bytes) -> bytes:
    """Return content after one to three random changes."""
    for _ in range(rng.randint(1, 3)):
        low = rng.randint(0, len(content))
        high = min(len(content), low + rng.choice([1, 2, 10, 100]))
        middle = [b"", rng.randbytes(high - low), bytes(high - low), b"\xff", content[low:high] * 2]
        changed = content[:low] + rng.choice(middle) + content[high:]
        content = rng.choice([content[:low], content[low:], *[changed] * 4])
    return content


def special_file(rng: Random, file: Path) -> None:
    """Replace a file by something that is not a regular file."""
    kind = rng.choice(
        ["pipe", "pipe", "zero", "random", "null", "socket", "folder", "loop", "link"]
    )
    file.unlink()
    if kind == "pipe":
        os.mkfifo(file)
    elif kind == "socket":  # its path must be short, so it is bound by its relative name
        here = os.open(file.parent, os.O_RDONLY)
        with socket.socket(socket.AF_UNIX) as server:
            server.bind(f"/proc/self/fd/{here}/{file.name}")
        os.close(here)
    elif kind == "folder":
        file.mkdir()
    else:
        file.symlink_to({"loop": file.name, "link": "nowhere"}.get(kind, f"/dev/{kind}"))


def flagged(rng: Random, file: Path) -> None:
    """Mark an entry of a ZIP file as encrypted, or as packed by an unknown method."""
    content = bytearray(file.read_bytes())
    mark, place = rng.choice([(b"PK\x03\x04", 6), (b"PK\x01\x02", 8)])
    spots = [k for k in range(len(content) - 4) if content[k : k + 4] == mark]
    spot = rng.choice(spots) + place
    if rng.random() < 0.5:
        content[spot] |= rng.choice([0x01, 0x20, 0x40])
    else:
        content[spot + 2 : spot + 4] = struct.pack("<H", rng.choice([1, 9, 98, 999]))
    file.write_bytes(content)


def picture(value: int, *, size: int = 8, kind: str = "PNG") -> bytes:
    """Return a grey image with one darker pixel."""
    pixels = np.full((size, 8, 3), value, dtype=np.uint8)
    pixels[0, 0] = value // 2
    Image.fromarray(pixels).save(data := io.BytesIO(), kind)
    return data.getvalue()


def as_csv(rows: list[list[str]]) -> bytes:
    """Return rows as a CSV file."""
    csv.writer(text := io.StringIO(), lineterminator="\n").writerows(rows)
    return text.getvalue().encode("utf-8", "surrogatepass")


FAMILIES: tuple[Callable[[Random, Path, Originals], Call], ...] = (
    *(configuration, override, npz, images, tables),
    *(configuration, override),
)
"""They are tried in turn. Each writes what it needs into an empty folder."""


def called(folder: Path, arguments: list[str]) -> int:
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
    os.chdir(folder)
    return app.main(arguments)


def test_malformed_inputs_get_a_message(originals, tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    found, refused = [], 0
    for k in range(COUNT):
        family, folder = FAMILIES[k % len(FAMILIES)], tmp_path / f"{k:04d}"
        folder.mkdir()
        title, arguments = family(Random(f"{SEED}/{k}"), folder, originals)
        fork = Fork(tmp_path, called, folder, arguments)
        try:
            code = fork.wait(LIMIT)
        except AssertionError:
            code = None
        refused += code == 2
        faults = {
            "hang": code is None,
            "traceback": "Traceback (most recent call last)" in fork.err,
            f"exit code {code}": code not in (0, 2),
            "no message": code == 2 and not fork.err.strip(),
            "warning of a library": "Warning: " in fork.err,
        }
        for name in [name for name, is_so in faults.items() if is_so]:
            said = fork.err.strip()[-600:]
            found.append(f"{name}: {k} {family.__name__} {title}\n{said}")

    assert not found, "\n\n".join(found)
    assert refused > COUNT / 3
