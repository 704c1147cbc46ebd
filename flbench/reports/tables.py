"""Tables in words: made once, printed by the console, in Markdown and on a page."""

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Block:
    """A table to print.

    Attributes:
        title: its heading.
        header: of its columns.
        rows: their cells.
        about: a sentence below the heading.
        texts: numbers of the columns that hold words and start at the left.
    """

    title: str
    header: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    about: str = ""
    texts: Collection[int] = (0,)


def markdown(block: Block, level: int = 2) -> str:
    """Return a table with its heading and its sentence."""
    parts = [f"{'#' * level} {block.title}", block.about, grid(block.header, block.rows)]
    return "\n\n".join(part for part in parts if part)


def grid(header: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Return a table of Markdown."""
    lines = [header, ["---"] * len(header), *rows]
    return "\n".join("| " + " | ".join(_safe(cell) for cell in line) + " |" for line in lines)


def _safe(cell: str) -> str:
    return cell.replace("|", "\\|").replace("\n", " ")


def share(value: object) -> str:
    """Return a figure with four decimals, or a dash for none."""
    return f"{value:.4f}" if isinstance(value, float | int) else "-"


def size(count: float) -> str:
    """Return a number of bytes with a unit."""
    for unit in ("B", "kB", "MB", "GB"):
        if count < 1000:
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1000
    return f"{count:.1f} TB"
