"""`flbench show`: tables of runs and studies."""

from collections.abc import Sequence
from pathlib import Path

from flbench.cli.tables import runs as run_tables
from flbench.cli.tables import studies as study_tables
from flbench.core.errors import UserError
from flbench.results import folders, reading, study_folder
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
    for path in folders.find(paths):
        try:
            if path.is_dir() and not folders.is_one(path):
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
