"""The run folder, written as the run goes: every file beside and renamed."""

import contextlib
import csv
import json
import secrets
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from io import StringIO
from pathlib import Path
from typing import Any, Self

from flbench.core import files
from flbench.core.errors import RunError, UserError
from flbench.core.types import State
from flbench.experiment import checkpoint
from flbench.results import metrics_file
from flbench.results.metrics_file import Row
from flbench.results.reading import check_run_folder


class RunFolder:
    """One run: configuration, partition, figures, tables, summary, checkpoints.

    Args:
        path: an existing folder; `create` makes a new one, `reopen` takes up an old one.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.rows: list[Row] = []
        self._lock: Any = None

    @classmethod
    def create(cls, root: Path, experiment: str, run: str) -> Self:
        """Make a new run folder `root/experiment/run-DATE-TIME-xxxx/`.

        Raises: UserError if it cannot be written to.
        """
        now = datetime.now().strftime("%Y%m%d-%H%M%S")
        path = root / experiment / f"{run}-{now}-{secrets.token_hex(2)}"
        try:
            (path / "checkpoints").mkdir(parents=True)
            probe = path / ".writable"
            probe.touch()
            probe.unlink()
        except OSError as error:
            if error.errno in files.DISK_ERRORS:
                raise RunError(f"{path} cannot be written ({error.strerror}).") from error
            raise UserError(
                f"`output.dir`: {path} cannot be written ({error.strerror}). Choose another with"
                " --out DIR."
            ) from error
        folder = cls(path)
        folder._lock = files.lock_folder(folder.path)
        try:
            folder.write("metrics.csv", metrics_file.header_line())
        except RunError:
            folder.close()
            raise
        return folder

    @classmethod
    def reopen(cls, path: Path) -> Self:
        """Take up an existing run folder.

        Raises: UserError if it is none, or another process writes to it.
        """
        check_run_folder(path)
        folder = cls(path)
        folder._lock = files.lock_folder(folder.path)
        folder.path.joinpath("checkpoints").mkdir(exist_ok=True)
        return folder

    def close(self) -> None:
        """Let other processes write to the folder."""
        if self._lock is not None:
            self._lock.close()
            self._lock = None

    def write(self, name: str, content: str | bytes) -> None:
        """Write a file of the folder, whole or not at all.

        Raises: RunError if that is not possible.
        """
        with self._guard(name):
            files.write(self.path / name, content.encode() if isinstance(content, str) else content)

    def write_table(
        self, name: str, header: Sequence[str], rows: Iterable[Sequence[object]]
    ) -> None:
        """Write a CSV table."""
        text = StringIO()
        writer = csv.writer(text, lineterminator="\n")
        writer.writerow(header)
        writer.writerows(
            ["" if cell is None or cell != cell else cell for cell in row] for row in rows
        )
        self.write(name, text.getvalue())

    def write_json(self, name: str, value: Mapping[str, Any]) -> None:
        """Write a JSON file."""
        self.write(name, json.dumps(value, indent=1) + "\n")

    def add_metrics(self, rows: Sequence[Row]) -> None:
        """Append figures to metrics.csv; one flush."""
        with (
            self._guard("metrics.csv"),
            (self.path / "metrics.csv").open("a", encoding="utf-8") as file,
        ):
            file.write(metrics_file.to_text(rows))
        self.rows += rows

    def save_state(self, name: str, state: State, config_hash: str, extra: dict[str, Any]) -> None:
        """Write a checkpoint, and only after metrics.csv is safe up to it."""
        with self._guard(f"checkpoints/{name}"):
            files.sync(self.path / "metrics.csv")
            checkpoint.save(self.checkpoint(name), state, config_hash, extra)

    def checkpoint(self, name: str) -> Path:
        """Return the file of a checkpoint: `last` or `best`."""
        return self.path / "checkpoints" / f"{name}.safetensors"

    def rewind(self, lines: int) -> None:
        """Drop the figures after the first `lines`: their state was not saved."""
        rows = metrics_file.read(self.path / "metrics.csv")[:lines]
        self.write("metrics.csv", metrics_file.header_line() + metrics_file.to_text(rows))
        self.rows = rows

    @contextlib.contextmanager
    def _guard(self, name: str) -> Iterator[None]:
        """Turn a disk's failure into one message; what was written before stays."""
        try:
            yield
        except OSError as error:
            raise RunError(
                f"{self.path / name} could not be written ({error.strerror or error})."
                " What was saved before is unharmed: mend that, then flbench run --resume"
                f" {self.path}"
            ) from error
