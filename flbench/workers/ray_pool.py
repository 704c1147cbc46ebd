"""Actors of Ray as workers, on nodes that may be lost; see `flbench.workers.pool.Pool`.

Ray itself would start an actor again when its node is lost, and let its calls wait for as long as
no node has the resources of the actor. A pool gives a lost call back to its caller, so that another
actor can do it, and starts an actor in the place of the lost one, which begins when a node has the
resources.
"""

import time
from collections import deque
from collections.abc import Callable, Collection, Sequence
from itertools import count
from typing import Any, Final, NamedTuple

import numpy as np
import ray

from flbench.core.errors import ConfigError, PrintableError
from flbench.core.parts import portable
from flbench.workers.pool import CouldNotBeginError, Ended, LostError
from flbench.workers.ray_lost import LOST, could_not_begin, unreadable, why_lost
from flbench.workers.samples import check_unchanged

NOTICE: Final = 20.0
"""Seconds of a wait for resources after which the user is told, and told again."""


class _Call(NamedTuple):
    """A call of a method of an actor, whichever does it."""

    key: Any
    method: str
    arguments: tuple[Any, ...]


class ActorPool:
    """Up to `most` actors of one kind, which are started when there are calls for them.

    Args:
        start: Function that starts an actor. Ray must not restart it or repeat its calls.
        most: Largest number of actors.
        needs: Resources of an actor by Ray's names, such as `{"CPU": 1}`.
        name: What one of the actors does, for messages, such as `a worker of engine.name=ray`.
        patience: Seconds that calls may wait while no actor runs.
        tell: Function that gets notes for the user.
    """

    def __init__(
        self,
        start: Callable[[], Any],
        most: int,
        needs: dict[str, float],
        name: str,
        patience: float,
        tell: Callable[[str], None],
    ) -> None:
        self.tell = tell
        self.most = most
        self._start, self._needs, self._name = start, needs, name
        self._patience = patience
        self._queue: deque[_Call] = deque()
        self._beginning: dict[Any, tuple[Any, float]] = {}  # actor and time, by a reference
        self._idle: list[Any] = []
        self._busy: dict[Any, tuple[Any, _Call]] = {}  # by the reference of the result
        self._told = 0.0  # time when the user was told of a wait
        self._stuck: float | None = None  # time since when calls wait and no actor is ready

    @property
    def ready(self) -> int:
        """Number of actors that are ready, or busy."""
        return len(self._idle) + len(self._busy)

    def submit(self, key: Any, method: str, *arguments: Any) -> None:
        self._queue.append(_Call(key, method, arguments))
        self._assign()

    def ended(self, seconds: float) -> list[Ended]:
        """Return the calls that have ended, each once; wait for one for at most some seconds.

        Args:
            seconds: Longest time to wait.

        Raises:
            CouldNotBeginError: An actor could not make its object.
            ConfigError: An actor cannot read the arguments of a call, such as an object of a module
                that it does not find.
            LostError: Calls have waited too long, and no node has the resources of an actor.
            Exception: A call raised it.
        """
        found: list[Ended] = []
        references = [*self._busy, *self._beginning]
        for reference in ray.wait(references, timeout=seconds)[0] if references else ():
            if reference in self._beginning:
                self._note_beginning(reference, found)
            else:
                self._note_end(reference, found)
        self._assign()
        self._check_wait()
        return found

    def close(self) -> None:
        beginning = [actor for actor, _ in self._beginning.values()]
        for actor in (*self._idle, *(actor for actor, _ in self._busy.values()), *beginning):
            _end(actor)
        for part in (self._queue, self._beginning, self._idle, self._busy):
            part.clear()

    def _begin(self) -> None:
        """Start an actor. It waits in the cluster for its resources, without blocking others."""
        actor = self._start()
        self._beginning[actor.__ray_ready__.remote()] = actor, time.monotonic()

    def _assign(self) -> None:
        """Give calls to actors that have nothing to do, and start actors for the others."""
        while self._queue and self._idle:
            actor, call = self._idle.pop(), self._queue.popleft()
            reference = getattr(actor, call.method).remote(*call.arguments)
            self._busy[reference] = actor, call
        missing = self.most - self.ready - len(self._beginning)
        for _ in range(min(missing, len(self._queue) - len(self._beginning))):
            self._begin()

    def _note_beginning(self, reference: Any, found: list[Ended]) -> None:
        """Note that an actor is ready, or could not begin: then the first call is lost with it."""
        actor, _ = self._beginning.pop(reference)
        try:
            ray.get(reference)
            self._idle.append(actor)
        except LOST as error:
            if could_not_begin(error):
                raise CouldNotBeginError(f"{self._name}: {why_lost(error)}") from error
            if self._queue:
                found.append(Ended(self._queue.popleft().key, lost=why_lost(error)))

    def _note_end(self, reference: Any, found: list[Ended]) -> None:
        """Note that a call has returned, or was lost."""
        actor, call = self._busy.pop(reference)
        try:
            value = ray.get(reference)
        except LOST as error:
            _end(actor)
            found.append(Ended(call.key, lost=why_lost(error)))
            return
        except ray.exceptions.RayTaskError as error:
            self._idle.append(actor)
            if (reason := unreadable(error)) is not None:
                raise ConfigError(f"{self._name} cannot read what it is sent: {reason}") from error
            cause: BaseException = error.cause
            if not isinstance(cause, PrintableError):
                cause.add_note(str(error))  # Ray's own error cannot be pickled
            raise cause from None
        self._idle.append(actor)
        found.append(Ended(call.key, value))

    def _check_wait(self) -> None:
        """Tell the user of calls that wait for resources, and end a wait that is too long."""
        now = time.monotonic()
        since = min((since for _, since in self._beginning.values()), default=now)
        if not self._beginning or (self.ready and not self._queue):
            self._told = 0.0
        elif now - max(since, self._told) >= NOTICE:
            self._told = now
            self.tell(self._sentence(now - since))
        if self.ready or not self._queue:
            self._stuck = None
            return
        self._stuck = now if self._stuck is None else self._stuck
        if now - self._stuck >= self._patience:
            raise LostError(f"{self._sentence(now - self._stuck)} {end_of_wait(self._patience)}")

    def _sentence(self, waited: float) -> str:
        """Return a sentence about the present wait for resources."""
        return (
            f"{self._name} that needs {amounts(self._needs)} has not begun for {waited:.0f} s. The"
            f" nodes of Ray that answer have {amounts(free(self._needs))} free of"
            f" {amounts(there(self._needs))}."
        )


