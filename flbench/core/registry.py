"""Names to things: a method or net is found by its file, imported when it is asked for."""

import importlib
import pkgutil
from collections.abc import Callable
from importlib.metadata import entry_points
from importlib.util import find_spec
from typing import Any, TypeVar

from flbench.core.errors import ConfigError, did_you_mean

T = TypeVar("T")


class Registry(dict[str, T]):
    """The things of one kind, by name.

    Every module of `package` may register names; so may installed packages, through the entry-point
    group of the same name as `package` (the entry point names a module that registers on import).
    """

    def __init__(self, kind: str, package: str) -> None:
        super().__init__()
        self.kind = kind
        self.package = package
        self._complete = False

    def register(self, name: str) -> Callable[[T], T]:
        """Return a decorator that files a class under `name` and tells it so (`cls.name`).

        Raises: ValueError if the name is taken by something else.
        """

        def file(thing: T) -> T:
            if name in self:
                raise ValueError(f"the {self.kind} `{name}` is registered twice")
            self[name] = thing
            thing.name = name  # type: ignore[attr-defined]
            return thing

        return file

    def find(self, name: str) -> T:
        """Return the thing of this name.

        Raises: ConfigError that names the closest ones if there is none.
        """
        if name not in self and name.isidentifier() and find_spec(f"{self.package}.{name}"):
            importlib.import_module(
                f"{self.package}.{name}"
            )  # the usual case costs one import, not all
        if name not in self:
            self.load()
        if name not in self:
            raise ConfigError(
                f"there is no {self.kind} `{name}`.{did_you_mean(name, self)} Known:"
                f" {', '.join(sorted(self))}."
            )
        return self[name]

    def load(self) -> list[str]:
        """Import everything that may register, once, and return all names in order."""
        if not self._complete:
            package = importlib.import_module(self.package)
            for module in pkgutil.iter_modules(package.__path__):
                if not module.ispkg:
                    importlib.import_module(f"{self.package}.{module.name}")
            for point in entry_points(group=self.package):
                point.load()
            self._complete = True
        return sorted(self)


ALGORITHMS: Registry[Any] = Registry("method", "flbench.algorithms")
"""The methods: subclasses of `flbench.algorithms.Algorithm` by name."""

MODELS: Registry[Any] = Registry("model", "flbench.models")
"""The nets: subclasses of `flbench.models.Net` by name."""
