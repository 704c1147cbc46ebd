"""Parts of the user's own, as arguments of the functions of Python.

These are methods, data, partition schemes, nets, loss terms and metrics.
"""

from collections.abc import Callable, Iterable, Mapping
from os import PathLike, fspath
from pathlib import Path
from typing import Any, Final

from torch import nn

from flbench.config.resolve import read
from flbench.core import parts
from flbench.core.errors import ConfigError
from flbench.core.parts import METRICS, OBJECT, TERMS
from flbench.core.registry import ALGORITHMS

SECTIONS: Final = ("data", "partition", "model", "train", "evaluation")
"""Arguments that can be objects, or can contain functions of the user."""
NAMED: Final = {"partition": "scheme", "model": "name"}
"""Sections of one part, with the key that names it."""
ENTRIES: Final = {TERMS: "train={'terms': [...]}", METRICS: "evaluation={'metrics': {...}}"}
"""Arguments of `fl.resume` that contain functions of the user, by the name of the functions."""


def split(arguments: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the arguments with sections in the place of objects, and the objects.

    A function or class that has an import path becomes that path.

    Args:
        arguments: Arguments by name. `algorithm` may be the class of a method, or have one as its
            `name`; the class is registered. Those named `data`, `partition` and `model` may be
            objects, entries of `train["terms"]` may be functions, or have one as their `name`, and
            values of `evaluation["metrics"]` may be functions.

    Returns:
        The arguments, and the objects without an import path by the name of their section.

    Raises:
        DataError: The data cannot be used.
        ConfigError: Two different loss terms have the same name.
    """
    plain: dict[str, Any] = dict(arguments)
    objects: dict[str, Any] = {}
    method, data = plain.get("algorithm"), plain.get("data")
    section = {"name": method} if isinstance(method, str | type) else method
    if isinstance(section, Mapping) and isinstance(section.get("name"), str | type):
        plain["algorithm"] = {**section, **ALGORITHMS.section(section["name"])}
    if isinstance(data, PathLike):
        plain["data"] = {"path": fspath(data)}
    elif data is not None and not isinstance(data, str):
        plain["data"], objects = _data(data)
    for name, key in NAMED.items():
        section = _section(plain.get(name), key)
        if callable(part := section.get(key)):
            path = None if isinstance(part, nn.Module) else parts.path_of(part)
            plain[name] = {**section, key: path or OBJECT}
            objects |= {} if path else {name: part}
    for place in ENTRIES:
        name, _, key = place.partition(".")
        section = plain.get(name)
        if isinstance(section, Mapping) and isinstance(section.get(key), list | tuple | Mapping):
            written, functions = _several(section[key])
            plain[name] = {**section, key: written}
            objects |= {place: functions} if functions else {}
    return plain, objects


def _data(data: Any) -> tuple[Any, dict[str, Any]]:
    """Return the section of an argument `data`, and the data if they are an object."""
    from flbench.data.own import Data, is_own, result_of

    if not is_own(data):
        return data, {}
    if callable(data) and (path := parts.path_of(data)) is not None:
        return {"source": path}, {}
    data = result_of(data, "`data`")
    found = data if isinstance(data, Data) else Data(data)
    return found.section(), {"data": found}


def _section(given: Any, key: str) -> dict[str, Any]:
    """Return the section of an argument that may be the part that the section names by a key.

    A partition may be the positions of each client's samples.
    """
    if hasattr(given, "section"):
        given = given.section()
    if isinstance(given, Mapping):
        return dict(given)
    if isinstance(given, list | tuple) and key == "scheme":
        rows = list(given)
        return {key: lambda y, clients, rng: rows, "clients": len(rows)}
    return {key: given}


def _several(entries: Any) -> tuple[Any, dict[str, Callable[..., Any]]]:
    """Return loss terms, or metrics by name, with names in the place of functions.

    The functions without an import path are returned too, by the names that they get.
    """
    functions: dict[str, Callable[..., Any]] = {}

    def named(part: Any, name: str, written: str) -> str:
        if path := parts.path_of(part):
            return path
        if functions.setdefault(name, part) is not part:
            raise ConfigError(
                f"`train.terms`: two functions are called `{name.partition(':')[2]}`. Give one"
                " of them another name."
            )
        return written

    if isinstance(entries, Mapping):
        metrics = {
            name: named(one, name, OBJECT) if callable(one) else one
            for name, one in entries.items()
        }
        return metrics, functions
    terms = []
    for entry in entries:
        term = entry.get("name") if isinstance(entry, Mapping) else entry
        if callable(term):
            own = f"{OBJECT}:{getattr(term, '__name__', type(term).__name__)}"
            name = named(term, own, own)
            entry = {**entry, "name": name} if isinstance(entry, Mapping) else name
        terms.append(entry)
    return terms, functions


def with_natural_clients(plain: Mapping[str, Any], objects: Mapping[str, Any]) -> dict[str, Any]:
    """Return arguments whose `partition` is `natural` if there is a data loader for each client.

    A partition that is given stays as it is.
    """
    data = objects.get("data")
    if data is not None and data.by_client and plain.get("partition") is None:
        return {**plain, "partition": "natural"}
    return dict(plain)


def again(objects: Iterable[str]) -> list[str]:
    """Return the arguments by which `fl.resume` gets the objects of a call again, as Python code.

    >>> again(["data", "model", "train.terms"])
    ['data=...', 'model=...', "train={'terms': [...]}"]
    """
    return [ENTRIES.get(name, f"{name}=...") for name in objects]


def given_again(keys: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the arguments of `fl.resume` as `split` does.

    Classes of methods are registered, and left out.
    """
    plain = dict(keys)
    method = plain.get("algorithm")
    classes = method if isinstance(method, list | tuple) else [method]
    if method and all(isinstance(one, type) for one in classes):
        for one in classes:
            ALGORITHMS.section(one)
        del plain["algorithm"]
    return split(plain)


def of_resume(
    path: Path, keys: Mapping[str, Any], file: str = "config.yaml"
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the arguments of `fl.resume` that change something, and the objects of the user.

    `file` is the configuration in the folder `path` that the run or study began with.

    Raises:
        ConfigError: The run or study did not begin with such an object.
        DataError: The data cannot be used.
    """
    plain, objects = given_again(keys)
    if objects and (path / file).is_file():
        config = read(path / file)
        metrics = (config.evaluation.metrics or {}).values()
        began = {
            "data": config.data.source == OBJECT,
            "partition": config.partition.scheme == OBJECT,
            "model": config.model.name == OBJECT,
            TERMS: any(term.name.startswith(f"{OBJECT}:") for term in config.train.terms),
            METRICS: any(one.source == OBJECT for one in metrics),
        }
        if wrong := [section for section in objects if not began[section]]:
            raise ConfigError(
                f"`{wrong[0]}` is an object, but {path} did not begin with one. Leave it out:"
                " config.yaml names what is used."
            )
    # Terms and metrics are those of the configuration; only the functions are needed.
    for place in ENTRIES.keys() & objects.keys():
        section, _, name = place.partition(".")
        plain[section] = {key: value for key, value in plain[section].items() if key != name}
    return {key: value for key, value in plain.items() if key not in objects}, objects
