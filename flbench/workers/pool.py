"""The interface of a pool of workers: processes of this machine, or actors of Ray."""

from typing import Any, Final, NamedTuple, Protocol

from flbench.core.errors import RunError

RESTARTS: Final = 3
"""How often a call is given to another worker, or a worker is started again, before that fails."""
DIED: Final = "its process died: it was killed, or memory ran out."
"""Sentence about the loss of a worker whose machine still answers."""


class LostError(RunError):
    """The workers of a study or a comparison are lost, which can be resumed."""


class Ended(NamedTuple):
    """How a call ended.

    Attributes:
        key: What the caller has given with the call.
        value: What it returned.
        lost: A sentence about the loss of its worker; None if it returned.
        is_final: Whether the worker could not begin for a reason that holds for all workers.
    """

    key: Any
    value: Any = None
    lost: str | None = None
    is_final: bool = False


class Pool(Protocol):
    """Workers that have an object of one class each, and call its methods.

    A call whose worker is lost is given back to the caller, who may submit it again: the pool has
    started another worker by then, or does so.

    Attributes:
        failed: Why no worker can begin; None if they can, or have not tried.
    """

    failed: str | None

    @property
    def ready(self) -> int:
        """Number of workers that are ready, or busy."""

    def fill(self) -> None:
        """Start the workers that are missing, also without calls for them."""

    def submit(self, key: Any, method: str, *arguments: Any) -> None:
        """Let a worker call a method of its object as soon as one has nothing else to do.

        Args:
            key: What `ended` returns with the result.
            method: Name of the method.
            arguments: Its arguments.
        """

    def ended(self, seconds: float) -> list[Ended]:
        """Return the calls that have ended, each once; wait for one for at most some seconds.

        Raises:
            Exception: A call raised it.
        """

    def close(self) -> None:
        """End all workers, also in the middle of a call."""
