"""Checkpoints: the complete state of a run in one safetensors file, written atomically."""

import errno
import json
from pathlib import Path
from typing import Any

import torch
from pydantic import BaseModel, ConfigDict, NonNegativeInt
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file

from flbench.core import files
from flbench.core.errors import DataError
from flbench.core.types import State, Tree

FORMAT = "3"
FROZEN = "frozen.safetensors"
"""Name of the file in the folder of the checkpoints with what is frozen in the net."""
UNEXPECTED = (AttributeError, LookupError, RecursionError, TypeError, ValueError)  # of the metadata


class _Position(BaseModel):
    """The fields of a state that are not tensors."""

    model_config = ConfigDict(strict=True, extra="forbid")

    stage: NonNegativeInt
    stage_round: NonNegativeInt
    round: NonNegativeInt
    is_initial: bool


def save(path: Path, state: State, config_hash: str, extra: dict[str, Any] | None = None) -> None:
    """Write a checkpoint. After a crash the file has its old content or its new content.

    Args:
        path: The file to write.
        state: State to save.
        config_hash: Hash of the run's configuration; `load` refuses the file under another hash.
        extra: JSON values to save with the state, such as elapsed times.

    Raises:
        OSError: The file cannot be written. Its old content is unchanged.
    """
    tensors: Tree = {}
    for part, tree in (
        ("server", state.server),
        ("clients", state.clients),
        ("loop", {"participation_count": state.participation_count}),
        ("stale", state.stale),
    ):
        seen = {value.data_ptr() for value in tensors.values()}
        for name, value in tree.items():
            # safetensors refuses tensors that share memory, so a second view of it is copied.
            tensors[f"{part}/{name}"] = (
                value.clone() if value.data_ptr() in seen else value.contiguous()
            )
            seen.add(value.data_ptr())
    position = {key: getattr(state, key) for key in _Position.model_fields}
    metadata = {
        "format": FORMAT,
        "config": config_hash,
        "position": json.dumps(position),
        "names": json.dumps(list(tensors)),  # the file itself does not preserve their order
        "extra": json.dumps(extra or {}),
    }
    _write(path, tensors, metadata)


def save_frozen(path: Path, tree: Tree) -> None:
    """Write what is frozen in a net, which is the same in all rounds, beside the checkpoints.

    Args:
        path: The file to write.
        tree: Frozen parameters and statistics by name.

    Raises:
        OSError: The file cannot be written. Its old content is unchanged.
    """
    contiguous = {name: value.detach().contiguous() for name, value in tree.items()}
    _write(path, contiguous, {"format": FORMAT})


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


def _write(path: Path, tensors: Tree, metadata: dict[str, str]) -> None:
    """Write a safetensors file; after a crash it has its old content or its new content.

    Raises:
        OSError: The file cannot be written.
    """
    beside = path.with_name(path.name + ".part")
    try:
        beside.unlink(missing_ok=True)  # safetensors would write through a link of this name
        save_file(tensors, beside, metadata)
        files.sync(beside)
        beside.replace(path)
        files.sync(path.parent)
    except SafetensorError as error:
        # safetensors reports failures of the disk as text, without an error number.
        files.discard(beside)
        code = errno.ENOSPC if "space" in str(error).lower() else errno.EIO
        raise OSError(code, str(error), str(path)) from error
    except OSError:
        files.discard(beside)
        raise


def load(path: Path, config_hash: str) -> tuple[State, dict[str, Any]]:
    """Read a checkpoint.

    Args:
        path: The file.
        config_hash: Hash of the configuration that the checkpoint must belong to.

    Returns:
        The state, and the JSON values that were saved with it.

    Raises:
        DataError: The file is damaged, was written by another version of flbench, or belongs to
            another configuration.
    """
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
            position = _Position.model_validate_json(metadata["position"])
            extra = dict(json.loads(metadata["extra"]))
            server, clients, loop, stale = (
                {
                    name.removeprefix(part): file.get_tensor(name)
                    for name in json.loads(metadata["names"])
                    if name.startswith(part)
                }
                for part in ("server/", "clients/", "loop/", "stale/")
            )
            participation_count = loop["participation_count"]
    except (SafetensorError, OSError, *UNEXPECTED) as error:
        raise DataError(
            f"the checkpoint {path} cannot be read ({error}). Restore it from a copy, or remove it:"
            " without last.safetensors a resumed run starts from the beginning."
        ) from error
    state = State(
        **vars(position),
        server=server,
        clients=clients,
        participation_count=participation_count,
        stale=stale,
    )
    return state, extra
