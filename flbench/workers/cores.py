"""How many cores of this machine this process may use."""

import os

from flbench.core import control_groups


def available() -> int:
    """Return the number of cores that this process may use, at least 1.

    Affinity limits them, as `taskset` sets it, and so does the quota of the process's control
    group, as `docker run --cpus` sets it. A part of a core counts as one.
    """
    return max(1, min([len(os.sched_getaffinity(0)), *control_groups.cores()]))
