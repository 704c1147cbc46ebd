"""Writes the report of a comparison at stable paths."""

from pathlib import Path

from flbench.comparison import page, text
from flbench.comparison.analysis import Analysis
from flbench.core import files
from flbench.reports import figures


def write(folder: Path, analysis: Analysis) -> None:
    """Write the report.

    It consists of report.html, report.md, report.tex, report.json, tables/NAME.csv and
    pictures/NAME.svg and .pdf.

    The same runs give the same bytes. Each file is written atomically.

    Args:
        folder: Folder of the report; it is made if it does not exist.
        analysis: The tables.

    Raises:
        UserError: One of its folders is a link.
        OSError: A file cannot be written.
    """
    parts = ("tables", "pictures")
    for name in parts:
        files.check_no_link(folder / name)
    drawings = page.draw(analysis)
    texts = {
        "report.html": page.render(analysis, drawings),
        "report.md": text.markdown_of(analysis),
        "report.tex": text.latex_of(analysis),
        "report.json": text.json_of(analysis),
        **{f"tables/{name}.csv": text.csv_of(analysis, name) for name in text.TABLES},
    }
    for name in parts:
        (folder / name).mkdir(parents=True, exist_ok=True)
    for name, content in texts.items():
        files.write(folder / name, content.encode())
    for one in page.pictures(analysis, drawings):
        for suffix in ("svg", "pdf"):
            figures.save(one.figure, folder / "pictures" / f"{one.name}.{suffix}")
