"""Registries of methods, nets and loss terms by name. Their modules are imported on first use."""

import importlib
import pkgutil
import re
from collections.abc import Callable
from importlib.metadata import entry_points
from importlib.util import find_spec
from pathlib import Path
from typing import Any, TypeVar

from flbench.core import parts
from flbench.core.errors import ConfigError, did_you_mean
from flbench.core.parts import OBJECT

T = TypeVar("T")


class Registry(dict[str, T]):
    """A dict from names to the registered classes of one kind.

    Every module of `package` can register names. Other installed packages can do so with an entry
    point in the group named `package`; the entry point refers to a module that registers on import.

    Args:
        kind: What the registry holds, as error messages call it, such as "method".
        package: Dotted name of the package whose modules register.
        base: Import path of the class that classes of the user must be derived from; "" where
            they are registered by their modules alone.
        needs: Class attributes that they must have.

    >>> colours = Registry("colour", "flbench.models")
    >>> @colours.register("red")
    ... class Red: ...
    >>> colours["red"].name
    'red'
    """

    def __init__(
        self, kind: str, package: str, base: str = "", needs: tuple[str, ...] = ()
    ) -> None:
        super().__init__()
        self.kind, self.package, self.base, self.needs = kind, package, base, needs
        self._complete = False

    def register(self, name: str) -> Callable[[T], T]:
        """Return a decorator that registers a class as `name` and sets its attribute `name`.

        A class that is defined again, as in a notebook's cell that is run twice, replaces the
        earlier one.

        Raises:
            ConfigError: Another class has the name already (raised by the decorator).
        """

        def add(thing: T) -> T:
            if name in self and not _is_again(thing, self[name]):
                raise ConfigError(
                    f"the {self.kind} `{name}` is registered twice, by {thing.__module__} and"
                    f" {self[name].__module__}. Give one of them another name."
                )
            self[name] = thing
            thing.name = name  # type: ignore[attr-defined]
            return thing

        return add

    def find(self, name: str, source: str | None = None) -> T:
        """Return the class registered as `name`, importing its module if necessary.

        Args:
            name: The name.
            source: Import path `package.module:name` of the class, if it is the user's own; it is
                imported if nothing has registered the name.

        Raises:
            ConfigError: No class has this name.
        """
        if name not in self and name.isidentifier() and find_spec(f"{self.package}.{name}"):
            # A class is usually registered by the module of its name: one import instead of all.
            importlib.import_module(f"{self.package}.{name}")
        if name not in self and source is not None and ":" in source:
            self.adopt(parts.find(source), source, name)
        if name not in self:
            self.load()
        if name not in self:
            hint = did_you_mean(name, self) or f" Known: {', '.join(sorted(self))}."
            if source == OBJECT:
                hint = (
                    " It is a class of a script or notebook: define it again before the call, or"
                    " put it into a module."
                )
            raise ConfigError(f"there is no {self.kind} `{name}`.{hint}")
        return self[name]

    def source(self, thing: Any) -> str | None:
        """Return the import path of a class that is not flbench's own, or `object`; else None.

        `object` stands for a class that another process cannot import, because it is defined in a
        script, a notebook or a function.
        """
        if str(thing.__module__).startswith(f"{self.package}."):
            return None
        return parts.path_of(thing) or OBJECT

    def adopt(self, thing: Any, path: str, name: str | None = None) -> str:
        """Register a class of the user under a name, unless it is registered, and return the name.

        Args:
            thing: The class.
            path: The class as messages name it.
            name: The name; None for the one under which it is registered, or else the name of the
                class in lower case.

        Raises:
            ConfigError: It is not a subclass of `base`, lacks an attribute that `needs` lists, or
                another class has the name.
        """
        module, _, parent = self.base.partition(":")
        base = getattr(importlib.import_module(module), parent)
        if not (isinstance(thing, type) and issubclass(thing, base)):
            what = thing.__name__ if isinstance(thing, type) else type(thing).__name__
            raise ConfigError(
                f"`{path}` is no {self.kind}: it must be a subclass of {module}.{parent}, got"
                f" {what}. Name such a class."
            )
        own = vars(thing).get("name")
        if isinstance(own, str) and self.get(own) is thing and name in (None, own):
            return own
        missing = [one for one in self.needs if not hasattr(thing, one)]
        if missing:
            raise ConfigError(
                f"`{path}` needs the class attributes {', '.join(missing)}. Set them."
            )
        name = own if name is None and isinstance(own, str) else name or thing.__name__.lower()
        if name in self.names():
            self.find(name)
        add: Callable[[Any], Any] = self.register(name)
        add(thing)
        return name

    def section(self, given: Any) -> dict[str, str]:
        """Return the keys of a section of the configuration that select a class.

        Args:
            given: A registered name, an import path `package.module:name` or `FILE.py:name`, or a
                class. A class that is not registered yet is registered.

        Returns:
            `name`, and `source` if the class is not flbench's own; see `source`. For a name that
            nothing has registered, the name alone.

        Raises:
            ConfigError: There is no such module or class, or it cannot be registered.
        """
        if isinstance(given, str) and ":" not in given:
            found = self.get(given)
            name = given
        else:
            found = parts.find(given) if isinstance(given, str) else given
            path = given if isinstance(given, str) else getattr(given, "__name__", repr(given))
            name = self.adopt(found, path)
        source = None if found is None else self.source(found)
        return {"name": name} if source is None else {"name": name, "source": source}

    def names(self) -> list[str]:
        """Return the sorted names without importing a module; for suggestions, such as completion.

        Names of the package are read from the text of its modules. Of other packages the names of
        the entry points are returned, which should be those that the packages register.
        """
        spec = find_spec(self.package)
        folders = [] if spec is None else list(spec.submodule_search_locations or ())
        found = {point.name for point in entry_points(group=self.package)}
        for file in (file for folder in folders for file in Path(folder).glob("*.py")):
            text = file.read_text("utf-8")
            found |= set(re.findall(r'^@[\w.]+\.register\("(.+?)"\)', text, re.M))
        return sorted(found | set(self))

    def load(self) -> list[str]:
        """Import all modules that can register names, once, and return the sorted names.

        Raises:
            ConfigError: The entry point of another package cannot be loaded.
        """
        if not self._complete:
            folders = importlib.import_module(self.package).__path__
            for module in pkgutil.iter_modules(folders):
                if not module.ispkg:
                    importlib.import_module(f"{self.package}.{module.name}")
            for point in entry_points(group=self.package):
                try:
                    point.load()
                except Exception as error:
                    raise ConfigError(
                        f"the {self.kind} `{point.name}` of an installed package cannot be loaded:"
                        f" {point.value} raised {type(error).__name__}: {error}. Correct the"
                        " package, or uninstall it."
                    ) from error
            self._complete = True
        return sorted(self)


def _is_again(thing: Any, known: Any) -> bool:
    """Return whether a class is another definition of the same class, such as a cell run again."""
    return (thing.__module__, thing.__qualname__) == (known.__module__, known.__qualname__)


ALGORITHMS: Registry[Any] = Registry(
    "method",
    "flbench.algorithms",
    base="flbench.algorithms.base:Algorithm",
    needs=("paper", "communication"),
)
"""All methods: subclasses of `flbench.algorithms.Algorithm` by name."""

MODELS: Registry[Any] = Registry("model", "flbench.models")
"""All nets: subclasses of `flbench.models.Net` by name."""

TERMS: Registry[Any] = Registry("loss term", "flbench.losses")
"""The loss terms that `train.terms` can name: frozen dataclasses by name."""
