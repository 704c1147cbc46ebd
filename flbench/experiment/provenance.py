"""Provenance of a run: version and source revision of flbench, and the start time."""

import subprocess
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from flbench import __version__


def now() -> dict[str, Any]:
    """Return the content of provenance.json for a run that starts now.

    Returns:
        `flbench`, the version; `git_revision`, see the function of this name; `started`, the time
        in ISO 8601 format, in UTC and to the millisecond.
    """
    return {
        "flbench": __version__,
        "git_revision": git_revision(),
        "started": datetime.now(UTC).isoformat(timespec="milliseconds"),
    }


def git_revision() -> str | None:
    """Return the Git revision of flbench's source code.

    Returns:
        The first 12 digits of the commit, with the suffix `-dirty` if files have uncommitted
        changes; None if flbench does not run from a checkout or Git is not installed.
    """
    checkout = Path(__file__).resolve().parents[1]
    if not (checkout / ".git").exists():
        return None
    command = ["git", "describe", "--always", "--dirty", "--exclude=*", "--abbrev=12"]
    try:
        finished = subprocess.run(
            command, cwd=checkout, capture_output=True, text=True, check=True, timeout=10
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return finished.stdout.strip() or None
