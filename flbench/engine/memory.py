"""How much memory is left, and what a backward pass takes of it."""

from collections.abc import Iterable
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.autograd.graph import saved_tensors_hooks

from flbench.client.module import call, mode
from flbench.core.types import Tree

UNKNOWN = 2**30  # bytes, where the system does not say
GROUPS = Path("/sys/fs/cgroup")
Files = tuple[str, Path, str, str, str]
# Control groups of version 2 and 1: their line, folder, limit, use, and files that can be dropped.
KINDS: tuple[Files, ...] = (
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
    """Return the bytes that a device has left; on a CPU within the limits of control groups."""
    if device.type == "cuda":
        return int(torch.cuda.mem_get_info(device)[0])
    return min([_left(Path("/proc/meminfo")), *_left_of_groups(Path("/proc/self/cgroup"))])


def _left(meminfo: Path) -> int:
    for line in meminfo.read_text(encoding="ascii").splitlines():
        if line.startswith("MemAvailable:"):
            return int(line.split()[1]) * 1024
    return UNKNOWN


def _left_of_groups(
    own: Path, kinds: Iterable[tuple[str, Path, str, str, str]] = KINDS
) -> list[int]:
    """Return what is left of the limit of each control group that this process is in."""
    lines = own.read_text(encoding="utf-8").splitlines() if own.is_file() else []
    found = []
    for mark, root, limit, used, droppable in kinds:
        for line in lines:
            _, there, name = line.partition(mark)
            folder = root / name.lstrip("/")
            for group in (folder, *folder.parents) if there else ():
                if group.is_relative_to(root) and (group / limit).is_file():
                    most = (group / limit).read_text(encoding="ascii").strip()
                    taken = int((group / used).read_text(encoding="ascii"))
                    taken -= _statistic(group / "memory.stat", droppable)
                    found += [] if most == "max" else [max(0, int(most) - taken)]
    return found


def _statistic(file: Path, name: str) -> int:
    lines = file.read_text(encoding="ascii").splitlines() if file.is_file() else []
    return sum(int(line.split()[1]) for line in lines if line.split()[0] == name)


def saved_bytes_per_sample(net: nn.Module, start: Tree, buffers: frozenset[str], x: Tensor) -> int:
    """Return the bytes that a backward pass remembers of one sample.

    Args:
        net: in whatever mode.
        start: its leaves.
        buffers: names of those that are no parameters.
        x: [B, ...] inputs, a few.
    """
    leaves = {name: leaf.clone() for name, leaf in start.items()}
    for name in start.keys() - buffers:
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
