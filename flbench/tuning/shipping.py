"""Objects of the user that are sent to the processes of the trials, once for all trials."""

import inspect
import linecache
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Final

import ray

from flbench.core.errors import ConfigError
from flbench.core.given import TERMS, offered

PREPARED: Final = ("data", "partition")
"""Sections whose objects trials do not need: they get the samples of all clients."""


@dataclass(frozen=True)
class Parcel:
    """Objects of the user without an import path.

    Attributes:
        objects: Nets and functions by the section of the configuration that they stand for.
        sources: Lines of the source files of functions, by file name: a cell of a notebook is no
            file that another process can read, and the hash of a function's source is compared.
    """

    objects: Mapping[str, Any]
    sources: Mapping[str, tuple[str, ...]]

    @contextmanager
    def opened(self) -> Iterator[None]:
        """Return a context manager in which the configuration finds the objects."""
        for name, lines in self.sources.items():
            size = sum(map(len, lines))
            linecache.cache.setdefault(name, (size, None, list(lines), name))
        with offered(self.objects):
            yield


NOTHING: Final = Parcel({}, {})


def pack(objects: Mapping[str, Any]) -> Parcel:
    """Return the objects that trials need, and check that they can be sent to other processes.

    Trials get the samples through shared memory; the object that they come from is not sent.

    Args:
        objects: Objects by the section of the configuration that they stand for.

    Raises:
        ConfigError: An object cannot be pickled.
    """
    sent = {section: thing for section, thing in objects.items() if section not in PREPARED}
    for section, thing in sent.items():
        try:
            ray.cloudpickle.dumps(thing)
        except Exception as error:
            kind = "function" if section == TERMS else type(thing).__name__
            raise ConfigError(
                f"`{section}`: the {kind} cannot be sent to the processes of the trials, because it"
                f" cannot be pickled ({type(error).__name__}: {error}). Remove open files, locks"
                " and connections from it, or put it into a module, so that it has an import"
                " path."
            ) from error
    sources = {}
    for function in sent.get(TERMS, {}).values():
        name = getattr(getattr(inspect.unwrap(function), "__code__", None), "co_filename", None)
        if name is not None and (lines := linecache.getlines(name)):
            sources[name] = tuple(lines)
    return Parcel(sent, sources)
