"""Ablations from Python: a method compared with variants of itself."""

from collections.abc import Mapping, Sequence
from functools import partial
from inspect import signature
from typing import Any

from flbench.api import comparing
from flbench.api.comparing import Asked
from flbench.api.comparisons import PlannedComparison
from flbench.comparison import ablation
from flbench.config.sources import Layer, merge
from flbench.core.errors import ConfigError


def ablate(
    method: str | type | Mapping[str, Any],
    *,
    keys: str | Sequence[str] | None = None,
    values: Mapping[str, Any] | None = None,
    **options: Any,
) -> PlannedComparison:
    """Compare a method with variants of itself, as `flbench ablate` does.

    Each variant is the method with another value of one key, and is compared with the method alone:
    Holm's correction is for these pairs. A variant that cannot be trained is left out with a note,
    unless `values` names it.

    Args:
        method: The method with its keys, as one of the methods of `fl.compare`.
        keys: Keys that are changed (default: each on/off or choice key).
        values: Values to try by key, such as `{"tau": [0, 0.5]}`: of further keys of the method, of
            `train.optimizer.*`, `train.schedule.*` and `train.terms`; or the only ones of an on/off
            or choice key.
        options: Further arguments of `fl.compare`.

    Returns:
        The comparison. The variants have labels such as `hfcd contrast=false`.

    Raises:
        UserError, RunError, KeyboardInterrupt: See `fl.compare`.
    """
    bound = signature(comparing.compare).bind([method], **options)
    bound.apply_defaults()
    given: dict[str, Any] = {"keys": keys, "values": values}
    plan = partial(ablated, **given)
    return comparing.call(ablate, bound.arguments, bound.arguments["keys"], plan, given)


def ablated(
    asked: Asked, keys: str | Sequence[str] | None, values: Mapping[str, Any] | None
) -> Asked:
    """Return the comparison of a method with its variants, by what is asked of the method alone.

    Raises:
        ConfigError: There is not one method, or `keys` or `values` are wrong; see `ablate`.
    """
    if len(asked.layers) != 1 or "" in asked.layers:
        raise ConfigError("an ablation has one method. Name one: `flbench ablate hfcd`.")
    if of_method := [key for key in asked.grid or {} if key.startswith(ablation.SECTION)]:
        raise ConfigError(
            f"`grid`: `{of_method[0]}` makes variants of the method. Name its values by `values`."
        )
    if not isinstance(values or {}, Mapping):
        raise ConfigError(f"`values` must be a dict of lists of values by key, got {values!r}.")
    [(label, layers)] = asked.layers.items()
    alone = asked.own.get(label, Layer({}))
    names = [name.strip() for name in keys.split(",")] if isinstance(keys, str) else keys
    listed = {key: comparing.listed(key, some) for key, some in (values or {}).items()}
    found = ablation.variants(label, [*layers, alone], names, listed)
    return asked._replace(
        layers=dict.fromkeys([label, *(one.label for one in found)], layers),
        own={label: alone} | {one.label: merge([alone, one.layer]) for one in found},
        reference=label,
        optional=frozenset(one.label for one in found if one.is_optional),
    )
