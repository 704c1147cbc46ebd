"""Provenance of a run: what ran, when, with which versions, on which hardware."""

import platform
import subprocess
from collections.abc import Mapping, Sequence
from contextlib import suppress
from datetime import UTC, datetime
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
    """
    packages = {}
    for name in PACKAGES:
        with suppress(PackageNotFoundError):
            packages[name] = version(name)
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
    """Return 12 digits of the Git commit of flbench's source code, or None outside a checkout.

    They have the suffix `-dirty` if files have uncommitted changes.
    """
    checkout = Path(__file__).resolve().parents[2]
    if not (checkout / ".git").exists():
        return None
    describe = ["git", "describe", "--always", "--dirty", "--exclude=*", "--abbrev=12"]
    try:
        found = subprocess.run(describe, cwd=checkout, capture_output=True, text=True, timeout=10)
    except (OSError, subprocess.SubprocessError):  # Git is not installed, or waits for a disk
        return None
    return found.stdout.strip() or None


def _processor() -> str:
    """Return the name of the processor as far as the operating system says it."""
    with suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text(errors="replace").splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor()
