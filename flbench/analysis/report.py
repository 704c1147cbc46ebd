"""Writes the report of a comparison at stable paths."""

from pathlib import Path

from flbench.analysis import latex, page, text
from flbench.analysis.tables import Analysis
from flbench.core import files
from flbench.reports import figures


def write(folder: Path, analysis: Analysis) -> None:
    """Write the report.

    It consists of report.html, report.md, report.json, tables/NAME.csv and .tex, pictures/NAME.svg
    and .pdf, and report.tex, a document of the tables and pictures. A PDF has the width of a
    paper's column.

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
    pictures = list(page.pictures(analysis, drawings))
    tables = latex.all_of(analysis)
    texts = {
        "report.html": page.render(analysis, drawings),
        "report.md": text.markdown_of(analysis),
        "report.tex": latex.document(analysis, tables, [(one.name, one.about) for one in pictures]),
        "report.json": text.json_of(analysis),
        **{
            f"tables/{name}.csv": text.csv_of(analysis, name)
            for name in text.TABLES
            if name != "new_clients" or len(analysis.new_clients)
        },
        **{f"tables/{name}.tex": content for name, content in tables.items()},
    }
    for name in parts:
        (folder / name).mkdir(parents=True, exist_ok=True)
    for name, content in texts.items():
        files.write(folder / name, content.encode())
    for one in pictures:
        figures.save(one.figure, folder / "pictures" / f"{one.name}.svg")
        figures.save(one.narrow(), folder / "pictures" / f"{one.name}.pdf")
