"""Tables of text, which the console, Markdown files and HTML pages print."""

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Block:
    """A table of text.

    Attributes:
        title: Heading of the table.
        header: Heading of each column.
        rows: Cells of each row.
        about: Explanation below the heading; "" for none.
        texts: Indices of the columns that are aligned to the left.
    """

    title: str
    header: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    about: str = ""
    texts: Collection[int] = (0,)


def markdown(block: Block, level: int = 2) -> str:
    """Return a table as Markdown, with its heading and explanation.

    Args:
        block: The table.
        level: Level of the heading.
    """
    parts = [f"{'#' * level} {block.title}", block.about, grid(block.header, block.rows)]
    return "\n\n".join(part for part in parts if part)


def grid(header: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Return header and rows as a table of Markdown.

    >>> print(grid(("name", "value"), [("a", "1")]))
    | name | value |
    | --- | --- |
    | a | 1 |
    """
    lines = [header, ["---"] * len(header), *rows]
    return "\n".join("| " + " | ".join(_safe(cell) for cell in line) + " |" for line in lines)


def _safe(cell: str) -> str:
    """Escape a cell for a table of Markdown."""
    return cell.replace("|", "\\|").replace("\n", " ")


def share(value: object) -> str:
    """Format a metric with four decimals; a dash for anything but a number."""
    return f"{value:.4f}" if isinstance(value, float | int) else "-"


def size(count: float) -> str:
    """Format a number of bytes with a unit.

    >>> size(1_500_000)
    '1.5 MB'
    """
    for unit in ("B", "kB", "MB", "GB"):
        if count < 1000:
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1000
    return f"{count:.1f} TB"
