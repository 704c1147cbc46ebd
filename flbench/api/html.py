"""Pieces of HTML that notebooks show. Every text is escaped: names come from users' files."""

from collections.abc import Mapping, Sequence
from html import escape as quoted
from typing import TYPE_CHECKING, Final

from flbench.core.text import printable
from flbench.reports import shown

if TYPE_CHECKING:
    import pandas as pd

    from flbench.reports.shown import Shown

# Colours come from the notebook's theme, light or dark.
STYLE: Final = (
    "<style>"
    ".flbench{font-family:system-ui,sans-serif;font-size:13px;line-height:1.45;max-width:70em}"
    ".flbench h4{margin:.2em 0 .5em;font-size:15px}"
    ".flbench h5{margin:.9em 0 .3em;font-size:13px}"
    ".flbench table{border-collapse:collapse;margin:.4em 0 0;font-size:13px}"
    ".flbench th,.flbench td{padding:.15em .9em .15em 0;text-align:right;border:0;"
    "vertical-align:top}"
    ".flbench th:first-child,.flbench td:first-child{text-align:left}"
    ".flbench .block td,.flbench .facts th{white-space:nowrap}"
    ".flbench p{margin:.5em 0;max-width:60em}"
    ".flbench pre{margin:.5em 0;font-size:12px;background:none;color:inherit}"
    ".flbench thead th{border-bottom:1px solid;white-space:nowrap}"
    ".flbench .facts th{font-weight:normal;opacity:.7}"
    ".flbench .facts th,.flbench .facts td,.flbench .text{text-align:left}"
    ".flbench ul{margin:.5em 0 0;padding-left:1.3em}"
    ".flbench code{font-size:12px}"
    ".flbench progress{width:16em;vertical-align:middle;margin-right:.8em}"
    "</style>"
)


def text(content: object) -> str:
    """Return a text without control characters, escaped for HTML.

    >>> text("<b>&")
    '&lt;b&gt;&amp;'
    """
    return quoted(printable(str(content)))


def card(title: str, *pieces: str) -> str:
    """Return pieces of HTML below a title.

    Args:
        title: The title, as text.
        pieces: The pieces, as HTML.
    """
    return f'{STYLE}<div class="flbench"><h4>{text(title)}</h4>{"".join(pieces)}</div>'


def facts(values: Mapping[str, str]) -> str:
    """Return names and values as a table of HTML, in which special characters are escaped.

    Args:
        values: Values by name, as text.
    """
    rows = "".join(f"<tr><th>{text(k)}</th><td>{text(v)}</td></tr>" for k, v in values.items())
    return f'<table class="facts"><tbody>{rows}</tbody></table>'


def notes(sentences: Sequence[str]) -> str:
    """Return sentences as a list; "" if there are none."""
    items = "".join(f"<li>{text(sentence)}</li>" for sentence in sentences)
    return f"<ul>{items}</ul>" if items else ""


def heading(title: str) -> str:
    """Return a heading within a card."""
    return f"<h5>{text(title)}</h5>"


def table(frame: "pd.DataFrame", *, most: int = 20) -> str:
    """Return a DataFrame as a table.

    Args:
        frame: The DataFrame; its index is left out.
        most: Largest number of rows; a line below the table counts the others.
    """
    shown = [
        [f"{cell:.4f}" if isinstance(cell, float) and cell == cell else _cell(cell) for cell in row]
        for row in frame.head(most).itertuples(index=False, name=None)
    ]
    head = "".join(f"<th>{text(name)}</th>" for name in frame.columns)
    body = "".join(
        "<tr>" + "".join(f"<td>{text(cell)}</td>" for cell in row) + "</tr>" for row in shown
    )
    more = len(frame) - most
    rest = f"<div>and {more:,} more rows</div>" if more > 0 else ""
    return f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>{rest}"


def prose(content: str) -> str:
    """Return a docstring as paragraphs; indented ones, such as equations, keep their lines."""
    parts = []
    for part in content.split("\n\n"):
        tag = "pre" if part.startswith("    ") else "p"
        parts.append(f"<{tag}>{text(part)}</{tag}>")
    return "".join(parts)


def block(content: "Shown") -> str:
    """Return a table of a report with its heading and the sentence below the heading."""
    return f'<div class="block">{shown.html(content)}</div>'


def _cell(value: object) -> str:
    """Return a cell that is not a number with decimals as text; a dash for a missing value."""
    return "-" if value is None or value != value else str(value)
