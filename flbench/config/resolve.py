"""Merging and checking of configuration layers; all errors are reported together."""

from collections.abc import Sequence
from pathlib import Path

from pydantic import ValidationError

from flbench.config import trust
from flbench.config.schema import (
    AS_DATA,
    Config,
)
from flbench.config.sources import Layer, from_file, from_values, leaves, merge, origin_of
from flbench.core.errors import ConfigError


def resolve(layers: Sequence[Layer]) -> tuple[Config, dict[str, str]]:
    """Merge layers of values and check the result.

    Args:
        layers: The layers, in ascending priority; see `flbench.config.sources`.

    Returns:
        The configuration, and the origin of each key by its dotted path: `default`, a file with a
        line number, or the command line.

    Raises:
        ConfigError: Keys are wrong; the message has one line for each of them.
    """
    layer = merge(layers)
    config = _checked(layer, None)
    return config, {key: origin_of(key, layer.origins) for key in leaves(config.tree())}


def as_data(layers: Sequence[Layer]) -> Config:
    """Merge layers of values that flbench has written, as data.

    No module of a method, net, loss term, metric or scheme is imported, so that the results of a
    run can be read where these are not installed, and without PyTorch. The keys of methods, nets
    and terms are taken as they are written; keys of flbench that do not exist any more are left
    out. Nothing can be built from the result: `resolve_written` makes a configuration for that.

    Raises:
        ConfigError: Keys of flbench itself are wrong.
    """
    return _checked(merge(layers), AS_DATA)


def read(path: Path) -> Config:
    """Read a configuration file that flbench has written, as data; see `as_data`."""
    return as_data([from_file(path)])


def resolve_written(path: Path, *above: Layer) -> tuple[Config, dict[str, str]]:
    """Check a configuration that flbench has written, with the code that it names.

    Returns:
        See `resolve`.

    Raises:
        ConfigError: The method, the net or a loss term is not installed, keys are wrong, or the
            file names code that may not run; see `flbench.config.trust`.
    """
    layer = from_file(path)
    trust.check(path, layer.tree)
    return resolve([layer, *above])


def changed(config: Config) -> list[str]:
    """Return the dotted keys whose values differ from the defaults of their method and net.

    Args:
        config: A configuration whose method is installed or registered.
    """
    names = {"algorithm.name": config.algorithm.name, "model.name": config.model.name}
    defaults = leaves(resolve([from_values(names, "defaults")])[0].tree())
    return [key for key, value in leaves(config.tree()).items() if value != defaults.get(key)]


def _checked(layer: Layer, context: str | None) -> Config:
    """Return the configuration of a layer; see `resolve` and `as_data`."""
    tree = {"algorithm": {}, "model": {}, **layer.tree}
    try:
        # What flbench has recorded may have keys that it does not have any more.
        return Config.model_validate(
            tree, context=context, extra="ignore" if context == AS_DATA else None
        )
    except ValidationError as error:
        from flbench.config.wrong_keys import sentences

        raise ConfigError("\n".join(sentences(error, layer, tree))) from None
