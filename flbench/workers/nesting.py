"""Whether this process may start worker processes."""

import multiprocessing
import os
import sys
from typing import Final

VARIABLE: Final = "FLBENCH_WORKER"
"""Environment variable of worker processes, which start no workers themselves."""


def is_worker() -> bool:
    """Return whether this process is a worker itself, which shares the cores with others."""
    has_parent = multiprocessing.parent_process() is not None
    return VARIABLE in os.environ or has_parent or is_ray_worker()


def is_ray_worker() -> bool:
    """Return whether Ray has started this process for tasks or actors."""
    ray = sys.modules.get("ray")
    if ray is None or not ray.is_initialized():
        return False
    context = ray.get_runtime_context()
    return bool(context.worker.mode == ray.WORKER_MODE)


def is_elsewhere(address: str | None) -> bool:
    """Return whether an address is that of a running cluster, and not of one that flbench starts.

    >>> is_elsewhere("auto"), is_elsewhere("local"), is_elsewhere(None)
    (True, False, False)
    """
    return address not in (None, "local")
