"""Reading the JSON and YAML files of run and study folders.

A file that cannot be read raises a DataError that names the file, the defect and the cure.
"""

import csv
import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final
from zipfile import BadZipFile

from flbench.core import files
from flbench.core.errors import DataError, shortened
from flbench.core.plain_yaml import PlainYamlError, parse
from flbench.core.text import one_line

LARGEST_JSON: Final = 64 * 2**20
"""Largest size of a JSON file in bytes."""
MOST_VALUES: Final = 2_000_000
"""Largest number of values of a JSON file: each takes some 100 bytes of memory."""


def read_json(path: Path) -> dict[str, Any]:
    """Return the content of a JSON file whose top level is an object.

    Returns:
        The object's keys and values; an empty dict if the file does not exist.

    Raises:
        DataError: The file cannot be read, is not JSON, or its top level is not an object; or it
            has more than `LARGEST_JSON` bytes or `MOST_VALUES` values.
    """
    with as_data_error(path):
        if not path.exists():
            return {}
        text = files.read_text(path, LARGEST_JSON)
        if sum(map(text.count, "{[,")) > MOST_VALUES:
            raise ValueError(f"it has more than {MOST_VALUES:,} values")
        return _mapping(json.loads(text))


def read_yaml(path: Path, *, required: bool = False) -> dict[str, Any]:
    """Return the content of a YAML file whose top level is a mapping.

    Args:
        path: The file.
        required: Whether a missing file is an error.

    Returns:
        The mapping's keys and values; an empty dict if the file does not exist and is not required.

    Raises:
        DataError: The file cannot be read, is not YAML, its top level is not a mapping, or it is
            required and does not exist.
    """
    if not path.is_file():
        if required:
            raise DataError(f"{path} is missing. Restore it from a copy.")
        return {}
    with as_data_error(path):
        return _mapping(parse(files.read_text(path))[0])


@contextmanager
def as_data_error(
    path: Path, cure: str = "Repair it, or replace it by an intact copy."
) -> Iterator[None]:
    """Context manager that turns errors while reading a file into a DataError that names it.

    Covers files that cannot be read, content that cannot be parsed, and keys that are missing in
    what was parsed. The block must not call anything else that raises such errors (MLflow, for
    example): they would be blamed on the file.

    Args:
        path: The file that the block reads.
        cure: What the user can do, as a sentence.

    Raises:
        DataError: The block raised one of these errors.
    """
    errors = (
        *(KeyError, IndexError, TypeError, ValueError, AttributeError, EOFError, RecursionError),
        *(OverflowError, BadZipFile, csv.Error),
    )
    try:
        yield
    except OSError as error:
        raise DataError(f"{path} cannot be read ({error.strerror or error}). {cure}") from error
    except errors as error:
        raise DataError(f"{path} is damaged ({_description(error)}). {cure}") from error


def _mapping(content: Any) -> dict[str, Any]:
    """Return the parsed content of a file; raise a TypeError if it is not a mapping."""
    if not isinstance(content, dict):
        raise TypeError("it has no keys")
    return content


def _description(error: Exception) -> str:
    """Return the description of an error in one line."""
    from pydantic import ValidationError

    if isinstance(error, ValidationError):
        first = error.errors()[0]
        key = one_line(shortened(".".join(map(str, first["loc"])), 100))
        if first["type"] == "missing":
            return f"`{key}` is missing"
        return one_line(f"`{key}`: {first['msg']}" if key else first["msg"])
    if isinstance(error, KeyError):
        return f"`{one_line(shortened(str(error.args[0])))}` is missing"
    if isinstance(error, RecursionError):
        return "its values are too deep within each other"
    if isinstance(error, PlainYamlError) and error.line is not None:
        return f"line {error.line}: {str(error).removesuffix('.')}"
    return one_line(shortened(str(error))) or type(error).__name__
