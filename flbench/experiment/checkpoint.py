"""Checkpoints: the complete state of a run, written atomically.

A checkpoint is a safetensors file, and further files beside it with the clients' rows, of which it
adds those that have changed; see `flbench.experiment.row_files`.
"""

import json
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Final, NamedTuple

import torch
from pydantic import BaseModel, ConfigDict, NonNegativeInt
from safetensors import SafetensorError, safe_open

from flbench.core import files
from flbench.core.errors import DataError
from flbench.core.storage import Storage
from flbench.core.system_errors import is_of_machine
from flbench.core.tree import nbytes
from flbench.core.types import State, Tree
from flbench.experiment import row_files
from flbench.experiment.row_files import ClientRows
from flbench.results.checkpoint_files import OF_ROWS, files_of

FORMAT: Final = "6"
FROZEN: Final = "frozen.safetensors"
"""Name of the file in the folder of the checkpoints with what is frozen in the net."""
PARTS: Final = ("server/", "common/", "loop/", "stale/")
COUNTS: Final = ("participation_count", "steps")
"""The fields of a state that count by client."""
UNEXPECTED = (AttributeError, LookupError, RuntimeError, TypeError, ValueError)


class Position(BaseModel):
    """The fields of a state that are not tensors."""

    model_config = ConfigDict(strict=True, extra="forbid", from_attributes=True)

    stage: NonNegativeInt
    stage_round: NonNegativeInt
    round: NonNegativeInt
    is_initial: bool


class Checkpoint(NamedTuple):
    """The content of a checkpoint.

    Attributes:
        state: The state.
        extra: JSON values that were saved with it.
        rows: Where the rows of the clients are stored.
    """

    state: State
    extra: dict[str, Any]
    rows: ClientRows


def save(
    path: Path,
    state: State,
    config_hash: str,
    extra: dict[str, Any] | None = None,
    rows: ClientRows | None = None,
) -> ClientRows:
    """Write a checkpoint. After a crash it has its old content or its new content.

    Args:
        path: The file to write. Files of rows in its folder that no checkpoint there names any more
            are removed.
        state: State to save.
        config_hash: Hash of the run's configuration; `load` refuses the file under another hash.
        extra: JSON values to save with the state, such as elapsed times.
        rows: The rows that are stored in the file's folder; None for none.

    Returns:
        The rows that are stored there now.

    Raises:
        OSError: A file cannot be written. The old checkpoint is unchanged.
    """
    try:
        stored = (rows or ClientRows()).write(path.parent, state)
        trees = (
            state.server,
            stored.common or {},
            {name: getattr(state, name) for name in COUNTS},
            state.stale,
        )
        tensors: Tree = {}
        for part, tree in zip(PARTS, trees, strict=True):
            seen = {value.data_ptr() for value in tensors.values()}
            for name, value in tree.items():
                # safetensors refuses tensors that share memory: a second view of it is copied.
                is_view = value.data_ptr() in seen
                tensors[part + name] = value.clone() if is_view else value.contiguous()
                seen.add(value.data_ptr())
        metadata = {
            "format": FORMAT,
            "config": config_hash,
            "position": Position.model_validate(state).model_dump_json(),
            "extra": json.dumps(extra or {}),
            "rows": json.dumps(list(stored.files)),
            "names": json.dumps(list(tensors)),  # the file does not preserve their order
        }
        row_files.write_tensors(path, tensors, metadata)
    finally:
        remove_unnamed(path.parent)
    return stored


def remove_unnamed(folder: Path) -> None:
    """Remove the files of rows in a folder that no checkpoint in it names."""
    with suppress(DataError):  # nobody knows which files a damaged checkpoint names
        there = folder.glob("*.safetensors")
        heads = [file for file in there if OF_ROWS.fullmatch(file.name) is None]
        named = {file.name for head in heads for file in files_of(head)}
        for file in folder.glob("rows-*.safetensors*"):
            if file.name not in named:
                files.discard(file)


def load_frozen(path: Path, tree: Tree) -> None:
    """Copy what a run has stored as frozen into the tensors of a net.

    A run continues, and its models predict, with the values that it began with, even if the net is
    made with other ones now, for example from another file of pretrained weights.

    Args:
        path: The file.
        tree: Frozen parameters and statistics of the net by name, which are written to.

    Raises:
        DataError: The file is damaged, or lacks a tensor of the net.
    """
    with reading(path), torch.no_grad(), safe_open(path, framework="pt") as file:
        for name, value in tree.items():
            stored = file.get_tensor(name)
            if stored.shape != value.shape:  # it would broadcast
                raise ValueError(name)
            value.copy_(stored)


@contextmanager
def reading(path: Path) -> Iterator[None]:
    """Context manager that turns what a damaged checkpoint raises into a DataError with its name.

    Errors of memory and of the disk pass.

    Args:
        path: The file that is read in the block.
    """
    try:
        files.check_regular(path)
        yield
    except (SafetensorError, OSError, *UNEXPECTED) as error:
        if is_of_machine(error):
            raise
        raise DataError(
            f"the checkpoint {path} cannot be read ({error}). Restore it from a copy, with the"
            " files beside it, or start a new run."
        ) from error


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
    with reading(path):
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
                {n.removeprefix(part): file.get_tensor(n) for n in names if n.startswith(part)}
                for part in PARTS
            )
        names_of_rows, count = json.loads(metadata["rows"]), len(loop["steps"])
        rows, clients = row_files.read(path.parent, common, names_of_rows, count, storage)
        if storage.holds(nbytes(server)):
            # Products of float32 depend on the alignment of their factors: without these copies a
            # method that computes some at the server would go on with other rounding.
            server = {n: v if v.data_ptr() % 64 == 0 else v.clone() for n, v in server.items()}
        position = Position.model_validate_json(metadata["position"])
        state = State(**vars(position), **loop, server=server, clients=clients, stale=stale)
        return Checkpoint(state, json.loads(metadata["extra"]), rows)
