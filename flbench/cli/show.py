"""`flbench show`: tables of runs and studies."""

import os
from collections.abc import Sequence
from pathlib import Path

from flbench.cli.tables import runs as run_tables
from flbench.cli.tables import studies as study_tables
from flbench.core.errors import UserError
from flbench.results import reading, study_folder
from flbench.results.differences import differences


def show(paths: Sequence[Path], picture: Path | None = None) -> None:
    """Print the tables of runs and studies, and draw the curves of the runs.

    Args:
        paths: Run folders and study folders, finished or not, and folders above them.
        picture: File for the curves of all runs; None to draw nothing.

    Raises:
        UserError: Some folders cannot be read. The others are shown before that.
    """
    if picture is not None:
        from flbench.reports import figures

        figures.check(picture)
    runs, studies, errors = [], [], []
    for path in _found_in(paths):
        try:
            if path.is_dir() and not _is_shown(path):
                errors.append(
                    f"{path} is not a run folder: it has no config.yaml, nor has a folder below it."
                )
            elif study_folder.is_study(path):
                studies.append(study_folder.read(path))
            else:
                runs.append(reading.read(path))
        except UserError as error:
            errors.append(str(error))
    for study in studies:
        study_tables.print_study(study)
    if runs:
        run_tables.print_runs(runs)
    if runs and picture is not None:
        apart = differences(runs)
        labels = [apart.label(index) for index in range(len(runs))]
        curves = [
            (f"{run.summary['algorithm']}{label and f' ({label})'}", run.rows)
            for run, label in zip(runs, labels, strict=True)
        ]
        figures.save(figures.curves(curves), picture)
    elif studies and picture is not None:
        errors.append("--picture draws the curves of runs; a study's pictures are in report.html.")
    if errors:
        raise UserError("\n".join(errors))


def _found_in(paths: Sequence[Path]) -> list[Path]:
    """Return the paths; a folder that is no run or study is replaced by those below it."""
    found: dict[Path, None] = {}
    for path in paths:
        below = [] if _is_shown(path) else _below(path)
        found |= dict.fromkeys(below or [path])
    return list(found)


def _below(path: Path) -> list[Path]:
    """Return the run folders and study folders below a folder, ordered by path.

    The runs of a study are part of it. Hidden folders and links to folders are left out.
    """
    found = []
    for folder, names, _ in os.walk(path):
        if _is_shown(Path(folder)):
            found.append(Path(folder))
            names.clear()
        names[:] = sorted(name for name in names if not name.startswith("."))
    return found


def _is_shown(path: Path) -> bool:
    """Return whether a path is the folder of a run or of a study."""
    return study_folder.is_study(path) or (path / "config.yaml").is_file()
