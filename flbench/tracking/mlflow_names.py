"""Names and values in MLflow: ids, metrics, summary metrics, parameters."""

import json
import re
from collections.abc import Mapping
from typing import Any
from urllib.parse import quote

from flbench.config.sources import leaves
from flbench.results.metrics_file import Row

LEFT_OUT = ("tracking.",)
"""Sections of a configuration that do not describe the run."""
DIGITS = 10
"""Significant digits of numbers in MLflow, whose pages show all of them."""
_NOT_IN_ID = re.compile("[%'\"`\\\\\x00-\x1f\x7f-\x9f\ud800-\udfff]")


def identifier(name: str) -> str:
    """Return the name of a folder as a value that can stand between quotes in MLflow's queries.

    Quotes, backslashes and control characters are percent-encoded; most names do not change.

    >>> identifier("it's"), identifier("fedavg-seed0")
    ('it%27s', 'fedavg-seed0')
    """
    return _NOT_IN_ID.sub(lambda match: quote(match[0], safe="", errors="surrogateescape"), name)


def rounded(value: float) -> float:
    """Return a number with at most ten significant digits. Whole numbers do not change.

    >>> rounded(2 / 3), rounded(12_345_678_901.0)
    (0.6666666667, 12345678901.0)
    """
    return value if float(value).is_integer() else float(f"{value:.{DIGITS}g}")


def metric_name(row: Row) -> str:
    """Return the name of a line of metrics.csv, `split/protocol/metric`.

    The protocol `personal` of the evaluated model is left out.

    >>> metric_name(Row(1, "validation", "personal", "accuracy", 0.5))
    'validation/accuracy'
    >>> metric_name(Row(1, "test", "head", "accuracy", 0.5))
    'test/head/accuracy'
    """
    parts = (row.split, "" if row.protocol == "personal" else row.protocol, row.metric)
    return "/".join(_safe(part) for part in parts if part)


def flatten(prefix: str, tree: Mapping[str, Any]) -> dict[str, float]:
    """Return the numbers of nested dicts by their paths. Other values and NaN are left out.

    >>> flatten("best", {"test": {"accuracy": 0.5}, "note": "text"})
    {'best/test/accuracy': 0.5}
    """
    metrics: dict[str, float] = {}
    for key, value in tree.items():
        name = f"{prefix}/{_safe(str(key))}"
        if isinstance(value, Mapping):
            metrics |= flatten(name, value)
        elif isinstance(value, int | float) and not isinstance(value, bool) and value == value:
            metrics[name] = float(value)
    return metrics


def summary_metrics(summary: Mapping[str, Any]) -> dict[str, float]:
    """Return the metrics of a summary.json by which users sort runs.

    These are validation and test metrics of the last round (`final/...`) and of the best round by
    validation (`best/...`), also those of clients that join after the training (`best/test/new-5`
    after 5 epochs), and bytes and seconds (`cost/...`). Metrics on the common test set, and
    metrics of the cohort alone, are in the curves only.

    Args:
        summary: Content of summary.json.
    """
    moments = {
        name: {
            split: {
                key: value
                for key, value in summary[moment][split].items()
                if key != "common" and ("@" not in key or key.startswith(("new@", "seen@")))
            }
            for split in ("validation", "test")
        }
        for name, moment in (("final", "last"), ("best", "best"))
    }
    joining = summary.get("new_clients", {}).get("received_bytes", {})
    return {
        **flatten("final", moments["final"]),
        **flatten("best", moments["best"]),
        **flatten("cost", {**summary["communication"], "best_round": summary["best"]["round"]}),
        **flatten("cost/seconds", summary["seconds"]),
        **flatten("cost/new_client_bytes", joining),
    }


def parameters(tree: Mapping[str, Any]) -> dict[str, str]:
    """Return the values of a configuration by their dotted paths."""
    flat = leaves(dict(tree))
    return {key: text(value) for key, value in flat.items() if not key.startswith(LEFT_OUT)}


def text(value: object) -> str:
    """Return the text of a parameter's value: a string as it is, anything else as JSON.

    >>> text("adam"), text([2 / 3, None])
    ('adam', '[0.6666666667, null]')
    """
    return value if isinstance(value, str) else json.dumps(_rounded(value), default=str)


def _rounded(value: object) -> object:
    """Return a value of JSON in which numbers have at most ten significant digits."""
    if isinstance(value, Mapping):
        return {key: _rounded(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_rounded(item) for item in value]
    return rounded(value) if isinstance(value, float) else value


def _safe(name: str) -> str:
    """Replace the characters that MLflow does not allow in names by `-`."""
    return re.sub(r"[^\w.\- :]", "-", name)
