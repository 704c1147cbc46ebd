"""Actors of Ray as workers, on nodes that may be lost; see `flbench.workers.pool.Pool`.

Ray itself would start an actor again when its node is lost, and let its calls wait for as long as
no node has the resources of the actor. A pool gives a lost call back to its caller, so that another
actor can do it, and starts an actor in the place of the lost one, which begins when a node has the
resources.
"""

import time
from collections import deque
from collections.abc import Collection, Sequence
from typing import Any, Final, NamedTuple

import numpy as np
import ray

from flbench.core.errors import PrintableError
from flbench.workers.pool import CouldNotBeginError, Ended, LostError
from flbench.workers.portable import portable

NOTICE: Final = 20.0
"""Seconds of a wait for resources after which the user is told."""
OUT_OF_MEMORY: Final = "running low on memory"
"""What the text of an error of Ray's memory monitor contains."""


class Stored(NamedTuple):
    """Stands for an object in Ray's object store, in a process that does not call Ray."""

    position: int


class _Call(NamedTuple):
    """A call of a method of an actor, whichever does it."""

    key: Any
    method: str
    arguments: tuple[Any, ...]


class ActorPool:
    """Up to `most` actors of one kind, which are started when there are calls for them.

    Args:
        kind: Class of the object of an actor.
        given: Its arguments, which are stored in Ray's object store once.
        most: Largest number of actors.
        needs: CPUs and GPUs of an actor by Ray's names.
        name: What one of the actors does, for messages, such as `a worker of engine.name=ray`.
        patience: Seconds that calls may wait while no actor runs.
    """

    def __init__(
        self,
        kind: type,
        given: Sequence[Any],
        most: int,
        needs: dict[str, float],
        name: str,
        patience: float,
    ) -> None:
        # An actor that takes the place of a lost one reads the arguments again.
        self._given = [_in_store(one) for one in given]
        self._kind = ray.remote(kind).options(num_cpus=needs["CPU"], num_gpus=needs["GPU"])
        self._most, self._needs, self._name, self._patience = most, needs, name, patience
        self._queue: deque[_Call] = deque()
        self._idle: list[Any] = []
        # Actors by the reference of what they do: a call, or None while they begin.
        self._busy: dict[Any, tuple[Any, _Call | None]] = {}
        self._stored: list[Any] = []
        self._since: float | None = None  # time since when calls wait and no actor is ready
        self._is_told = False

    def put(self, thing: Any) -> Stored:
        """Store an object; return what stands for it among the arguments of a call."""
        self._stored.append(_in_store(thing))
        return Stored(len(self._stored) - 1)

    def give_up(self, stored: Stored) -> None:
        """Give up a stored object, which no further call gets."""
        self._stored[stored.position] = None

    def submit(self, key: Any, method: str, *arguments: Any) -> None:
        """Let an actor call a method as soon as one has nothing else to do."""
        given = [
            self._stored[one.position] if isinstance(one, Stored) else one for one in arguments
        ]
        self._queue.append(_Call(key, method, tuple(given)))
        self._assign()

    def ended(self, seconds: float) -> tuple[list[Ended], str | None, int]:
        """Return how a call has ended, if one has, a note, and the number of ready actors.

        Args:
            seconds: Longest time to wait for a call.

        Raises:
            CouldNotBeginError: An actor could not make its object.
            LostError: Calls have waited too long, and no node has the resources of an actor.
            Exception: A call raised it.
        """
        found: list[Ended] = []
        for reference in ray.wait([*self._busy], timeout=seconds)[0] if self._busy else ():
            actor, call = self._busy.pop(reference)
            try:
                value = ray.get(reference)
            except ray.exceptions.RayTaskError as error:
                self._idle.append(actor)
                cause: BaseException = error.cause
                if not isinstance(cause, PrintableError):
                    cause.add_note(str(error))  # Ray's own error cannot be pickled
                raise cause from None
            except ray.exceptions.RayError as error:
                _end(actor)
                if getattr(error, "actor_init_failed", False):
                    reason = [line for line in str(error).splitlines() if line.strip()][-1].strip()
                    message = f"{self._name} could not begin ({reason})."
                    raise CouldNotBeginError(message) from None
                if call is None and self._queue:
                    call = self._queue.popleft()
                if call is not None:
                    found.append(Ended(call.key, lost=why_lost(error)))
            else:
                self._idle.append(actor)
                if call is not None:
                    found.append(Ended(call.key, value))
        self._assign()
        ready = len(self._idle) + sum(call is not None for _, call in self._busy.values())
        return found, self._wait(ready), ready

    def close(self) -> None:
        """End all actors."""
        for actor in (*self._idle, *(actor for actor, _ in self._busy.values())):
            _end(actor)
        for part in (self._queue, self._idle, self._busy, self._stored, self._given):
            part.clear()

    def _assign(self) -> None:
        """Give calls to actors that have nothing to do, and start actors for the others.

        An actor waits in the cluster for its resources, without blocking others.
        """
        while self._queue and self._idle:
            actor, call = self._idle.pop(), self._queue.popleft()
            self._busy[getattr(actor, call.method).remote(*call.arguments)] = actor, call
        beginning = sum(call is None for _, call in self._busy.values())
        missing = self._most - len(self._idle) - len(self._busy)
        for _ in range(min(missing, len(self._queue) - beginning)):
            actor = self._kind.remote(*self._given)
            self._busy[actor.__ray_ready__.remote()] = actor, None

    def _wait(self, ready: int) -> str | None:
        """Return a note about calls that wait for resources; raise if they wait for too long."""
        if not self._queue or ready:
            self._since, self._is_told = None, False
            return None
        self._since = self._since or time.monotonic()
        waited = time.monotonic() - self._since
        if waited < min(NOTICE, self._patience) or (self._is_told and waited < self._patience):
            return None
        self._is_told = True
        sentence = (
            f"{self._name} that needs {amounts(self._needs)} has not begun for {waited:.0f} s."
            f" {nodes_have(self._needs)}"
        )
        if waited >= self._patience:
            raise LostError(f"{sentence} {end_of_wait(self._patience)}")
        return sentence


