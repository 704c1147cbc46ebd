"""Writes the pages of docs/ that show results: from archives of runs, and from measurements.

    python benchmarks/pages.py [PAGE ...]

PAGE is the name of a page below docs/ without `.md`, such as `board/heart`, or a pattern such as
'papers/*'; without one, all pages are written. Nothing is trained, and no data set is needed. A
module beside this one has the figures of a page, and templates/ its text.
"""

import sys
from collections.abc import Callable
from fnmatch import fnmatch
from functools import partial

import board
import board_work
import new_clients
import papers
import real_data
from shown import ROOT

from flbench.core.errors import UserError
from flbench.core.text import one_line


def pages() -> dict[str, Callable[[], str]]:
    """Return the functions that make the pages, by their names."""
    return {
        **{f"board/{name}": partial(board.page, name) for name in board.names()},
        "board/summary": board.summary,
        "board/baselines": board.baselines,
        "board/work": board_work.page,
        "board/new-clients": new_clients.page,
        **{f"papers/measured-{name}": partial(papers.page, name) for name in papers.names()},
        "real-data": real_data.page,
    }


def main(patterns: list[str]) -> int:
    """Write the pages that are asked for; return 1 if one of them cannot be made."""
    failed = 0
    for name, page in pages().items():
        if any(fnmatch(name, pattern) for pattern in patterns or ["*"]):
            try:
                text = page()
            except UserError as error:
                failed += 1
                print(f"{name} is left out: {one_line(str(error))}", file=sys.stderr)
                continue
            (ROOT / "docs" / f"{name}.md").write_text(text, "utf-8")
            print(name, file=sys.stderr)
    return min(failed, 1)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
