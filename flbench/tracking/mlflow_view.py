"""Views of MLflow's table of runs: columns, their order, filter, sorting and charts.

MLflow keeps a view that an address can name (`viewStateShareKey=NAME`) as a tag of the experiment.
Without a view the table shows no metrics until the user picks them, and a comparison shows those
three parameters that come first in the alphabet.
"""

import json
import re
from collections.abc import Collection, Iterable, Sequence
from hashlib import sha256
from typing import Any, Final
from urllib.parse import quote

from flbench.metrics import names as metric_names
from flbench.tracking import mlflow_charts
from flbench.tracking.mlflow_charts import Section, bars, folded, parallel_coordinates

VIEW_TAG_PREFIX: Final = "mlflow.sharedViewState."
RUNS_VIEW: Final = "flbench"
LATEST_VIEW: Final = "flbench-latest"
COLUMN_WIDTH: Final = 190
ACCURACY: Final = "accuracy"
METRICS: Final = (ACCURACY, "balanced_accuracy", "rare_recall", "worst10_accuracy")
BEST: Final = "best"  # metrics at the best round by validation, which tables of runs show
SECONDS: Final = "cost/seconds/total"
LEARNING_RATE: Final = "train.optimizer.lr"
TRAINING_PAGE: Final = "workflowType=machine_learning"
"""Without this part of the address, MLflow opens an experiment as one of language models."""
EXPERIMENTS_PAGE: Final = f"#/experiments?{TRAINING_PAGE}"

COLOUR_TAG: Final = "mlflow.runColor"
COLOURS: Final = (
    *("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#999999", "#882255"),
    *("#44aa99", "#332288", "#ddcc77", "#117733"),
)


def view_name(study: str, part: str = "") -> str:
    """Return the name of a view of a study or a comparison, with characters that MLflow allows.

    Args:
        study: Id of the study or the comparison; see `mlflow_names.identifier`.
        part: `methods`; of a study, the name of a method for the view of its trials; of a
            comparison, `cells`; "" for the whole.
    """
    name = f"{study}-{part}" if part else study
    allowed = re.sub(r"[^\w.\- ]", "-", name)
    return name if allowed == name else f"{allowed}-{sha256(name.encode()).hexdigest()[:8]}"


def runs_view(names: Collection[str] = ()) -> str:
    """Return the view of plain runs: test metrics of the best round, highest accuracy first.

    Args:
        names: Names of the metrics that runs have, as far as they are known. Metrics of data sets
            with two classes have columns only if they are among them.
    """
    query = "tags.`kind` = 'run'"
    return _view(query, _metrics(names), tags=("model", "seed"), sort=_order())


def latest_view(runs: Sequence[Any]) -> str:
    """Return the view of the latest run of each method: test metrics and costs side by side.

    Args:
        runs: MLflow's records of the runs.
    """
    ids = ", ".join(f"'{run.info.run_id}'" for run in runs)
    found = [set(run.data.metrics) for run in runs]
    # MLflow leaves a run without one of the metrics out of the parallel coordinates.
    shared = set.intersection(*found)
    metrics = [name for name in (*_metrics(shared), SECONDS) if name in shared]
    # The accuracy comes last, because the last axis colours the lines.
    chart = parallel_coordinates(["algorithm.name"], metrics[::-1])
    sections = [
        Section("Test metrics and costs", [chart], columns=1),
        Section("The same as bars", bars(metrics)),
        *folded(set.union(*found)),
    ]
    tags = ("algorithm", "model", "seed")
    query = f"attributes.run_id IN ({ids})"
    return _view(query, metrics, tags=tags, sort=_order(), sections=sections)


def study_view(
    study: str,
    parameters: Iterable[str],
    names: Collection[str] = (),
    metric: str = ACCURACY,
) -> str:
    """Return the view of a study: its tree of runs with scores, parameters and test metrics.

    Args:
        study: Id of the study.
        parameters: Dotted paths of the parameters that were searched.
        names: Names of the methods' metrics that have one value.
        metric: Metric of the search, which stands first.
    """
    metrics = ("score", *_metrics(names, metric))
    # MLflow shows a tree only if the table is sorted by time. A view cannot unfold the tree.
    sort = "attributes.start_time"
    return _view(_in_study(study), metrics, sorted(parameters), ("state",), sort)


def methods_view(study: str, names: Collection[str], metric: str = ACCURACY) -> str:
    """Return the view of a study's methods: test metrics, the best one by `metric` first.

    Args:
        study: Id of the study.
        names: Names of the methods' metrics that have one value.
        metric: Metric of the search.
    """
    query = f"{_in_study(study)} AND tags.`kind` = 'method'"
    metrics = _metrics(names, metric)
    sections = [
        Section("Means of the seeds", bars(metrics)),
        Section("validation"),
        *folded([*names, "score", "search/score", "train/loss"]),
    ]
    return _view(query, (*metrics, "score"), sort=_order(metric), sections=sections)


