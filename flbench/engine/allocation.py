"""How this process gets memory for tensors on a CPU.

glibc's allocator may give memory back to the operating system as soon as a large tensor is freed,
and ask for it again for the next one; whether it does depends on the order of the allocations. The
system clears each of these pages anew, which can take a third of the time of a training step. A
step allocates tensors of the same sizes all the time, so the memory is better kept.
"""

import ctypes
import os
from typing import Final

M_TRIM_THRESHOLD: Final = -1  # numbers of options in glibc's `mallopt`
M_MMAP_THRESHOLD: Final = -3
KEPT_BYTES: Final = 2**30
"""Free memory at the end of the heap that is kept."""
MAPPED_BYTES: Final = (2**28, 2**25)
"""Smallest size of a tensor whose memory comes directly from the operating system and goes back to
it. Old versions of glibc take at most the second value."""
VARIABLES: Final = ("MALLOC_TRIM_THRESHOLD_", "MALLOC_MMAP_THRESHOLD_", "GLIBC_TUNABLES")
"""Environment variables by which a user configures glibc's allocator."""


def keep_freed_memory() -> bool:
    """Let this process keep memory that tensors on the CPU have freed.

    At most 1 GiB of free memory at the end of the heap is kept. Nothing changes where the C library
    is not glibc, or where the user has set one of `VARIABLES`, for example
    `MALLOC_TRIM_THRESHOLD_=131072`. Other allocators, such as jemalloc, are not affected.

    Returns:
        Whether the allocator was configured.
    """
    if any(name in os.environ for name in VARIABLES):
        return False
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is None:
        return False
    # The second option turns off glibc's own adaptation of the first one, so it comes second.
    if not any(mallopt(M_MMAP_THRESHOLD, size) for size in MAPPED_BYTES):
        return False
    return bool(mallopt(M_TRIM_THRESHOLD, KEPT_BYTES))
