"""Words that name methods: registered names, import paths and files."""

import importlib
import sys

import pytest

from flbench.cli import words
from flbench.core.errors import UserError
from flbench.core.registry import ALGORITHMS

METHOD = """
from flbench.algorithms import Communication, Paper
from flbench.algorithms.fedavg import FedAvg


class Typed(FedAvg):
    paper = Paper("Typed", "nobody", "invented")
    communication = Communication(down="w", up="w", keeps="nothing")
"""


@pytest.fixture
def here(tmp_path, monkeypatch):
    """The current folder with a method, and with a folder that has the name of a section."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    (tmp_path / "typed_method.py").write_text(METHOD)
    (tmp_path / "typed-method.py").write_text(METHOD)
    (tmp_path / "typed_script.py").write_text(f"{METHOD}\nimport sys\n\nsys.exit(0)\n")
    (tmp_path / "of mine").mkdir()
    (tmp_path / "of mine" / "blank_method.py").write_text(METHOD)
    (tmp_path / "data").mkdir()
    importlib.invalidate_caches()
    yield
    for name in ("typed_method", "typed_script", "blank_method"):
        sys.modules.pop(name, None)
    ALGORITHMS.pop("typed", None)


@pytest.mark.parametrize("word", ["typed_method:Typed", "typed_method.py:Typed", "fedavg"])
@pytest.mark.usefixtures("here")
def test_a_method_is_named_by_its_name_path_or_file(word):
    assert words.methods([word])[0] == ("fedavg" if word == "fedavg" else "typed",)


@pytest.mark.parametrize(
    ("word", "cure"),
    [
        ("data:digits", "data:digits"),  # the folder `data` is no module with a method
        ("typed_method.py", "typed_method.py:Class"),
        ("typed-method.py:Typed", "typed-method.py.*letters"),
        ("typed_script.py:Typed", "raised SystemExit"),
        ("nothing.py:Typed", "nothing.py"),
        ("typed_method:METHOD", "METHOD"),
    ],
)
@pytest.mark.usefixtures("here")
def test_a_word_that_is_no_method_is_refused_with_a_cure(word, cure):
    with pytest.raises(UserError, match=cure):
        words.methods([word])


@pytest.mark.usefixtures("here")
def test_the_folder_of_a_method_may_have_blanks():
    found = words.methods(["of mine/blank_method.py:Typed,fedper", "fedavg ,", "ditto"])

    assert found[0] == ("typed", "fedper", "fedavg", "ditto")
