"""Text that a terminal can show: names come from users' files and may contain anything."""

import re
import warnings
from typing import Any, Final

from flbench.core import warned
from flbench.core.addresses import redact

# Control characters but tabs and line breaks, which a terminal would obey; characters that change
# the direction of what follows; further line separators; bytes of file names that are not UTF-8.
_UNSAFE: Final = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u206f\ufff9-\ufffb\ud800-\udfff]"
)


def printable(text: str) -> str:
    r"""Return a text without control characters and without the secrets of addresses.

    Tabs and line breaks stay; other control characters are written as Python writes them.

    >>> printable("a\x1b[31mb, http://ann:x7@host")
    'a\\x1b[31mb, http://***@host'
    """
    return _UNSAFE.sub(_escape, redact(text))


def is_printable(text: str) -> bool:
    r"""Return whether a text has no control characters but tabs and line breaks.

    >>> is_printable("a\n"), is_printable("\x1b[31m")
    (True, False)
    """
    return _UNSAFE.search(text) is None


def one_line(text: str) -> str:
    r"""Return the same as `printable`, with a space for each sequence of white space.

    >>> one_line("first line\n  second line")
    'first line second line'
    """
    return printable(" ".join(text.split()))


def warn(text: str, category: type[Warning] = UserWarning, stacklevel: int = 1) -> None:
    """Issue a warning of flbench, whose text has no control characters, and which has no place.

    Args:
        text: The text.
        category: Class of the warning.
        stacklevel: 1 for the line that calls this function, 2 for the caller of that one.
    """
    with warned.at(None):
        warnings.warn(printable(text), category, stacklevel=stacklevel + 1)


def print_warnings() -> None:
    """Let Python print the warnings of all packages without control characters."""
    if warnings.formatwarning is not _format:
        warnings.formatwarning = _format


_original: Final = warnings.formatwarning


def _format(*given: Any, **more: Any) -> str:
    """Return the text of a warning, as Python prints it."""
    return printable(_original(*given, **more))


def _escape(match: re.Match[str]) -> str:
    return match[0].encode("unicode_escape").decode()
