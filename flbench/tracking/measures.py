"""The metrics of a run in MLflow: few, each under one name.

A metric such as `accuracy` is that of the test parts at the best round by validation, and the
curves `validation/accuracy` and `test/accuracy` show how it was reached. `f1/CLASS` and
`recall/CLASS` are those of single classes, `cost/...` are bytes and seconds. The run folder has all
other metrics.
"""

import json
import math
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

from flbench.core.documents import as_data_error, read_json
from flbench.metrics import names
from flbench.results import metrics_file, tables
from flbench.results.metrics_file import COUNTS
from flbench.results.study_folder import PERSONAL

MOST: Final = 40
"""Largest number of metrics of a run with at most ten classes."""
FEW: Final = 8
"""Number of test metrics that a run has in any case."""
MOST_CLASSES: Final = 20
"""Largest number of classes of which each has metrics of its own."""
MOST_OTHERS: Final = {"train": 4, "server": 4, "log": 20}
"""Curves beside those of evaluations: so many may be there before one more of a split."""
FIRST: Final = (
    *("accuracy", "accuracy_mean", "balanced_accuracy", "macro_f1", "worst10_accuracy"),
    *(*names.RARE, *names.RANKING),
)
"""Metrics that come first, if there are too many."""
LAST: Final = "client_std"
ALONE: Final = ("gm", "pm_v", "pm_l")
"""Models of which a summary has the metric alone that chooses the best round."""
COSTS: Final = ("up_bytes", "down_bytes", "peer_bytes", "setup_bytes")
DIGITS: Final = 10
"""Significant digits of numbers in MLflow, whose pages show all of them."""


class Point(NamedTuple):
    """A value of a metric.

    Attributes:
        name: Name of the metric in MLflow.
        value: The value.
        step: Position on the axis of steps: a round; of a mean, the number of trainings.
    """

    name: str
    value: float
    step: int


def rounded(value: float) -> float:
    """Return a number with at most ten significant digits. Whole numbers do not change.

    >>> rounded(2 / 3), rounded(12_345_678_901.0)
    (0.6666666667, 12345678901.0)
    """
    return value if float(value).is_integer() else float(f"{value:.{DIGITS}g}")


def text(value: object) -> str:
    """Return the text of a parameter's value: a string as it is, anything else as JSON.

    >>> text("adam"), text([2 / 3, None])
    ('adam', '[0.6666666667, null]')
    """
    if isinstance(value, str):
        return value
    parsed = json.loads(json.dumps(value, default=str), parse_float=lambda x: rounded(float(x)))
    return json.dumps(parsed)


def safe(name: str) -> str:
    """Return a name in which the characters that MLflow does not allow are `-`."""
    return re.sub(r"[^\w.\- :]", "-", name)


def named(metric: str, deployment: str = PERSONAL) -> str:
    """Return the name of a metric of a deployment.

    >>> named("accuracy", "personal"), named("accuracy", "noft")
    ('accuracy', 'noft/accuracy')
    """
    return safe(metric) if deployment == PERSONAL else f"{safe(deployment)}/{safe(metric)}"


def curves(file: Path, metric: str) -> list[Point]:
    """Return the curves of a run over its rounds, in the order of the rows.

    They are the accuracy and the metric that ranks methods, of validation and test parts; what a
    method, a callback or the user's module has logged; and the training loss.

    Args:
        file: The metrics.csv; there are no curves if it does not exist.
        metric: Metric that ranks methods.
    """
    rows = metrics_file.read(file) if file.is_file() else []
    found: list[Point] = []
    others: set[str] = set()
    for row in rows:
        name = f"{row.split}/{safe(row.metric)}"
        if row.split in ("validation", "test"):
            is_shown = row.protocol == PERSONAL and row.metric in ("accuracy", metric)
        else:
            is_cost = row.split == "train" and row.metric in COUNTS
            is_shown = name in others or (
                not is_cost and len(others) < MOST_OTHERS.get(row.split, 0)
            )
            others |= {name} if is_shown else set()
        if is_shown:
            found.append(Point(name, row.value, row.round))
    return found


def values(folder: Path, metric: str, used: int) -> list[Point]:
    """Return the metrics of a finished run that have one value: at the best round by validation.

    F1 and recall of a class without test samples are NaN: MLflow has none of them, and `means`
    leaves them out.

    Args:
        folder: The run folder; an unfinished one has none.
        metric: Metric that ranks methods, which comes first.
        used: Number of names that the curves have.
    """
    file = folder / "summary.json"
    summary = read_json(file)
    if not summary:
        return []
    with as_data_error(file):
        best, step = summary["best"], int(summary["best"]["round"])
        sent = {key: summary["communication"].get(key, 0) for key in COSTS}
        costs = {
            **{f"cost/{key}": sent[key] for key in COSTS if sent[key] or key in COSTS[:2]},
            "cost/seconds": summary["seconds"]["total"],
            "cost/steps": summary.get("steps", 0),
            "cost/best_round": step,
        }
        tests = _tests(best["test"], metric)
    classes = _classes(folder / "per_class.csv")
    room = max(FEW, MOST - len(classes) - len(costs) - used)
    found = dict([*tests.items()][:room]) | classes | costs
    return [Point(name, float(value), step) for name, value in found.items()]


def _tests(tests: Mapping[str, Any], metric: str) -> dict[str, float]:
    """Return the test metrics of the personal models, and that of each other deployment."""
    mine = [
        key
        for key, value in tests.items()
        if not isinstance(value, Mapping) and key not in (*ALONE, LAST) and "@" not in key
    ]
    order = dict.fromkeys((metric, *FIRST, *mine, LAST))
    found = {named(key): tests[key] for key in order if key in tests}
    chosen = "accuracy" if "accuracy" in tests else metric
    for key, value in tests.items():
        if key == "common" or ("@" in key and not key.startswith(("new@", "seen@"))):
            continue
        if isinstance(value, Mapping):
            found.setdefault(named(metric, key), value.get(metric))
        elif key in ALONE:
            found.setdefault(named(chosen, key), value)
    return {
        key: float(one)
        for key, one in found.items()
        if isinstance(one, int | float) and not isinstance(one, bool) and math.isfinite(one)
    }


def _classes(file: Path) -> dict[str, float]:
    """Return F1 and recall of each class, at the best round; none if there are many classes.

    Those of a class without test samples are NaN.
    """
    table = tables.classes(file)
    table = table[table["moment"] == "best"]
    if len(table) > MOST_CLASSES:
        return {}
    labels = [safe(name) for name in table["name"]]
    unclear = {name for name in labels if labels.count(name) > 1 or not name.strip(".")}
    labels = [  # MLflow has one name for -1 and +1, and refuses a metric `f1/.`
        f"class {k} {name}".rstrip(" .") if name in unclear else name
        for k, name in zip(table["class"], labels, strict=True)
    ]
    return {
        f"{metric}/{name}": value
        for metric in ("f1", "recall")
        for name, value in zip(labels, table[metric].tolist(), strict=True)
    }


def means(trainings: Sequence[Sequence[Point]]) -> list[Point]:
    """Return the means of the metrics that all trainings have, without their NaN.

    Their step is the number of trainings.
    """
    found = [{point.name: point.value for point in points} for points in trainings]
    shared = [name for name in found[0] if all(name in one for one in found)] if found else []
    count = len(found)
    values = {name: [one[name] for one in found if not math.isnan(one[name])] for name in shared}
    return [Point(name, sum(own) / len(own), count) for name, own in values.items() if own]
