"""Objects of the user that are sent to worker processes, once for all trainings."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Final

import ray

from flbench.core.errors import ConfigError
from flbench.core.given import METRICS, TERMS, offered
from flbench.core.imported import text_sha256, with_text_hashes
from flbench.experiment.provenance import command, started_by

PREPARED: Final = ("data", "partition")
"""Sections whose objects workers do not need: they get the samples of all clients."""

FUNCTIONS: Final = {TERMS: "function", METRICS: "metric"}
"""Names under which several functions are offered, with what one of them is."""


@dataclass(frozen=True)
class Parcel:
    """Objects of the user without an import path.

    Attributes:
        objects: Nets and functions by the section of the configuration that they stand for.
        hashes: SHA-256 (hex) of the source of each function, by section and name; None where the
            source is not known. A worker compares it with the one in the configuration, and cannot
            read the source of a script or of a notebook's cell itself.
        command: How the user started the process that sends the parcel; runs of workers record it.
            None for the command of the process that opens the parcel.
    """

    objects: Mapping[str, Any]
    hashes: Mapping[tuple[str, str], str | None]
    command: str | None = None

    @contextmanager
    def opened(self) -> Iterator[None]:
        """Return a context manager in which the configuration finds the objects."""
        known = {id(self.objects[one][name]): sha for (one, name), sha in self.hashes.items()}
        with offered(self.objects), with_text_hashes(known), started_by(self.command):
            yield


NOTHING: Final = Parcel({}, {})


def pack(objects: Mapping[str, Any]) -> Parcel:
    """Return the objects that workers need, and check that they can be sent to other processes.

    Workers get the samples through shared memory; the object that they come from is not sent.

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
            kind = FUNCTIONS.get(section, type(thing).__name__)
            raise ConfigError(
                f"`{section}`: the {kind} cannot be sent to worker processes, because it cannot be"
                f" pickled ({type(error).__name__}: {error}). Remove open files, locks and"
                " connections from it, or put it into a module, so that it has an import path."
            ) from error
    hashes = {
        (section, name): text_sha256(function)
        for section in FUNCTIONS
        for name, function in sent.get(section, {}).items()
    }
    return Parcel(sent, hashes, command())
