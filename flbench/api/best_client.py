"""The client whose personal model is the best by a validation score."""

import pandas as pd

from flbench.core.errors import UserError, did_you_mean
from flbench.results.reading import VALIDATION, StoredRun


def of(
    run: StoredRun, table: pd.DataFrame, metric: str | None, mode: str | None, checkpoint: str
) -> int | str:
    """Return the name or the id of the client in a table of clients; see `Run.best_client`."""
    by, own = run.config.evaluation.best, run.config.evaluation.metrics or {}
    metric = by.column if metric is None else metric
    columns = [str(name) for name in table.columns if str(name).startswith(VALIDATION)]
    known = [name.removeprefix(VALIDATION) for name in columns if name != f"{VALIDATION}size"]
    if metric not in known:
        raise UserError(
            f"`metric` must be one of the validation scores of {run.path}"
            f" ({', '.join(known) or 'it has none'}), got {metric!r}."
            f"{did_you_mean(str(metric).removeprefix(VALIDATION), known)}"
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
    rows = table[table["moment"] == checkpoint].dropna(subset=f"{VALIDATION}{metric}")
    if not len(rows):
        raise UserError(
            f"no client of {run.path} has a validation `{metric}`: the run is unfinished, or the"
            " partition has no validation part (partition.split). Name a client: model(client=...)."
        )
    order = [f"{VALIDATION}{metric}", f"{VALIDATION}size", "client"]
    first = rows.sort_values(order, ascending=[mode == "min", False, True]).iloc[0]
    return str(first["name"]) if "name" in rows else int(first["client"])
