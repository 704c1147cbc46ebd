"""Cores that a process may use."""

import os

import pytest

from flbench.core import control_groups
from flbench.core.control_groups import available_cores


@pytest.mark.parametrize(
    ("files", "found"),
    [
        ({"a/cpu.max": "max 100000"}, None),
        ({"a/cpu.max": "150000 100000", "a/b/cpu.max": "max 100000"}, 2),
        ({"a/cpu.max": "400000 100000", "a/b/cpu.max": "50000 100000"}, 1),
        ({"cpu/a/b/cpu.cfs_quota_us": "300000", "cpu/a/b/cpu.cfs_period_us": "100000"}, 3),
        ({"cpu/a/b/cpu.cfs_quota_us": "-1", "cpu/a/b/cpu.cfs_period_us": "100000"}, None),
        ({"a/cpu.max": "damaged"}, None),
    ],
)
def test_quota_of_the_control_group_limits_the_cores(tmp_path, monkeypatch, files, found):
    own = tmp_path / "own"
    first = next(iter(files))
    own.write_text("3:cpu,cpuacct:/a/b\n" if first.startswith("cpu/") else "0::/a/b\n")
    for name, content in files.items():
        (tmp_path / "groups" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "groups" / name).write_text(content + "\n")
    monkeypatch.setattr(control_groups, "OWN", own)
    monkeypatch.setattr(control_groups, "GROUPS", tmp_path / "groups")
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(64)))

    assert available_cores() == (found or 64)


def test_affinity_limits_the_cores(tmp_path, monkeypatch):
    monkeypatch.setattr(control_groups, "OWN", tmp_path / "none")
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {4, 7})

    assert available_cores() == 2
