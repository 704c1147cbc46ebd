"""`flbench report`: the report of finished runs."""

from collections.abc import Mapping, Sequence
from inspect import signature
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from flbench.cli import console, tables
from flbench.core.errors import UserError
from flbench.reports import render, shown
from flbench.results import study_folder

if TYPE_CHECKING:
    from flbench.api.reporting import Comparison

FOLDER: Final = Path("report")
"""Folder of the report, in the current folder or in that of a study."""


def report(
    paths: Sequence[Path], out: Path | None, asked: Mapping[str, Any], *, as_json: bool
) -> None:
    """Write the report of runs, and print what it says.

    Args:
        paths: Folders of runs, comparisons and studies, or folders above them.
        out: Folder of the report; None for the default, see `_folder`.
        asked: Further arguments of `fl.report`.
        as_json: Whether to print the report as JSON.
    """
    from flbench.api import verbs

    if missing := [path for path in paths if not path.exists()]:
        raise UserError(f"{missing[0]} does not exist.")
    defaults = signature(verbs.report).parameters
    others = {name: value for name, value in asked.items() if name != "long"}
    is_own = all(value in (None, defaults[name].default) for name, value in others.items())
    if len(paths) == 1 and study_folder.is_study(paths[0]) and is_own:
        if asked["long"] is not None:
            verbs.report(list(paths), long=asked["long"])
        _report_study(paths[0], paths[0] if out is None else out, as_json=as_json)
        return
    found = verbs.report(list(paths), **asked)
    folder = found.write(_folder(paths, is_own=is_own) if out is None else out)
    print_report(found, folder, as_json=as_json)


def _report_study(path: Path, folder: Path, *, as_json: bool) -> None:
    """Write the report of a study, finished or not, and print it."""
    from flbench.api import studies

    found = studies.report_of(path)
    found.write(folder)
    if as_json:
        console.json({**found.tree, "path": str(folder)})
    else:
        tables.print_study(found, folder)


def pack(paths: Sequence[Path], file: Path) -> None:
    """Write finished runs and studies into an archive, and print how many runs there are."""
    from flbench.comparison import archive

    count = archive.pack(paths, file)
    size = shown.size(file.stat().st_size)
    console.line(f"{file}: {count} run{'s' if count != 1 else ''}, {size}")


def print_report(found: "Comparison", folder: Path, *, as_json: bool) -> None:
    """Print what a report says, which is in a folder."""
    if as_json:
        console.json(found.tree() | {"path": str(folder)})
        return
    for table in found.shown():
        render.console(table)
    for sentence in found.answer:
        console.line(sentence)
    console.notes(found.warnings)
    console.line(f"report: {folder / 'report.html'}")


def _folder(paths: Sequence[Path], *, is_own: bool) -> Path:
    """Return the folder of the report if the user names none.

    A comparison has a report of its own, whose place a report with further arguments does not take
    (`is_own` is false).
    """
    if len(paths) != 1 or not paths[0].is_dir():
        return FOLDER
    path = paths[0]
    if (path / "comparison.json").is_file():
        return path if is_own else path / FOLDER
    return FOLDER
