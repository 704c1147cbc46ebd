"""What things are called in MLflow: figures, parameters, values."""

import json
import re
from collections.abc import Mapping
from typing import Any

from flbench.config.sources import leaves
from flbench.results.metrics_file import Row

LEFT_OUT = ("tracking.",)
"""Keys that say nothing of a run."""


def figure(row: Row) -> str:
    """Return a figure's name, `split/protocol/metric`.

    The evaluated model's protocol, `personal`, is left out: `validation/accuracy`, but
    `validation/personal-local/accuracy` and `train/loss`.
    """
    parts = (row.split, "" if row.protocol == "personal" else row.protocol, row.metric)
    return "/".join(_safe(part) for part in parts if part)


def figures(prefix: str, tree: Mapping[str, Any]) -> dict[str, float]:
    """Return the numbers of nested dicts by their path, `prefix/test/accuracy`."""
    found: dict[str, float] = {}
    for key, value in tree.items():
        name = f"{prefix}/{_safe(str(key))}"
        if isinstance(value, Mapping):
            found |= figures(name, value)
        elif isinstance(value, int | float) and not isinstance(value, bool) and value == value:
            found[name] = float(value)
    return found


def summary(found: Mapping[str, Any]) -> dict[str, float]:
    """Return the figures of a summary.json: the last round's, the chosen round's, the price.

    A table of runs is sorted by them. Those of the cohort right after local training, and the long
    list on the common test set, are left to the curves.
    """
    moments = {
        name: {
            split: {
                key: value
                for key, value in found[moment][split].items()
                if key != "common" and not key.endswith("@local")
            }
            for split in ("validation", "test")
        }
        for name, moment in (("final", "last"), ("best", "best"))
    }
    return {
        **figures("final", moments["final"]),
        **figures("best", moments["best"]),
        **figures("cost", {**found["communication"], "best_round": found["best"]["round"]}),
        **figures("cost/seconds", found["seconds"]),
    }


def parameters(tree: Mapping[str, Any]) -> dict[str, str]:
    """Return a configuration's values by their dotted path."""
    flat = leaves(dict(tree))
    return {key: text(value) for key, value in flat.items() if not key.startswith(LEFT_OUT)}


def text(value: object) -> str:
    """Return a value as MLflow shows it."""
    return value if isinstance(value, str) else json.dumps(value, default=str)


def _safe(name: str) -> str:
    """Return a name that MLflow takes: `@` and the like become `-`."""
    return re.sub(r"[^\w.\- :]", "-", name)
