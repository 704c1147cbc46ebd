"""Memory and cores that this process may use, within the limits of its control groups."""

import os
from pathlib import Path
from typing import Final

GROUPS: Final = Path("/sys/fs/cgroup")
OWN: Final = Path("/proc/self/cgroup")
"""The file that names the groups of a process."""
MEMORY_FILES: Final = (
    ("memory.max", "memory.current", "inactive_file"),
    ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"),
)
"""For each version of control groups, the files of the limit and of the use, and the entry of
memory.stat with the file cache that can be dropped."""


def memory() -> list[tuple[int, int]]:
    """Return the limit and the use, in bytes, of each group of this process that has a limit.

    File cache that can be dropped is not counted as used.
    """
    found = []
    for group in _folders("memory"):
        for limit, used, droppable in MEMORY_FILES:
            if (group / limit).is_file():
                most = (group / limit).read_text(encoding="ascii").strip()
                taken = int((group / used).read_text(encoding="ascii"))
                taken -= _statistic(group / "memory.stat", droppable)
                found += [] if most == "max" else [(int(most), taken)]
    return found


def available_cores() -> int:
    """Return the number of cores that this process may use, at least 1.

    Affinity limits them, as `taskset` sets it, and so does the quota of each control group, as
    `docker run --cpus` sets it. A part of a core counts as one.
    """
    quotas = [most for group in _folders("cpu") for most in _quota(group)]
    return max(1, min([len(os.sched_getaffinity(0)), *quotas]))


def _folders(controller: str) -> list[Path]:
    """Return the folders of the groups of this process that may limit a resource.

    Args:
        controller: Name of the controller, which version 1 of control groups has a folder for.
    """
    found: list[Path] = []
    lines = OWN.read_text(encoding="utf-8").splitlines() if OWN.is_file() else []
    for line in lines:
        _, controllers, name = line.split(":", 2)  # version 2 names no controllers
        if controllers and controller not in controllers.split(","):
            continue
        top = GROUPS / controller if controllers else GROUPS
        folder = top / name.lstrip("/")
        found += [one for one in (folder, *folder.parents) if one.is_relative_to(top)]
    return found


def _statistic(file: Path, name: str) -> int:
    """Return an entry of a file such as memory.stat; 0 without the file or the entry."""
    lines = file.read_text(encoding="ascii").splitlines() if file.is_file() else []
    return sum(int(line.split()[1]) for line in lines if line.split()[0] == name)


def _quota(group: Path) -> list[int]:
    """Return the number of cores that one group allows; an empty list if it has no quota."""
    try:
        if (group / "cpu.max").is_file():
            quota, period = (group / "cpu.max").read_text(encoding="ascii").split()
        else:
            quota = (group / "cpu.cfs_quota_us").read_text(encoding="ascii").strip()
            period = (group / "cpu.cfs_period_us").read_text(encoding="ascii").strip()
        return [] if quota in ("max", "-1") else [-(-int(quota) // int(period))]
    except (OSError, ValueError):
        return []
