"""Renderers of tables and pages: Markdown, LaTeX and the console. HTML is in `page`."""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from math import isfinite
from textwrap import wrap
from typing import Any, Final

from flbench.core.text import in_cell, in_latex, in_markdown
from flbench.reports.shown import Chapter, Column, Drawn, Page, Part, Shown
from flbench.reports.terminal import open_console

PACKAGES: Final = "% \\usepackage{amsmath,booktabs,graphicx,longtable}\n"
"""What a document needs for the tables."""
LONGEST: Final = 40  # rows of a table on one page of LaTeX
MINUS: Final = "\N{MINUS SIGN}"
SIGN: Final = re.compile(r"(?<![\w.])-(?=\d)")
"""The sign of a negative number, which LaTeX prints as a hyphen outside of formulas."""
COMMANDS: Final = {"best": "textbf:--rwrap;", "like": "underline:--rwrap;"}
FIT: Final = "\\resizebox{\\ifdim\\width>\\linewidth\\linewidth\\else\\width\\fi}{!}{%\n"
"""Makes a table smaller where it is wider than the column."""
UNLIMITED: Final = 10_000  # columns of a console
LEAST: Final = 3  # columns of a table that are printed in any case


def plain(title: str, headings: Sequence[str], rows: Sequence[Sequence[Any]]) -> Shown:
    """Return a table of texts with a heading for each column, such as names and descriptions."""
    columns = {str(k): Column(name) for k, name in enumerate(headings)}
    return Shown(title, columns, [dict(zip(columns, row, strict=True)) for row in rows])


def markdown(table: Shown, level: int = 2) -> str:
    """Return a table as Markdown, with its heading and explanation."""
    heading = f"{'#' * level} {in_markdown(table.heading)}"
    return "\n\n".join(filter(None, [heading, in_markdown(table.about), body(table)]))


def body(table: Shown) -> str:
    """Return a table as Markdown, without its heading and explanation."""
    headings = [column.heading for column in table.used.values()]
    return grid(headings, [list(row.values()) for row in table.cells()])


