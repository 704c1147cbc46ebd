"""Losses of a process of Ray that trains: the errors that Ray raises then, and why it was lost."""

from typing import Any, Final

import ray

from flbench.core.parts import where_to_put

LOST: Final[tuple[type[Exception], ...]] = (
    ray.exceptions.RayActorError,
    ray.exceptions.OutOfMemoryError,
    ray.exceptions.NodeDiedError,
    ray.exceptions.WorkerCrashedError,
    ray.exceptions.ObjectLostError,
)
"""Errors of Ray after which a training is started again. They are not errors of the training."""

OUT_OF_MEMORY: Final = "running low on memory"
"""What the text of an error of Ray's memory monitor contains."""

_BY_NODE: Final = ("node has died", "node is dead", "node died", "unreachable")


def why_lost(error: Any) -> str:
    """Return one sentence about the loss of a worker process.

    Args:
        error: An error of `LOST`.

    >>> why_lost(ray.exceptions.NodeDiedError("x"))
    'its machine has ended, or cannot be reached.'
    """
    text = str(error)
    if isinstance(error, ray.exceptions.OutOfMemoryError) or OUT_OF_MEMORY in text:
        return (
            "Ray ended its worker process, because the memory of the machine was almost full:"
            " train fewer at the same time."
        )
    if could_not_begin(error):
        lines = [line.strip() for line in text.splitlines() if line.strip()]
        reason = lines[-1].rstrip(".") if lines else "no message"
        return f"its worker process could not begin: {reason}.{where_to_put(reason)}"
    is_node = isinstance(error, ray.exceptions.NodeDiedError | ray.exceptions.ObjectLostError)
    if is_node or any(words in text for words in _BY_NODE):
        return "its machine has ended, or cannot be reached."
    return "its worker process died: it was killed, or memory ran out."


def could_not_begin(error: Any) -> bool:
    """Return whether a worker process has raised an error while it began, as another one would.

    Args:
        error: An error of `LOST`.
    """
    return bool(getattr(error, "actor_init_failed", False))


def unreadable(error: ray.exceptions.RayTaskError) -> str | None:
    """Return why a process cannot read what it was sent; None if a call has failed otherwise.

    Args:
        error: The error of the call.
    """
    if not isinstance(error.cause, ray.exceptions.RaySystemError):
        return None
    said = str(error.cause).removeprefix("System error: ").partition("\ntraceback:")[0]
    reason = " ".join(said.split())
    return f"{reason}.{where_to_put(reason)}" if reason else None
