"""`flbench show`: tables of runs and studies."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from flbench.cli import console
from flbench.cli.tables import runs as run_tables
from flbench.cli.tables import studies as study_tables
from flbench.core.errors import UserError
from flbench.results import folders, reading, study_folder
from flbench.results.differences import differences


def show(paths: Sequence[Path], picture: Path | None = None, *, as_json: bool = False) -> None:
    """Print the tables of runs and studies, and draw the curves of the runs.

    Args:
        paths: Run folders and study folders, finished or not, and folders above them.
        picture: File for the curves of all runs; None to draw nothing.
        as_json: Whether to print JSON instead of the tables: `runs`, with the content of
            summary.json and, as `settings`, the values (as text) of the keys in which they differ;
            and `studies`, with trials, results of final trainings, and verdicts.

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
    if as_json:
        console.json({"runs": _runs(runs), "studies": [_study(study.path) for study in studies]})
    else:
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
        chosen = {run.config.evaluation.best for run in runs}
        if len(chosen) > 1:
            errors.append(
                "--picture draws one metric: these runs are judged by"
                f" {', '.join(sorted(by.title for by in chosen))}. Name runs of one metric."
            )
        else:
            figures.save(figures.curves(curves, chosen.pop()), picture)
    elif studies and picture is not None:
        errors.append("--picture draws the curves of runs; a study's pictures are in report.html.")
    if errors:
        raise UserError("\n".join(errors))


def _runs(runs: Sequence[reading.Run]) -> list[dict[str, Any]]:
    """Return what `--json` prints of runs, in the order of the arguments."""
    apart = differences(runs).values if runs else {}
    return [
        {
            "path": str(run.path),
            "finished": run.finished,
            "settings": {key: values[k] for key, values in apart.items()},
            **run.summary,
        }
        for k, run in enumerate(runs)
    ]


def _study(path: Path) -> dict[str, Any]:
    """Return what `--json` prints of a study."""
    from flbench.api.studies import Study

    study = Study(path)
    tables = {"trials": study.trials, "results": study.finals, "verdicts": study.verdicts}
    return {
        "path": str(path),
        **{name: json.loads(table.to_json(orient="records")) for name, table in tables.items()},
    }
