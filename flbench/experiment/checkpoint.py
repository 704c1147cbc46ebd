"""Checkpoints: the complete state of a run, written atomically.

A checkpoint is one safetensors file. If the clients keep much, their rows are in further files
beside it, of which a checkpoint adds those that have changed; see `flbench.experiment.row_files`.
"""

import errno
import json
from contextlib import suppress
from pathlib import Path
from typing import Any, Final, NamedTuple

from pydantic import BaseModel, ConfigDict, NonNegativeInt
from safetensors import SafetensorError, safe_open

from flbench.core import files
from flbench.core.errors import DataError
from flbench.core.storage import Storage
from flbench.core.tree import nbytes
from flbench.core.types import State, Tree
from flbench.experiment import row_files
from flbench.experiment.row_files import ChangedRows, StoredRows
from flbench.results.checkpoint_files import OF_ROWS, files_of

FORMAT: Final = "3"
WITH_ROW_FILES: Final = "4"
WHOLE: Final = 2**24
"""Largest size in bytes of the clients' leaves of a checkpoint that is a single file."""
UNEXPECTED = (AttributeError, LookupError, RecursionError, TypeError, ValueError)  # of the metadata
ATTEMPTS: Final = 5  # to read a checkpoint that a run replaces at the same time
PARTS: Final = ("server/", "clients/", "loop/", "stale/", "common/")


class _Position(BaseModel):
    """The fields of a state that are not tensors."""

    model_config = ConfigDict(strict=True, extra="forbid")

    stage: NonNegativeInt
    stage_round: NonNegativeInt
    round: NonNegativeInt
    is_initial: bool


class Checkpoint(NamedTuple):
    """The content of a checkpoint.

    Attributes:
        state: The state.
        extra: JSON values that were saved with it.
        rows: Where the rows of the clients are stored; None if the checkpoint is a single file.
    """

    state: State
    extra: dict[str, Any]
    rows: StoredRows | None


def save(
    path: Path,
    state: State,
    config_hash: str,
    extra: dict[str, Any] | None = None,
    changes: ChangedRows | None = None,
) -> None:
    """Write a checkpoint. After a crash it has its old content or its new content.

    Args:
        path: The file to write.
        state: State to save.
        config_hash: Hash of the run's configuration; `load` refuses the file under another hash.
        extra: JSON values to save with the state, such as elapsed times.
        changes: Which rows of the clients are stored in the file's folder. With it, large leaves of
            clients are stored in files of their own, of which those that no checkpoint of the
            folder names any more are removed. None writes a single file.

    Raises:
        OSError: A file cannot be written. The old checkpoint is unchanged.
    """
    parts = {
        "server": state.server,
        "clients": state.clients,
        "loop": {"participation_count": state.participation_count},
        "stale": state.stale,
    }
    position = {key: getattr(state, key) for key in _Position.model_fields}
    metadata = {
        "format": FORMAT,
        "config": config_hash,
        "position": json.dumps(position),
        "extra": json.dumps(extra or {}),
    }
    try:
        if changes is None or nbytes(state.clients) <= WHOLE:
            _write(path, parts, metadata)
            return
        stored = changes.write(path.parent, state.clients, state.participation_count)
        metadata |= {"format": WITH_ROW_FILES, "rows": json.dumps(stored.names)}
        _write(path, {**parts, "clients": {}, "common": stored.common}, metadata)
        changes.commit(stored)
    except SafetensorError as error:
        # safetensors reports failures of the disk as text, without an error number.
        code = errno.ENOSPC if "space" in str(error).lower() else errno.EIO
        raise OSError(code, str(error), str(path)) from error
    # If a checkpoint cannot be read, nobody knows which files it names.
    with suppress(DataError):
        there = path.parent.glob("*.safetensors")
        heads = [file for file in there if OF_ROWS.fullmatch(file.name) is None]
        named = [file.name for head in heads for file in files_of(head)]
        row_files.remove_others(path.parent, named)


def _write(path: Path, parts: dict[str, Tree], metadata: dict[str, str]) -> None:
    """Write the trees of a checkpoint to one file."""
    tensors: Tree = {}
    for part, tree in parts.items():
        seen = {value.data_ptr() for value in tensors.values()}
        for name, value in tree.items():
            # safetensors refuses tensors that share memory, so a second view of it is copied.
            tensors[f"{part}/{name}"] = (
                value.clone() if value.data_ptr() in seen else value.contiguous()
            )
            seen.add(value.data_ptr())
    # The file itself does not preserve the order of the names.
    row_files.write_tensors(path, tensors, {**metadata, "names": json.dumps(list(tensors))})


def load(path: Path, config_hash: str) -> tuple[State, dict[str, Any]]:
    """Read a checkpoint into main memory; see `read`.

    Returns:
        The state, and the JSON values that were saved with it.
    """
    found = read(path, config_hash, Storage())
    return found.state, found.extra


def read(path: Path, config_hash: str, storage: Storage) -> Checkpoint:
    """Read a checkpoint.

    Args:
        path: The file.
        config_hash: Hash of the configuration that the checkpoint must belong to.
        storage: Where rows of clients from files of their own are stored. The leaves of a
            checkpoint that is a single file are read when they are used, and must not be written.

    Raises:
        DataError: The checkpoint is damaged, was written by another version of flbench, or belongs
            to another configuration.
        RunError: There is not enough memory or disk space for the clients' leaves.
    """
    for _ in range(ATTEMPTS):
        before = _identity(path)
        try:
            return _read(path, config_hash, storage)
        except DataError:
            if _identity(path) == before:
                raise
    return _read(path, config_hash, storage)


def _identity(path: Path) -> tuple[int, int] | None:
    """Return what differs between a file and the one that replaces it."""
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_ino, found.st_mtime_ns


def _read(path: Path, config_hash: str, storage: Storage) -> Checkpoint:
    """Read a checkpoint; see `read`."""
    try:
        files.check_regular(path)
        with safe_open(path, framework="pt") as file:
            metadata = file.metadata() or {}
            if metadata.get("format") not in (FORMAT, WITH_ROW_FILES):
                raise DataError(
                    f"{path} is not a checkpoint of this version of flbench. Start a new run, or"
                    " resume with the version that wrote it."
                )
            if metadata["config"] != config_hash:
                raise DataError(
                    f"{path} belongs to another configuration than the run's config.yaml (hash"
                    f" {metadata['config'][:12]}, not {config_hash[:12]}). Undo the change to"
                    " config.yaml."
                )
            position = _Position.model_validate_json(metadata["position"])
            extra = dict(json.loads(metadata["extra"]))
            server, clients, loop, stale, common = (
                {
                    name.removeprefix(part): file.get_tensor(name)
                    for name in json.loads(metadata["names"])
                    if name.startswith(part)
                }
                for part in PARTS
            )
        participation_count, stored = loop["participation_count"], None
        if metadata["format"] == WITH_ROW_FILES:
            names = json.loads(metadata["rows"])
            stored, clients = row_files.read(
                path.parent, common, names, len(participation_count), storage
            )
    except (SafetensorError, OSError, *UNEXPECTED) as error:
        raise DataError(
            f"the checkpoint {path} cannot be read ({error}). Restore it from a copy, with the"
            " files of rows beside it, or remove it: without last.safetensors a resumed run starts"
            " from the beginning."
        ) from error
    state = State(
        **vars(position),
        server=server,
        clients=clients,
        participation_count=participation_count,
        stale=stale,
    )
    return Checkpoint(state, extra, stored)
