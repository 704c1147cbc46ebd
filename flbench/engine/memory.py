"""Free memory of a device, memory that a backward pass needs, and memory that is kept."""

import ctypes
import os
from pathlib import Path
from typing import Final

import torch
from torch import Tensor, nn
from torch.autograd.graph import saved_tensors_hooks

from flbench.client.forward import call
from flbench.core import control_groups
from flbench.core.types import Tree
from flbench.models import freezing

UNKNOWN = 2**30
"""Free bytes that are assumed if the system does not report them."""
M_TRIM_THRESHOLD: Final = -1  # numbers of options in glibc's `mallopt`
M_MMAP_THRESHOLD: Final = -3
KEPT_BYTES: Final = 2**30
"""Free memory at the end of the heap that is kept."""
MAPPED_BYTES: Final = (2**28, 2**25)
"""Smallest size of a tensor whose memory comes directly from the operating system and goes back to
it. Old versions of glibc take at most the second value."""
VARIABLES: Final = ("MALLOC_TRIM_THRESHOLD_", "MALLOC_MMAP_THRESHOLD_", "GLIBC_TUNABLES")
"""Environment variables by which a user configures glibc's allocator."""


def free(device: torch.device) -> int:
    """Return the free bytes of a device; on a CPU within the limits of control groups."""
    if device.type == "cuda":
        return int(torch.cuda.mem_get_info(device)[0])
    limited = [max(0, limit - used) for limit, used in control_groups.memory()]
    return min([_available(Path("/proc/meminfo")), *limited])


def _available(meminfo: Path) -> int:
    """Return the available bytes in a file such as /proc/meminfo."""
    for line in meminfo.read_text(encoding="ascii").splitlines():
        if line.startswith("MemAvailable:"):
            return int(line.split()[1]) * 1024
    return UNKNOWN


def saved_bytes_per_sample(net: nn.Module, start: Tree, never: frozenset[str], x: Tensor) -> int:
    """Return the bytes per sample that autograd saves in a forward pass for the backward pass.

    Args:
        net: The net; its mode is restored.
        start: Its parameters and buffers by name; they are not written to.
        never: Names of those that are never trained: buffers and frozen parameters.
        x: Inputs [B, ...]; two samples are enough.
    """
    leaves = {name: leaf.clone() for name, leaf in start.items()}
    for name in start.keys() - never:
        leaves[name].requires_grad_()
    known = {leaf.untyped_storage().data_ptr() for leaf in leaves.values()}
    saved: dict[int, int] = {}

    def note(tensor: Tensor) -> Tensor:
        memory = tensor.untyped_storage()
        if memory.data_ptr() not in known:
            saved[memory.data_ptr()] = memory.nbytes()
        # An operation that saved its own result would hold itself, and never be freed.
        return tensor.detach()

    with freezing.mode(net, train=True), saved_tensors_hooks(note, lambda tensor: tensor):
        call(net, leaves, x)
    return sum(saved.values()) // len(x)


def keep_freed_memory() -> bool:
    """Let this process keep memory that tensors on the CPU have freed.

    glibc's allocator may give memory back to the operating system as soon as a large tensor is
    freed, and ask for it again for the next one; the system clears each of these pages anew, which
    can take a third of the time of a training step. A step allocates tensors of the same sizes all
    the time.

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
