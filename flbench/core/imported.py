"""Objects of the user's own code, named by their import path `package.module:name`."""

import hashlib
import importlib
import os
import sys
from pathlib import Path
from typing import Any

from flbench.core.errors import ConfigError, did_you_mean


def find(path: str) -> Any:
    """Return the object at an import path. The current folder is searched after `sys.path`.

    Args:
        path: `package.module:name`, with dots in `name` for an attribute of an object.

    Raises:
        ConfigError: There is no such module or name, or the module cannot be imported.

    >>> find("math:sqrt")(9.0)
    3.0
    """
    module_name, _, name = path.partition(":")
    here = os.getcwd()
    if here not in sys.path and "" not in sys.path:
        sys.path.append(here)  # the command `flbench` does not search it, `python -m` does
    try:
        found: Any = importlib.import_module(module_name)
    except Exception as error:
        if isinstance(error, ModuleNotFoundError) and module_name.startswith(error.name or "."):
            raise ConfigError(
                f"`{path}`: there is no module `{error.name}`. It must be an installed package, or"
                f" a file in the current folder ({here}) or in a folder of $PYTHONPATH."
            ) from error
        raise ConfigError(
            f"`{path}`: importing `{module_name}` raised {type(error).__name__}: {error}. Correct"
            " the module."
        ) from error
    for part in name.split("."):
        known = dir(found)
        if part not in known:
            raise ConfigError(
                f"`{path}`: `{getattr(found, '__file__', module_name)}` has no name"
                f" `{part}`.{did_you_mean(part, known)}"
            )
        found = getattr(found, part)
    return found


def path_of(thing: Any) -> str | None:
    """Return the import path of a function or class; None if it has none.

    Objects of `__main__`, and those made within a function, cannot be imported by another process.

    Args:
        thing: Any object.

    >>> from fractions import Fraction
    >>> path_of(Fraction), path_of(Fraction.limit_denominator), path_of(Fraction(1, 2))
    ('fractions:Fraction', 'fractions:Fraction.limit_denominator', None)
    """
    module, name = getattr(thing, "__module__", None), getattr(thing, "__qualname__", None)
    if not isinstance(module, str) or not isinstance(name, str) or module == "__main__":
        return None
    found: Any = sys.modules.get(module)
    for part in name.split("."):
        found = getattr(found, part, None)
    return f"{module}:{name}" if found is thing else None


def source_sha256(path: str) -> str:
    """Return the SHA-256 (hex) of the file that an import path's module was read from.

    The whole file counts, because an object may use anything else in it.

    Args:
        path: `package.module:name`; the module has been imported.

    Raises:
        ConfigError: The module has no source file that can be read.
    """
    module_name = path.partition(":")[0]
    file = getattr(sys.modules.get(module_name), "__file__", None)
    try:
        return hashlib.sha256(Path(str(file)).read_bytes()).hexdigest()
    except OSError as error:
        raise ConfigError(
            f"`{path}`: the module `{module_name}` has no source file that can be read. Put the"
            " code in a file of its own."
        ) from error
