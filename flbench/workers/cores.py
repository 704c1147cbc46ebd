"""How many cores of this machine this process may use."""

import os
from pathlib import Path
from typing import Final

GROUPS: Final = Path("/sys/fs/cgroup")
OWN: Final = Path("/proc/self/cgroup")


def available() -> int:
    """Return the number of cores that this process may use, at least 1.

    Affinity limits them, as `taskset` sets it, and so does the quota of the process's control
    group, as `docker run --cpus` sets it. A part of a core counts as one.
    """
    return max(1, min(len(os.sched_getaffinity(0)), *_quotas(OWN, GROUPS)))


def _quotas(own: Path, root: Path) -> list[int]:
    """Return the number of cores that each control group of this process allows.

    Args:
        own: A file such as /proc/self/cgroup, which names the groups of a process.
        root: Folder of the control groups.

    Returns:
        The limits of version 2 (`cpu.max`) and of version 1 (`cpu.cfs_quota_us`), and a very large
        number as the first one, so that there is always one.
    """
    found = [2**20]
    lines = own.read_text(encoding="utf-8").splitlines() if own.is_file() else []
    for line in lines:
        _, controllers, name = line.split(":", 2)
        folder = root / name.lstrip("/")
        if controllers and "cpu" in controllers.split(","):
            folder = root / "cpu" / name.lstrip("/")
        for group in (folder, *folder.parents):
            if group == root.parent:
                break
            found += _quota(group)
    return found


def _quota(group: Path) -> list[int]:
    """Return the limit of one control group; an empty list if it has none."""
    try:
        if (group / "cpu.max").is_file():
            quota, period = (group / "cpu.max").read_text(encoding="ascii").split()
        else:
            quota = (group / "cpu.cfs_quota_us").read_text(encoding="ascii").strip()
            period = (group / "cpu.cfs_period_us").read_text(encoding="ascii").strip()
        return [] if quota in ("max", "-1") else [-(-int(quota) // int(period))]
    except (OSError, ValueError):
        return []
