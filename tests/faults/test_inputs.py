"""Malformed inputs: each gets a message and exit code 2, or is accepted; none gets a traceback.

They are drawn from the seed `FLBENCH_FAULTS_SEED`; `FLBENCH_FAULTS_INPUTS` is their number. Tables
of `tests/config` and `tests/data` have what must be refused; `test_folders.py` mutates folders.
"""

import io
import os
import resource
import zipfile
from collections.abc import Callable
from pathlib import Path
from random import Random

import numpy as np
import pytest
from PIL import Image

from flbench.cli import app
from flbench.config.schema import Config
from flbench.config.sources import leaves
from tests.forks import Fork

SEED = os.environ.get("FLBENCH_FAULTS_SEED", "0")
COUNT = int(os.environ.get("FLBENCH_FAULTS_INPUTS", "270"))
LIMIT = 30.0  # seconds of a call; an intact input of this size takes less than one
MEMORY = 16 * 2**30  # bytes of addresses: a device without an end must not take the machine's
FEW = ("partition.clients=3", "partition.min_samples=1", "partition.scheme=iid")
SECTIONS = ("data", "partition", "model", "algorithm", "train", "train.optimizer", "engine")
KEYS = (*leaves(Config().tree()), *SECTIONS, "nonsense", "x" * 5_000, "a." * 500 + "b")
N = 30_000
VALUES = (
    *("!!int abc", "!!float 1e", "!!timestamp 2001-99-99", "!!binary '@'", "!!set word", "! 3"),
    *("9" * 5_000, "-" + "9" * N, "0x" + "f" * N, ":".join(["59"] * N), "1e400", ".nan", "-1", "0"),
    *('"\\0"', '"\\ud800"', "a\x00b", "\x1b[31m", "\ufffe", '"\\q"', "'open", "[1, 2", "%", "@"),
    *("[" * N, "[" * N + "]" * N, "{a: " * N + "1" + "}" * N, "&a [*a]", "*nowhere", "{1: 2}"),
    *(f"[{', '.join(['1'] * N)}]", "{[1, 2]: 3}", "{<<: [1, 2]}", " " * N, "x" * N, "null", "[]"),
    *("{}", "''", "[null]", "=", "٣", "1_000_000", "--- 1", "[{name: x}]", "true", ">" * N),
)
"""Values of YAML, in files and on the command line."""
WHOLE = b"seed: 1\ntrain:\n  rounds: 3\n  optimizer: {lr: 0.1}\nalgorithm: fedavg\n"
CELLS = ("x", "inf", "1e39", "9" * 5_000, "٣", "1_0", "\x00", "=1+1", " " * N, '"')
LABELS = ("num > .", "num > 1e999", "num >", "> 1", "a > b > 1", "num" + " " * N + "> 1", ">" * N)
TYPES = ("f4", "f8", "c16", "u2", "i1", "U5", "S5", "?", "M8[s]", "f2", "O")
SHAPES = ((40, 0, 8), (0,), (40, 1, 1, 2), (40, 8, 8, 3), (), (40, 40), (1,))

pytestmark = [pytest.mark.faults, pytest.mark.timeout(1200)]


def configuration(rng: Random, folder: Path) -> list[str]:
    """Return a call with a configuration file."""
    lines = [f"{'  ' * k}{part}:" for k, part in enumerate(rng.choice(KEYS).split("."))]
    placed = ("\n".join(lines) + f" {rng.choice(VALUES)}\n").encode("utf-8", "surrogatepass")
    file = folder / "my.yaml"
    file.write_bytes(rng.choice([placed, placed, damaged(rng, WHOLE)]))
    roads = (["run", "--print-config"], ["data", "digits"])
    return [*rng.choice(roads), "--config", str(file)]


def override(rng: Random, folder: Path) -> list[str]:
    """Return a call with an item `key=value`."""
    item = f"{rng.choice(KEYS)}={rng.choice(VALUES)}".replace("\x00", "")
    return [*rng.choice([["run", "--print-config"], ["data", "digits"]]), item]


