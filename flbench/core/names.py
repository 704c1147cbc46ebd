"""Names of methods, data sets, classes, clients and metrics that come from users' files.

A name from a file may be anything. The functions of this module decide what is a name where it is
read; where a name is written, the writer escapes it for the form of the text: see
`flbench.core.text`.
"""

from typing import Any, Final

from flbench.core.errors import shortened
from flbench.core.text import is_printable, printable

LONGEST: Final = 1000
"""Largest number of characters of a name."""


def why_not(name: object) -> str | None:
    r"""Return why a value cannot be a name; None if it can.

    A name is a text of one line without control characters, at most 1,000 characters long. It may
    have letters of all alphabets, emoji, spaces, and signs such as `$`, `&` and `<`.

    Args:
        name: The value.

    Returns:
        The end of a sentence that begins with the name of the value.

    >>> why_not("R&D, Köln"), why_not("a\x1b[31m")
    (None, "has control characters or line breaks: 'a\\x1b[31m'")
    """
    if not isinstance(name, str):
        return f"must be a text, not {shortened(repr(name), 60)}"
    if not name.strip():
        return "is empty"
    if len(name) > LONGEST:
        return f"has {len(name):,} characters; a name has at most {LONGEST:,}"
    if not is_printable(name) or "\n" in name or "\t" in name:
        return f"has control characters or line breaks: {printable(repr(shortened(name, 60)))}"
    return None


def checked(name: Any, what: str) -> str:
    """Return a name that was read from a file.

    Args:
        name: The value in the file.
        what: What it names, as the beginning of a sentence, such as its key.

    Raises:
        ValueError: The value is not a name; see `why_not`.
    """
    if (why := why_not(name)) is not None:
        raise ValueError(f"{what} {why}")
    return str(name)


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