def grid(header: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Return header and rows, which are plain text, as a table of Markdown.

    >>> print(grid(("name", "value"), [("a", "1")]))
    | name | value |
    | --- | --- |
    | a | 1 |
    """
    cells = [list(map(in_cell, line)) for line in (header, *rows)]
    lines = [cells[0], ["---"] * len(header), *cells[1:]]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def page(whole: Page) -> str:
    """Return a page as Markdown, without its pictures."""
    parts = [f"# {in_markdown(whole.heading)}", *map(in_markdown, whole.answer)]
    parts += [f"**{in_markdown(sentence)}**" for sentence in whole.warnings]
    parts += [*_parts([whole.facts, whole.about], 2), *_parts(whole.chapters, 2)]
    return "\n\n".join(part.strip() for part in parts if part) + "\n"


def _parts(parts: Sequence[Part], level: int) -> Iterator[str]:
    """Yield parts of a page."""
    for one in parts:
        if isinstance(one, str):
            yield in_markdown(one)
        elif isinstance(one, Shown):
            yield markdown(one, level)
        elif isinstance(one, Chapter):
            yield f"{'#' * level} {in_markdown(one.title)}"
            yield from _parts(one.parts, level + 1)
        elif isinstance(one, Mapping):
            yield "\n".join(f"- {in_markdown(k)}: {in_markdown(v)}" for k, v in one.items())
        elif not isinstance(one, Drawn):
            yield "\n".join(f"- {in_markdown(sentence)}" for sentence in one)


def console(table: Shown, *, is_whole: bool = False) -> None:
    """Print a table with its heading and explanation; columns without room are left out by name.

    Args:
        table: The table.
        is_whole: Whether the table is as wide as its content in a pipe or file.
    """
    from rich.box import SIMPLE_HEAD
    from rich.cells import cell_len
    from rich.measure import Measurement
    from rich.table import Table

    out, cells, columns = open_console(), table.cells(), table.used
    unlimited = out.options.update(width=UNLIMITED)
    left: list[str] = []
    for line in filter(None, (table.heading, table.about)):
        out.print(line, soft_wrap=True)
    while True:  # numbers are never cut: the last columns are left out instead
        lines = Table(box=SIMPLE_HEAD)
        for key, one in columns.items():
            if one.is_text:  # sentences are wrapped, names are not
                is_name = not any(" " in row[key] for row in cells)
                lines.add_column(one.heading, no_wrap=is_name)
                continue
            texts = [*one.heading.split(), *(row[key] for row in cells)]
            width = max(map(cell_len, texts))
            heading = "\n".join(wrap(one.heading, width))
            lines.add_column(heading, justify="right", min_width=width, no_wrap=True)
        for row in cells:
            lines.add_row(*(row[key] for key in columns))
        size = Measurement.get(out, unlimited, lines)
        if is_whole and not out.is_terminal:
            out.width = max(out.width, size.maximum)
        if size.minimum <= out.width or len(columns) <= LEAST:
            break
        left.insert(0, columns.popitem()[1].heading)
    out.print(lines)
    if left:
        out.print(
            f"No room for: {', '.join(left)}. Reports and --json have all columns.", soft_wrap=True
        )


def latex(table: Shown, warning: str = "") -> str:
    """Return a table as LaTeX; a long one is over several pages.

    Args:
        table: The table.
        warning: Sentence at the end of the caption.
    """
    caption = " ".join(filter(None, [f"{table.heading}.", table.about, table.legend, warning]))
    import pandas as pd

    columns = {key: one for key, one in table.used.items() if key not in table.screen}
    rows = [
        {key: f"{row[key]}*" if "apart" in table.mark(k, key) else row[key] for key in columns}
        for k, row in enumerate(table.cells(is_paper=True))
    ]
    cells = pd.DataFrame(rows, columns=list(columns))
    commands = [
        ["".join(COMMANDS.get(mark, "") for mark in table.mark(k, key)) for key in columns]
        for k in range(len(rows))
    ]
    styles = pd.DataFrame(commands, cells.index, cells.columns)
    is_long = len(cells) > LONGEST
    source: str = (
        cells.style.format(_in_cell)
        .format_index(lambda key: in_latex(columns[str(key)].heading), axis=1)
        .hide(axis="index")
        .apply(lambda _: styles, axis=None)
        .to_latex(
            hrules=True,
            caption=in_latex(caption),
            column_format="".join("l" if one.is_text else "r" for one in columns.values()),
            environment="longtable" if is_long else "table",
            position_float=None if is_long else "centering",
        )
    )
    if is_long:  # it cannot be made smaller as a whole
        return f"{{\\footnotesize\\setlength{{\\tabcolsep}}{{3pt}}\n{source}}}\n"
    source = source.replace("\\begin{tabular}", f"{FIT}\\begin{{tabular}}")
    return source.replace("\\end{tabular}", "\\end{tabular}}")


def finite(tree: Any) -> Any:
    """Return a tree as values of JSON: keys are text, NaN and infinity are null."""
    if isinstance(tree, Mapping):
        return {str(key): finite(value) for key, value in tree.items()}
    if isinstance(tree, Sequence) and not isinstance(tree, str):
        return [finite(value) for value in tree]
    if hasattr(tree, "item"):  # a number of numpy
        return finite(tree.item())
    return None if isinstance(tree, float) and not isfinite(tree) else tree


def _in_cell(text: object) -> str:
    r"""Return a cell as LaTeX.

    >>> _in_cell("-0.0123 [-0.1000, -0.0020]"), _in_cell("0.5 ± 0.1"), _in_cell("fedavg - local")
    ('$-$0.0123 {[}$-$0.1000, $-$0.0020]', '0.5 $\\pm$ 0.1', 'fedavg - local')
    """
    return in_latex(SIGN.sub(MINUS, str(text))).replace(MINUS, "$-$").replace("±", "$\\pm$")
