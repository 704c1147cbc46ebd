"""Parts of the user's own, as arguments of `fl.run` and `fl.resume`.

These are methods, data, partition schemes, nets, loss terms and metrics.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from os import PathLike, fspath
from typing import Any, Final

from torch import nn

from flbench.calls.arguments import SectionValues
from flbench.core import parts
from flbench.core.errors import ConfigError
from flbench.core.parts import METRICS, OBJECT, TERMS
from flbench.core.registry import ALGORITHMS

SECTIONS: Final = ("data", "partition", "model", "train", "evaluation")
"""Arguments that can be objects, or can contain functions of the user."""

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
    """
    plain = dict(arguments)
    objects: dict[str, Any] = {}
    data, model = plain.get("data"), plain.get("model")
    if (method := plain.get("algorithm")) is not None:
        plain["algorithm"] = _method(method)
    if isinstance(data, PathLike):
        plain["data"] = {"path": fspath(data)}
    elif data is not None and not isinstance(data, str) and _is_data(data):
        from flbench.data.own import Data, result_of

        path = parts.path_of(data) if callable(data) else None
        if path is not None:
            plain["data"] = {"source": path}
        else:
            data = result_of(data, "`data`")
            found = data if isinstance(data, Data) else Data(data)
            objects["data"] = found
            plain["data"] = found.section()
    scheme = _scheme(plain.get("partition"))
    if scheme is not None:
        function, section = scheme
        path = parts.path_of(function)
        plain["partition"] = {**section, "scheme": path or OBJECT}
        if path is None:
            objects["partition"] = function
    if isinstance(model, nn.Module) or (callable(model) and not isinstance(model, Mapping)):
        path = None if isinstance(model, nn.Module) else parts.path_of(model)
        plain["model"] = {"name": path or OBJECT}
        if path is None:
            objects["model"] = model
    elif isinstance(model, Mapping) and callable(net := model.get("name")):
        path = None if isinstance(net, nn.Module) else parts.path_of(net)
        plain["model"] = {**model, "name": path or OBJECT}
        if path is None:
            objects["model"] = net
    train = plain.get("train")
    if isinstance(train, Mapping) and isinstance(train.get("terms"), list | tuple):
        terms, functions = _terms(train["terms"])
        plain["train"] = {**train, "terms": terms}
        if functions:
            objects[TERMS] = functions
    evaluation = plain.get("evaluation")
    if isinstance(evaluation, Mapping) and isinstance(evaluation.get("metrics"), Mapping):
        metrics = evaluation["metrics"]
        paths = {
            name: (parts.path_of(metric) or OBJECT) if callable(metric) else metric
            for name, metric in metrics.items()
        }
        plain["evaluation"] = {**evaluation, "metrics": paths}
        if OBJECT in paths.values():
            objects[METRICS] = {name: metrics[name] for name in paths if paths[name] == OBJECT}
    return plain, objects


def _is_data(value: Any) -> bool:
    """Return whether an argument `data` is data, and not a section of the configuration."""
    from flbench.data.own import is_own

    return is_own(value)


def with_natural_clients(plain: Mapping[str, Any], objects: Mapping[str, Any]) -> dict[str, Any]:
    """Return arguments whose `partition` is `natural` if there is a data loader for each client.

    A partition that is given stays as it is.
    """
    data = objects.get("data")
    if data is not None and data.by_client and plain.get("partition") is None:
        return {**plain, "partition": "natural"}
    return dict(plain)


def _method(given: Any) -> Any:
    """Return the section of an argument `algorithm`: a name, an import path, a class, or a dict."""
    if isinstance(given, type) or (isinstance(given, str) and ":" in given):
        return ALGORITHMS.section(given)
    if isinstance(given, Mapping) and isinstance(given.get("name"), str | type):
        return {**given, **ALGORITHMS.section(given["name"])}
    return given


def _scheme(given: Any) -> tuple[Callable[..., Any], dict[str, Any]] | None:
    """Return the function of an argument `partition` and its section; None if it has none.

    Args:
        given: The argument: a function, an object or section that has one as `scheme`, or the
            positions of each client's samples.
    """
    if isinstance(given, list | tuple):
        rows = list(given)
        return (lambda y, clients, rng: rows), {"clients": len(rows)}
    if isinstance(given, SectionValues):
        given = given.section()
    if isinstance(given, Mapping):
        function = given.get("scheme")
        return (function, dict(given)) if callable(function) else None
    return (given, {}) if callable(given) else None


def _terms(entries: Sequence[Any]) -> tuple[list[Any], dict[str, Callable[..., Any]]]:
    """Return the entries of `train.terms` with names in the place of functions, and the functions.

    Args:
        entries: Names, functions, or dicts with one of these as `name`.

    Returns:
        The entries, and the functions without an import path by the names that they get.

    Raises:
        ConfigError: Two different functions have the same name.
    """
    written: list[Any] = []
    functions: dict[str, Callable[..., Any]] = {}
    for entry in entries:
        term = entry.get("name") if isinstance(entry, Mapping) else entry
        if not callable(term):
            written.append(entry)
            continue
        name = parts.path_of(term)
        if name is None:
            own = getattr(term, "__name__", type(term).__name__)
            name = f"{OBJECT}:{own}"
            if functions.setdefault(name, term) is not term:
                raise ConfigError(
                    f"`train.terms` has two functions that are called `{own}`. Give one of them"
                    " another name."
                )
        written.append({**entry, "name": name} if isinstance(entry, Mapping) else name)
    return written, functions


def again(arguments: Mapping[str, Any], objects: Iterable[str]) -> list[str]:
    """Return the arguments by which `fl.resume` gets the objects of a call again, as Python code.

    Args:
        arguments: Arguments of the call by name.
        objects: Names of the objects without an import path, as `split` returns them.

    >>> again({"model": {"lightning": True}}, ["data", "model", "train.terms"])
    ['data=...', 'module=...', "train={'terms': [...]}"]
    """
    model = arguments.get("model")
    is_module = "module" in arguments or (isinstance(model, Mapping) and model.get("lightning"))
    names = {"model": "module=..."} if is_module else {}
    return [(ENTRIES | names).get(name, f"{name}=...") for name in objects]
