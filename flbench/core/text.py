"""Text that may come from a stranger, as terminals, Markdown, LaTeX and spreadsheets show it.

Names come from users' files and may contain anything: escape sequences of a terminal, markup,
formulas, and addresses with passwords, which are neither printed nor written to a file.
"""

import csv
import re
import warnings
from collections.abc import Iterable, Sequence
from io import StringIO
from typing import Any, Final

MASK: Final = "***"
HTTP: Final = ("http", "https")

_SCHEME: Final = r"\b(?P<scheme>[A-Za-z][A-Za-z0-9+.-]*)://"
_USER: Final = re.compile(_SCHEME + r'(?P<user>[^\s"/?#]+)@')
# A password with characters that must be encoded. SQLAlchemy takes it, others read it as a path.
_RAW_PASSWORD: Final = re.compile(_SCHEME + r'(?P<user>[^\s":/?#@]*:[^\s"@]*)@')
_PORT: Final = re.compile(r"[^:]*:\d*[/?#]")
_QUERY: Final = re.compile(
    r"(?P<key>[?&;][\w.-]*(?:passw(?:or)?d|pwd|secret|token|api_?key|access_?key)[\w.-]*=)"
    r"[^\s\"'&;#]+",
    re.IGNORECASE,
)
# Control characters but tabs and line breaks, which a terminal would obey; characters that change
# the direction of what follows; further line separators; bytes of file names that are not UTF-8.
_UNSAFE: Final = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u206f\ufff9-\ufffb\ud800-\udfff]"
)
# Entities are read by all dialects; a backslash before these signs is not. `$` begins a formula on
# GitHub, `~` strikes text out.
_ENTITIES: Final = {"&": "&amp;", "<": "&lt;", ">": "&gt;", "$": "&#36;", "~": "&#126;"}
_SPECIAL: Final = re.compile(
    r"""`[^`\\*\[\]|&<$~]+`     # a code span of harmless text, which stays
    |\[[-+\w., ]+\](?![\[(:])   # plain text in brackets, which is no link, stays
    |[\\`*\[\]|&<$~]          # a code span, an emphasis, a link, a cell, an entity, a tag
    |(?<![^\W_])_|_(?![^\W_])  # an emphasis; not within a word
    |://|(?<=www)\.            # an address, of which some dialects make a link
    """,
    re.VERBOSE,
)
# What begins a heading, a quotation or a list at the beginning of a line.
_FIRST: Final = re.compile(r"\#+|>|[+-](?=\s)|\d+(?=[.)](?:\s|$))|[=-]+$")
_LATEX: Final = {
    "\\": "\\textbackslash{}",
    "~": "\\textasciitilde{}",
    "^": "\\textasciicircum{}",
    "<": "\\textless{}",
    ">": "\\textgreater{}",
    "|": "\\textbar{}",
    **{mark: f"{{{mark}}}" for mark in "[*"},  # after the end of a row they are its options
    **{mark: f"\\{mark}" for mark in "&%$#_{}"},
}
# A spreadsheet takes such a cell for a formula; the last four signs are wide.
_FORMULA: Final = re.compile(r"'*\s*[=+\-@\uff1d\uff0b\uff0d\uff20]")
_NUMBER: Final = re.compile(
    r"[+-]?(\d+\.?\d*|\.\d+)(e[+-]?\d+)?|[+-]?inf(inity)?", re.IGNORECASE | re.ASCII
)


def redact(text: str) -> str:
    """Return a text in which the secrets of all addresses are replaced by `***`.

    Secrets are the user and password before the host, a user alone if the address is one of HTTP
    (which may be a token), and parameters named like a password, secret, token or key.

    >>> redact("http://ann:x7@host:5000, postgresql://ann@host/runs?password=x7")
    'http://***@host:5000, postgresql://ann@host/runs?password=***'
    """
    if "://" not in text:
        return text
    text = _RAW_PASSWORD.sub(_raw_password, _USER.sub(_user, text))
    return _QUERY.sub(rf"\g<key>{MASK}", text)


def redact_address(address: str) -> str:
    """Return an address without its secrets, like `redact`; its password may contain spaces."""
    without_spaces = re.sub(r'[\s"]', "_", address)
    redacted = redact(without_spaces)
    return address if redacted == without_spaces else redacted


def without_user(address: str) -> str:
    """Return an address without the user and the password before its host."""
    return _USER.sub(lambda match: f"{match['scheme']}://", address, count=1)


def is_of_this_machine(address: str) -> bool:
    """Return whether an address of MLflow's store is a path, a `file:` URI or an SQLite database.

    >>> [is_of_this_machine(one) for one in ("sqlite:///a/b.db", "mlruns", "file:///a")]
    [True, True, True]
    >>> [is_of_this_machine(one) for one in ("file://host/a", "databricks", "postgresql:///a")]
    [False, False, False]
    """
    beginning, colon, rest = address.partition(":")
    if not colon:
        return beginning not in ("databricks", "databricks-uc", "uc")
    if "?" in rest or "#" in rest:
        return False  # a database may load plugins that the parameters name
    if beginning == "file":
        return not rest.startswith("//") or rest.startswith(("///", "//localhost/"))
    return beginning == "sqlite" and rest.startswith("///")


