"""Imports of large packages that few processes use: later, if they are used."""

import sys
from collections.abc import Iterator, Sequence
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

    Its attributes, calls, subclasses and instance checks are those of the real object; the first of
    them imports the package.

    Args:
        package: Name of the package.
        name: Name of the object in it, with dots for attributes of objects.
    """

    def __init__(self, package: str, name: str) -> None:
        self._package, self._name = package, name

    def _real(self) -> Any:
        module = sys.modules.get(self._package)
        if isinstance(module, _StandIn):  # used within the context, so the package is needed
            module._finder.give_up(self._package)
        return attrgetter(self._name)(import_module(self._package))

    def __getattr__(self, name: str) -> Any:
        if not isinstance(sys.modules.get(self._package), _StandIn):
            return getattr(self._real(), name)
        if name.startswith("__"):  # asked by typing and the like
            raise AttributeError(name)
        return Deferred(self._package, f"{self._name}.{name}")

    def __call__(self, *args: Any, **options: Any) -> Any:
        return self._real()(*args, **options)

    def __mro_entries__(self, bases: tuple[Any, ...]) -> tuple[Any, ...]:
        return (self._real(),)

    def __instancecheck__(self, instance: Any) -> bool:
        # Before its package is imported, no object of a class exists.
        return self._package in sys.modules and isinstance(instance, self._real())


class _StandIn(ModuleType):
    def __init__(self, name: str, finder: "_Finder") -> None:
        super().__init__(name)
        self.__path__ = []  # as a package has: `import PACKAGE.PART` asks the finder
        self._finder = finder

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return Deferred(self.__name__, name)


class _Finder(Loader, MetaPathFinder):
    """Makes stand-ins for some packages and for the modules in them."""

    def __init__(self, packages: Sequence[str]) -> None:
        self._packages = [*packages]
        self._made: dict[str, ModuleType] = {}

    def find_spec(self, name: str, *_: Any) -> ModuleSpec | None:
        if any(f"{name}.".startswith(f"{package}.") for package in self._packages):
            return spec_from_loader(name, self)
        return None

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        self._made[spec.name] = _StandIn(spec.name, self)
        return self._made[spec.name]

    def exec_module(self, module: ModuleType) -> None:
        """Do nothing: a stand-in has no code."""

    def give_up(self, name: str) -> None:
        """Let the package of a module be imported as usual from now on."""
        self._packages = [p for p in self._packages if not f"{name}.".startswith(f"{p}.")]
        self.remove()

    def remove(self) -> None:
        """Remove the stand-ins of packages that are not deferred (any more)."""
        for name, module in [*self._made.items()]:
            if self.find_spec(name) is None:
                del self._made[name]
                if sys.modules.get(name) is module:
                    del sys.modules[name]
                parent, _, part = name.rpartition(".")
                if parent in sys.modules and vars(sys.modules[parent]).get(part) is module:
                    delattr(sys.modules[parent], part)


@contextmanager
def deferred(*packages: str) -> Iterator[None]:
    """Within this context, `from PACKAGE import NAME` does not import the packages.

    The names are `Deferred` objects, which import the package when they are first used. The same
    holds for the modules in a package. Nothing changes for packages that are not installed, or that
    this process has imported already. After the context, all of them are imported as usual.

    Args:
        packages: Names of packages, or of modules in them.

    >>> with deferred("tarfile"):
    ...     from tarfile import TarInfo
    >>> TarInfo("a.txt").name
    'a.txt'
    """
    missing = [name for name in packages if name not in sys.modules and _is_installed(name)]
    finder = _Finder(missing)
    sys.meta_path.insert(0, finder)
    try:
        yield
    finally:
        sys.meta_path.remove(finder)
        for name in missing:
            finder.give_up(name)


def _is_installed(name: str) -> bool:
    """Return whether a module is there; the package that it is in is imported."""
    try:
        return find_spec(name) is not None
    except ModuleNotFoundError:  # not even its package
        return False
