"""Packages that are imported when one of their names is first used."""

import sys

import pytest

from flbench.core.deferred import Deferred, deferred

SOURCE = """
class Shape:
    sides = 4
    def __init__(self, size):
        self.size = size
    @classmethod
    def unit(cls):
        return cls(1)
"""


@pytest.fixture
def package(tmp_path, monkeypatch):
    """A package that this process has not imported, and that no later test sees."""
    (tmp_path / "shapes_of_a_test.py").write_text(SOURCE)
    monkeypatch.syspath_prepend(tmp_path)
    yield "shapes_of_a_test"
    sys.modules.pop("shapes_of_a_test", None)


def test_names_are_imported_when_they_are_first_used(package):
    with deferred(package):
        from shapes_of_a_test import Shape

    assert isinstance(Shape, Deferred)
    assert package not in sys.modules
    assert Shape.sides == 4
    assert package in sys.modules


def test_a_name_is_called_subclassed_and_compared_as_the_real_one(package):
    with deferred(package):
        from shapes_of_a_test import Shape as Later
    from shapes_of_a_test import Shape

    class Square(Later):
        pass

    assert issubclass(Square, Shape)
    assert type(Later(3)) is type(Later.unit()) is Shape
    assert isinstance(Square(2), Later)
    assert not isinstance(2, Later)


@pytest.fixture
def nested(tmp_path, monkeypatch):
    """A package with a module, none of which this process has imported."""
    (tmp_path / "nested_of_a_test").mkdir()
    (tmp_path / "nested_of_a_test" / "__init__.py").write_text("number = 1\n")
    (tmp_path / "nested_of_a_test" / "part.py").write_text(SOURCE)
    monkeypatch.syspath_prepend(tmp_path)
    yield "nested_of_a_test"
    for name in [name for name in sys.modules if name.startswith("nested_of_a_test")]:
        del sys.modules[name]


def test_the_modules_of_a_package_are_deferred_with_it(nested):
    with deferred(nested):
        from nested_of_a_test.part import Shape
    assert nested not in sys.modules
    assert f"{nested}.part" not in sys.modules

    assert Shape.unit().size == 1

    import nested_of_a_test.part

    assert isinstance(nested_of_a_test.part.Shape(2), Shape)