def printable(text: str) -> str:
    r"""Return a text without control characters and without the secrets of addresses.

    Tabs and line breaks stay; other control characters are written as Python writes them.

    >>> printable("a\x1b[31mb, http://ann:x7@host")
    'a\\x1b[31mb, http://***@host'
    """
    return _UNSAFE.sub(lambda match: match[0].encode("unicode_escape").decode(), redact(text))


def is_printable(text: str) -> bool:
    """Return whether a text has no control characters but tabs and line breaks."""
    return _UNSAFE.search(text) is None


def one_line(text: str) -> str:
    """Return the same as `printable`, with a space for each sequence of white space."""
    return printable(" ".join(text.split()))


def warn(text: str, category: type[Warning] = UserWarning, stacklevel: int = 1) -> None:
    """Issue a warning of flbench, whose text has no control characters.

    Args:
        text: The text.
        category: Class of the warning.
        stacklevel: 1 for the line that calls this function, 2 for the caller of that one.
    """
    warnings.warn(printable(text), category, stacklevel=stacklevel + 1)


def print_warnings() -> None:
    """Let Python print the warnings of all packages without control characters."""
    warnings.formatwarning = _format


def in_markdown(text: str) -> str:
    r"""Return a text on one line that Markdown shows as it is.

    Words between two backticks, as in `flbench run`, stay code.

    >>> print(in_markdown("<b> a_b [x](y) R&D"))
    &lt;b> a_b \[x\](y) R&amp;D
    """
    text = in_cell(text)
    if (found := _FIRST.match(text)) and text != "-":
        mark, rest = found[0], text[found.end() :]
        return f"{mark}\\{rest}" if mark.isdigit() else f"&#{ord(mark[0])};{mark[1:]}{rest}"
    return text


def in_cell(text: str) -> str:
    r"""Return a text in a cell of a table of Markdown, where a line cannot begin a list or heading.

    >>> print(in_cell("> 30"), in_cell("a|b"))
    > 30 a\|b
    """
    return _SPECIAL.sub(_marked, one_line(text))


def in_code(name: str) -> str:
    r"""Return a name as code in Markdown; as text if a span of code cannot have its characters.

    >>> print(in_code("hfcd tau=1"), in_code("a`<b>"))
    `hfcd tau=1` a\`&lt;b>
    """
    name = one_line(name)
    return f"`{name}`" if name and not set("`|<>&$").intersection(name) else in_markdown(name)


def in_latex(text: str) -> str:
    r"""Return a text on one line with the special characters of LaTeX escaped.

    >>> print(in_latex("a_b & 5 %"))
    a\_b \& 5 \%
    """
    return "".join(_LATEX.get(mark, mark) for mark in one_line(text))


def csv_text(header: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    r"""Return a table as the text of a CSV file.

    Cells that are None or NaN are left empty. Numbers are written as they are, and text by `cell`.

    >>> csv_text(("name", "value"), [("=A1", -1), ("-2", None)])
    "name,value\n'=A1,-1\n-2,\n"
    """
    text = StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow([cell(name) for name in header])
    for row in rows:
        writer.writerow([cell(item) if isinstance(item, str) else _plain(item) for item in row])
    return text.getvalue()


def cell(text: str) -> str:
    """Return a text as the content of a cell of a CSV file, which `read_cell` reads again.

    Control characters become escapes, and a text that a spreadsheet would take for a formula gets
    an apostrophe before it. Numbers do not change.

    >>> cell("=1+1"), cell("-0.5"), cell("-a")
    ("'=1+1", '-0.5', "'-a")
    """
    text = printable(text)
    is_formula = _FORMULA.match(text) and not _NUMBER.fullmatch(text)
    return f"'{text}" if is_formula else text


def read_cell(text: str) -> str:
    """Return the text that `cell` has written, without the apostrophe that it has added."""
    return text[1:] if text.startswith("'") and _FORMULA.match(text) else text


def _user(match: re.Match[str]) -> str:
    """Return the beginning of an address, up to its `@`, with a mask for its user."""
    is_secret = ":" in match["user"] or match["scheme"].lower() in HTTP
    return f"{match['scheme']}://{MASK if is_secret else match['user']}@"


def _raw_password(match: re.Match[str]) -> str:
    """Return the masked beginning of an address whose password has characters like `/`.

    An `@` in a path (`http://host:5000/x@y`) is no sign of a password.
    """
    is_path = match["scheme"].lower() in HTTP and _PORT.match(match["user"])
    return match[0] if is_path else f"{match['scheme']}://{MASK}@"


_original: Final = warnings.formatwarning


def _format(*given: Any, **more: Any) -> str:
    """Return the text of a warning, as Python prints it."""
    return printable(_original(*given, **more))


def _marked(found: re.Match[str]) -> str:
    """Return what Markdown shows as the sign that was found."""
    mark = found[0]
    if mark == "://":
        return "&#58;//"
    if len(mark) > 1:
        return mark
    return _ENTITIES.get(mark) or ("&#46;" if mark == "." else f"\\{mark}")


def _plain(item: object) -> object:
    """Return a cell that is not text; "" for None and NaN.

    Integers of more than 64 bits are written as floats: programs read longer ones as texts.
    """
    if isinstance(item, int) and not -(2**63) <= item < 2**63:
        return float(item)
    return "" if item is None or item != item else item
