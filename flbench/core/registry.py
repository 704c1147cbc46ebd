"""Registries of methods, nets and loss terms by name. Their modules are imported on first use."""

import importlib
import pkgutil
import re
from collections.abc import Callable
from importlib.metadata import entry_points
from importlib.util import find_spec
from pathlib import Path
from typing import Any, TypeVar

from flbench.core.errors import ConfigError, did_you_mean

T = TypeVar("T")


class Registry(dict[str, T]):
    """A dict from names to the registered classes of one kind.

    Every module of `package` can register names. Other installed packages can do so with an entry
    point in the group named `package`; the entry point refers to a module that registers on import.

    Args:
        kind: What the registry holds, as error messages call it, such as "method".
        package: Dotted name of the package whose modules register.

    >>> colours = Registry("colour", "flbench.models")
    >>> @colours.register("red")
    ... class Red: ...
    >>> colours["red"].name
    'red'
    """

    def __init__(self, kind: str, package: str) -> None:
        super().__init__()
        self.kind = kind
        self.package = package
        self._complete = False

    def register(self, name: str) -> Callable[[T], T]:
        """Return a decorator that registers a class as `name` and sets its attribute `name`.

        Raises:
            ValueError: The name is already registered (raised by the decorator).
        """

        def add(thing: T) -> T:
            if name in self:
                raise ValueError(f"the {self.kind} `{name}` is registered twice")
            self[name] = thing
            thing.name = name  # type: ignore[attr-defined]
            return thing

        return add

    def find(self, name: str) -> T:
        """Return the class registered as `name`, importing its module if necessary.

        Raises:
            ConfigError: No class has this name; the message names a similar one, or all that exist.
        """
        if name not in self and name.isidentifier() and find_spec(f"{self.package}.{name}"):
            # A class is usually registered by the module of its name: one import instead of all.
            importlib.import_module(f"{self.package}.{name}")
        if name not in self:
            self.load()
        if name not in self:
            hint = did_you_mean(name, self) or f" Known: {', '.join(sorted(self))}."
            raise ConfigError(f"there is no {self.kind} `{name}`.{hint}")
        return self[name]

    def built_in(self, name: str) -> T | None:
        """Return the class of flbench itself that is registered as `name`; None if there is none.

        No other package is imported, so that names from files of others can be looked up.
        """
        if name not in self:
            if name.isidentifier() and find_spec(f"{self.package}.{name}"):
                importlib.import_module(f"{self.package}.{name}")
            if name not in self:
                self._load_own()
        found: Any = self.get(name)
        own = found is not None and str(found.__module__).startswith(f"{self.package}.")
        return self[name] if own else None

    def installed(self, name: str) -> T | None:
        """Return the class registered as `name`; None if no installed package registers it.

        A name is never taken as an import path: what a file of others names is not imported.
        """
        if name not in self.names():
            return None
        try:
            return self.find(name)
        except ConfigError:  # the package cannot be loaded, or its entry point has another name
            return None

    def names(self) -> list[str]:
        """Return the sorted names without importing a module; for suggestions, such as completion.

        Names of the package are read from the text of its modules. Of other packages the names of
        the entry points are returned, which should be those that the packages register.
        """
        spec = find_spec(self.package)
        folders = [] if spec is None else list(spec.submodule_search_locations or ())
        found = {point.name for point in entry_points(group=self.package)}
        for file in (file for folder in folders for file in Path(folder).glob("*.py")):
            found |= set(re.findall(r'^@\w+\.register\("(.+?)"\)', file.read_text("utf-8"), re.M))
        return sorted(found | set(self))

    def load(self) -> list[str]:
        """Import all modules that can register names, once, and return the sorted names.

        Raises:
            ConfigError: The entry point of another package cannot be loaded.
        """
        if not self._complete:
            self._load_own()
            for point in entry_points(group=self.package):
                try:
                    point.load()
                except Exception as error:
                    package_name = point.dist.name if point.dist is not None else "unknown"
                    raise ConfigError(
                        f"the {self.kind} `{point.name}` of the installed package `{package_name}`"
                        f" cannot be loaded: {point.value} raised {type(error).__name__}: {error}."
                        f" Correct the package, or uninstall it."
                    ) from error
            self._complete = True
        return sorted(self)

    def _load_own(self) -> None:
        """Import all modules of flbench's package that can register names."""
        package = importlib.import_module(self.package)
        for module in pkgutil.iter_modules(package.__path__):
            if not module.ispkg:
                importlib.import_module(f"{self.package}.{module.name}")


ALGORITHMS: Registry[Any] = Registry("method", "flbench.algorithms")
"""All methods: subclasses of `flbench.algorithms.Algorithm` by name."""

MODELS: Registry[Any] = Registry("model", "flbench.models")
"""All nets: subclasses of `flbench.models.Net` by name."""

TERMS: Registry[Any] = Registry("loss term", "flbench.losses")
"""The loss terms that `train.terms` can name: frozen dataclasses by name."""
