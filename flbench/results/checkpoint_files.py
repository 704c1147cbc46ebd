"""The files of a checkpoint, read without PyTorch."""

import json
import re
from pathlib import Path
from typing import Final

from safetensors import SafetensorError, safe_open

from flbench.core.errors import DataError
from flbench.core.files import check_regular

OF_ROWS: Final = re.compile(r"rows-[0-9]{6,12}-[0-9a-f]{16}\.safetensors")
"""Name of a file with rows of clients."""
UNEXPECTED: Final = (AttributeError, RecursionError, TypeError, ValueError)  # of the metadata


def files_of(path: Path) -> list[Path]:
    """Return the files of a checkpoint: the file itself, and those with rows of clients."""
    try:
        check_regular(path)
        with safe_open(path, framework="numpy") as file:
            names = json.loads((file.metadata() or {}).get("rows", "[]"))
        others = [path.with_name(checked_name(name)) for name in names]
    except (OSError, SafetensorError, *UNEXPECTED) as error:
        raise DataError(f"the checkpoint {path} cannot be read ({error}).") from error
    return [path, *others]


def checked_name(name: str) -> str:
    """Return the name of a file with rows of clients.

    Raises:
        ValueError: The name is not that of such a file.
        TypeError: It is no text.
    """
    if OF_ROWS.fullmatch(name) is None:
        raise ValueError(f"{name!r} is no file with rows of clients")
    return name
