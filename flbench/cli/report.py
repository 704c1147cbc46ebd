"""`flbench report`: the report of finished runs."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from flbench.api import verbs
from flbench.cli import console, tables
from flbench.core.documents import read_json
from flbench.core.errors import UserError
from flbench.reports import render, shown
from flbench.results import study_folder

if TYPE_CHECKING:
    from flbench.api.reporting import Comparison

FOLDER: Final = Path("report")
"""Folder of the report, in the current folder or in that of a study."""


def report(
    paths: Sequence[Path], *, out: Path | None, as_json: bool, asked: Mapping[str, Any]
) -> None:
    """Write the report of runs, and print what it says."""
    if missing := [path for path in paths if not path.exists()]:
        raise UserError(f"{missing[0]} does not exist.")
    is_own = not any(value for name, value in asked.items() if name != "long")
    is_study = len(paths) == 1 and study_folder.is_study(paths[0]) and is_own
    if asked["long"] is not None or not is_study:
        found = verbs.report(list(paths), **asked)
    if not is_study:
        folder = out or _folder(paths, asked["at"], is_own=is_own)
        print_report(found, found.write(folder), as_json=as_json)
        return
    from flbench.api import studies

    folder, study = out or paths[0], studies.report_of(paths[0])
    study.write(folder)
    if as_json:
        console.json({**read_json(folder / "report.json"), "path": str(folder)})
    else:
        tables.print_study(study, folder)


def pack(paths: Sequence[Path], *, out: Path) -> None:
    """Write finished runs and studies into an archive, and print how many runs there are."""
    from flbench.comparison import archive

    count = archive.pack(paths, out)
    size = shown.size(out.stat().st_size)
    console.line(f"{out}: {count} run{'s' if count != 1 else ''}, {size}")


def print_report(found: "Comparison", folder: Path, *, as_json: bool) -> None:
    """Print what a report says, which is in a folder."""
    if as_json:
        console.json(found.tree() | {"path": str(folder)})
        return
    for sentence in found.equal:
        console.line(sentence)
    for table in found.shown():
        render.console(table)
    for sentence in found.answer[len(found.equal) :]:
        console.line(sentence)
    console.notes(found.warnings)
    console.line(f"report: {folder / 'report.html'}")


def _folder(paths: Sequence[Path], at: str | None, *, is_own: bool) -> Path:
    """Return the folder of the report if the user names none.

    A comparison has a report of its own, whose place a report with further arguments does not take
    (`is_own` is false). One at equal work has a place for each kind of work.
    """
    folder = Path(f"{FOLDER}-{at}") if at else FOLDER
    if len(paths) != 1 or not (paths[0] / "comparison.json").is_file():
        return folder
    return paths[0] if is_own else paths[0] / folder
