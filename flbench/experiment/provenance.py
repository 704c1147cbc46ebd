"""Provenance of a run: what ran, when, with which versions, on which hardware."""

import platform
import subprocess
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, Final

import torch

from flbench import __version__
from flbench.core.control_groups import available_cores
from flbench.core.startup import command

PACKAGES: Final = (
    *("torch", "torchvision", "lightning", "torchmetrics", "numpy", "scipy", "scikit-learn"),
    *("pandas", "ray", "mlflow", "optuna"),
)
"""Packages whose versions may matter for results, or for reading them again."""


def now(modules: Sequence[str] = (), module: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """Return the content of provenance.json for a run that starts now.

    Args:
        modules: Names of the modules of the user's own that the run uses. The versions of the
            packages that they belong to, and of those that they import, are among `packages`.
        module: Optimizer and hyper-parameters of a LightningModule of the user; empty or None if
            there is none.

    Returns:
        - `flbench`: the version; `git_revision`: see the function of this name;
        - `started`: the time in ISO 8601 format, in UTC and to the millisecond;
        - `python` and `packages`: versions; packages that are not installed are left out;
        - `platform`: operating system and machine; `processor`, its `cores` that this process may
          use, `threads` of PyTorch, and the names of the `gpus` that PyTorch sees;
        - `command`: see `flbench.core.startup.command`;
        - `module`, only with a LightningModule of the user: its `optimizer` (class and arguments)
          and its `hyperparameters`.
    """
    packages = dict(_versions())
    if modules:
        from flbench.core import source_hash

        packages |= source_hash.versions(modules)
    return {
        "flbench": __version__,
        "git_revision": git_revision(),
        "started": datetime.now(UTC).isoformat(timespec="milliseconds"),
        "python": platform.python_version(),
        "packages": packages,
        "platform": platform.platform(),
        "processor": _processor(),
        "cores": available_cores(),
        "threads": torch.get_num_threads(),
        "gpus": [torch.cuda.get_device_name(k) for k in range(torch.cuda.device_count())],
        "command": command(),
        **({"module": dict(module)} if module else {}),
    }


def git_revision() -> str | None:
    """Return the Git revision of flbench's source code.

    Returns:
        The first 12 digits of the commit, with the suffix `-dirty` if files have uncommitted
        changes; None if flbench does not run from a checkout or Git is not installed.
    """
    checkout = Path(__file__).resolve().parents[2]
    if not (checkout / ".git").exists():
        return None
    describe = ["git", "describe", "--always", "--dirty", "--exclude=*", "--abbrev=12"]
    try:
        finished = subprocess.run(
            describe, cwd=checkout, capture_output=True, text=True, check=True, timeout=10
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return finished.stdout.strip() or None


@cache  # a process has imported them once
def _versions() -> Mapping[str, str]:
    """Return the versions of the packages that are installed, by name."""
    found = {}
    for name in PACKAGES:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            continue
    return found


def _processor() -> str:
    """Return the name of the processor as far as the operating system says it."""
    try:
        lines = Path("/proc/cpuinfo").read_text("utf-8").splitlines()
    except (OSError, UnicodeDecodeError):
        return platform.processor()
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor()
