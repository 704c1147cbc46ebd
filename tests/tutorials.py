"""Executes the notebooks of `docs/tutorials/`. `python -m tests.tutorials` writes their outputs."""

from pathlib import Path
from tempfile import TemporaryDirectory

import nbformat
from nbclient import NotebookClient

TUTORIALS = Path(__file__).resolve().parents[1] / "docs" / "tutorials"
SHORTER = {
    '"rounds": 20': '"rounds": 2',
    '"rounds": 15': '"rounds": 2',
    "range(5)": "range(2)",
    "range(3)": "range(2)",
}
"""Texts of the notebooks' code, and what replaces them where only errors are looked for."""


def execute(path: Path, folder: Path, *, shorter: bool = False) -> nbformat.NotebookNode:
    """Return a notebook with the outputs of its cells; an exception in a cell is raised.

    Paths of files that the cells write are relative to the folder in the outputs.

    Args:
        path: The notebook.
        folder: Folder in which its cells run.
        shorter: Whether to train for fewer rounds and seeds.
    """
    book = nbformat.read(path, as_version=4)
    for cell in book.cells:
        cell.metadata.clear()
        if shorter and cell.cell_type == "code":
            for text, less in SHORTER.items():
                cell.source = cell.source.replace(text, less)
    resources = {"metadata": {"path": str(folder)}}
    NotebookClient(book, timeout=600, resources=resources, record_timing=False).execute()
    written = nbformat.writes(book).replace(f"{folder}/", "")
    return nbformat.reads(written, as_version=4)


def main() -> None:
    """Execute all notebooks and write their outputs to them."""
    for path in sorted(TUTORIALS.glob("*.ipynb")):
        with TemporaryDirectory() as folder:
            nbformat.write(execute(path, Path(folder)), path)


if __name__ == "__main__":
    main()
