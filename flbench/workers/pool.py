"""Actors of Ray that do one call at a time, on nodes that may be lost.

Ray itself starts an actor again when its node is lost, and lets its calls wait for as long as no
node has the resources of the actor. A pool gives a lost call back to its caller within half a
minute, so that another actor can do it, and starts an actor in the place of the lost one, which
begins when a node has the resources.
"""

import time
from collections import deque
from collections.abc import Callable, Collection
from typing import Any, Final, NamedTuple

import ray

from flbench.core.errors import ConfigError, RunError
from flbench.workers.lost import LOST, unreadable
from flbench.workers.supervisor import connection_error

LOOK: Final = 3.0
"""Seconds between two looks at the nodes of the actors that are busy."""
SILENCE: Final = 15.0
"""Seconds after which a node that does not accept connections is lost. Ray itself waits for more
than a minute if the link of a node is cut."""
NOTICE: Final = 20.0
"""Seconds of a wait for resources after which the user is told, and told again."""


class Ended(NamedTuple):
    """How a call ended.

    Attributes:
        key: What the caller has given with the call.
        value: What it returned.
        error: The error of Ray if its actor was lost; see `flbench.workers.lost`.
    """

    key: Any
    value: Any = None
    error: Exception | None = None


class Nodes:
    """Tells which nodes of the cluster are lost."""

    def __init__(self) -> None:
        self._answered: set[str] = set()
        self._silent: dict[str, float] = {}  # time since when a node has not answered

    def lost(self, ids: Collection[str]) -> set[str]:
        """Return those of these nodes that Ray has given up, or that have been silent too long.

        A node that has never accepted a connection of this process may be behind a firewall, and is
        lost only if Ray has given it up.

        Args:
            ids: Ids of nodes. Each one that does not answer takes up to two seconds.
        """
        found, now = set(), time.monotonic()
        for node in ray.nodes():
            name = node["NodeID"]
            if name not in ids:
                continue
            if not node["Alive"]:
                found.add(name)
            elif connection_error((node["NodeManagerAddress"], node["NodeManagerPort"])) is None:
                self._answered.add(name)
                self._silent.pop(name, None)
            elif name in self._answered and now - self._silent.setdefault(name, now) >= SILENCE:
                found.add(name)
        return found


class _Call(NamedTuple):
    """A call of a method of an actor, whichever does it."""

    key: Any
    method: str
    arguments: tuple[Any, ...]


class _Member(NamedTuple):
    """An actor that is ready, and the id of its node."""

    actor: Any
    node: str


class _Beginning(NamedTuple):
    """An actor that is not ready yet, and when it was asked for."""

    actor: Any
    since: float


