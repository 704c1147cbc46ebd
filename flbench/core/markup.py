"""Text of users in Markdown and LaTeX: names come from files and may look like markup or HTML."""

import re
from typing import Final

from flbench.core.printable import one_line

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
_FIRST: Final = re.compile(r"\#+|>|[+-](?=\s)|\d+(?=[.)](?:\s|$))|[=-]+$")
"""What begins a heading, a quotation or a list at the beginning of a line."""
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


def _marked(found: re.Match[str]) -> str:
    mark = found[0]
    if mark == "://":
        return "&#58;//"
    if len(mark) > 1:
        return mark
    return _ENTITIES.get(mark) or ("&#46;" if mark == "." else f"\\{mark}")