def npz(rng: Random, folder: Path) -> list[str]:
    """Return a call with an NPZ file of images."""
    x = np.arange(40 * 64, dtype=np.uint8).reshape(40, 8, 8)
    arrays = {"train_images": x, "train_labels": np.arange(40) % 4}
    name = rng.choice([*arrays, "class_names", "train_groups", "test_images"])
    array = arrays.get(name, np.arange(40))
    arrays[name] = rng.choice(
        [
            array.astype(rng.choice(TYPES)),
            np.zeros(rng.choice(SHAPES), array.dtype),
            np.concatenate([array, array])[: rng.choice([0, 1, 39, 41])],
        ]
    )
    file = folder / "x.npz"
    np.savez(file, **arrays)
    if rng.random() < 0.3:
        file.write_bytes(damaged(rng, file.read_bytes()))
    scheme = rng.choice(["iid", "dirichlet", "pathological", "grouped", "quantity", "natural"])
    return ["data", *FEW, f"partition.scheme={scheme}", f"data.path={file}"]


def images(rng: Random, folder: Path) -> list[str]:
    """Return a call with a folder or ZIP file of images."""
    names = [f"{part}/{c}/{k}.png" for part in ("train", "test") for c in "ab" for k in range(4)]
    entries = {name: picture(10 * k) for k, name in enumerate(names)}
    victim = rng.choice(names)
    entries[victim] = rng.choice(
        [damaged(rng, entries[victim]), b"", picture(3, size=rng.choice([1, 7, 9]))]
    )
    return ["data", *FEW, f"data.path={placed(rng, folder / 'pics', entries)}"]


def tables(rng: Random, folder: Path) -> list[str]:
    """Return a call with a folder or ZIP file of CSV tables."""
    rows = [["a", "b", "num"], *([str(k), str(k % 3), str(k % 4)] for k in range(20))]
    whole = "\n".join(map(",".join, rows)).encode()
    rows[rng.randint(0, 20)][rng.randrange(3)] = rng.choice(CELLS)
    wrong = rng.choice(["\n".join(map(",".join, rows)).encode(), damaged(rng, whole)])
    label = [f"data.label='{rng.choice(LABELS)}'"] if rng.random() < 0.3 else []
    place = placed(rng, folder / "tab", {"one.csv": wrong, "two.csv": whole})
    return ["data", *FEW, *label, f"data.path={place}"]


def placed(rng: Random, place: Path, entries: dict[str, bytes]) -> Path:
    """Write files into a folder, of which one may be no file, or into a ZIP file, maybe damaged."""
    if rng.random() < 0.5:
        file = place.with_suffix(".zip")
        with zipfile.ZipFile(file, "w") as made:
            for name, content in entries.items():
                made.writestr(name, content)
        if rng.random() < 0.3:
            file.write_bytes(damaged(rng, file.read_bytes()))
        return file
    for name, content in entries.items():
        (place / name).parent.mkdir(parents=True, exist_ok=True)
        (place / name).write_bytes(content)
    if rng.random() < 0.3:
        file = place / rng.choice(list(entries))
        file.unlink()
        kind = rng.choice(["pipe", "folder", file.name, "nowhere", "/dev/zero", "/dev/null"])
        {"pipe": os.mkfifo, "folder": Path.mkdir}.get(kind, lambda file: file.symlink_to(kind))(
            file
        )
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


def picture(value: int, *, size: int = 8) -> bytes:
    """Return an image with one darker pixel."""
    pixels = np.full((size, 8, 3), value, dtype=np.uint8)
    pixels[0, 0] = value // 2
    Image.fromarray(pixels).save(data := io.BytesIO(), "PNG")
    return data.getvalue()


FAMILIES: tuple[Callable[[Random, Path], list[str]], ...] = (
    *(configuration, override, npz, images, tables),
)
"""They are tried in turn. Each writes what it needs into an empty folder."""


def called(folder: Path, arguments: list[str]) -> int:
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
    os.chdir(folder)
    return app.main(arguments)


def test_malformed_inputs_get_a_message(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    found, refused = [], 0
    for k in range(COUNT):
        folder = tmp_path / f"{k:04d}"
        folder.mkdir()
        arguments = FAMILIES[k % len(FAMILIES)](Random(f"{SEED}/{k}"), folder)
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
            found.append(f"{name}: {k} {arguments!r:.200}\n{fork.err.strip()[-600:]}")

    assert not found, "\n\n".join(found)
    assert refused > COUNT / 3
