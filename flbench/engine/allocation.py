"""How this process gets memory for tensors on a CPU.

glibc's allocator gives memory back to the operating system as soon as a large tensor is freed, and
asks for it again for the next one. The system clears each of these pages anew, which takes up to a
quarter of the time of a training step, depending on the order of the allocations before. The step
frees and allocates tensors of the same sizes all the time, so the memory is better kept.
"""

import ctypes
import os
from typing import Final

M_TRIM_THRESHOLD: Final = -1
M_MMAP_THRESHOLD: Final = -3
"""Numbers of the two options in glibc's `mallopt`."""
KEPT: Final = 2**30
"""Bytes of free memory at the end of the heap that are kept."""
LARGEST: Final = 2**28
"""Bytes of a tensor from which memory comes directly from the operating system."""
ENVIRONMENT: Final = ("MALLOC_TRIM_THRESHOLD_", "MALLOC_MMAP_THRESHOLD_", "GLIBC_TUNABLES")
"""Variables by which a user configures glibc's allocator."""


def keep_freed_memory() -> bool:
    """Keep memory that tensors on the CPU have freed, up to 1 GiB, for the whole process.

    Nothing changes where the C library is not glibc, or where the user has configured its
    allocator by an environment variable. Other allocators, such as jemalloc, are not affected.

    Returns:
        Whether the allocator was configured.
    """
    if any(name in os.environ for name in ENVIRONMENT):
        return False
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is None:
        return False
    kept = bool(mallopt(M_TRIM_THRESHOLD, KEPT))
    return bool(mallopt(M_MMAP_THRESHOLD, LARGEST)) and kept
