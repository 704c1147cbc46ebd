"""A planned comparison as an object: its cells, and the tables of those that are finished."""

from functools import cached_property
from os import PathLike
from pathlib import Path
from typing import Any, Final

import pandas as pd

from flbench.analysis.arrangement import Arrangement
from flbench.api.reporting import Comparison, arranged
from flbench.calls import arguments
from flbench.comparison.folder import read_cells, read_design
from flbench.jobs.folder import read_failures
from flbench.results.reading import is_finished

CELLS: Final = (
    *("method", "data", "setting", "repetition", "seed", "partition_seed"),
    *("state", "reason", "path"),
)
"""Columns of `PlannedComparison.cells`."""


class PlannedComparison(Comparison):
    """A comparison of `fl.compare`, finished or not, as read from its folder.

    Its tables are those of `fl.report` over the cells that are finished.

    Args:
        path: Folder of the comparison.

    Raises:
        UserError: The path is not the folder of a comparison.
        DataError: A file in the folder is damaged.

    Attributes:
        path: Folder of the comparison.
    """

    def __init__(self, path: str | PathLike[str]) -> None:
        self.path = arguments.path_of(path, "path")
        self._design, _ = read_design(self.path)

    @cached_property
    def comparison(self) -> Arrangement:  # type: ignore[override]
        """The cells that are finished."""
        # Cells can differ in the version of the code, if the comparison was resumed with another
        # one. The report then has a warning everywhere.
        found, self._unpacked = arranged([self.path], force=True)
        return found

    @property
    def methods(self) -> tuple[str, ...]:
        """Labels of the methods, with the variants that the grid makes of them."""
        return tuple(dict.fromkeys(cell.method for cell in read_cells(self.path)))

    @property
    def seeds(self) -> int:
        """Number of repetitions."""
        return self._design.seeds

    @property
    def vary(self) -> str:
        """What differs between repetitions: `training`, `partition` or `both`."""
        return self._design.vary

    @property
    def cells(self) -> pd.DataFrame:
        """The cells, one per row, in the order in which they are trained.

        Columns: `method`, `data` and `setting` str, labels; `repetition` int64, from 1; `seed` and
        `partition_seed` int64; `state` str, `finished`, `failed`, `unfinished` or `waiting`;
        `reason` str, why it failed; `path` str, which `fl.load` reads.
        """
        failures = read_failures(self.path)
        rows = []
        for cell in read_cells(self.path):
            path = self.path / "cells" / cell.name
            seed, partition_seed = self._design.seeds_of(cell.repetition)
            rows.append(
                {
                    "method": cell.method,
                    "data": cell.data,
                    "setting": cell.place.removeprefix(cell.data).removeprefix(", "),
                    "repetition": cell.repetition + 1,
                    "seed": seed,
                    "partition_seed": partition_seed,
                    "state": _state(path, cell.name in failures),
                    "reason": failures.get(cell.name, ""),
                    "path": str(path),
                }
            )
        return pd.DataFrame(rows, columns=list(CELLS))

    def __repr__(self) -> str:
        counts: dict[str, Any] = dict(self.cells["state"].value_counts())
        states = ", ".join(f"{count} {state}" for state, count in counts.items())
        return f"<Comparison {str(self.path)!r}: {', '.join(self.methods)}; {states}>"


def _state(path: Path, is_failed: bool) -> str:
    """Return the state of a cell by its folder."""
    if is_failed:
        return "failed"
    if is_finished(path):
        return "finished"
    return "unfinished" if (path / "config.yaml").is_file() else "waiting"
