"""Writing of a run folder. Every file but metrics.csv, which grows, is replaced atomically."""

import json
import os
import shutil
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Self

from flbench.core import files
from flbench.core.documents import as_data_error
from flbench.core.locked_folder import LockedFolder
from flbench.core.text import csv_text
from flbench.core.types import State, Tree
from flbench.core.wording import in_shell
from flbench.experiment import checkpoint
from flbench.experiment.row_files import ClientRows, write_tensors
from flbench.results import metrics_file
from flbench.results.metrics_file import Row
from flbench.results.reading import check_run_folder


class RunFolder(LockedFolder):
    """The folder of one run: configuration, partition, metrics, tables, summary, checkpoints.

    Use `make` or `at` for a new run and `reopen` for an existing one; all lock the folder. What
    writes raises an OSError if the disk is full or fails.

    Args:
        path: An existing folder.
        resume_command: Command that resumes what the run belongs to; None for
            `flbench run --resume PATH`.

    Attributes:
        rows: Rows of metrics.csv written so far.
        newest: The newest value of each metric by its full name.
        client_rows: The rows of the clients that the checkpoints have.
    """

    marker = "config.yaml"
    option = "output.dir"

    def __init__(self, path: Path, resume_command: str | None = None) -> None:
        super().__init__(path, resume_command)
        self.rows: list[Row] = []
        self.newest: dict[str, float] = {}
        self.client_rows = ClientRows()

    @classmethod
    def command_to_resume(cls, path: Path) -> str:
        """Return the command that resumes a run."""
        return f"flbench run --resume {in_shell(path)}"

    @classmethod
    def at(cls, path: Path) -> Self:
        """Lock the run folder at a path, which is made if it does not exist.

        Raises:
            UserError: A folder in it is a link, or another process writes to it.
        """
        path.mkdir(parents=True, exist_ok=True)
        folder = cls(path)
        folder.lock()
        (path / "checkpoints").mkdir(exist_ok=True)
        return folder

    @classmethod
    def reopen(cls, path: Path) -> Self:
        """Lock an existing run folder to write to it again; see `at`.

        Raises:
            UserError: The path is not a run folder, or its metrics.csv is a link.
        """
        check_run_folder(path)
        files.check_no_link(path / "metrics.csv")
        return cls.at(path)

    def write_table(
        self, name: str, header: Sequence[str], rows: Iterable[Sequence[object]]
    ) -> None:
        """Write a CSV file; see `flbench.core.text`."""
        self.write(name, csv_text(header, rows))

    def write_json(self, name: str, value: Mapping[str, Any]) -> None:
        """Write a JSON file."""
        self.write(name, json.dumps(value, indent=1) + "\n")

    def add_metrics(self, rows: Sequence[Row]) -> None:
        """Append rows to metrics.csv."""
        file = self.path / "metrics.csv"
        try:
            with open(file, "a", encoding="utf-8", opener=files.not_a_link) as stream:
                stream.write(metrics_file.to_text(rows))
        except OSError as error:
            error.filename = error.filename or str(file)  # a full disk does not name the file
            raise
        self.rows += rows
        self.newest |= {row.full_name: row.value for row in rows}

    def add_missing_metrics(self, rows: Sequence[Row]) -> list[Row]:
        """Append those rows to metrics.csv that it does not have, and return them; see above."""
        there = {row[:4] for row in self.rows}
        new = [row for row in rows if row[:4] not in there]
        self.add_metrics(new)
        return new

    def save_state(
        self, names: Sequence[str], state: State, config_hash: str, extra: dict[str, Any]
    ) -> None:
        """Write a checkpoint, after flushing the metrics up to it to the disk.

        Rows of clients are written only if they have changed since another checkpoint.

        Args:
            names: Names of the checkpoint, `best` and `last` or one of them. The file has all of
                them; it is copied where the file system has no hard links.
            state: State to save.
            config_hash: Hash of the run's configuration.
            extra: JSON values to save with the state.

        Raises:
            OSError: The checkpoint cannot be written. The old ones are unchanged.
        """
        first, *others = map(self.checkpoint, names)
        files.sync(self.path / "metrics.csv")
        self.client_rows = checkpoint.save(first, state, config_hash, extra, self.client_rows)
        for path in others:
            beside = path.with_name(path.name + ".part")
            files.discard(beside)
            try:
                os.link(first, beside)
            except OSError:
                shutil.copyfile(first, beside)
                files.sync(beside)
            beside.replace(path)
            files.sync(path.parent)
            checkpoint.remove_unnamed(path.parent)

    def save_frozen(self, tree: Tree) -> None:
        """Write what is frozen in the net, if anything is, beside the checkpoints."""
        if tree:
            kept = {name: value.detach().contiguous() for name, value in tree.items()}
            write_tensors(self.path / "checkpoints" / checkpoint.FROZEN, kept, {})

    def checkpoint(self, name: str) -> Path:
        """Return the path of the checkpoint `last` or `best`."""
        return self.path / "checkpoints" / f"{name}.safetensors"

    def rewind(self, lines: int) -> None:
        """Remove the rows of metrics.csv that are newer than a checkpoint; `lines` stay.

        Raises:
            DataError: The file is damaged, or has fewer rows.
        """
        path = self.path / "metrics.csv"
        self.rows = metrics_file.read(path)[:lines] if lines else []
        with as_data_error(path, metrics_file.CURE):
            if len(self.rows) < lines:
                raise ValueError(f"it has {len(self.rows)} rows, and had {lines} at the checkpoint")
        self.write(path.name, metrics_file.header_line() + metrics_file.to_text(self.rows))
        self.newest = {row.full_name: row.value for row in self.rows}
