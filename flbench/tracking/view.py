"""Views of MLflow's table of runs: columns, filter, sorting and charts.

MLflow keeps a view that an address can name (`viewStateShareKey=NAME`) as a tag of the experiment.
Without a view the table shows no metrics until the user picks them. An experiment has at most three
views, which `flbench ui` sets when it prints their addresses: of plain runs, of the methods of the
latest comparison or study, and of the trials of the latest study.
"""

import json
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any, Final

from flbench.tracking import measures

TAG_PREFIX: Final = "mlflow.sharedViewState."
RUNS: Final = "flbench-runs"
METHODS: Final = "flbench-methods"
TRIALS: Final = "flbench-trials"
LONGEST: Final = 20_000  # characters, MLflow's limit
COLUMN_WIDTH: Final = 150
MOST_COLUMNS: Final = 8
MAX_RUNS: Final = 100  # in a chart
COSTS: Final = ("cost/up_bytes", "cost/down_bytes", "cost/seconds")
LEARNING_RATE: Final = "train.optimizer.lr"
UNNAMED: Final = "Model metrics"  # MLflow's section of metrics whose names have no `/`
TRAINING_PAGE: Final = "workflowType=machine_learning"
"""Without this part of the address, MLflow opens an experiment as one of language models."""
EXPERIMENTS_PAGE: Final = f"#/experiments?{TRAINING_PAGE}"
KINDS: Final = {"f1": "F1", "recall": "Recall"}
"""Metrics of single classes, and what they are called."""
OPEN: Final = "validation"
"""Section that is open, although its charts are those that MLflow makes."""
_FLAGS: Final = {"deleted": False, "isGenerated": False}


def parallel_coordinates(params: Sequence[str], metrics: Sequence[str]) -> dict[str, Any]:
    """Return a chart with a line for each run that has all of these parameters and metrics."""
    chosen = {"selectedParams": list(params), "selectedMetrics": list(metrics)}
    return {"type": "PARALLEL", **chosen, "showAllRuns": True}


def bars(metrics: Sequence[str]) -> list[dict[str, Any]]:
    """Return a chart for each metric, with a bar for each run."""
    return [{"type": "BAR", "displayName": name, "metricKey": name} for name in metrics]


def of_results(query: str, names: Collection[str], metric: str, axis: str) -> str:
    """Return the view of plain runs, or of methods: test metrics and costs, the best one first.

    Charts show the test metrics, and F1 and recall of each class side by side.
    """
    classes = {
        kind: sorted(name for name in names if name.startswith(f"{kind}/")) for kind in KINDS
    }
    order = dict.fromkeys((metric, "rare_recall", *measures.FIRST))
    tests = [name for name in order if name in names][:MOST_COLUMNS]
    costs = [name for name in COSTS if name in names]
    sections = {"Test parts": bars(tests)}
    for kind, found in classes.items():
        if len(found) > 1:
            title = f"{KINDS[kind]} of all classes"
            sections |= {title: [parallel_coordinates([axis], found)]}
            sections |= {kind: bars(found)}
    sections["cost"] = bars(costs)
    for title in sorted({name.rpartition("/")[0] or UNNAMED for name in names}):
        sections.setdefault(title, [])
    params = ("model.name", "seed")
    return _view(query, (*tests, *costs), params, sort=f"metrics.`{metric}`", sections=sections)


def of_trials(query: str, params: Mapping[str, Collection[str]]) -> str:
    """Return the view of the trials of a study: parameters and score, the best one first."""
    sections: dict[str, list[dict[str, Any]]] = {  # MLflow's page gives such charts no names
        f"Parameters and score of {method}": [parallel_coordinates(_ordered(names), ["score"])]
        for method, names in params.items()
    }
    sections |= {title: [] for title in (OPEN, "train", "server", "log", UNNAMED)}
    axes = _ordered({name for names in params.values() for name in names})
    return _view(query, ("score",), axes, ("method", "state"), "metrics.`score`", sections)


def _ordered(params: Iterable[str]) -> list[str]:
    """Return parameters in order: the learning rate, which all methods have, comes first."""
    return sorted(params, key=lambda name: (name != LEARNING_RATE, name))


def page(experiment: str, view: str, *, charts: bool = False) -> str:
    """Return the address of an experiment's runs in a view, without the host."""
    mode = "&compareRunsMode=CHART" if charts else ""
    return f"#/experiments/{experiment}/runs?viewStateShareKey={view}&{TRAINING_PAGE}{mode}"


def _view(
    query: str,
    metrics: Sequence[str],
    params: Sequence[str] = (),
    tags: Sequence[str] = (),
    sort: str = "",
    sections: Mapping[str, Sequence[Mapping[str, Any]]] = {},
) -> str:
    """Return the JSON text of a view.

    Args:
        query: Filter of the runs.
        metrics: Columns with metrics.
        params: Columns with parameters.
        tags: Columns with tags.
        sort: Column that sorts the runs, the largest first.
        sections: Charts by the title of their section. MLflow adds a chart of each metric `A/B`
            that has none to the section titled `A`. One without charts is closed, but for `OPEN`.
    """
    columns = [
        *(f"metrics.`{name}`" for name in metrics),
        *(f"params.`{name}`" for name in params),
        *(f"tags.`{name}`" for name in tags),
    ]
    cards, entries = [], []
    for number, (title, charts) in enumerate(sections.items()):
        key = f"flbench-{number}"
        beside = 1 if any(chart["type"] == "PARALLEL" for chart in charts) else 2
        about = {"uuid": key, "name": title, "display": bool(charts) or title == OPEN}
        entries.append({**about, "columns": beside, "isReordered": False, **_FLAGS})
        for index, chart in enumerate(charts):
            place = {"uuid": f"{key}-{index}", "metricSectionId": key}
            cards.append({**chart, **place, "runsCountToCompare": MAX_RUNS, **_FLAGS})
    return json.dumps(
        {
            "searchFilter": query,
            "orderByKey": sort,
            "orderByAsc": False,
            "selectedColumns": columns,
            "columnOrder": columns,
            "columnWidths": dict.fromkeys(columns, COLUMN_WIDTH),
            "compareRunCharts": cards,
            "compareRunSections": entries,
            "isAccordionReordered": True,  # otherwise MLflow sorts the sections by title
            "runsHiddenMode": "SHOW_ALL",  # not the first ten only
        }
    )