_open: Final[list[ActorPool]] = []


def open_actors(*given: Any) -> int:
    """Return the number of a new pool in this process; see `ActorPool` and `ray_driver.RayPool`."""
    _open.append(ActorPool(*given))
    return len(_open) - 1


def call(pool: int, method: str, *arguments: Any) -> Any:
    """Call a method of a pool of this process."""
    return getattr(_open[pool], method)(*arguments)


def why_lost(error: Any) -> str:
    """Return one sentence about the loss of a worker process, by an error of Ray."""
    text = str(error).strip()
    if OUT_OF_MEMORY in text:
        return (
            "Ray ended its worker process, because the memory of the machine was almost full:"
            " train fewer at the same time."
        )
    return f"its worker process was lost ({text.partition(chr(10))[0].rstrip('.')})."


def end_of_wait(patience: float) -> str:
    """Return a sentence about the end of a wait for resources, with what may help.

    Args:
        patience: Value of `engine.wait_seconds`.
    """
    return (
        f"`engine.wait_seconds`={patience:g} ends this wait: start a node, end what uses the"
        " others, or raise it if processes of this machine take as long to start."
    )


def nodes_have(wanted: Collection[str]) -> str:
    """Return a sentence about what the nodes have of some resources, by Ray's names."""
    found = ray.available_resources()
    free = {key: found.get(key, 0.0) for key in wanted}
    return f"The nodes of Ray that answer have {amounts(free)} free of {amounts(there(wanted))}."


def amounts(resources: dict[str, float]) -> str:
    """Return resources in words.

    >>> amounts({"CPU": 1, "GPU": 0.5}), amounts({"CPU": 4, "GPU": 0})
    ('1 CPU and 0.5 GPUs', '4 CPUs')
    """
    named = {key: value for key, value in resources.items() if value or key == "CPU"}
    return " and ".join(
        f"{value:g} {key}{'' if value == 1 else 's'}" for key, value in named.items()
    )


def there(wanted: Collection[str]) -> dict[str, float]:
    """Return how much of some resources the nodes have that Ray has not given up."""
    found = ray.cluster_resources()
    return {key: found.get(key, 0.0) for key in wanted}


def _in_store(thing: Any) -> Any:
    """Return the reference of an object in the store; processes share the memory of an array."""
    if isinstance(thing, np.ndarray):
        return ray.put(np.asarray(thing))
    return ray.put(portable(thing, ray.cloudpickle.dumps))


def _end(actor: Any) -> None:
    """End an actor for good. If its node is lost, Ray ends it when the node returns."""
    try:
        ray.kill(actor)
    except (ray.exceptions.RayError, ValueError):  # it has ended, or its state is lost
        return
