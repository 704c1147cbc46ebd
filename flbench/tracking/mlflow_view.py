"""Views of MLflow's table of runs: columns, their order, filter and sorting.

MLflow keeps a view that an address can name (`viewStateShareKey=NAME`) as a tag of the experiment.
Without a view the table shows no metrics until the user picks them.
"""

import json
from collections.abc import Iterable, Sequence
from typing import Any, Final
from urllib.parse import quote

VIEW_TAG_PREFIX: Final = "mlflow.sharedViewState."
RUNS_VIEW: Final = "flbench"
COLUMN_WIDTH: Final = 190
METRICS: Final = ("accuracy", "balanced_accuracy", "rare_recall", "worst10_accuracy")
BEST: Final = "best"  # metrics at the best round by validation, which tables of runs show
FINAL: Final = "final"  # metrics at the last round, which a study's report compares
TRAINING_PAGE: Final = "workflowType=machine_learning"
"""Without this part of the address, MLflow opens an experiment as one of language models."""

COLOUR_TAG: Final = "mlflow.runColor"
COLOURS: Final = (
    *("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#999999", "#882255"),
    *("#44aa99", "#332288", "#ddcc77", "#117733"),
)


def runs_view() -> str:
    """Return the view of plain runs: test metrics of the best round, highest accuracy first."""
    query = "tags.`kind` = 'run'"
    return _view(query, _metrics(BEST), tags=("model", "seed"), sort=_accuracy(BEST))


def study_view(study: str, parameters: Iterable[str]) -> str:
    """Return the view of a study: its tree of runs with scores, parameters and test metrics.

    Args:
        study: Id of the study.
        parameters: Dotted paths of the parameters that were searched.
    """
    metrics = ("score", *_metrics(FINAL))
    # MLflow shows a tree only if the table is sorted by time. A view cannot unfold the tree.
    sort = "attributes.start_time"
    return _view(_in_study(study), metrics, sorted(parameters), ("state",), sort)


def methods_view(study: str) -> str:
    """Return the view of a study's methods: final test metrics, highest accuracy first."""
    query = f"{_in_study(study)} AND tags.`kind` = 'method'"
    return _view(query, (*_metrics(FINAL), "score"), sort=_accuracy(FINAL))


def page(experiment: str, view: str, *, charts: bool = False) -> str:
    """Return the address of an experiment's runs in a view, without the host.

    Args:
        experiment: MLflow's id of the experiment.
        view: Name of the view.
        charts: Whether the page shows charts instead of a table.
    """
    mode = "&compareRunsMode=CHART" if charts else ""
    return f"#/experiments/{experiment}/runs?viewStateShareKey={quote(view)}&{TRAINING_PAGE}{mode}"


def comparison(runs: Sequence[str], experiment: str) -> str:
    """Return the address of a comparison of runs, without the host.

    Args:
        runs: MLflow's ids of the runs.
        experiment: MLflow's id of their experiment.
    """
    run_ids, experiment_ids = (
        quote(json.dumps(items, separators=(",", ":"))) for items in (list(runs), [experiment])
    )
    return f"#/compare-runs?runs={run_ids}&experiments={experiment_ids}&{TRAINING_PAGE}"


def _metrics(moment: str) -> tuple[str, ...]:
    """Return the names of the test metrics of a round, and of the bytes that were sent."""
    return *(f"{moment}/test/{name}" for name in METRICS), "cost/up_bytes", "cost/down_bytes"


def _accuracy(moment: str) -> str:
    return f"metrics.`{moment}/test/accuracy`"


def _in_study(study: str) -> str:
    return f"tags.`flbench.study` = '{study}'"


def _view(
    query: str,
    metrics: Sequence[str],
    parameters: Sequence[str] = (),
    tags: Sequence[str] = (),
    sort: str = "",
) -> str:
    """Return the JSON text of a view.

    Args:
        query: Filter of the runs.
        metrics: Columns with metrics.
        parameters: Columns with parameters.
        tags: Columns with tags.
        sort: Column that sorts the runs; attributes ascend, metrics descend.
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
    return json.dumps(state)
