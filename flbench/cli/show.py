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
from flbench.results.differences import differences


def show(paths: Sequence[Path], picture: Path | None = None, *, as_json: bool = False) -> None:
    """Print the tables of runs and studies, and draw the curves of the runs.

    Args:
        paths: Run folders and study folders, finished or not, folders above them, and archives.
        picture: File for the curves of all runs; None to draw nothing.
        as_json: Whether to print JSON instead of the tables: `runs`, with the content of
            summary.json and, as `settings`, the values (as text) of the keys in which they differ;
            and `studies`, with trials, and the comparison of their cells.

    Raises:
        UserError: Some folders cannot be read. The others are shown before that.
    """
    from flbench.api.studies import Study

    if picture is not None:
        from flbench.reports import picture as pictures
        from flbench.reports.run import curves

        pictures.check(picture)
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
    apart = differences(runs) if runs else None
    if as_json:
        entries: list[dict[str, Any]] = [
            {
                "path": str(run.path),
                "finished": run.finished,
                "method": apart.methods[k],
                "settings": {key: values[k] for key, values in apart.values.items()},
                **run.summary,
            }
            for k, run in enumerate(runs)
            if apart is not None
        ]
        console.json({"runs": entries, "studies": [_tree(*pair) for pair in studies]})
    else:
        for study, shown in studies:
            tables.print_study(study.report, shown)
        if apart is not None:
            tables.print_runs(runs, apart)
        for path in others:
            page = path / "report.html"  # that of a study stands below its tables
            if is_comparison(path) and not study_folder.is_study(path) and page.is_file():
                console.line(f"report: {page}")
    if picture is not None and apart is not None:
        metrics = {run.config.evaluation.best: None for run in runs}
        if len(metrics) == 1:
            lines = [(apart.label(k), run.rows) for k, run in enumerate(runs)]
            pictures.save(curves(lines, next(iter(metrics))), picture)
        else:
            judged = ", ".join(sorted(by.title for by in metrics))
            errors.append(f"--picture draws one metric, but these runs are judged by {judged}.")
    elif picture is not None and studies:
        errors.append("--picture draws the curves of runs; a study's pictures are in report.html.")
    if errors:
        raise UserError("\n".join(errors))


def _tree(study: Any, shown: Path) -> dict[str, Any]:
    """Return what `--json` prints of a study."""
    return {
        "path": str(shown),
        "trials": json.loads(study.trials.to_json(orient="records")),
        "comparison": study.comparison.tree() if study.report.analysis is not None else None,
    }
