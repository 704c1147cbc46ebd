"""The client whose personal model is the best by a validation score."""

import pandas as pd

from flbench.core.errors import UserError, did_you_mean
from flbench.results.reading import VALIDATION, StoredRun


def of(
    run: StoredRun, table: pd.DataFrame, metric: str | None, mode: str | None, checkpoint: str
) -> int | str:
    """Return the name or the id of the client in a table of clients; see `Run.best_client`."""
    if not len(table):
        raise UserError(
            f"{run.path} is unfinished, so it has no scores of its clients yet. Continue it"
            f" with fl.resume({str(run.path)!r})."
        )
    by = run.config.evaluation.best
    metric = by.column if metric is None else metric
    known = [
        name.removeprefix(VALIDATION)
        for name in map(str, table.columns)
        if name.startswith(VALIDATION) and name != "validation_size"
    ]
    if not known:
        raise UserError(
            f"{run.path} has no validation scores of its clients. Name a client: model(client=...)."
        )
    if metric not in known:
        raise UserError(
            f"`metric` must be one of {', '.join(known)}, got {metric!r}."
            f"{did_you_mean(str(metric).removeprefix(VALIDATION), known)}"
        )
    if checkpoint not in ("best", "last"):
        raise UserError(f"`checkpoint` must be best or last, got {checkpoint!r}.")
    if mode is None:
        is_own = metric in (run.config.evaluation.metrics or {})
        if is_own and (metric != by.metric or by.mode is None):
            raise UserError(
                f"flbench does not know whether larger values of `{metric}` are better. Give"
                " mode='max' or mode='min'."
            )
        mode = by.mode or "max" if metric == by.column else "max"
    if mode not in ("max", "min"):
        raise UserError(f"`mode` must be max or min, got {mode!r}.")
    rows = table[table["moment"] == checkpoint].dropna(subset=f"{VALIDATION}{metric}")
    if not len(rows):
        raise UserError(
            f"no client of {run.path} has a validation `{metric}`: the partition has no"
            " validation part (partition.split), or the metric has no value on the clients'"
            " validation parts. Choose another metric, or name a client: model(client=...)."
        )
    order = rows.sort_values(
        [f"{VALIDATION}{metric}", "validation_size", "client"],
        ascending=[mode == "min", False, True],
    )
    first = order.iloc[0]
    return str(first["name"]) if "name" in rows else int(first["client"])
