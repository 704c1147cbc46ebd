"""Large plain tables are read as the general reader reads them, or left to it."""

import dataclasses
import random
import tracemalloc

import numpy as np
import pytest

from flbench.core.errors import DataError
from flbench.data import plain_tables, sources
from flbench.data.partition_files import data_hash
from tests.support import config_of

NUMBERS = (
    "0",
    "-1",
    "+3.5",
    ".5",
    "5.",
    "1e-3",
    "6.02E23",
    "0.1",
    "1e-400",
    "123456789012345678901",
)
NUMBERS += ("0.30000000000000004", "2.2250738585072014e-308", "9007199254740993", "-0.0", "3e38")
MISSING = ("", "?", "NA", "nan", "NaN", "nUlL", "None", "na")


def table(seed, rows=200, words=True, end="\n"):
    draw = random.Random(seed)
    lines = ["age,size of it,kind,label"]
    for _ in range(rows):
        kind = draw.choice(("red", "dark blue", "x_1", *MISSING)) if words else draw.choice(NUMBERS)
        fields = [draw.choice((*NUMBERS, *MISSING[:4])), repr(draw.gauss(0, 1)), kind]
        lines.append(",".join([*fields, draw.choice(("yes", "no", "1", "2.5"))]))
    return end.join(lines) + end


def read(folder, monkeypatch, *, plain, label=None):
    monkeypatch.setattr(plain_tables, "SMALLEST", 0 if plain else 2**60)
    used = []
    monkeypatch.setattr(plain_tables, "read", counted(plain_tables.read, used))
    keys = [f"data.path={folder}"] + ([] if label is None else [f"data.label={label}"])
    dataset = sources.load(config_of(*keys).data)
    return dataset, [found is not None for found in used]


def counted(function, used):
    def call(*arguments):
        used.append(function(*arguments))
        return used[-1]

    return call


@pytest.fixture
def folder(tmp_path):
    return tmp_path / "tables"


def write(folder, **files):
    folder.mkdir(exist_ok=True)
    for name, content in files.items():
        data = content if isinstance(content, bytes) else content.encode()
        (folder / f"{name}.csv").write_bytes(data)


@pytest.mark.parametrize(
    ("files", "label"),
    [
        ({"a": table(0), "b": table(1)}, None),
        ({"a": table(2, end="\r\n")}, None),
        ({"a": b"\xef\xbb\xbf" + table(3).encode().rstrip()}, None),
        ({"a": table(4, words=False)}, "label"),
        ({"a": "w,kind,n\n" + "x,red,1\nx y,blue,\n,red,3.5\n" * 9}, "kind"),  # not the last one
        ({"a": "u,v\n1,2\n3,4\n5,2\n7,9\n8,4\n"}, "v > 3"),
    ],
)
def test_plain_tables_give_the_data_set_of_the_general_reader(folder, files, label, monkeypatch):
    write(folder, **files)

    slow, _ = read(folder, monkeypatch, plain=False, label=label)
    monkeypatch.undo()
    fast, used = read(folder, monkeypatch, plain=True, label=label)

    assert used == [True] * len(files)
    assert data_hash(fast) == data_hash(slow)
    assert fast.x.tobytes() == slow.x.tobytes()
    for field in dataclasses.fields(fast):
        one, other = getattr(fast, field.name), getattr(slow, field.name)
        assert (
            np.array_equal(one, other, equal_nan=True)
            if field.name == "x"
            else (np.array_equal(one, other) if isinstance(one, np.ndarray) else one == other)
        )


@pytest.mark.parametrize(
    "content",
    [
        'a,b\n"1",x\n2,y\n3,y\n',  # quotes
        "a,b\n 1,x\n2,y\n3,y\n",  # blanks at the end of a field
        "a,b\n1,x\n\n2,y\n3,y\n",  # an empty line
        "a,b\n1,\xe9\n2,y\n3,y\n",  # more than ASCII
        "a,b\n1,1\n2,01\n3,1\n",  # labels that are the same number
        "a,b\n1,x\n2,y,3\n3\n",  # as many commas as there should be
        "a,b\n1,x\n2\n3,y\n",
        "a,b\n1,x\n2,\n3,y\n",  # a row without a label
        "a,b\n1e39,x\n2,y\n3,y\n",  # too large for float32
        "a,b\ninf,x\n2,y\n3,y\n",
        "a,b\n1_0,x\n2,y\n3,y\n",  # a number and a word
        "a,b\nTrue,x\n2,y\n3,y\n",
        "a,b\nred,x\n" + "2,y\n" * 3,
        "a,b\n" + "2,y\n" * 200 + "red,x\n",  # a word after the first rows
        "a,a\n1,x\n2,y\n",
        "a,\n1,\n2,\n",
        "a;b\n1;x\n2;y\n",
        "a,b\n",
    ],
)
def test_all_other_tables_are_left_to_the_general_reader(folder, content, monkeypatch):
    write(folder, a=content)

    def outcome(*, plain):
        try:
            dataset, _ = read(folder, monkeypatch, plain=plain)
        except DataError as error:
            return str(error)
        finally:
            monkeypatch.undo()
        return data_hash(dataset)

    assert outcome(plain=True) == outcome(plain=False)


@pytest.mark.slow
def test_a_large_table_of_numbers_takes_a_few_times_its_memory(folder, monkeypatch):
    draw = np.random.default_rng(0)
    values = draw.integers(0, 1000, (20_000, 12))
    lines = [",".join(map(str, row)) + f",{'xy'[row[0] % 2]}" for row in values.tolist()]
    write(folder, a="\n".join([",".join("abcdefghijkl") + ",label", *lines, ""]))
    peaks = []
    for plain in (True, False):
        tracemalloc.start()
        dataset, _ = read(folder, monkeypatch, plain=plain)
        peaks.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
        monkeypatch.undo()
        assert dataset.x.shape == (20_000, 12)

    assert 2 * peaks[0] < peaks[1]
