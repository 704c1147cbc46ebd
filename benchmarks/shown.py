"""Numbers as the pages show them, and the templates of the pages."""

from collections.abc import Iterable, Sequence
from math import isnan
from pathlib import Path
from typing import Any, Final

import jinja2

from flbench.core.text import in_code, in_markdown
from flbench.reports.shown import size
from flbench.reproduce.report import with_sign

ROOT: Final = Path(__file__).resolve().parents[1]


def percent(value: float, sign: str = "") -> str:
    """Return a share in %; `-` for a missing one."""
    return "-" if isnan(value) else f"{100 * value:{sign}.1f}"


def estimate(row: Any) -> str:
    """Return a mean in % with its interval, from its `mean`, `low` and `high`."""
    if isnan(row["low"]):
        return percent(row["mean"])
    return f"{percent(row['mean'])} [{percent(row['low'])},&nbsp;{percent(row['high'])}]"


def spread(row: Any, sign: str = "") -> str:
    """Return a mean in % with its interval in brackets, as in a sentence."""
    mean, low, high = (percent(row[key], sign) for key in ("mean", "low", "high"))
    return mean if isnan(row["low"]) else f"{mean} ({low} to {high})"


def points(value: float) -> str:
    """Return a difference of shares in points; what rounds to zero has no sign."""
    return with_sign(100 * value, 1)


def extent(values: Sequence[float]) -> str:
    """Return differences in points: their mean and, of several, the smallest and the largest."""
    ends = sum(values) / len(values), min(values), max(values)
    mean, low, high = map(points, ends)
    return mean if len(values) == 1 else f"{mean} ({low} to {high})"


def code(names: str | Iterable[str]) -> str:
    """Return a name, or several of them as a list, as code."""
    return in_code(names) if isinstance(names, str) else ", ".join(map(in_code, names)) or "none"


def table(head: Sequence[str], rows: Iterable[Sequence[Any]]) -> str:
    """Return a table of cells, which are Markdown."""
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join(f"| {' | '.join(map(str, cells))} |" for cells in lines)


def render(template: str, **values: Any) -> str:
    """Return a page, made from templates/TEMPLATE.md."""
    places = jinja2.FileSystemLoader(Path(__file__).with_name("templates"))
    pages = jinja2.Environment(loader=places, undefined=jinja2.StrictUndefined, autoescape=False)
    pages.trim_blocks = pages.lstrip_blocks = pages.keep_trailing_newline = True
    for one in (code, estimate, extent, in_markdown, percent, points, size, spread, table):
        pages.filters[one.__name__] = pages.globals[one.__name__] = one
    return pages.get_template(f"{template}.md").render(values)
