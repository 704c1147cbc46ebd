"""Imports of large packages that few processes use: later, if they are used."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from importlib.util import find_spec, spec_from_loader
from operator import attrgetter
from types import ModuleType
from typing import Any


class Deferred:
    """Stands for a class or function of a package that is not imported yet.

    Its calls, subclasses, instance checks and, after the context of `deferred`, its attributes are
    those of the real object; the first of them imports the package.
    """

    def __init__(self, finder: "_Finder", package: str, name: str) -> None:
        self._finder, self._package, self._name = finder, package, name

    def _real(self) -> Any:
        self._finder.end()  # it is used within the context
        return attrgetter(self._name)(import_module(self._package))

    def __getattr__(self, name: str) -> Any:
        if self._finder not in sys.meta_path:
            return getattr(self._real(), name)
        if name.startswith("__"):  # asked by typing and the like
            raise AttributeError(name)
        return Deferred(self._finder, self._package, f"{self._name}.{name}")

    def __call__(self, *args: Any, **options: Any) -> Any:
        return self._real()(*args, **options)

    def __mro_entries__(self, bases: tuple[Any, ...]) -> tuple[Any, ...]:
        return (self._real(),)

    def __instancecheck__(self, instance: Any) -> bool:
        # Before its package is imported, no object of a class exists.
        return self._package in sys.modules and isinstance(instance, self._real())


class _Finder(Loader, MetaPathFinder):
    """Makes stand-ins for some packages and for the modules in them."""

    def __init__(self, packages: list[str]) -> None:
        self._packages, self._made = packages, list[str]()

    def find_spec(self, name: str, *_: Any) -> ModuleSpec | None:
        if any(f"{name}.".startswith(f"{package}.") for package in self._packages):
            return spec_from_loader(name, self, is_package=True)
        return None

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        def attribute(name: str) -> Deferred:
            if name.startswith("__"):
                raise AttributeError(name)
            return Deferred(self, spec.name, name)

        module = ModuleType(spec.name)
        vars(module)["__getattr__"] = attribute
        self._made.append(spec.name)
        return module

    def exec_module(self, module: ModuleType) -> None:
        """Do nothing: a stand-in has no code."""

    def end(self) -> None:
        """Let all packages be imported as usual from now on."""
        if self in sys.meta_path:
            sys.meta_path.remove(self)
            for name in self._made:
                sys.modules.pop(name, None)
                parent, _, part = name.rpartition(".")
                if parent in sys.modules:
                    vars(sys.modules[parent]).pop(part, None)


@contextmanager
def deferred(*packages: str) -> Iterator[None]:
    """Within this context, `from PACKAGE import NAME` does not import the packages.

    The names are `Deferred` objects, which import the package when they are first used. The same
    holds for the modules in a package. Nothing changes for packages that are not installed, or that
    this process has imported already. After the context, all of them are imported as usual.

    Args:
        packages: Names of packages, or of modules in installed packages.

    >>> with deferred("tarfile"):
    ...     from tarfile import TarInfo
    >>> TarInfo("a.txt").name
    'a.txt'
    """
    finder = _Finder([name for name in packages if name not in sys.modules and find_spec(name)])
    sys.meta_path.insert(0, finder)
    try:
        yield
    finally:
        finder.end()