def end_of_wait(patience: float) -> str:
    """Return a sentence about the end of a wait for resources, with what may help.

    Ray counts the CPUs of a process as used from when it begins to start.

    Args:
        patience: Value of `engine.wait_seconds`.
    """
    return (
        f"`engine.wait_seconds`={patience:g} ends this wait: start a node, or end what uses the"
        " others. On a busy machine a process may take that long to start: then raise"
        " engine.wait_seconds."
    )


def amounts(resources: dict[str, float]) -> str:
    """Return resources in words.

    >>> amounts({"CPU": 1, "GPU": 0.5}), amounts({"CPU": 4, "GPU": 0})
    ('1 CPU and 0.5 GPUs', '4 CPUs')
    """
    named = {key: value for key, value in resources.items() if value or key == "CPU"}
    return " and ".join(
        f"{value:g} {key}{'' if value == 1 else 's'}" for key, value in named.items()
    )


def free(wanted: Collection[str]) -> dict[str, float]:
    """Return how much of some resources no process of the cluster uses, by Ray's names."""
    found = ray.available_resources()
    return {key: found.get(key, 0.0) for key in wanted}


def there(wanted: Collection[str]) -> dict[str, float]:
    """Return how much of some resources the nodes have that Ray has not given up."""
    found = ray.cluster_resources()
    return {key: found.get(key, 0.0) for key in wanted}


def _end(actor: Any) -> None:
    """End an actor for good. If its node is lost, Ray ends it when the node returns."""
    try:
        ray.kill(actor)
    except (*LOST, ray.exceptions.RaySystemError, ValueError):  # it has ended, or its state is lost
        return


class Stored(NamedTuple):
    """Stands for an object in Ray's object store, in a process that does not call Ray."""

    key: int


_numbers = count()
_stored: dict[Stored, Any] = {}  # references, by what stands for them
_open: dict[int, tuple[ActorPool, list[str]]] = {}  # pools, and notes about them


def put(thing: Any) -> Stored:
    """Store an object; see `ray_driver.RayPool.put`."""
    found = Stored(next(_numbers))
    _stored[found] = _in_store(thing)
    return found


def _in_store(thing: Any) -> Any:
    """Return the reference of an object in the store; processes share the memory of an array."""
    if isinstance(thing, np.ndarray):
        return ray.put(np.asarray(thing))
    return ray.put(portable(thing, ray.cloudpickle.dumps))


def check_samples(stored: Stored, sha256: str) -> None:
    """Raise a RunError if a training has changed samples, which are given up."""
    check_unchanged(ray.get(_stored[stored]), sha256)
    _stored[stored] = None


def open_actors(
    kind: type,
    given: Sequence[Any],
    most: int,
    needs: dict[str, float],
    name: str,
    patience: float,
) -> int:
    """Return the key of new actors; see `ray_driver.RayPool`."""
    # An actor that takes the place of a lost one reads the arguments again.
    references = [_in_store(one) for one in given]
    actor = ray.remote(kind).options(num_cpus=needs["CPU"], num_gpus=needs["GPU"])
    notes: list[str] = []
    pool = ActorPool(lambda: actor.remote(*references), most, needs, name, patience, notes.append)
    key = next(_numbers)
    _open[key] = pool, notes
    return key


def submit(pool: int, key: Any, method: str, arguments: Sequence[Any]) -> None:
    """Let an actor call a method."""
    given = [_stored[one] if isinstance(one, Stored) else one for one in arguments]
    _open[pool][0].submit(key, method, *given)


def ended(pool: int, seconds: float) -> tuple[list[Ended], list[str], int]:
    """Return the calls that have ended, new notes, and the number of ready actors."""
    actors, notes = _open[pool]
    found = actors.ended(seconds)
    said = [*notes]
    notes.clear()
    return found, said, actors.ready


def close(pool: int) -> None:
    """End the actors."""
    _open.pop(pool)[0].close()
