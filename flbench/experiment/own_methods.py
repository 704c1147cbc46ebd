"""Methods that are not flbench's own: their classes, and the hashes of their source."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from flbench.algorithms import ALGORITHMS, Algorithm, AlgorithmConfig
from flbench.config.schema import Config
from flbench.core import parts
from flbench.core.parts import OBJECT
from flbench.core.user_code_errors import as_errors


def find(config: AlgorithmConfig) -> type[Algorithm]:
    """Return the class of a method; a ConfigError says that there is none."""
    method: type[Algorithm] = ALGORITHMS.find(config.name, config.source)
    return method


@contextmanager
def named(config: AlgorithmConfig) -> Iterator[None]:
    """Return a context manager in which an exception of the user's code names the line of code.

    It names a method of the user, too. Errors of flbench and of memory stay as they are.

    Args:
        config: Section `algorithm`.

    Raises:
        MethodError: The user's code raised an exception. The message has the line of code.
    """
    with as_errors(f"the method `{config.name}`") if config.source else as_errors():
        yield


def sha256(config: AlgorithmConfig) -> str | None:
    """Return the hash of the source of a method; None for a method of flbench.

    Raises:
        ConfigError: The configuration has the hash of another source, or a file was edited after
            the import.
    """
    if config.source is None:
        return None
    from flbench.core import source_hash

    cure = "Restore the source, or start a new run without `algorithm.sha256`."
    method = find(config)
    whose = f"the method `{config.name}` ({method.__module__})"
    return source_hash.checked(method, config.source, config.sha256, whose, cure)


def modules(config: Config) -> list[str]:
    """Return the modules that define the parts of a configuration that are not flbench's own."""
    tree: list[Any] = [config.model.name, config.data.source, config.partition.scheme]
    tree += [config.algorithm.source, *(term.name for term in config.train.terms)]
    tree += [one.source for one in (config.evaluation.metrics or {}).values()]
    paths = [str(path) for path in tree if ":" in str(path or "")]
    return sorted({parts.module_of(path) for path in paths if not path.startswith(f"{OBJECT}:")})
