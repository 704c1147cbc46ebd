"""The files that MLflow gets of a folder."""

import csv
import json
from collections.abc import Iterable
from contextlib import suppress
from functools import lru_cache
from hashlib import file_digest, sha256
from pathlib import Path
from typing import Final, NamedTuple

from flbench.core import files
from flbench.core.documents import as_data_error
from flbench.core.errors import DataError
from flbench.core.text import read_cell
from flbench.results.checkpoint_files import files_of
from flbench.tracking import measures

OF_TRIAL: Final = ("config.yaml", "trial.json")
OF_RUN: Final = ("config.yaml", "partition.json", "provenance.json")
OF_RESULTS: Final = (
    *("summary.json", "report.html", "clients.csv", "new_clients.csv", "per_class.csv"),
    *("confusion.csv", "learned.json", "predictions.csv"),
)
OF_CAMPAIGN: Final = (
    *("study.json", "comparison.json", "failures.json", "report.html", "report.md", "report.json"),
    *("pictures/*.svg", "pictures/*.png", "tables/*.csv", "tables/*.tex"),
)
SHOWN_OF_RUN: Final = ("per_class", "clients")
SHOWN_OF_CAMPAIGN: Final = (
    *("leaderboard", "scores", "pairs", "classes", "clients", "client_spread", "new_clients"),
    *("targets", "trials"),
)
"""CSV files that MLflow's pages show as tables; the curves of a campaign are those of its cells."""
TEXT_COLUMNS: Final = (  # a class may be called 01_1, which float() accepts
    *("moment", "name", "shift", "place", "method", "first", "second", "verdict", "groups"),
    *("better_than", "split", "warning", "test", "metric", "measure", "state", "reason"),
)
MAX_FILE_BYTES: Final = 2 * 2**30
MAX_CHECKPOINT_BYTES: Final = 10_000_000
"""Largest size of a file, and of a checkpoint with all of its files, that is sent."""


class File(NamedTuple):
    """A file of a run in MLflow.

    Attributes:
        name: Its path among the run's artifacts.
        content: The file itself, or its bytes.
        digest: Hash of name and content.
    """

    name: str
    content: Path | bytes
    digest: str


class Files:
    """Collects the files of a node.

    Attributes:
        found: The files.
        tags: Tags of the node: what is not sent, and which files its page shows as tables.
    """

    def __init__(self) -> None:
        self.found: list[File] = []
        self.tags: dict[str, str] = {}

    def add(self, folder: Path, patterns: Iterable[str]) -> None:
        """Add files of a folder by their names, or by patterns such as `tables/*.csv`.

        Raises:
            UserError: A file is a link.
        """
        known = {file.content for file in self.found}
        for file in (one for pattern in patterns for one in sorted(folder.glob(pattern))):
            files.check_no_link(file)
            name = file.relative_to(folder).as_posix()
            is_new = file.is_file() and file not in known
            if is_new and self._fits(name, file.stat().st_size, MAX_FILE_BYTES):
                self._add(name, file, digest_of(file))

    def _add(self, name: str, content: Path | bytes, digest: str) -> None:
        """Add a file. A tag has the digests of all files of a run, so they are short."""
        short = sha256(f"{name}\0{digest}".encode(errors="surrogateescape")).hexdigest()[:8]
        self.found.append(File(name, content, short))

    def add_bytes(self, name: str, content: bytes) -> None:
        """Add a file by its content."""
        self._add(name, content, sha256(content).hexdigest())

    def add_shown(self, tables: Iterable[Path]) -> None:
        """Add CSV files in the JSON format that MLflow's pages show as tables.

        Args:
            tables: The files; one that does not exist is left out.
        """
        shown = []
        for table in (one for one in tables if one.is_file()):
            name = table.with_suffix(".json").name
            self.add_bytes(name, json.dumps(_shown(table)).encode())
            shown.append({"path": name, "type": "table"})
            self.tags["mlflow.loggedArtifacts"] = json.dumps(shown)

    def add_checkpoints(self, folder: Path) -> None:
        """Add the checkpoint of the best round, and that of the last round if it is another."""
        sent = ""
        for name in ("best", "last"):
            file = folder / "checkpoints" / f"{name}.safetensors"
            if not file.is_file() or digest_of(file) == sent:
                continue
            sent, parts = digest_of(file), [file]
            with suppress(DataError):  # what cannot be read is sent as it is
                parts = [part for part in files_of(file) if part.is_file()]
            size = sum(part.stat().st_size for part in parts)
            if self._fits(f"checkpoint.{name}", size, MAX_CHECKPOINT_BYTES):
                self.add(folder, [f"checkpoints/{part.name}" for part in parts])

    def _fits(self, name: str, size: int, limit: int) -> bool:
        """Return whether something is not too large; otherwise a tag says so."""
        if size > limit:
            self.tags[f"not_sent.{name}"] = f"{size:,} bytes (more than {limit:,})"
        return size <= limit


def digest_of(path: Path) -> str:
    """Return the SHA-256 of a file, which is read once for each of its versions."""
    stat = path.stat()
    return _digest_of(path, stat.st_mtime_ns, stat.st_size)


@lru_cache(maxsize=65536)
def _digest_of(path: Path, modified: int, size: int) -> str:
    with path.open("rb") as file:
        return file_digest(file, "sha256").hexdigest()


def _shown(table: Path) -> dict[str, object]:
    """Return a table as MLflow's pages show it."""
    with as_data_error(table), table.open(newline="", encoding="utf-8") as lines:
        files.check_regular(table, files.LARGEST)
        header, *rows = csv.reader(lines)
        data = [[_cell(*cell) for cell in zip(header, row, strict=True)] for row in rows]
    return {"columns": header, "data": data}


def _cell(column: str, text: str) -> str | float | None:
    """Return a cell as a number if it is one; None for an empty cell."""
    if column in TEXT_COLUMNS or "." in column or not text:  # values of keys may be names
        return read_cell(text) or None
    value = float(text)
    return int(value) if value.is_integer() else measures.rounded(value)
