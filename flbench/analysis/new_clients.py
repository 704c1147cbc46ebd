"""Clients that join after the training: their accuracy after epochs of training, by method."""

from typing import Final

import pandas as pd

from flbench.analysis.arrangement import Arrangement
from flbench.analysis.frame import RUN, in_order
from flbench.analysis.statistics import over_repetitions

MEANS: Final = ("seen", "gap", "worst10", "received_bytes", "steps")
"""Columns of means over repetitions."""
NEW_CLIENTS: Final = ("place", "method", "epochs", "n", "mean", "std", "low", "high", *MEANS)


def new_clients_of(comparison: Arrangement, long: pd.DataFrame) -> pd.DataFrame:
    """Return the table of new clients; see `fl.Comparison.new_clients`."""
    metric = comparison.entries[0].run.config.client_metric
    names = {
        f"new {metric}": "value",
        f"seen {metric}": "seen",
        f"new gap_{metric}": "gap",
        "new worst10_accuracy": "worst10",
    }
    rows = long[long["best"] & (long["split"] == "test")]
    parts = rows["deployment"].str.extract(r"^(?P<who>new|seen)@(?P<epochs>\d+)$")
    rows = rows.assign(name=(parts["who"] + " " + rows["metric"]).map(names))
    rows = rows.assign(epochs=parts["epochs"])[[*RUN, "epochs", "name", "value"]]
    costs = pd.DataFrame(
        [
            (one.place, one.method, one.repetition, epochs, name, float(value))
            for one in comparison.entries
            for name in ("received_bytes", "steps")
            for epochs, value in one.run.summary.get("new_clients", {}).get(name, {}).items()
        ],
        columns=list(rows.columns),
    )
    rows = pd.concat([rows.dropna(subset="name"), costs])
    if rows.empty:
        return pd.DataFrame(columns=list(NEW_CLIENTS))
    rows["epochs"] = rows["epochs"].astype(int)
    wide = rows.pivot(index=[*RUN, "epochs"], columns="name", values="value")
    wide = wide.reindex(columns=["value", *MEANS]).reset_index()
    by = ["place", "method", "epochs"]
    found = over_repetitions(wide, by, "value", comparison.overlaps, (0.0, 1.0)).set_index(by)
    found = found.join(wide.groupby(by)[list(MEANS)].mean()).reset_index()
    found = found[found["n"] > 0].sort_values("epochs", kind="stable")
    return in_order(found, comparison)[list(NEW_CLIENTS)]
