"""Free memory of a device, and the memory that a backward pass needs."""

from collections.abc import Iterable
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.autograd.graph import saved_tensors_hooks

from flbench.client.forward import call, mode
from flbench.core.types import Tree

UNKNOWN = 2**30
"""Free bytes that are assumed if the system does not report them."""
GROUPS = Path("/sys/fs/cgroup")
Files = tuple[str, Path, str, str, str]
"""Where one version of control groups has its files.

The prefix of its line in /proc/self/cgroup, its folder, the file of the limit, the file of the use,
and the entry of memory.stat with the file cache that can be dropped.
"""
VERSIONS: tuple[Files, ...] = (
    ("0::", GROUPS, "memory.max", "memory.current", "inactive_file"),
    (
        ":memory:",
        GROUPS / "memory",
        "memory.limit_in_bytes",
        "memory.usage_in_bytes",
        "total_inactive_file",
    ),
)


def free(device: torch.device) -> int:
    """Return the free bytes of a device; on a CPU within the limits of control groups."""
    if device.type == "cuda":
        return int(torch.cuda.mem_get_info(device)[0])
    return min([_available(Path("/proc/meminfo")), *_free_in_groups(Path("/proc/self/cgroup"))])


def _available(meminfo: Path) -> int:
    """Return the available bytes in a file such as /proc/meminfo."""
    for line in meminfo.read_text(encoding="ascii").splitlines():
        if line.startswith("MemAvailable:"):
            return int(line.split()[1]) * 1024
    return UNKNOWN


def _free_in_groups(own: Path, versions: Iterable[Files] = VERSIONS) -> list[int]:
    """Return the bytes below the limit of each control group of this process.

    Args:
        own: A file such as /proc/self/cgroup, which names the groups of a process.
        versions: Where each version of control groups has its files.
    """
    lines = own.read_text(encoding="utf-8").splitlines() if own.is_file() else []
    free_bytes = []
    for mark, root, limit, used, droppable in versions:
        for line in lines:
            _, there, name = line.partition(mark)
            folder = root / name.lstrip("/")
            for group in (folder, *folder.parents) if there else ():
                if group.is_relative_to(root) and (group / limit).is_file():
                    allowed = (group / limit).read_text(encoding="ascii").strip()
                    taken = int((group / used).read_text(encoding="ascii"))
                    taken -= _statistic(group / "memory.stat", droppable)
                    free_bytes += [] if allowed == "max" else [max(0, int(allowed) - taken)]
    return free_bytes


def _statistic(file: Path, name: str) -> int:
    """Return an entry of a file such as memory.stat; 0 without the file or the entry."""
    lines = file.read_text(encoding="ascii").splitlines() if file.is_file() else []
    return sum(int(line.split()[1]) for line in lines if line.split()[0] == name)


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
        return tensor

    with mode(net, train=True), saved_tensors_hooks(note, lambda tensor: tensor):
        call(net, leaves, x)
    return sum(saved.values()) // len(x)
