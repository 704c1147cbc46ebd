"""JSON and YAML files of run and study folders; what is damaged is told by name, with the cure."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path
from typing import Any
from zipfile import BadZipFile

import yaml

from flbench.core.errors import DataError


def read_json(path: Path) -> dict[str, Any]:
    """Return a JSON file's keys; {} if it is not there.

    Raises: DataError if it is damaged.
    """
    if not path.is_file():
        return {}
    with as_data_error(path):
        return _keys(json.loads(path.read_text(encoding="utf-8")))


def read_yaml(path: Path) -> dict[str, Any]:
    """Return a YAML file's keys; {} if it is not there.

    Raises: DataError if it is damaged.
    """
    if not path.is_file():
        return {}
    with as_data_error(path):
        return _keys(yaml.safe_load(path.read_text(encoding="utf-8")))


def unix_milliseconds(time: str) -> int:
    """Return an ISO time in ms since 1970."""
    return round(datetime.fromisoformat(time).timestamp() * 1000)


@contextmanager
def as_data_error(path: Path) -> Iterator[None]:
    """Turn what is wrong with a file, or missing in what was read of it, into a DataError.

    Nothing but the file may be asked within: the same errors of MLflow mean something else.
    """
    wrong = (KeyError, TypeError, ValueError, AttributeError, EOFError, BadZipFile, yaml.YAMLError)
    cure = "Mend it, or put a whole copy in its place."
    try:
        yield
    except OSError as error:
        raise DataError(f"{path} cannot be read ({error.strerror or error}). {cure}") from error
    except wrong as error:
        raise DataError(f"{path} is damaged ({_words(error)}). {cure}") from error


def _keys(found: Any) -> dict[str, Any]:
    if not isinstance(found, dict):
        raise TypeError("it has no keys")
    return found


def _words(error: Exception) -> str:
    """Return what is wrong, in one line."""
    if isinstance(error, KeyError):
        return f"`{error.args[0]}` is missing"
    if isinstance(error, yaml.MarkedYAMLError) and error.problem_mark is not None:
        mark = error.problem_mark
        return f"{error.problem}: line {mark.line + 1} column {mark.column + 1}"
    return " ".join(str(error).split()) or type(error).__name__
