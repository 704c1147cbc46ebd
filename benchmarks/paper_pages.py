"""Writes the pages `docs/papers/measured-PAPER.md` from the reports of `flbench reproduce`.

usage: python benchmarks/paper_pages.py OUT_DIR [FOLDER] (default: docs/papers)

OUT_DIR is the folder that `benchmarks/papers.sh` wrote. A page is the report without the folders of
the runs.
"""

import sys
from pathlib import Path


def page(report: str) -> str:
    """Return a report as a page: without what only its machine has."""
    kept = []
    for line in report.splitlines():
        if line.startswith("## Runs"):
            break
        kept.append(line)
    return "\n".join([*kept, ""])


def main() -> None:
    """Write the pages."""
    out = Path(sys.argv[1])
    folder = Path(sys.argv[2] if len(sys.argv) > 2 else "docs/papers")
    for report in sorted(out.glob("*.md")):
        paper = report.stem.partition("-")[0]
        (folder / f"measured-{paper}.md").write_text(page(report.read_text("utf-8")))
        print(f"measured-{paper}.md from {report.name}", file=sys.stderr)


if __name__ == "__main__":
    main()
