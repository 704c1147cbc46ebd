"""Checkpoints: the whole state in one safetensors file, written beside, synced, renamed."""

import errno
import json
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file

from flbench.core import files
from flbench.core.errors import DataError
from flbench.core.types import State, Tree

FORMAT = "2"
POSITION = ("stage", "stage_round", "round", "is_initial")


def save(path: Path, state: State, config_hash: str, extra: dict[str, Any] | None = None) -> None:
    """Write a state so that a crash at any moment leaves either the old file or the new one.

    Args:
        path: the file.
        state: what to remember.
        config_hash: of the experiment; `load` refuses another one.
        extra: small JSON values to remember beside it.
    Raises: OSError if it cannot be written; what was there stays.
    """
    tensors: Tree = {}
    for part, tree in (
        ("server", state.server),
        ("clients", state.clients),
        ("loop", {"participation_count": state.participation_count}),
        ("stale", state.stale),
    ):
        seen = {value.data_ptr() for value in tensors.values()}
        for name, value in tree.items():  # safetensors refuses tensors that share memory
            tensors[f"{part}/{name}"] = (
                value.clone() if value.data_ptr() in seen else value.contiguous()
            )
            seen.add(value.data_ptr())
    position = {key: getattr(state, key) for key in POSITION}
    metadata = {
        "format": FORMAT,
        "config": config_hash,
        "position": json.dumps(position),
        "names": json.dumps(list(tensors)),  # their order: the file has one of its own
        "extra": json.dumps(extra or {}),
    }
    beside = path.with_name(path.name + ".part")
    try:
        save_file(tensors, beside, metadata)
        files.sync(beside)
        beside.replace(path)
        files.sync(path.parent)
    except SafetensorError as error:  # a full disk arrives here as text
        files.discard(beside)
        code = errno.ENOSPC if "space" in str(error).lower() else errno.EIO
        raise OSError(code, str(error), str(path)) from error
    except OSError:
        files.discard(beside)
        raise


def load(path: Path, config_hash: str) -> tuple[State, dict[str, Any]]:
    """Read a state and what was remembered beside it.

    Raises: DataError if the file is damaged or belongs to another configuration.
    """
    try:
        with safe_open(path, framework="pt") as file:
            metadata = file.metadata() or {}
            if metadata.get("format") != FORMAT:
                raise DataError(f"{path} is not a checkpoint of this version of flbench.")
            if metadata["config"] != config_hash:
                raise DataError(
                    f"{path} belongs to another configuration than the config.yaml beside it (hash"
                    f" {metadata['config'][:12]}, not {config_hash[:12]}). Undo the change to"
                    " config.yaml."
                )
            position = json.loads(metadata["position"])
            extra = json.loads(metadata["extra"])
            server, clients, loop, stale = (
                {
                    name.removeprefix(part): file.get_tensor(name)
                    for name in json.loads(metadata["names"])
                    if name.startswith(part)
                }
                for part in ("server/", "clients/", "loop/", "stale/")
            )
    except (SafetensorError, OSError, KeyError, ValueError) as error:
        raise DataError(f"the checkpoint {path} cannot be read ({error}).") from error
    state = State(
        **{key: position[key] for key in POSITION},
        server=server,
        clients=clients,
        participation_count=loop["participation_count"],
        stale=stale,
    )
    return state, extra
