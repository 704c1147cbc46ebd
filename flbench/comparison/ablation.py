"""The design of an ablation: a method, and the method with one of its keys at another value."""

from collections.abc import Mapping, Sequence
from typing import Any, Final

from flbench.comparison.design import DEFAULTS, FIXED, SECTION, Design, LabelledLayer
from flbench.config.key_types import choices_of
from flbench.config.resolve import resolve
from flbench.config.sources import Layer, from_values, leaves
from flbench.core.errors import ConfigError, did_you_mean
from flbench.results.differences import METHOD, short_names, text_of

ORIGIN: Final = "ablation"  # of the value in which a variant differs from the method


def design_of(
    design: Design, keys: Sequence[str] | None, values: Mapping[str, Sequence[Any]]
) -> Design:
    """Return the design of a comparison of a method with its variants.

    Raises:
        ConfigError: There is not one method, or `keys` or `values` are wrong; see `variants`.
    """
    if len(design.methods) != 1:
        raise ConfigError("an ablation has one method. Name one: `flbench ablate hfcd`.")
    if of_method := [key for key in design.grid if key.startswith(SECTION)]:
        raise ConfigError(
            f"`grid`: `{of_method[0]}` makes variants of the method. Name its values by `values`."
        )
    [full] = design.methods
    found = [
        full.altered(one.layer).model_copy(
            update={"label": one.label, "is_optional": one.is_optional}
        )
        for one in variants(full.label, [design.base, full.layer], keys, values)
    ]
    return design.altered(methods=(full, *found), reference=full.label)


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
            Keys outside the section `algorithm` are dotted, such as `train.optimizer.lr`.

    Returns:
        What each variant sets, with a label such as `hfcd contrast=false`. The value that the
        method has makes no variant. Variants that are not in `values` are optional.

    Raises:
        ConfigError: The configuration is wrong, a key does not exist or has no values to try, a
            value is named twice, or there is no variant.
    """
    full, _ = resolve([DEFAULTS, *layers])
    own, section = leaves(full.tree()), type(full.algorithm)
    names = [SECTION + name for name in section.model_fields if SECTION + name not in FIXED]
    given = [(_dotted(key, names, "values"), some) for key, some in values.items()]
    fields = section.model_fields
    choices = {name: choices_of(fields[name.removeprefix(SECTION)].annotation) for name in names}
    tried = {name: some for name, some in choices.items() if some and name not in dict(given)}
    if keys is not None:
        asked = [_dotted(key, names, "keys") for key in keys]
        if unknown := [key for key in asked if key not in tried and key not in dict(given)]:
            raise ConfigError(
                f"`keys`: `{unknown[0]}` is neither on/off nor a choice. Name the values"
                f" to try by `values`."
            )
        tried = {key: tried[key] for key in asked if key in tried}
    short = short_names([*tried, *dict(given)])
    found: dict[str, LabelledLayer] = {}
    for key, some in (*tried.items(), *given):
        for value in some:
            one = f"{label} {short[key]}={text_of(value)}"
            if one in found:
                raise ConfigError(f"`values`: `{one}` is named twice. Name it once.")
            # The texts tell `true` from 1.
            if key in own and own[key] == value and text_of(own[key]) == text_of(value):
                continue
            found[one] = LabelledLayer.of(
                one, from_values({key: value}, ORIGIN), is_optional=key in tried
            )
    if not found:
        raise ConfigError(
            f"{label} has no on/off or choice key with another value. Name the values of a key by"
            f" `values`."
        )
    return [*found.values()]


def _dotted(key: str, names: Sequence[str], option: str) -> str:
    """Return the dotted key of a key that the user names."""
    name = SECTION + key.removeprefix(SECTION)
    others = tuple(beginning for beginning in METHOD if beginning != SECTION)
    if name not in names and not f"{key}.".startswith(others):
        hint = did_you_mean(key, [one.removeprefix(SECTION) for one in names])
        raise ConfigError(
            f"`{option}`: `{key}` is not a key of the method.{hint} Other keys can be varied"
            f" by `grid`, and `flbench algos METHOD` lists those of the method."
        )
    return name if name in names else key
