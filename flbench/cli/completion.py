"""What a shell offers while a command is typed. Nothing here imports PyTorch."""

from collections.abc import Iterable
from typing import get_args


def words(incomplete: str) -> list[str]:
    """Complete a word of `flbench run`: methods, separated by commas, and keys with `=`.

    >>> words("fedpr")
    ['fedproto', 'fedprox']
    >>> words("train.r")
    ['train.rounds=']
    """
    return [*methods(incomplete), *keys(incomplete)]


def data_words(incomplete: str) -> list[str]:
    """Complete a word of `flbench data`: data sets, and keys with `=`."""
    return [*data_sets(incomplete), *keys(incomplete)]


def keys(incomplete: str) -> list[str]:
    """Complete a key of the configuration."""
    if "=" in incomplete or "," in incomplete:
        return []
    from flbench.config.schema import Config
    from flbench.config.sources import leaves

    return beginning(incomplete, (f"{key}=" for key in leaves(Config().tree())))


def methods(incomplete: str) -> list[str]:
    """Complete the last of several methods that are separated by commas."""
    from flbench.core.registry import ALGORITHMS

    before, comma, last = incomplete.rpartition(",")
    return [f"{before}{comma}{name}" for name in beginning(last, ALGORITHMS.names())]


def models(incomplete: str) -> list[str]:
    """Complete the name of a net."""
    from flbench.core.registry import MODELS

    return beginning(incomplete, MODELS.names())


def engines(incomplete: str) -> list[str]:
    """Complete the name of an engine."""
    from flbench.config.schema import EngineConfig

    return beginning(incomplete, get_args(EngineConfig.model_fields["name"].annotation))


def schemes(incomplete: str) -> list[str]:
    """Complete the name of a partition scheme."""
    from flbench.config.schema import SchemeName

    return beginning(incomplete, get_args(SchemeName))


def data_sets(incomplete: str) -> list[str]:
    """Complete the name of a data set that flbench knows."""
    from flbench.data.known_sets import known

    return beginning(incomplete, known())


def beginning(incomplete: str, names: Iterable[str]) -> list[str]:
    """Return the names that begin with what has been typed."""
    return [name for name in names if name.startswith(incomplete)]
