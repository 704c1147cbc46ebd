"""Finding the folders of runs and studies below other folders."""

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from flbench.results import study_folder

MIRROR: Final = "flbench.db"
"""MLflow's local database. The folders beside it have copies of the files of runs."""


def find(paths: Sequence[Path]) -> list[Path]:
    """Return the folders of runs and studies at or below paths, each once.

    Returns:
        The folders. A path that has no such folder at or below it is returned as it is.
    """
    found: dict[Path, None] = {}
    for path in paths:
        found |= dict.fromkeys([path] if is_one(path) else below(path) or [path])
    return list(found)


def below(path: Path) -> list[Path]:
    """Return the run folders and study folders below a folder, ordered by path.

    The runs of a study are part of it. Hidden folders, links to folders, and the folder of MLflow's
    local store are left out.
    """
    found: list[Path] = []
    for folder, names, files in os.walk(path):
        if MIRROR in files:
            names.clear()
        elif is_one(Path(folder)):
            found.append(Path(folder))
            names.clear()
        names[:] = sorted(name for name in names if not name.startswith("."))
    return found


def is_one(path: Path) -> bool:
    """Return whether a path is the folder of a run or of a study."""
    return study_folder.is_study(path) or (path / "config.yaml").is_file()
