"""Executes the notebooks of `docs/tutorials/`. `python -m tests.tutorials` writes their outputs."""

from pathlib import Path
from tempfile import TemporaryDirectory

import nbformat
from jupyter_client.manager import KernelManager
from nbclient import NotebookClient

TUTORIALS = Path(__file__).resolve().parents[1] / "docs" / "tutorials"
SHORTER = {
    "seeds=5": "seeds=2",
    "num_cpus=2": "num_cpus=1",
    '"rounds": 20': '"rounds": 2',
    '"rounds": 15': '"rounds": 2',
    "range(5)": "range(2)",
    "range(3)": "range(2)",
}
"""Texts of the notebooks' code, and what replaces them where only errors are looked for."""

_BLANK = """
%reset -f
import logging, os
logging.disable(logging.NOTSET)
os.chdir({folder!r})
del logging, os
"""


def execute(
    path: Path, folder: Path, *, shorter: bool = False, kernel: KernelManager | None = None
) -> nbformat.NotebookNode:
    """Return a notebook with the outputs of its cells; an exception in a cell is raised.

    Paths of files that the cells write are relative to the folder in the outputs.

    Args:
        path: The notebook.
        folder: Folder in which its cells run.
        shorter: Whether to train for fewer rounds and seeds.
        kernel: A kernel that is running, and that earlier notebooks may have used; its variables
            are removed, and what it has imported stays. None starts a kernel.
    """
    book = nbformat.read(path, as_version=4)
    for cell in book.cells:
        cell.metadata.clear()
        if shorter and cell.cell_type == "code":
            for text, less in SHORTER.items():
                cell.source = cell.source.replace(text, less)
    resources = {"metadata": {"path": str(folder)}}
    client = NotebookClient(book, km=kernel, timeout=600, resources=resources, record_timing=False)
    if kernel is not None:
        book.cells.insert(0, nbformat.v4.new_code_cell(_BLANK.format(folder=str(folder))))
    client.execute()
    if kernel is not None:
        client.kc.stop_channels()
        del book.cells[0]
    written = nbformat.writes(book).replace(f"{folder}/", "")
    return nbformat.reads(written, as_version=4)


def main() -> None:
    """Execute all notebooks and write their outputs to them."""
    for path in sorted(TUTORIALS.glob("*.ipynb")):
        with TemporaryDirectory() as folder:
            nbformat.write(execute(path, Path(folder)), path)


if __name__ == "__main__":
    main()
