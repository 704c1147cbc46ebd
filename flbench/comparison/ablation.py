"""The plan of an ablation: a method, and the method with one of its keys at another value."""

from collections.abc import Mapping, Sequence
from enum import Enum
from typing import Any, Final

from flbench.analysis.arrangement import METHOD
from flbench.comparison.plan import DEFAULTS, FIXED, LabelledLayer
from flbench.config.resolve import resolve
from flbench.config.schema import AlgorithmConfig
from flbench.config.sources import Layer, from_values
from flbench.config.typed import kind_of
from flbench.core.errors import ConfigError, did_you_mean
from flbench.core.wording import setting
from flbench.results.differences import short_names, text_of

ORIGIN: Final = "ablation"
"""Origin of the value in which a variant differs from the method."""
BESIDE: Final = tuple(key for key in METHOD if key != "algorithm.")
"""Beginnings of the keys outside the section `algorithm` that belong to a method."""


def variants(
    label: str,
    layers: Sequence[Layer],
    keys: Sequence[str] | None,
    values: Mapping[str, Sequence[Any]],
) -> list[LabelledLayer]:
    """Return the variants of a method, each of which has another value of one key.

    Args:
        label: Label of the method.
        layers: Its configuration, from the lowest layer to the highest.
        keys: Keys of the method that are changed; None for each on/off or choice key.
        values: Values of further keys, or the only ones that are tried of an on/off or choice key.
            A key is the name of a key of the method, or a dotted key that belongs to the method,
            such as `train.optimizer.lr`. The value that the method has makes no variant.

    Returns:
        What each variant sets, with a label such as `hfcd contrast=false`. The variants that are
        not in `values` are optional.

    Raises:
        ConfigError: The configuration is wrong, a key does not exist or has no values to try, or
            there is no variant.
    """
    full, _ = resolve([DEFAULTS, *layers])
    section: AlgorithmConfig = full.algorithm
    given = {_dotted(key, section, "values"): some for key, some in values.items()}
    names = [name for name in type(section).model_fields if f"algorithm.{name}" not in FIXED]
    found = {f"algorithm.{name}": _choices(section, name) for name in names}
    tried = {key: some for key, some in found.items() if some and key not in given}
    if keys is not None:
        asked = [_dotted(key, section, "keys") for key in keys]
        for key in asked:
            if asked.count(key) > 1:
                raise ConfigError(f"{setting('keys')}: `{key}` is named twice. Name it once.")
            if key not in (*tried, *given):
                raise ConfigError(
                    f"{setting('keys')}: `{key}` is neither on/off nor a choice. Name the values to"
                    f" try by {setting('values')}."
                )
        tried = {key: some for key, some in tried.items() if key in asked}
    short = short_names([*tried, *given])
    variants: dict[str, LabelledLayer] = {}
    for key, some in (tried | given).items():
        if not some:
            raise ConfigError(f"{setting('values')}: `{key}` has no value. Name one or more.")
        for value in some:
            layer = from_values({key: value}, ORIGIN)
            name = f"{label} {short[key]}={text_of(value)}"
            if name in variants:
                raise ConfigError(f"{setting('values')}: `{name}` is named twice. Name it once.")
            if not _is_same(full, [DEFAULTS, *layers, layer]):
                variants[name] = LabelledLayer(name, layer, is_optional=key in tried)
    if not variants:
        raise ConfigError(
            f"{label} has no on/off or choice key with another value. Name the values of a key by"
            f" {setting('values')}."
        )
    return [*variants.values()]


def _dotted(key: str, section: AlgorithmConfig, option: str) -> str:
    """Return the dotted key of a key that the user names.

    Raises:
        ConfigError: The method has no such key, or the key does not belong to the method.
    """
    if not key:
        raise ConfigError(f"{setting(option)}: a key is empty. Put one comma between two keys.")
    name = key.removeprefix("algorithm.")
    fields = [one for one in type(section).model_fields if f"algorithm.{one}" not in FIXED]
    if name in fields:
        return f"algorithm.{name}"
    if f"{key}.".startswith(BESIDE):
        return key
    if "." in name:
        raise ConfigError(
            f"{setting(option)}: `{key}` does not belong to the method. Change it for all variants"
            f" by an override, or vary it by {setting('grid')}."
        )
    raise ConfigError(
        f"{setting(option)}: {section.name} has no key `{name}`.{did_you_mean(name, fields)}"
    )


def _choices(section: AlgorithmConfig, name: str) -> list[Any]:
    """Return the values of an on/off or choice key; none for any other key."""
    kind = kind_of([name], type(section))
    types = kind.types or frozenset()
    found = [*kind.choices]
    found += [member.value for one in types if issubclass(one, Enum) for member in one]
    # A choice that is not a text adds its type to the types of the key.
    if bool in types and not any(isinstance(choice, bool) for choice in found):
        found += [True, False]
    return [*found, None] if found and type(None) in types else found


def _is_same(full: Any, layers: Sequence[Layer]) -> bool:
    """Return whether layers make the configuration of the method itself."""
    try:
        return bool(resolve(layers)[0] == full)
    except ConfigError:  # which is reported where the variant is built
        return False
