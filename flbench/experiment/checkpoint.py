"""Checkpoints: the complete state of a run, written atomically.

A checkpoint is a safetensors file, and further files beside it with the clients' rows, of which it
adds those that have changed; see `flbench.experiment.row_files`.
"""

import errno
import json
from contextlib import suppress
from pathlib import Path
from typing import Any, Final, NamedTuple

import torch
from safetensors import SafetensorError, safe_open

from flbench.core import files
from flbench.core.errors import DataError
from flbench.core.storage import Storage
from flbench.core.tree import nbytes
from flbench.core.types import State, Tree
from flbench.experiment import row_files
from flbench.experiment.row_files import ChangedRows, StoredRows
from flbench.results.checkpoint_files import OF_ROWS, files_of

FORMAT: Final = "5"
FROZEN: Final = "frozen.safetensors"
"""Name of the file in the folder of the checkpoints with what is frozen in the net."""
UNEXPECTED = (AttributeError, LookupError, RecursionError, TypeError, ValueError)  # of the metadata
PARTS: Final = ("server/", "common/", "loop/", "stale/")
POSITION: Final = ("stage", "stage_round", "round", "is_initial")
"""The fields of a state that are not tensors."""


class Checkpoint(NamedTuple):
    """The content of a checkpoint.

    Attributes:
        state: The state.
        extra: JSON values that were saved with it.
        rows: Where the rows of the clients are stored.
    """

    state: State
    extra: dict[str, Any]
    rows: StoredRows


def save(
    path: Path,
    state: State,
    config_hash: str,
    extra: dict[str, Any] | None = None,
    changes: ChangedRows | None = None,
) -> None:
    """Write a checkpoint. After a crash it has its old content or its new content.

    Args:
        path: The file to write. Files of rows in its folder that no checkpoint there names any more
            are removed.
        state: State to save.
        config_hash: Hash of the run's configuration; `load` refuses the file under another hash.
        extra: JSON values to save with the state, such as elapsed times.
        changes: Which rows of the clients are stored in the file's folder; None for none.

    Raises:
        OSError: A file cannot be written. The old checkpoint is unchanged.
    """
    changes = changes or ChangedRows()
    position = {key: getattr(state, key) for key in POSITION}
    try:
        stored = changes.write(path.parent, state)
        parts = {
            "server": state.server,
            "common": stored.common,
            "loop": {"participation_count": state.participation_count},
            "stale": state.stale,
        }
        tensors: Tree = {}
        for part, tree in parts.items():
            seen = {value.data_ptr() for value in tensors.values()}
            for name, value in tree.items():
                # safetensors refuses tensors that share memory: a second view of it is copied.
                is_view = value.data_ptr() in seen
                tensors[f"{part}/{name}"] = value.clone() if is_view else value.contiguous()
                seen.add(value.data_ptr())
        metadata = {
            "format": FORMAT,
            "config": config_hash,
            "position": json.dumps(position),
            "extra": json.dumps(extra or {}),
            "rows": json.dumps(list(stored.files)),
            "names": json.dumps(list(tensors)),  # the file does not preserve their order
        }
        row_files.write_tensors(path, tensors, metadata)
        changes.commit(stored)
    except SafetensorError as error:
        raise _of_disk(error, path) from error
    finally:
        remove_unnamed(path.parent)


def remove_unnamed(folder: Path) -> None:
    """Remove the files of rows in a folder that no checkpoint in it names."""
    with suppress(DataError):  # nobody knows which files a damaged checkpoint names
        there = folder.glob("*.safetensors")
        heads = [file for file in there if OF_ROWS.fullmatch(file.name) is None]
        named = [file.name for head in heads for file in files_of(head)]
        row_files.remove_others(folder, named)


def save_frozen(path: Path, tree: Tree) -> None:
    """Write what is frozen in a net, the same in all rounds, atomically beside the checkpoints."""
    contiguous = {name: value.detach().contiguous() for name, value in tree.items()}
    try:
        row_files.write_tensors(path, contiguous, {"format": FORMAT})
    except SafetensorError as error:
        raise _of_disk(error, path) from error


def load_frozen(path: Path, tree: Tree) -> None:
    """Copy what a run has stored as frozen into the tensors of a net.

    A run continues, and its models predict, with the values that it began with, even if the net is
    made with other ones now, for example from another file of pretrained weights.

    Args:
        path: The file.
        tree: Frozen parameters and statistics of the net by name, which are written to.

    Raises:
        DataError: The file is damaged, or has other tensors than the net.
    """
    try:
        files.check_regular(path)
        with safe_open(path, framework="pt") as file:
            found = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    except (SafetensorError, OSError, *UNEXPECTED) as error:
        raise DataError(
            f"{path} cannot be read ({error}). Restore it from a copy, or start a new run."
        ) from error
    stored, wanted = ({n: v.shape for n, v in one.items()} for one in (found, tree))
    if wrong := sorted(dict(stored.items() ^ wanted.items())):
        raise DataError(
            f"{path} does not fit the net: `{wrong[0]}` differs. Restore the file from a copy, or"
            " make the same net as when the run began."
        )
    with torch.no_grad():
        for name, value in found.items():
            tree[name].copy_(value)


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
    """Return the state of a checkpoint, in main memory, and its JSON values; see `read`."""
    found = read(path, config_hash, Storage())
    return found.state, found.extra


def read(path: Path, config_hash: str, storage: Storage) -> Checkpoint:
    """Read a checkpoint.

    Args:
        path: The file.
        config_hash: Hash of the configuration that the checkpoint must belong to.
        storage: Where the rows of the clients are stored; they can be written to.

    Raises:
        DataError: The checkpoint is damaged, was written by another version of flbench, or belongs
            to another configuration.
        RunError: There is not enough memory or disk space for the clients' leaves.
    """
    try:
        return _read(path, config_hash, storage)
    except DataError:  # the run may have replaced the files while they were read
        return _read(path, config_hash, storage)


def _read(path: Path, config_hash: str, storage: Storage) -> Checkpoint:
    """Read a checkpoint; see `read`."""
    try:
        files.check_regular(path)
        with safe_open(path, framework="pt") as file:
            metadata = file.metadata() or {}
            if metadata.get("format") != FORMAT:
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
            names = json.loads(metadata["names"])
            server, common, loop, stale = (
                {
                    name.removeprefix(part): file.get_tensor(name)
                    for name in names
                    if name.startswith(part)
                }
                for part in PARTS
            )
        count = loop["participation_count"]
        rows = json.loads(metadata["rows"])
        stored, clients = row_files.read(path.parent, common, rows, len(count), storage)
        state = State(
            **json.loads(metadata["position"]),
            server=_aligned(server) if storage.holds(nbytes(server)) else server,
            clients=clients,
            participation_count=count,
            stale=stale,
        )
        return Checkpoint(state, json.loads(metadata["extra"]), stored)
    except (SafetensorError, OSError, *UNEXPECTED) as error:
        raise DataError(
            f"the checkpoint {path} cannot be read ({error}). Restore it from a copy, with the"
            " files of rows beside it, or remove it: without last.safetensors a resumed run starts"
            " from the beginning."
        ) from error
