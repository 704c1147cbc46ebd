"""Parts of the user's own, as arguments of `fl.resume`."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from flbench.calls.parts import split
from flbench.config.resolve import read
from flbench.core.errors import ConfigError
from flbench.core.parts import METRICS, OBJECT, TERMS
from flbench.core.registry import ALGORITHMS


def with_model(keys: Mapping[str, Any]) -> dict[str, Any]:
    """Return arguments of `fl.resume` with sections in the place of those of `fl.federate`.

    These are `model` for `module`, and `evaluation` for `metrics`.

    Raises:
        ConfigError: Both are given.

    >>> with_model({"module": 1, "engine": "ray"})
    {'model': 1, 'engine': 'ray'}
    """
    if "module" in keys and "model" in keys:
        raise ConfigError("`module` and `model` are the same argument. Give one of them.")
    plain = {"model" if name == "module" else name: value for name, value in keys.items()}
    if "metrics" in plain:
        evaluation = plain.get("evaluation") or {}
        if "metrics" in evaluation:
            raise ConfigError("`metrics` is `evaluation['metrics']`. Give one of them.")
        plain["evaluation"] = {**evaluation, "metrics": plain.pop("metrics")}
    return plain


def without_methods(keys: Mapping[str, Any]) -> dict[str, Any]:
    """Return arguments of `fl.resume` without the classes of methods, which are registered.

    `algorithm` may be a class, or a list of classes.
    """
    given = keys.get("algorithm")
    classes = given if isinstance(given, list | tuple) else [given]
    if not given or not all(isinstance(one, type) for one in classes):
        return dict(keys)
    for one in classes:
        ALGORITHMS.section(one)
    return {name: value for name, value in keys.items() if name != "algorithm"}


def of_resume(
    path: Path, keys: Mapping[str, Any], file: str = "config.yaml"
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the arguments of `fl.resume` without objects, and the objects.

    Args:
        path: The folder of the run or study.
        keys: Arguments by name.
        file: Path within the folder of the configuration that it began with.

    Returns:
        The arguments that change something, and the objects by the name of their section.

    Raises:
        ConfigError: The run or study did not begin with such an object.
        DataError: The data cannot be used.
    """
    plain, objects = split(with_model(without_methods(keys)))
    if objects and (path / file).is_file():
        config = read(path / file)
        metrics = config.evaluation.metrics or {}
        began = {
            "data": config.data.source == OBJECT,
            "partition": config.partition.scheme == OBJECT,
            "model": config.model.name == OBJECT,
            TERMS: any(term.name.startswith(f"{OBJECT}:") for term in config.train.terms),
            METRICS: any(one.source == OBJECT for one in metrics.values()),
        }
        for section in objects:
            if not began[section]:
                raise ConfigError(
                    f"`{section}` is an object, but {path} did not begin with one. Leave it out:"
                    " config.yaml names what is used."
                )
    # Terms and metrics are those of the configuration; only the functions are needed.
    for place in {TERMS, METRICS} & objects.keys():
        section, _, name = place.partition(".")
        plain[section] = {key: value for key, value in plain[section].items() if key != name}
    return {key: value for key, value in plain.items() if key not in objects}, objects
