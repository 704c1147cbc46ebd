"""Ablations from Python: a method compared with variants of itself."""

from collections.abc import Mapping, Sequence
from inspect import signature
from typing import Any, Final

from flbench.api import comparing
from flbench.api.comparing import Asked
from flbench.api.comparisons import PlannedComparison
from flbench.comparison import ablation
from flbench.config.sources import Layer, merge
from flbench.core.errors import ConfigError
from flbench.core.wording import command_or_call, setting

FOLDER: Final = "ablations"  # default of `out`


def ablate(
    method: str | type | Mapping[str, Any],
    *,
    keys: str | Sequence[str] | None = None,
    values: Mapping[str, Any] | None = None,
    **options: Any,
) -> PlannedComparison:
    """Compare a method with variants of itself, as `flbench ablate` does.

    Each variant is the method with another value of one key. Without `keys`, there is a variant for
    each other value of each on/off or choice key of the method. Method and variants are trained as
    the methods of `fl.compare`, and each variant is compared with the method: Holm's correction is
    for these pairs. A variant that cannot be trained with the other keys, data and net is left out
    with a note, unless it is named by `values`.

    Args:
        method: The method with its keys, as one of the methods of `fl.compare`.
        keys: Names of the keys that are changed (default: each on/off or choice key).
        values: Values to try by key, such as `{"tau": [0, 0.5]}`: of further keys of the method, of
            `train.optimizer.*`, `train.schedule.*` and `train.terms`; or the only ones of an on/off
            or choice key.
        options: Further arguments of `fl.compare`. The default of `out` is `ablations`.

    Returns:
        The comparison. The method has its own label, the variants labels such as
        `hfcd contrast=false`.

    Raises:
        UserError: The ablation cannot be carried out. All errors of a configuration are reported
            together.
        RunError: All cells of a variant failed, after the others were trained and reported; or a
            server of Ray was lost.
        KeyboardInterrupt: The ablation was interrupted; `fl.resume` continues it.
    """
    if not isinstance(method, str | type | Mapping):
        raise ConfigError(f"an ablation has one method, got {method!r}.")
    if not isinstance(values or {}, Mapping):
        raise ConfigError(f"`values` must be a dict of lists of values by key, got {values!r}.")
    call = signature(comparing.compare).bind([method], **{"out": FOLDER, **options})
    call.apply_defaults()
    more = call.arguments.pop("keys")
    names = keys.split(",") if isinstance(keys, str) else keys
    return comparing.call(
        ablate,
        call.arguments,
        more,
        lambda asked: ablated(asked, names, values or {}),
        {"keys": keys, "values": values},
    )


def ablated(asked: Asked, keys: Sequence[str] | None, values: Mapping[str, Any]) -> Asked:
    """Return the comparison of a method with its variants.

    Args:
        asked: A comparison of the method alone.
        keys: See `flbench.comparison.ablation.variants`.
        values: See there.

    Raises:
        ConfigError: There is not one method, or it has no such variants.
    """
    if len(asked.layers) != 1 or "" in asked.layers:
        example = command_or_call("flbench ablate hfcd", "fl.ablate('hfcd')")
        raise ConfigError(f"an ablation has one method. Name one, for example {example}.")
    if of_method := [key for key in asked.grid or {} if key.startswith("algorithm.")]:
        raise ConfigError(
            f"{setting('grid')}: `{of_method[0]}` makes variants of the method. Name its values by"
            f" {setting('values')}."
        )
    [(label, layers)] = asked.layers.items()
    alone = asked.own.get(label, Layer({}))
    listed = {key: comparing.listed(key, some) for key, some in values.items()}
    found = ablation.variants(label, [*layers, alone], keys, listed)
    return asked._replace(
        layers=dict.fromkeys([label, *(one.label for one in found)], layers),
        own={label: alone} | {one.label: Layer(*merge([alone, one.layer])) for one in found},
        reference=label,
        optional=frozenset(one.label for one in found if one.is_optional),
    )
