"""Finished runs that a comparison uses again as cells, instead of training them."""

import json
import os
import shutil
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

from flbench import __version__
from flbench.comparison.folder import ComparisonFolder
from flbench.comparison.prepare import PreparedComparison, first_difference
from flbench.core import files
from flbench.core.documents import read_json
from flbench.core.errors import UserError
from flbench.experiment import provenance
from flbench.jobs.job import Job
from flbench.results import folders, study_folder
from flbench.results.reading import is_finished

ORIGIN: Final = "reused.json"
"""File in the folder of a cell that was not trained, with the folder of the run that it is."""
SHOWN: Final = 3  # runs that are named in notes
LEFT_OUT: Final = (".*", "mlflow.log", ORIGIN)


def find(
    prepared: PreparedComparison, cells: Sequence[Job], paths: Sequence[Path]
) -> tuple[dict[str, Path], list[str]]:
    """Return run folders that have the results of cells, by the names of these, and notes.

    A run has the results of a cell if configuration, samples, partition and revision of flbench's
    code are the same. A revision with uncommitted changes says nothing, and is never the same. A
    note says why a run cannot stand for the cell whose configuration it has.

    Raises:
        UserError: A path does not exist, or there is no run below it.
        DataError: A file in a folder is damaged.
    """
    if not paths:
        return {}, []
    wanted: dict[str, list[Job]] = {}
    for cell in cells:
        wanted.setdefault(prepared.complete(cell).hash(), []).append(cell)
    runs: dict[str, Path] = {}
    reasons: dict[str, str] = {}
    for path in _run_folders(paths):
        for cell in wanted.get(str(read_json(path / "summary.json").get("config_hash")), []):
            if cell.name in runs:
                continue
            if (reason := _difference(prepared, cell, path)) is None:
                runs[cell.name] = path.absolute()
            else:
                reasons[cell.name] = f"{path} is not used for {cell.title}: {reason}"
    about = f"{len(runs)} of {len(prepared.cells)} cells exist in {', '.join(map(str, paths))}, and"
    others = [reason for name, reason in reasons.items() if name not in runs]
    return runs, [f"{about} are used again.", *others[:SHOWN]]


def take(runs: dict[str, Path], folder: ComparisonFolder) -> None:
    """Copy runs into the folder of a comparison.

    Checkpoints, which can be large and are replaced only as a whole, are hard links where the file
    system allows them. The other files are copied, so that neither folder changes with the other.

    Raises:
        UserError: A file or folder of a run is a link.
        OSError: A file cannot be written.
    """
    for name, source in runs.items():
        target = folder.path / "cells" / name
        part = target.with_name(f".{name}")
        shutil.rmtree(part, ignore_errors=True)
        ignored = shutil.ignore_patterns(*LEFT_OUT)
        files.check_no_linked_folders(source)
        shutil.copytree(source, part, copy_function=_copy, ignore=ignored)
        files.write(part / ORIGIN, (json.dumps({"path": str(source)}) + "\n").encode())
        shutil.rmtree(target, ignore_errors=True)  # a cell that was killed before it was trained
        part.rename(target)


def _copy(source: str, target: str) -> None:
    """Copy a file of a run; link a checkpoint. What a symbolic link leads to is not copied."""
    files.check_no_link(Path(source))
    try:
        if source.endswith(".safetensors"):
            os.link(source, target)
            return
    except OSError:  # another file system, or one without hard links
        pass
    shutil.copy2(source, target)


def _run_folders(paths: Sequence[Path]) -> Iterator[Path]:
    """Yield the folders of the finished runs at or below paths."""
    for path in paths:
        runs = [
            run
            for one in folders.find([path])
            for run in (sorted(one.glob("cells/*")) if study_folder.is_study(one) else [one])
            if (run / "config.yaml").is_file()
        ]
        if not runs:
            raise UserError(
                f"{path} {'has no run below it' if path.exists() else 'does not exist'}."
            )
        yield from filter(is_finished, runs)


def _difference(prepared: PreparedComparison, cell: Job, path: Path) -> str | None:
    """Return in what a run with the configuration hash of a cell differs from it; None if nothing.

    The hash leaves out keys on which no model depends, such as `evaluation.rare`.
    """
    if found := first_difference(prepared.complete(cell), path):
        return "`{}` is {!r} there, and {!r} here.".format(*found)
    there, here = (
        read_json(path / "partition.json"),
        json.loads(prepared.samples.partition(cell)[1]),
    )
    for name, what in (("data", "samples"), ("hash", "clients' parts")):
        if there.get(name) != here[name]:
            return f"its {what} have the hash {str(there.get(name))[:12]}, not {here[name][:12]}."
    origin, current = read_json(path / "provenance.json"), provenance.git_revision()
    if (origin.get("flbench"), origin.get("git_revision")) != (__version__, current):
        return (
            f"it was trained by flbench {origin.get('flbench')} ({origin.get('git_revision')}), and"
            f" this is {__version__} ({current})."
        )
    dirty = "-dirty" in str(current)
    return "flbench has uncommitted changes, which may differ." if dirty else None
