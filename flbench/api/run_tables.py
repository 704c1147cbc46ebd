"""The tables of `fl.Run`, read when they are asked for."""

from typing import TYPE_CHECKING, Final

from flbench.results import reading, tables
from flbench.results.metrics_file import HEADER

if TYPE_CHECKING:
    import pandas as pd

METRICS: Final = dict(zip(HEADER, ("int64", "str", "str", "str", "float64"), strict=True))
"""Columns of `Run.metrics` with their types."""

NEW_CLIENTS: Final = {"moment": "str", "epochs": "int64", **tables.CLIENTS}
"""Columns of `Run.new_clients` with their types; the others are metrics, float64."""

CONFUSION: Final = {"split": "str", "true": "int64", "predicted": "int64", "count": "int64"}
"""Columns of `Run.confusion` with their types."""


def read(run: reading.StoredRun, name: str) -> "pd.DataFrame":
    """Return a table of a run folder: `metrics`, or the name of a CSV file."""
    import pandas as pd

    if name == "metrics":
        return pd.DataFrame(list(run.rows), columns=list(HEADER)).astype(METRICS)
    if name in ("per_class", "confusion"):
        run.check_classes()
        if name == "per_class":
            return tables.classes(run.path / "per_class.csv")
        return tables.read(run.path / "confusion.csv", CONFUSION)
    if name == "clients":
        return reading.read_tables(run.path, run.config)["clients"]
    without = () if run.config.has_classes else ("classes",)
    columns = {key: kind for key, kind in NEW_CLIENTS.items() if key not in without}
    table = tables.read(run.path / "new_clients.csv", columns, optional=tables.SOMETIMES)
    return tables.both_moments(table)