class ActorPool:
    """Up to `most` actors of one kind, which are started when there are calls for them.

    Args:
        start: Function that starts an actor. Ray must not restart it or repeat its calls.
        most: Largest number of actors.
        needs: Resources of an actor by Ray's names, such as `{"CPU": 1}`.
        name: What one of the actors does, for messages, such as `a worker of engine.name=ray`.
        patience: Seconds that calls may wait while no actor runs.
        tell: Function that gets notes for the user.

    Attributes:
        failed: Why an actor could not begin for which no call waited; None if all could.
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
        self.failed: Exception | None = None
        self._start, self._most, self._needs, self._name = start, most, needs, name
        self._patience = patience
        self._queue: deque[_Call] = deque()
        self._beginning: dict[Any, _Beginning] = {}  # by the reference of the id of its node
        self._idle: list[_Member] = []
        self._busy: dict[Any, tuple[_Member, _Call]] = {}  # by the reference of the result
        self._nodes = Nodes()
        self._looked = 0.0
        self._told = 0.0  # time when the user was told of a wait
        self._stuck: float | None = None  # time since when calls wait and no actor is ready

    @property
    def ready(self) -> list[Any]:
        """The actors that are ready, or busy."""
        members = [*self._idle, *(member for member, _ in self._busy.values())]
        return [member.actor for member in members]

    def fill(self) -> None:
        """Start as many actors as are missing, also without calls for them."""
        while len(self.ready) + len(self._beginning) < self._most:
            self._begin()

    def submit(self, key: Any, method: str, *arguments: Any) -> None:
        """Let an actor call one of its methods, as soon as one has nothing else to do.

        Args:
            key: What `ended` returns with the result.
            method: Name of the method.
            arguments: Its arguments.
        """
        self._queue.append(_Call(key, method, arguments))
        self._assign()

    def ended(self, seconds: float) -> list[Ended]:
        """Return the calls that have ended, each once; wait for one for at most some seconds.

        Args:
            seconds: Longest time to wait.

        Raises:
            ConfigError: An actor cannot read the arguments of a call, such as an object of a module
                that it does not find.
            RunError: Calls have waited too long, and no node has the resources of an actor.
            ray.exceptions.RayTaskError: A call raised an exception.
        """
        found: list[Ended] = []
        references = [*self._busy, *self._beginning]
        done = ray.wait(references, timeout=seconds)[0] if references else ()
        for reference in done:
            if reference in self._beginning:
                self._note_beginning(reference, found)
            else:
                self._note_end(reference, found)
        self._look(found)
        self._assign()
        self._check_wait()
        return found

    def close(self, *, kill: bool = False) -> None:
        """Give up all references to Ray's objects, with which the actors end.

        Args:
            kill: Whether to end the actors at once.
        """
        if kill:
            for actor in (*self.ready, *(one.actor for one in self._beginning.values())):
                _end(actor)
        for part in (self._queue, self._beginning, self._idle, self._busy):
            part.clear()

    def _begin(self) -> None:
        """Start an actor. It waits in the cluster for its resources, without blocking others."""
        actor = self._start()
        self._beginning[actor.__ray_call__.remote(_node)] = _Beginning(actor, time.monotonic())

    def _assign(self) -> None:
        """Give calls to actors that have nothing to do, and start actors for the others."""
        while self._queue and self._idle:
            member, call = self._idle.pop(), self._queue.popleft()
            reference = getattr(member.actor, call.method).remote(*call.arguments)
            self._busy[reference] = member, call
        missing = self._most - len(self.ready) - len(self._beginning)
        for _ in range(min(missing, len(self._queue) - len(self._beginning))):
            self._begin()

    def _note_beginning(self, reference: Any, found: list[Ended]) -> None:
        """Note that an actor is ready, or could not begin: then the first call is lost with it."""
        actor = self._beginning.pop(reference).actor
        try:
            self._idle.append(_Member(actor, ray.get(reference)))
        except LOST as error:
            if self._queue:
                found.append(Ended(self._queue.popleft().key, error=error))
            else:
                self.failed = error

    def _note_end(self, reference: Any, found: list[Ended]) -> None:
        """Note that a call has returned, or was lost."""
        member, call = self._busy.pop(reference)
        try:
            value = ray.get(reference)
        except LOST as error:
            _end(member.actor)
            found.append(Ended(call.key, error=error))
            return
        except ray.exceptions.RayTaskError as error:
            self._idle.append(member)
            if (reason := unreadable(error)) is not None:
                raise ConfigError(f"{self._name} cannot read what it is sent: {reason}") from error
            raise
        self._idle.append(member)
        found.append(Ended(call.key, value))

    def _look(self, found: list[Ended]) -> None:
        """Note the calls on nodes that are lost, from time to time."""
        now = time.monotonic()
        if now - self._looked < LOOK or not self._busy:
            return
        lost = self._nodes.lost({member.node for member, _ in self._busy.values()})
        self._looked = time.monotonic()
        for member in [one for one in self._idle if one.node in lost]:
            self._idle.remove(member)
            _end(member.actor)
        for reference, (member, call) in list(self._busy.items()):
            if member.node in lost:
                del self._busy[reference]
                _end(member.actor)
                error = ray.exceptions.NodeDiedError("the node does not answer")
                found.append(Ended(call.key, error=error))

    def _check_wait(self) -> None:
        """Tell the user of calls that wait for resources, and end a wait that is too long."""
        now = time.monotonic()
        since = min((one.since for one in self._beginning.values()), default=now)
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
            raise RunError(f"{self._sentence(now - self._stuck)} {end_of_wait(self._patience)}")

    def _sentence(self, waited: float) -> str:
        """Return a sentence about the present wait for resources."""
        others = f", beside {len(self.ready)} that can be used" if self.ready else ""
        return (
            f"{self._name} that needs {amounts(self._needs)} has not begun for {waited:.0f} s"
            f"{others}. The nodes of Ray that answer have {amounts(free(self._needs))} free of"
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


def _node(actor: object) -> str:
    """Return the id of the node on which an actor runs."""
    return str(ray.get_runtime_context().get_node_id())


def _end(actor: Any) -> None:
    """End an actor for good. If its node is lost, Ray ends it when the node returns."""
    try:
        ray.kill(actor)
    except (*LOST, ray.exceptions.RaySystemError, ValueError):  # it has ended, or its state is lost
        return
