"""Writes the report of a comparison at stable paths."""

from pathlib import Path

from flbench.comparison import text
from flbench.comparison.analysis import Analysis
from flbench.core import files


def write(folder: Path, analysis: Analysis) -> None:
    """Write the report: report.md, report.tex, report.json and tables/NAME.csv.

    The same runs give the same bytes. Each file is written atomically.

    Args:
        folder: Folder of the report; it is made if it does not exist.
        analysis: The tables.

    Raises:
        OSError: A file cannot be written.
    """
    texts = {
        "report.md": text.markdown_of(analysis),
        "report.tex": text.latex_of(analysis),
        "report.json": text.json_of(analysis),
        **{f"tables/{name}.csv": text.csv_of(analysis, name) for name in text.TABLES},
    }
    (folder / "tables").mkdir(parents=True, exist_ok=True)
    for name, content in texts.items():
        files.write(folder / name, content.encode())
