"""Parts of the user's own, as arguments of `fl.resume`."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from flbench.calls.parts import ENTRIES, split
from flbench.config.resolve import read
from flbench.core.errors import ConfigError
from flbench.core.parts import METRICS, OBJECT, TERMS
from flbench.core.registry import ALGORITHMS


def given_again(keys: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the arguments of `fl.resume` as `split` does, also those of `fl.federate`.

    Classes of methods are registered, and left out.

    Raises:
        ConfigError: An argument is given by two names.
    """
    plain = dict(keys)
    method = plain.get("algorithm")
    classes = method if isinstance(method, list | tuple) else [method]
    if method and all(isinstance(one, type) for one in classes):
        for one in classes:
            ALGORITHMS.section(one)
        del plain["algorithm"]
    evaluation = plain.get("evaluation") or {}
    if {"module", "model"} <= plain.keys() or ("metrics" in plain and "metrics" in evaluation):
        raise ConfigError(
            "`module` is `model`, and `metrics` is `evaluation['metrics']`. Give one of them."
        )
    if "module" in plain:
        plain["model"] = plain.pop("module")
    if "metrics" in plain:
        plain["evaluation"] = {**evaluation, "metrics": plain.pop("metrics")}
    return split(plain)


def of_resume(
    path: Path, keys: Mapping[str, Any], file: str = "config.yaml"
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the arguments of `fl.resume` that change something, and the objects of the user.

    Args:
        path: The folder of the run or study.
        keys: Arguments by name.
        file: Path within the folder of the configuration that it began with.

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
