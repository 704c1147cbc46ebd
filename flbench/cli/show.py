"""`flbench show`: tables of runs and studies."""

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from flbench.cli import console, tables
from flbench.comparison.archive import Unpacked, is_archive
from flbench.comparison.folder import is_comparison
from flbench.core.errors import UserError
from flbench.results import folders, reading, study_folder


def show(paths: Sequence[Path], *, as_json: bool = False) -> None:
    """Print the tables of runs and studies.

    Args:
        paths: Run folders and study folders, finished or not, folders above them, and archives.
        as_json: Whether to print JSON instead of the tables: `runs`, with the content of
            summary.json; and `studies`, with trials, and the comparison of their cells.

    Raises:
        UserError: Some folders cannot be read. The others are shown before that.
    """
    from flbench.api.studies import Study

    runs, studies, errors = [], [], []
    packed = [Unpacked(path) for path in paths if is_archive(path)]
    names = {path: Path(one.name(path)) for one in packed for path in folders.below(one.path)}
    others = [path for path in paths if not is_archive(path)]
    for path in [*folders.find(others), *names]:
        try:
            if path.is_dir() and not folders.is_one(path):
                errors.append(
                    f"{path} is not a run folder: it has no config.yaml, nor has a folder below it."
                )
            elif study_folder.is_study(path):
                studies.append((Study(path), names.get(path, path)))
            else:
                found = reading.read(path)
                runs.append(replace(found, path=names[path]) if path in names else found)
        except UserError as error:
            errors.append(str(error))
    if as_json:
        entries: list[dict[str, Any]] = [
            {"path": str(run.path), "finished": run.finished, **run.summary} for run in runs
        ]
        console.json({"runs": entries, "studies": [_tree(*pair) for pair in studies]})
    else:
        for study, shown in studies:
            tables.print_study(study.report, shown)
        if runs:
            tables.print_runs(runs)
        for path in others:
            page = path / "report.html"  # that of a study stands below its tables
            if is_comparison(path) and not study_folder.is_study(path) and page.is_file():
                console.line(f"report: {page}")
    if errors:
        raise UserError("\n".join(errors))


def _tree(study: Any, shown: Path) -> dict[str, Any]:
    """Return what `--json` prints of a study."""
    return {
        "path": str(shown),
        "trials": json.loads(study.trials.to_json(orient="records")),
        "comparison": study.comparison.tree() if study.report.analysis is not None else None,
    }
