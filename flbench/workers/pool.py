"""The interface of a pool of workers: processes of this machine, or actors of Ray."""

from typing import Any, Final, NamedTuple, Protocol

from flbench.core.errors import RunError

RESTARTS: Final = 3
"""How often a call whose worker was lost is given to another one."""


class LostError(RunError):
    """The workers of a run, study or comparison are lost. It can be resumed."""


class CouldNotBeginError(LostError):
    """A worker could not make its object, and neither could another worker."""


class Ended(NamedTuple):
    """How a call ended.

    Attributes:
        key: What the caller has given with the call.
        value: What it returned.
        lost: A sentence about the loss of its worker; None if it returned.
    """

    key: Any
    value: Any = None
    lost: str | None = None


class Pool(Protocol):
    """Workers that have an object of one class each, and call its methods.

    Workers are started for calls. A call whose worker is lost is given back to the caller, who may
    submit it again to another worker.

    Attributes:
        most: Largest number of workers.
    """

    most: int

    def submit(self, key: Any, method: str, *arguments: Any) -> None:
        """Let a worker call a method of its object; at most `most` calls run at the same time.

        Args:
            key: What `ended` returns with the result.
            method: Name of the method.
            arguments: Its arguments.

        Raises:
            CouldNotBeginError: The system starts no further process.
        """

    def ended(self, seconds: float) -> list[Ended]:
        """Return the calls that have ended, each once; wait for one for at most some seconds.

        Raises:
            CouldNotBeginError: A worker could not make its object.
            LostError: No worker is left.
            Exception: A call raised it.
        """

    def close(self) -> None:
        """End all workers, also in the middle of a call."""
