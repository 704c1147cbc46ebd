"""The tables of `fl.Run`, read when they are asked for, and the best client of one."""

from typing import TYPE_CHECKING, Final

from flbench.core.errors import UserError, did_you_mean
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


def best_client(
    run: reading.StoredRun,
    table: "pd.DataFrame",
    metric: str | None,
    mode: str | None,
    checkpoint: str,
) -> int | str:
    """Return the name or the id of the client in a table of clients; see `Run.best_client`."""
    by, own = run.config.evaluation.best, run.config.evaluation.metrics or {}
    metric = by.column if metric is None else metric
    columns = [str(name) for name in table.columns if str(name).startswith(reading.VALIDATION)]
    known = [
        name.removeprefix(reading.VALIDATION)
        for name in columns
        if name != f"{reading.VALIDATION}size"
    ]
    if metric not in known:
        raise UserError(
            f"`metric` must be one of the validation scores of {run.path}"
            f" ({', '.join(known) or 'it has none'}), got {metric!r}."
            f"{did_you_mean(str(metric).removeprefix(reading.VALIDATION), known)}"
        )
    if checkpoint not in ("best", "last") or mode not in ("max", "min", None):
        raise UserError(
            f"`checkpoint` must be best or last, got {checkpoint!r}, and `mode` must be max or min,"
            f" got {mode!r}."
        )
    if mode is None and metric in own and (metric != by.metric or by.mode is None):
        raise UserError(
            f"flbench does not know whether larger values of `{metric}` are better. Give"
            " mode='max' or mode='min'."
        )
    mode = mode or (by.mode if metric == by.column else None) or "max"
    rows = table[table["moment"] == checkpoint].dropna(subset=f"{reading.VALIDATION}{metric}")
    if not len(rows):
        raise UserError(
            f"no client of {run.path} has a validation `{metric}`: the run is unfinished, or the"
            " partition has no validation part (partition.split). Name a client: model(client=...)."
        )
    order = [f"{reading.VALIDATION}{metric}", f"{reading.VALIDATION}size", "client"]
    first = rows.sort_values(order, ascending=[mode == "min", False, True]).iloc[0]
    return str(first["name"]) if "name" in rows else int(first["client"])
