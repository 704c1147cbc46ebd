"""Free memory of a device, and the memory that a backward pass needs."""

from pathlib import Path

import torch
from torch import Tensor, nn
from torch.autograd.graph import saved_tensors_hooks

from flbench.client.forward import call, mode
from flbench.core import control_groups
from flbench.core.types import Tree

UNKNOWN = 2**30
"""Free bytes that are assumed if the system does not report them."""


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

    with mode(net, train=True), saved_tensors_hooks(note, lambda tensor: tensor):
        call(net, leaves, x)
    return sum(saved.values()) // len(x)
