"""What the source of a part consists of: a constant that the part uses changes its hash."""

import importlib
import linecache
import sys
import types
from itertools import count
from textwrap import dedent

import pytest
from torch import nn

from flbench.core import parts, source_hash

CELLS = count()


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """The current folder, which Python searches for modules."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    yield tmp_path
    forget(tmp_path)


def forget(folder):
    """Remove the modules that were imported from a folder."""
    tops = {path.stem for path in folder.iterdir()} - {"flbench"}
    for name in [name for name in sys.modules if name.partition(".")[0] in tops]:
        del sys.modules[name]


def written(folder, files):
    """Write modules, and forget those that were imported from the folder."""
    forget(folder)
    for name, text in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    importlib.invalidate_caches()


def by_path(folder, files, path):
    written(folder, files)
    parts.find(path)
    return source_hash.of_path(path)


PACKAGE = {"pk/__init__.py": "", "pk/constants.py": "K = 1\n"}
LAZY = "def f():\n    {}\n"


@pytest.mark.parametrize(
    ("files", "path"),
    [
        ({"pk/__init__.py": "", "pk/part.py": "K = 1\n"}, "pk.part:K"),
        (PACKAGE | {"pk/part.py": "from . import constants as other\n"}, "pk.part:other"),
        (PACKAGE | {"pk/part.py": "from .constants import *\n"}, "pk.part:K"),
        (PACKAGE | {"pk/deep/part.py": "from ..constants import K\n"}, "pk.deep.part:K"),
        (PACKAGE | {"pk/part.py": LAZY.format("from .constants import K")}, "pk.part:f"),
        (
            {
                "pk/__init__.py": "",
                "pk/base.py": "class Base:\n    k = 1\n",
                "pk/part.py": "from . import base\nclass Part(base.Base): ...\n",
            },
            "pk.part:Part",
        ),
        ({"pk/__init__.py": "from .part import K\n", "pk/part.py": "K = 1\n"}, "pk:K"),
        (
            PACKAGE
            | {"pk/more.py": "from .constants import K\n", "pk/part.py": "from .more import K\n"},
            "pk.part:K",
        ),
        ({"beside.py": "K = 1\n", "part.py": "from beside import K\n"}, "part:K"),
    ],
    ids=str,
)
def test_constants_of_modules_count(files, path, folder):
    edited = {name: text.replace("1", "2") for name, text in files.items()}

    assert by_path(folder, files, path) == by_path(folder, files, path)
    assert by_path(folder, files, path) != by_path(folder, edited, path)


def test_the_hash_does_not_depend_on_whether_the_module_has_been_imported(folder):
    written(folder, {"part.py": "class Part: ..."})
    before = source_hash.of_path("part:Part")

    parts.find("part:Part")
    assert source_hash.of_path("part:Part") == before


def test_modules_that_are_not_imported_by_the_part_do_not_count(folder):
    """The hash is the same whatever else the process has imported, and imports nothing."""
    files = PACKAGE | {
        "pk/__init__.py": "K = 1\n",
        "pk/part.py": f"from . import K\n{LAZY.format('from .later import L')}",
        "pk/later.py": "raise RuntimeError('imported')\n",
    }
    before = by_path(folder, files, "pk.part:f")
    (folder / "pk/constants.py").write_text("K = 2\n")  # an unused file
    importlib.import_module("pk.constants")

    assert source_hash.of_path("pk.part:f") == before
    assert set(source_hash.files("pk.part")) == {"pk", "pk.later", "pk.part"}
    assert "pk.later" not in sys.modules


def test_flbench_is_known_by_its_version_in_a_folder_that_contains_it_too(folder):
    text = "from flbench.inner import x\n"
    written(folder, {"mine.py": text, "flbench/__init__.py": "", "flbench/inner.py": "x = 1\n"})

    assert set(source_hash.files("mine")) == {"mine"}


def in_notebook(monkeypatch, *cells):
    """Return the hash of `part` after these cells of a notebook."""
    main = types.ModuleType("__main__")
    monkeypatch.setitem(sys.modules, "__main__", main)
    for cell in map(dedent, cells):
        name = f"<cell {next(CELLS)}>"
        linecache.cache[name] = (len(cell), None, cell.splitlines(True), name)
        exec(compile(cell, name, "exec"), vars(main))
    return source_hash.of_object(main.part)


CLASS = "class part(Base):\n    def f(self, x=3):\n        return {}\n"
HOLDER = "from dataclasses import dataclass\n@dataclass\nclass A:\n    k: int\n"
BASE = "class Base: ...\n"
CALLER = "def part(c):\n    return f(c)"
WRAP = "def deco(f):\n    def g(*a):\n        return ONE * f(*a)\n    return g\n"


@pytest.mark.parametrize(
    "cells",
    [
        (BASE, CLASS.format("ONE")),
        (BASE, "K = ONE", CLASS.format("K")),
        (BASE, "def h():\n    return ONE", "def g():\n    return h()", CLASS.format("g()")),
        ("class Base:\n    k = ONE", CLASS.format("self.k")),
        ("def make(k):\n    def f(c):\n        return k\n    return f", "part = make(ONE)"),
        ("def part(c, k=ONE):\n    return k",),
        (WRAP, "@deco\ndef part(c):\n    return c"),
        (BASE, WRAP, CLASS.format("x").replace("    def", "    @deco\n    def")),
        ("from functools import partial\ndef f(c, k):\n    return k", "part = partial(f, k=ONE)"),
        (HOLDER, "part = A(ONE)"),
        ("from functools import cache\n@cache\ndef f(n):\n    return ONE", CALLER),
    ],
    ids=str,
)
def test_what_code_of_a_notebook_uses_counts(cells, monkeypatch):
    one, again, two = (
        in_notebook(monkeypatch, *(cell.replace("ONE", value) for cell in cells))
        for value in ("1", "1", "2")
    )

    assert one == again
    assert one != two


@pytest.mark.parametrize(
    "cells",
    [
        (BASE, "def unused():\n    return ONE", CLASS.format("x")),
        ("seen = [ONE]", "def part(c):\n    seen.append(c)\n    return c"),
        (
            "class A:\n    def __init__(self):\n        self.n = 0\n"
            "    def f(self):\n        self.n += 1",
            "part = A()\npart.n = ONE",
        ),
    ],
    ids=str,
)
def test_what_code_of_a_notebook_does_not_use_or_changes_itself_does_not_count(cells, monkeypatch):
    one, two = (
        in_notebook(monkeypatch, *(cell.replace("ONE", value) for cell in cells))
        for value in ("1", "2")
    )

    assert one == two


@pytest.mark.parametrize("how", ["import beside", "lazy"])
def test_modules_beside_a_notebook_count(how, folder, monkeypatch):
    cell = {
        "import beside": "import beside\ndef part():\n    return beside.f()",
        "lazy": "def part():\n    from beside import f\n    return f()",
    }[how]
    hashes = []
    for value in (1, 1, 2):
        written(folder, {"beside.py": f"def f():\n    return {value}\n"})
        hashes.append(in_notebook(monkeypatch, cell))

    assert hashes[0] == hashes[1] != hashes[2]


@pytest.mark.slow
def test_code_of_a_net_counts_and_that_of_pytorch_does_not(monkeypatch):
    cell = (
        "from torch import nn\nclass Net(nn.Module):\n"
        "    def forward(self, x):\n        return x * {}\n"
        "part = nn.Sequential(Net())"
    )
    hashes = []
    for value in (1, 1, 2):
        in_notebook(monkeypatch, cell.format(value))
        hashes.append(source_hash.of_net(sys.modules["__main__"].part))

    assert hashes[0] == hashes[1] != hashes[2]
    assert source_hash.is_of_package(nn.Linear)
    assert source_hash.of_net(nn.Linear(2, 2)) is None


def test_code_without_a_text_has_no_hash():
    names = {"__name__": "__main__"}
    exec("def part(): return 1", names)

    assert source_hash.of_object(names["part"]) is None


@pytest.mark.slow
def test_versions_of_packages_are_those_of_the_modules_and_their_imports():
    import pydantic

    assert source_hash.versions(["pydantic.main"])["pydantic"] == pydantic.VERSION
