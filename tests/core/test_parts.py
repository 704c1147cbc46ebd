"""Functions by import path: the hash of the file is that of the code that runs."""

import hashlib
import importlib
import importlib.util
import os
import py_compile
import sys

import pytest
import torch

from flbench.core import parts, source_hash
from flbench.core.errors import ConfigError

PATH = "edited_module:number"


@pytest.fixture
def file(tmp_path, monkeypatch):
    """A module of the user in the current folder, written by Python's cache of bytecode too."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path, str(tmp_path)])
    monkeypatch.setattr(sys, "dont_write_bytecode", False)
    monkeypatch.setattr(sys, "pycache_prefix", None)
    importlib.invalidate_caches()
    file = tmp_path / "edited_module.py"
    file.write_text("number = 1\n")
    yield file
    sys.modules.pop("edited_module", None)


def edit(file):
    file.write_text("number = 1000\n")
    os.utime(file, (1e9, 1e9))


def test_a_file_that_was_edited_after_the_import_is_refused_until_it_is_imported_anew(file):
    before = hashlib.sha256(file.read_bytes()).hexdigest()
    assert parts.find(PATH) == 1
    assert source_hash.of_path(PATH) == before

    edit(file)
    assert parts.find(PATH) == 1  # workers of a run that began before the edit go on
    with pytest.raises(ConfigError, match="edited_module"):
        source_hash.of_path(PATH)

    importlib.reload(sys.modules["edited_module"])
    assert parts.find(PATH) == 1000
    assert source_hash.of_path(PATH) == hashlib.sha256(file.read_bytes()).hexdigest()


def test_a_module_does_not_change_the_default_type_of_tensors(file):
    file.write_text("import torch\ntorch.set_default_dtype(torch.float64)\nnumber = 1\n")

    assert parts.find(PATH) == 1
    assert torch.get_default_dtype() == torch.float32


def test_code_is_loaded_from_its_source_and_not_from_bytecode_beside_it(tmp_path, monkeypatch):
    """Also the modules that it imports, at once and in a function; bytecode alone is no module."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    (tmp_path / "bytes_pack").mkdir()
    names = ("bytes_own", "bytes_beside", "bytes_later", "bytes_pack/part", "bytes_alone")
    for name in names:
        file = tmp_path / f"{name}.py"
        file.write_text("x = f = lambda: 'of the bytecode'\n")
        mode = py_compile.PycInvalidationMode.UNCHECKED_HASH
        py_compile.compile(str(file), invalidation_mode=mode)
        file.write_text("def x():\n    return 'of the source'\n")
    file.unlink()
    py_compile.compile(str(tmp_path / "bytes_later.py"), str(tmp_path / "bytes_alone.pyc"))
    (tmp_path / "bytes_own.py").write_text(
        "from bytes_beside import x\n"
        "from bytes_pack.part import x as y\n"
        "def f():\n    from bytes_later import x as z\n    return {x(), y(), z()}\n"
    )
    try:
        assert parts.find("bytes_own:f")() == {"of the source"}
        with pytest.raises(ConfigError):
            parts.find("bytes_alone:x")
    finally:
        for name in names:
            sys.modules.pop(name.replace("/", "."), None)


def test_a_file_in_plain_folders_is_found_from_the_folder_above_them(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    file = tmp_path / "plain_one" / "plain_two" / "part.py"
    file.parent.mkdir(parents=True)
    file.write_text("number = 1\n")
    try:
        path = "plain_one/plain_two/part.py:number"
        assert source_hash.of_path(path) == hashlib.sha256(file.read_bytes()).hexdigest()
        assert parts.find(path) == 1
    finally:
        for name in ("plain_one", "plain_one.plain_two", "plain_one.plain_two.part"):
            sys.modules.pop(name, None)
