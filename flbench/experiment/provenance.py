"""Where and when a run began: flbench's version, its source's revision, the time."""

import subprocess
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from flbench import __version__


def now() -> dict[str, Any]:
    """Return what provenance.json holds."""
    return {
        "flbench": __version__,
        "git_revision": git_revision(),
        "started": datetime.now(UTC).isoformat(timespec="milliseconds"),
    }


def git_revision() -> str | None:
    """Return the revision of flbench's source, with `-dirty` if files were changed since.

    None where flbench does not run from a checkout, or Git is not there.
    """
    checkout = Path(__file__).resolve().parents[1]
    if not (checkout / ".git").exists():
        return None
    command = ["git", "describe", "--always", "--dirty", "--exclude=*", "--abbrev=12"]
    try:
        said = subprocess.run(
            command, cwd=checkout, capture_output=True, text=True, check=True, timeout=10
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return said.stdout.strip() or None
