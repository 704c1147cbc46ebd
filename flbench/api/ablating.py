"""Ablations from Python: a method compared with variants of itself."""

from collections.abc import Mapping, Sequence
from functools import partial
from inspect import signature
from typing import Any

from flbench.api import comparing
from flbench.api.comparisons import PlannedComparison
from flbench.comparison import ablation
from flbench.comparison.design import Design
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
    variants = partial(ablated, **given)
    return comparing.call(ablate, bound.arguments, bound.arguments["keys"], variants, given)


def ablated(
    design: Design, keys: str | Sequence[str] | None, values: Mapping[str, Any] | None
) -> Design:
    """Return the comparison of a method with its variants, by the design of the method alone.

    Raises:
        ConfigError: There is not one method, or `keys` or `values` are wrong; see `ablate`.
    """
    if not isinstance(values or {}, Mapping):
        raise ConfigError(f"`values` must be a dict of lists of values by key, got {values!r}.")
    names = [name.strip() for name in keys.split(",")] if isinstance(keys, str) else keys
    listed = {key: comparing.listed(key, some) for key, some in (values or {}).items()}
    return ablation.design_of(design, names, listed)
