"""Ablations from Python: a method compared with variants of itself."""

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

from flbench.api import comparing
from flbench.api.comparisons import PlannedComparison
from flbench.comparison import ablation
from flbench.comparison.design import Design
from flbench.core.errors import ConfigError


def call(values: Mapping[str, Any], keys: Mapping[str, Any]) -> PlannedComparison:
    """Carry out a call of `fl.ablate`.

    Args:
        values: Its arguments by name.
        keys: Its keys by their dotted names.
    """
    own = {"keys": values["keys"], "values": values["values"]}
    methods = {"methods": [values["method"]]}
    return comparing.call("ablate", {**values, **methods}, keys, partial(ablated, **own), own)


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
