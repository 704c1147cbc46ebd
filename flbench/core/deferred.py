"""Packages that another package imports, but that few processes use."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from importlib.util import find_spec
from types import ModuleType
from typing import Any


class Deferred:
    """Stands for a class or function of a package that is not imported yet.

    Its attributes, calls, subclasses and instance checks are those of the real object; the first of
    them imports the package.

    Args:
        package: Name of the package.
        name: Name of the object in it.
    """

    def __init__(self, package: str, name: str) -> None:
        self._package, self._name = package, name

    def _real(self) -> Any:
        return getattr(import_module(self._package), self._name)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._real(), name)

    def __call__(self, *args: Any, **options: Any) -> Any:
        return self._real()(*args, **options)

    def __mro_entries__(self, bases: tuple[Any, ...]) -> tuple[Any, ...]:
        return (self._real(),)

    def __instancecheck__(self, instance: Any) -> bool:
        return isinstance(instance, self._real())


class _StandIn(ModuleType):
    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return Deferred(self.__name__, name)


@contextmanager
def deferred(package: str) -> Iterator[None]:
    """Within this context, `from PACKAGE import NAME` does not import the package.

    The names are `Deferred` objects, which import the package when they are first used. Nothing
    changes if the package is not installed, or if this process has imported it already. After the
    context, the package is imported as usual.

    >>> with deferred("tarfile"):
    ...     from tarfile import TarInfo
    >>> TarInfo("a.txt").name
    'a.txt'
    """
    spec = None if package in sys.modules else find_spec(package)
    if spec is None:
        yield
        return
    stand_in = _StandIn(package)
    stand_in.__spec__ = spec
    sys.modules[package] = stand_in
    try:
        yield
    finally:
        if sys.modules.get(package) is stand_in:
            del sys.modules[package]
