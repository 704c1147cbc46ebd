"""Objects of the user that are sent to worker processes, once for all trainings."""

import pickle
import sys
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Final

import cloudpickle

from flbench.config.trust import run_code
from flbench.core import source_hash
from flbench.core.errors import ConfigError
from flbench.core.parts import METRICS, OBJECT, TERMS, offered
from flbench.core.registry import ALGORITHMS
from flbench.workers.portable import portable

PREPARED: Final = ("data", "partition")
"""Sections whose objects workers do not need: they get the samples of all clients."""

FUNCTIONS: Final = (TERMS, METRICS)
"""Names under which several functions are offered."""

METHOD: Final = "algorithm"
MODEL: Final = "model"


@dataclass(frozen=True)
class Parcel:
    """Objects and methods of the user without an import path, pickled with what describes them.

    Attributes:
        content: The pickle, which a worker process reads when it begins a training. If it cannot
            be read there, that training fails with the reason.
    """

    content: bytes

    @contextmanager
    def opened(self) -> Iterator[None]:
        """Return a context manager in which the configuration finds the objects.

        Raises:
            ConfigError: The process cannot read them, such as an object of a module that it does
                not find.
        """
        try:
            objects, hashes, methods = pickle.loads(self.content)
            for name, pickled in methods.items():
                if name not in ALGORITHMS:
                    ALGORITHMS.adopt(pickle.loads(pickled), name, name)
        except Exception as error:
            raise ConfigError(
                f"a worker process cannot read what it is sent ({type(error).__name__}: {error})."
                " Put its code into a module that the worker finds too."
            ) from error
        found = {**objects, METHOD: {name: ALGORITHMS[name] for name in methods}}
        known = {
            id(found[one][name] if name else found[one]): sha for (one, name), sha in hashes.items()
        }
        with (
            run_code(allowed=True),  # the process that sends them has asked
            offered({**objects, source_hash.HASHES: known}),
        ):
            yield


NOTHING: Final = Parcel(pickle.dumps(({}, {}, {})))


def pack(objects: Mapping[str, Any], methods: Iterable[str] = ()) -> Parcel:
    """Return the objects that workers need, and check that they can be sent to other processes.

    The hashes of their sources are sent too: a worker compares them with those in the
    configuration, and cannot read the source of a script or of a notebook's cell itself.

    Workers get the samples through shared memory; the object that they come from is not sent. They
    import methods by their import paths; the class of a script or notebook is sent itself.

    Args:
        objects: Objects by the section of the configuration that they stand for.
        methods: Names of the methods that are trained.

    Raises:
        ConfigError: An object or a method cannot be pickled.
    """
    sent = {section: thing for section, thing in objects.items() if section not in PREPARED}
    for section, thing in sent.items():
        _pickled(f"`{section}`", thing)
    hashes = {
        (section, name): source_hash.of_object(function)
        for section in FUNCTIONS
        for name, function in sent.get(section, {}).items()
    }
    if MODEL in sent:
        hashes[MODEL, ""] = source_hash.of_net(sent[MODEL])
    sources = {name: ALGORITHMS.source(ALGORITHMS[name]) for name in methods if name in ALGORITHMS}
    classes = {name: ALGORITHMS[name] for name, source in sources.items() if source == OBJECT}
    hashes |= {(METHOD, name): source_hash.of_object(kind) for name, kind in classes.items()}
    pickled = {name: _pickled(f"`algorithm.name={name}`", kind) for name, kind in classes.items()}
    content = sent, hashes, pickled
    return Parcel(cloudpickle.dumps(portable(content, cloudpickle.dumps)))


def _pickled(key: str, thing: Any) -> bytes:
    """Return the pickle of an object; that of a class has its code."""
    own = sys.modules.get(thing.__module__) if isinstance(thing, type) else None
    by_value = own is not None and own.__name__ != "__main__"
    try:
        if by_value:
            cloudpickle.register_pickle_by_value(own)
        try:
            return bytes(cloudpickle.dumps(thing))
        finally:
            if by_value:
                cloudpickle.unregister_pickle_by_value(own)
    except Exception as error:
        raise ConfigError(
            f"{key} cannot be sent to worker processes, because it cannot be pickled"
            f" ({type(error).__name__}: {error}). Remove open files, locks and connections from it,"
            " or put it into a module, so that it has an import path."
        ) from error
