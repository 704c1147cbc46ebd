"""Archives: finished runs and studies without their checkpoints, in one compressed file.

`flbench report` reads an archive like the folders that were packed, so that published results can
be recomputed and extended. Paths of the machine that trained them are left out.
"""

import io
import json
import tarfile
import tempfile
import weakref
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from flbench.comparison.folder import MARKER, is_cell
from flbench.core import files
from flbench.core.archives import (
    LARGEST_FILE,
    unpack,
    without_folders,
)
from flbench.core.documents import as_data_error, read_json, read_yaml
from flbench.core.errors import UserError
from flbench.core.plain_yaml import to_yaml
from flbench.jobs.folder import FAILURES
from flbench.results import folders, study_folder
from flbench.results.reading import is_finished

SUFFIX: Final = ".tar.xz"
KEPT: Final = (
    *("config.yaml", "summary.json", "metrics.csv", "per_class.csv", "clients.csv"),
    *("confusion.csv", "new_clients.csv", "partition.json", "partition.npz", "predictions.csv"),
    *("learned.json", "provenance.json", "study.json", "trial.json"),
)
"""Files of the folders of runs, studies and trials that an archive has. Checkpoints and pages are
left out."""
KNOWN: Final = frozenset({*KEPT, MARKER, FAILURES})
"""Names of the files that an archive may have."""


def pack(paths: Sequence[Path], file: Path) -> int:
    """Write the finished runs, and the studies, at or below folders into an archive.

    The same runs give the same bytes: files have a fixed order, and neither owner nor time.

    Args:
        paths: Folders of runs, comparisons and studies, or folders above them. A folder's name is
            its name in the archive.
        file: The archive. Its name ends with `.tar.xz`.

    Returns:
        The number of runs, trials of studies included.

    Raises:
        UserError: The name of the archive ends otherwise, a path does not exist, there is no
            finished run or trial below it, two have the same name, a file of a run or a folder of
            a study is a link, or it cannot be written.
        DataError: A file of a run is damaged.
    """
    if not file.name.endswith(SUFFIX):
        raise UserError(f"the name of the archive must end with {SUFFIX}, got {file.name}.")
    found: dict[str, Path] = {}
    count = 0
    for given in paths:
        path = given.absolute()
        if not path.exists():
            raise UserError(f"{given} does not exist.")
        there = folders.find([path])
        trainings = {one: _trainings(one) for one in there if study_folder.is_study(one)}
        studies = [study for study, runs in trainings.items() if runs]
        runs = [one for one in there if one not in trainings and is_finished(one)]
        runs += [run for study in studies for run in trainings[study]]
        if not runs:
            raise UserError(f"{given} has no finished run below it, nor a trial of a study.")
        count += len(runs)
        markers = dict.fromkeys(run.parents[1] / MARKER for run in runs if is_cell(run))
        members = [one / name for one in (*runs, *studies) for name in KEPT]
        inside = [marker.parent for marker in markers if marker.is_relative_to(path)]
        members += [one / name for one in inside for name in (MARKER, FAILURES)]
        for study in studies:
            files.check_no_linked_folders(study)
        for member in filter(Path.is_file, members):
            files.check_no_link(member)
            name = member.relative_to(path.parent).as_posix()
            if found.setdefault(name, member) != member:
                raise UserError(
                    f"{given} and another folder have the name {name.partition('/')[0]}. Rename"
                    " one of them, or pack them into two archives."
                )
    content = _compressed(found)
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        files.write(file, content)
    except OSError as error:
        raise UserError(f"{file} cannot be written ({error.strerror or error}).") from error
    return count


def _trainings(study: Path) -> list[Path]:
    """Return the folders of the trials and of the finished cells of a study."""
    trials = (file.parent for file in study.glob("trials/*/*/trial.json"))
    return [*sorted(trials), *sorted(filter(is_finished, study.glob("cells/*")))]


def _compressed(members: dict[str, Path]) -> bytes:
    """Return the content of the archive."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:xz", preset=9) as archive:
        # Files of one name are alike and follow each other, which compresses well.
        for name in sorted(members, key=lambda name: (name.rpartition("/")[2], name)):
            content = _portable(members[name])
            entry = tarfile.TarInfo(name)
            entry.size = len(content)
            archive.addfile(entry, io.BytesIO(content))
    return buffer.getvalue()


def _portable(file: Path) -> bytes:
    """Return the content of a file without the folders of absolute paths."""
    with as_data_error(file):
        files.check_regular(file, LARGEST_FILE)
        if file.suffix == ".yaml":
            return to_yaml(without_folders(read_yaml(file)), {}).encode()
        if file.suffix == ".json":
            return (json.dumps(without_folders(read_json(file)), indent=1) + "\n").encode()
        return file.read_bytes()


def is_archive(path: Path) -> bool:
    """Return whether a path is an archive, by its name."""
    return path.name.endswith(SUFFIX) and path.is_file()


def archives(path: Path) -> list[Path]:
    """Return a path if it is an archive, otherwise the archives directly in a folder."""
    if is_archive(path):
        return [path]
    return sorted(filter(is_archive, path.glob(f"*{SUFFIX}"))) if path.is_dir() else []


class Unpacked:
    """An archive in a temporary folder, which is deleted together with this object.

    Attributes:
        path: The folder, which is private to the user.

    Raises:
        DataError: The archive is damaged, or has what an archive of results does not have.
    """

    def __init__(self, file: Path) -> None:
        self._file, folder = file, tempfile.TemporaryDirectory(prefix="flbench-")
        weakref.finalize(self, folder.cleanup)
        self.path = Path(folder.name)
        unpack(file, self.path, KNOWN.__contains__)

    def name(self, path: Path) -> str:
        """Return the name of a folder of the archive for users: `ARCHIVE/FOLDER`."""
        return (self._file / path.relative_to(self.path)).as_posix()
