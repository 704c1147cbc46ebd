"""Names of metrics, which must be readable in metrics.csv."""

from typing import Final

from flbench.core.errors import ConfigError

SUFFIXES: Final = ("_mean", "_worst10")
"""What `OwnMetric.pooled` adds to the name: mean over clients, and mean of the worst tenth."""
_REFUSED: Final = frozenset(',"')


def is_name(name: object) -> bool:
    r"""Return whether a metric can have a name.

    A name is a text of printable characters without commas and quotation marks, such as
    `top1/val` or `top 1`, and does not begin or end with a space.

    >>> [is_name(name) for name in ("top1/val", "top1, val", "top1\nval", "", 1)]
    [True, False, False, False, False]
    """
    return (
        isinstance(name, str)
        and bool(name)
        and name.isprintable()
        and name == name.strip()
        and _REFUSED.isdisjoint(name)
    )


def check(name: object, who: str) -> None:
    """Raise a ConfigError if a metric cannot have a name.

    Args:
        name: The name.
        who: What gives the name, as the beginning of a sentence: `Net logs`.
    """
    if not is_name(name):
        raise ConfigError(
            f"{who} the name {name!r}. A name is a text of printable characters without commas,"
            " quotation marks and line breaks, such as `top1`."
        )
