"""Clients that join after the training: their accuracy after epochs of training, by method."""

from math import nan
from typing import Final

import numpy as np
import pandas as pd

from flbench.analysis import scores
from flbench.analysis.arrangement import Arrangement, Entry

VALUES: Final = ("value", "seen", "gap", "worst10", "received_bytes", "steps")
"""What is measured of new clients after a number of epochs."""
NEW_CLIENTS: Final = (
    *("place", "method", "epochs", "n", "mean", "std", "low", "high"),
    *VALUES[1:],
)


def new_clients_of(comparison: Arrangement) -> pd.DataFrame:
    """Return the table of new clients; see `Analysis.new_clients`."""
    frames = []
    for place in comparison.places:
        overlap = comparison.sampling_at(place).overlap
        for method in comparison.methods:
            entries = comparison.at(place, method)
            epochs = sorted({k for entry in entries for k in _epochs(entry)})
            if not epochs:
                continue
            found = {
                name: np.array([[_value(entry, k, name) for k in epochs] for entry in entries])
                for name in VALUES
            }
            limits = [scores.limits_of(entries[0].run.config.client_metric)] * len(epochs)
            over = scores.over_repetitions(found["value"], overlap, limits)
            means = {
                name: scores.over_repetitions(found[name], overlap, [None] * len(epochs))["mean"]
                for name in VALUES[1:]
            }
            columns = {"place": place, "method": method, "epochs": epochs, **over, **means}
            frames.append(pd.DataFrame(columns))
    if not frames:
        return pd.DataFrame(columns=list(NEW_CLIENTS))
    table = pd.concat(frames, ignore_index=True)
    return table.loc[table["n"] > 0, list(NEW_CLIENTS)].reset_index(drop=True)


def _epochs(entry: Entry) -> list[int]:
    """Return the numbers of epochs after which the new clients of a run were evaluated."""
    return [int(k) for k in entry.run.summary.get("new_clients", {}).get("epochs", ())]


def _value(entry: Entry, epochs: int, name: str) -> float:
    """Return one of VALUES of a run; NaN where it is not known."""
    if name in ("received_bytes", "steps"):
        about = entry.run.summary.get("new_clients", {}).get(name, {})
        return float(about.get(str(epochs), nan))
    test = entry.run.summary["best"]["test"]
    found = test.get(f"{'seen' if name == 'seen' else 'new'}@{epochs}", {})
    metric = entry.run.config.client_metric
    key = {"gap": f"gap_{metric}", "worst10": "worst10_accuracy"}.get(name, metric)
    value = found.get(key)
    return float(value) if isinstance(value, int | float) else nan
