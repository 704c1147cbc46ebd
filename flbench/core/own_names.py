"""Names of methods, data sets, classes, clients and metrics that come from users' files.

A name from a file may be anything. The functions of this module decide what is a name where it is
read; where a name is written, the writer escapes it for the form of the text: see
`flbench.core.text`.
"""

from typing import Any, Final

from flbench.core.errors import ConfigError, shortened
from flbench.core.text import is_printable, printable

LONGEST: Final = 1000
"""Largest number of characters of a name."""
SUFFIXES: Final = ("_mean", "_worst10")
"""What `OwnMetric.summary` adds to the name: mean over clients, and mean of the worst tenth."""


def checked(name: Any, what: str) -> str:
    r"""Return a name that was read from a file.

    A name is a text of one line without control characters, at most 1,000 characters long. It may
    have letters of all alphabets, emoji, spaces, and signs such as `$`, `&` and `<`.

    Args:
        name: The value in the file.
        what: What it names, as the beginning of a sentence, such as its key.

    Raises:
        ValueError: The value is not a name.

    >>> checked("R&D, Köln", "the client")
    'R&D, Köln'
    """
    if not isinstance(name, str):
        raise ValueError(f"{what} must be a text, not {shortened(repr(name), 60)}")
    if not name.strip():
        raise ValueError(f"{what} is empty")
    if not is_printable(name) or "\n" in name or "\t" in name:
        shown = printable(repr(shortened(name, 60)))
        raise ValueError(f"{what} has control characters or line breaks: {shown}")
    return as_written(name, what)


def as_written(name: str, what: str) -> str:
    r"""Return the name of a class, a client or a data set, as flbench writes names of users' data.

    Such a name may have line breaks. Control characters become escapes.

    Args:
        name: The name in the file.
        what: What it names, as the beginning of a sentence.

    Raises:
        ValueError: The name is longer than 1,000 characters.

    >>> print(as_written("a\x1b[31m", "the class"))
    a\x1b[31m
    """
    written = printable(name)
    if len(written) > LONGEST:
        raise ValueError(f"{what} has {len(written):,} characters; a name has at most {LONGEST:,}")
    return written


def check_metric(name: object, who: str) -> None:
    r"""Raise a ConfigError if a metric cannot have a name, which must be readable in metrics.csv.

    Args:
        name: The name.
        who: What gives the name, as the beginning of a sentence: `Net logs`.

    >>> check_metric("top1/val", "Net logs")
    """
    is_text = isinstance(name, str) and name.isprintable() and bool(name) and name == name.strip()
    if not is_text or set(str(name)) & set(',"'):
        raise ConfigError(
            f"{who} the name {name!r}. A name is a text of printable characters without commas,"
            " quotation marks and line breaks, such as `top1`."
        )


def check_whole(name: str, value: Any, least: int) -> None:
    """Raise a ConfigError if the value of a setting is not a whole number of at least `least`.

    >>> check_whole("trials", 0, 1)
    Traceback (most recent call last):
        ...
    flbench.core.errors.ConfigError: `trials` must be a whole number of at least 1, got 0.
    """
    if type(value) is not int or value < least:
        raise ConfigError(f"`{name}` must be a whole number of at least {least}, got {value!r}.")