def trials_view(study: str, method: str, parameters: Iterable[str]) -> str:
    """Return the view of a method's trials: parallel coordinates of the parameters and the score.

    Args:
        study: Id of the study.
        method: Name of the method.
        parameters: Dotted paths of the parameters that each trial has.
    """
    # The learning rate, which all methods have, is the first axis.
    axes = sorted(parameters, key=lambda name: (name != LEARNING_RATE, name))
    query = f"{_in_study(study)} AND tags.`kind` = 'trial' AND tags.`algorithm` = '{method}'"
    chart = parallel_coordinates(axes, ["score"])
    sections = [
        Section("Parameters and score", [chart], columns=1),
        Section("validation"),
        *folded(["score", "train/loss"]),
    ]
    # A table that is sorted by a metric shows trials beside each other, not as a folded tree.
    return _view(query, ("score",), axes, ("state",), "metrics.`score`", sections)


def comparison_view(
    comparison: str, shown: Sequence[str], names: Collection[str], metric: str = ACCURACY
) -> str:
    """Return the view of a comparison: its tree of runs with test metrics and costs.

    Args:
        comparison: Id of the comparison.
        shown: Metrics of the comparison's run, which is all that the folded tree shows.
        names: Names of the methods' metrics that have one value.
        metric: Metric that ranks the methods.
    """
    # MLflow shows a tree only if the table is sorted by time.
    sort = "attributes.start_time"
    tags = ("method", "setting", "seed", "state")
    metrics = (*shown, *_metrics(names, metric))
    return _view(_in_comparison(comparison), metrics, tags=tags, sort=sort)


def compared_methods_view(comparison: str, names: Collection[str], metric: str = ACCURACY) -> str:
    """Return the view of a comparison's methods: means of test metrics, the best method first.

    Args:
        comparison: Id of the comparison.
        names: Names of the methods' metrics that have one value.
        metric: Metric that ranks the methods.
    """
    query = f"{_in_comparison(comparison)} AND tags.`kind` = 'method'"
    metrics = (*_metrics(names, metric), SECONDS)
    sections = [Section("Means of the cells", bars(metrics)), *folded(names)]
    return _view(query, metrics, sort=_order(metric), sections=sections)


def cells_view(comparison: str, names: Collection[str], metric: str = ACCURACY) -> str:
    """Return the view of a comparison's cells: test metrics, the best cell first, and curves.

    Args:
        comparison: Id of the comparison.
        names: Names of the methods' metrics that have one value.
        metric: Metric that ranks the methods.
    """
    query = f"{_in_comparison(comparison)} AND tags.`kind` = 'cell'"
    metrics = (*_metrics(names, metric), SECONDS)
    tags = ("method", "setting", "seed", "state")
    sections = [Section("validation"), Section("test"), *folded([*names, "train/loss"])]
    return _view(query, metrics, tags=tags, sort=_order(metric), sections=sections)


def page(experiment: str, view: str, *, charts: bool = False) -> str:
    """Return the address of an experiment's runs in a view, without the host.

    Args:
        experiment: MLflow's id of the experiment.
        view: Name of the view.
        charts: Whether the page shows charts instead of a table.
    """
    mode = "&compareRunsMode=CHART" if charts else ""
    return f"#/experiments/{experiment}/runs?viewStateShareKey={quote(view)}&{TRAINING_PAGE}{mode}"


def _metrics(names: Collection[str], first: str = ACCURACY) -> tuple[str, ...]:
    """Return the names of the test metrics of the best round, and of the bytes that were sent.

    Args:
        names: Names of the metrics that runs have, as far as they are known. Those for two classes
            are returned only if they are among them, and so are those of rare classes if any name
            is known.
        first: The metric that comes first.
    """
    rare = {name for name in metric_names.RARE if names and f"{BEST}/test/{name}" not in names}
    ranked = [name for name in metric_names.RANKING if f"{BEST}/test/{name}" in names]
    tests = [name for name in (*METRICS, *ranked) if name not in rare]
    if not names or f"{BEST}/test/{first}" in names:
        tests = [*dict.fromkeys((first, *tests))]
    return *(f"{BEST}/test/{name}" for name in tests), "cost/up_bytes", "cost/down_bytes"


def _order(metric: str = ACCURACY) -> str:
    return f"metrics.`{BEST}/test/{metric}`"


def _in_comparison(comparison: str) -> str:
    return f"tags.`flbench.comparison` = '{comparison}'"


def _in_study(study: str) -> str:
    return f"tags.`flbench.study` = '{study}'"


def _view(
    query: str,
    metrics: Sequence[str],
    parameters: Sequence[str] = (),
    tags: Sequence[str] = (),
    sort: str = "",
    sections: Sequence[Section] = (),
) -> str:
    """Return the JSON text of a view.

    Args:
        query: Filter of the runs.
        metrics: Columns with metrics.
        parameters: Columns with parameters.
        tags: Columns with tags.
        sort: Column that sorts the runs; attributes ascend, metrics descend.
        sections: Charts above those that MLflow makes.
    """
    columns = [
        *(f"metrics.`{name}`" for name in metrics),
        *(f"params.`{name}`" for name in parameters),
        *(f"tags.`{name}`" for name in tags),
    ]
    state: dict[str, Any] = {
        "searchFilter": query,
        "orderByKey": sort,
        "orderByAsc": sort.startswith("attributes"),
        "selectedColumns": columns,
        "columnOrder": columns,
        "columnWidths": dict.fromkeys(columns, COLUMN_WIDTH),
    }
    if sections:
        state |= mlflow_charts.state(sections)
    return json.dumps(state)
