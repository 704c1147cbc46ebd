"""Checkpoints: the complete state of a run, written atomically.

A checkpoint is one safetensors file. If the clients keep much, their rows are in further files
beside it, of which a checkpoint adds those that have changed; see `flbench.experiment.row_files`.
"""

import errno
import json
from contextlib import suppress
from pathlib import Path
from typing import Any, Final, NamedTuple

import torch
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
FROZEN: Final = "frozen.safetensors"
"""Name of the file in the folder of the checkpoints with what is frozen in the net."""
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
        try:
            stored = changes.write(path.parent, state.clients, state.participation_count)
            metadata |= {"format": WITH_ROW_FILES, "rows": json.dumps(stored.names)}
            _write(path, {**parts, "clients": {}, "common": stored.common}, metadata)
            changes.commit(stored)
        finally:
            remove_unnamed(path.parent)
    except SafetensorError as error:
        raise _of_disk(error, path) from error


def remove_unnamed(folder: Path) -> None:
    """Remove the files of rows in a folder that no checkpoint in it names."""
    with suppress(DataError):  # nobody knows which files a damaged checkpoint names
        there = folder.glob("*.safetensors")
        heads = [file for file in there if OF_ROWS.fullmatch(file.name) is None]
        named = [file.name for head in heads for file in files_of(head)]
        row_files.remove_others(folder, named)


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


def save_frozen(path: Path, tree: Tree) -> None:
    """Write what is frozen in a net, which is the same in all rounds, beside the checkpoints.

    Args:
        path: The file to write.
        tree: Frozen parameters and statistics by name.

    Raises:
        OSError: The file cannot be written. Its old content is unchanged.
    """
    contiguous = {name: value.detach().contiguous() for name, value in tree.items()}
    try:
        row_files.write_tensors(path, contiguous, {"format": FORMAT})
    except SafetensorError as error:
        raise _of_disk(error, path) from error


def load_frozen(path: Path, tree: Tree) -> None:
    """Copy what a run has stored as frozen into the tensors of a net.

    A run continues, and its models predict, with the values that it began with, even if the net is
    made with other ones now, for example from another file of pretrained weights. Runs of versions
    that wrote no such file have the values that the net is made with.

    Args:
        path: The file; nothing is done if there is none.
        tree: Frozen parameters and statistics of the net by name, which are written to.

    Raises:
        DataError: The file is damaged, or has other tensors than the net.
    """
    if not path.exists():
        return
    try:
        files.check_regular(path)
        with safe_open(path, framework="pt") as file:
            found = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    except (SafetensorError, OSError, *UNEXPECTED) as error:
        raise DataError(
            f"{path} cannot be read ({error}). Restore it from a copy, or remove it: the frozen"
            " parameters then have the values that the net is made with."
        ) from error
    for name in sorted(found.keys() | tree.keys()):
        if name not in found or name not in tree or found[name].shape != tree[name].shape:
            raise DataError(
                f"{path} does not fit the net: `{name}` has"
                f" {_shape(found, name)} in the file and {_shape(tree, name)} in the net. Restore"
                " the file from a copy, or make the same net as when the run began."
            )
    with torch.no_grad():
        for name, value in found.items():
            tree[name].copy_(value)


def _shape(tree: Tree, name: str) -> str:
    """Return the shape of a tensor in words, for messages."""
    return f"the shape {list(tree[name].shape)}" if name in tree else "no value"


def _aligned(tree: Tree) -> Tree:
    """Return tensors of a file as tensors in memory that is aligned to 64 bytes, as PyTorch's is.

    Matrix products of float32 depend on it: a method that computes them at the server would
    otherwise go on with other rounding after a resume.
    """
    return {n: v if v.data_ptr() % 64 == 0 else v.clone() for n, v in tree.items()}


def _of_disk(error: SafetensorError, path: Path) -> OSError:
    """Return the error for a failure of the disk, which safetensors reports as text."""
    code = errno.ENOSPC if "space" in str(error).lower() else errno.EIO
    return OSError(code, str(error), str(path))


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
        server=_aligned(server) if storage.holds(nbytes(server)) else server,
        clients=clients,
        participation_count=participation_count,
        stale=stale,
    )
    return Checkpoint(state, extra, stored)
