"""Finished runs that a comparison uses again as cells, instead of training them."""

import json
import os
import shutil
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from flbench import __version__
from flbench.comparison.folder import ComparisonFolder
from flbench.comparison.prepare import PreparedComparison
from flbench.config.resolve import read
from flbench.config.sources import leaves
from flbench.core import files
from flbench.core.documents import read_json
from flbench.core.errors import UserError
from flbench.experiment import provenance
from flbench.experiment.lifecycle import CHANGEABLE_ON_RESUME
from flbench.jobs.job import Job
from flbench.jobs.samples import partition_key
from flbench.results import folders, study_folder
from flbench.results.differences import SOURCE
from flbench.results.reading import is_finished

ORIGIN: Final = "reused.json"
"""File in the folder of a cell that was not trained, with the folder of the run that it is."""
SHOWN: Final = 3  # runs that are named in a note
LEFT_OUT: Final = (".*", "mlflow.log", ORIGIN)


@dataclass(frozen=True)
class FoundRuns:
    """What was found for a comparison in folders of runs.

    Attributes:
        paths: The folders that were searched.
        runs: Run folder by the name of the cell that it has the results of.
        notes: Sentences about runs that have the configuration of a cell, but cannot stand for it.
    """

    paths: tuple[Path, ...] = ()
    runs: Mapping[str, Path] = field(default_factory=dict)
    notes: tuple[str, ...] = ()

    def sentences(self, cells: int) -> list[str]:
        """Return what the user is told about the runs that are used again.

        Args:
            cells: Number of cells of the comparison.
        """
        if not self.paths:
            return []
        places = ", ".join(map(str, self.paths))
        return [
            f"plan: {len(self.runs)} of {cells} cells exist in {places}, and are used again.",
            *self.notes,
        ]


def find(prepared: PreparedComparison, cells: Sequence[Job], paths: Sequence[Path]) -> FoundRuns:
    """Find finished runs that have the results of cells.

    A run has the results of a cell if configuration, samples, partition and revision of flbench's
    code are the same. A revision with uncommitted changes says nothing, and is never the same.

    Args:
        prepared: The comparison.
        cells: Cells to find runs for.
        paths: Folders of runs, comparisons and studies, or folders above them.

    Raises:
        UserError: A path does not exist, or there is no run below it.
        DataError: A file in a folder is damaged.
    """
    wanted: dict[str, list[Job]] = {}
    for cell in cells:
        wanted.setdefault(prepared.complete(cell).hash(), []).append(cell)
    runs: dict[str, Path] = {}
    reasons: dict[str, str] = {}
    hashes: dict[str, tuple[str, str]] = {}
    for path in _run_folders(paths):
        summary = read_json(path / "summary.json")
        for cell in wanted.get(str(summary.get("config_hash")), []):
            if cell.name in runs:
                continue
            if (reason := _difference(prepared, cell, path, hashes)) is None:
                runs[cell.name] = path.absolute()
            else:
                reasons[cell.name] = f"{path} is not used for {cell.title}: {reason}"
    sentences = [reason for name, reason in reasons.items() if name not in runs]
    if len(sentences) > SHOWN:
        more = f"{len(sentences) - SHOWN} more runs are not used for such reasons."
        sentences = [*sentences[:SHOWN], more]
    return FoundRuns(tuple(paths), runs, tuple(sentences))


def take(found: FoundRuns, folder: ComparisonFolder) -> None:
    """Copy runs into the folder of a comparison.

    Checkpoints, which can be large and are replaced only as a whole, are hard links where the file
    system allows them. The other files are copied, so that neither folder changes with the other.

    Args:
        found: The runs.
        folder: Folder of the comparison, locked by this process.

    Raises:
        UserError: A file or folder of a run is a link.
        OSError: A file cannot be written.
    """
    for name, source in found.runs.items():
        target = folder.path / "cells" / name
        part = target.with_name(f".{name}")
        shutil.rmtree(part, ignore_errors=True)
        ignored = shutil.ignore_patterns(*LEFT_OUT)
        files.check_no_linked_folders(source)
        shutil.copytree(source, part, copy_function=_copy, ignore=ignored)
        files.write(part / ORIGIN, (json.dumps({"path": str(source)}) + "\n").encode())
        if target.is_dir():  # of a cell that was killed before it was trained
            shutil.rmtree(target)
        part.rename(target)


def _copy(source: str, target: str) -> str:
    """Copy a file of a run; link a checkpoint. What a symbolic link leads to is not copied."""
    files.check_no_link(Path(source))
    if source.endswith(".safetensors"):
        try:
            os.link(source, target)
        except OSError:  # another file system, or one without hard links
            pass
        else:
            return target
    return shutil.copy2(source, target)


def _run_folders(paths: Sequence[Path]) -> Iterator[Path]:
    """Yield the folders of the finished runs at or below paths.

    Raises:
        UserError: A path does not exist, or there is no run below it.
    """
    for path in paths:
        if not path.exists():
            raise UserError(f"{path} does not exist.")
        found = False
        for one in folders.find([path]):
            is_study = study_folder.is_study(one)
            some = sorted(one.glob("finals/*/*")) if is_study else [one]
            for run in some:
                if (run / "config.yaml").is_file():
                    found = True
                    if is_finished(run):
                        yield run
        if not found:
            raise UserError(f"{path} has no run below it.")


def _difference(
    prepared: PreparedComparison, cell: Job, path: Path, hashes: dict[str, tuple[str, str]]
) -> str | None:
    """Return in what a run with the configuration hash of a cell differs from it; None if nothing.

    Args:
        prepared: The comparison.
        cell: The cell.
        path: The run folder.
        hashes: Hashes of samples and partition that are known, by partition.
    """
    now, written = (
        leaves(one.tree(), without=(*CHANGEABLE_ON_RESUME, "output."))
        for one in (prepared.complete(cell), read(path / "config.yaml"))
    )
    for key in now | written:
        if key != SOURCE and now.get(key) != written.get(key):
            return f"`{key}` is {written.get(key)!r} there, and {now.get(key)!r} here."
    key = partition_key(cell)
    if key not in hashes:
        about = json.loads(prepared.samples.partition(cell)[1])
        hashes[key] = about["data"], about["hash"]
    there = read_json(path / "partition.json")
    for name, here in zip(("data", "hash"), hashes[key], strict=True):
        if there.get(name) != here:
            what = "samples" if name == "data" else "clients' parts"
            return f"its {what} have the hash {str(there.get(name))[:12]}, not {here[:12]}."
    origin = read_json(path / "provenance.json")
    was = origin.get("flbench"), origin.get("git_revision")
    current = __version__, provenance.git_revision()
    if was != current:
        return f"it was trained by {_version(was)}, and this is {_version(current)}."
    if str(current[1]).endswith("-dirty"):
        return f"{_version(current)} has uncommitted changes, which may differ."
    return None


def _version(version: tuple[Any, Any]) -> str:
    """Return a version of flbench as text."""
    number, revision = version
    return f"flbench {number} ({revision or 'no Git revision'})"
