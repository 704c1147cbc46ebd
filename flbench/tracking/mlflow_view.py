"""Which columns MLflow's table of runs shows, and in which order.

MLflow keeps a view that is shared by its address (`viewStateShareKey=NAME`) as a tag of the
experiment. Without one the table has no figures until the user picks them.
"""

import json
from collections.abc import Iterable, Sequence
from typing import Any, Final
from urllib.parse import quote

TAG: Final = "mlflow.sharedViewState."
RUNS: Final = "flbench"
WIDTH: Final = 190
FIGURES: Final = ("accuracy", "balanced_accuracy", "rare_recall", "worst10_accuracy")
CHOSEN: Final = "best"  # the round that validation chose, as in a table of runs
LAST: Final = "final"  # the last round, by which a study's report and verdicts evaluate
TRAINING: Final = "workflowType=machine_learning"
"""Without it MLflow opens an experiment as one of language models."""

COLOUR: Final = "mlflow.runColor"
COLOURS: Final = (
    *("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#999999", "#882255"),
    *("#44aa99", "#332288", "#ddcc77", "#117733"),
)


def of_runs() -> str:
    """Return the view of plain runs: the chosen round's test figures, the best first."""
    query = "tags.`kind` = 'run'"
    return _view(query, _figures(CHOSEN), tags=("model", "seed"), sort=_accuracy(CHOSEN))


def of_study(study: str, parameters: Iterable[str]) -> str:
    """Return the view of a study: the tree of its runs with score, parameters, last test figures.

    Args:
        study: its id.
        parameters: dotted paths of what was searched.
    """
    figures = ("score", *_figures(LAST))
    # MLflow shows trees in the order of time alone, and folded; a view cannot unfold them.
    return _view(_of(study), figures, sorted(parameters), ("state",), "attributes.start_time")


def of_methods(study: str) -> str:
    """Return the view of a study's methods: the tuned ones' last test figures, the best first."""
    query = f"{_of(study)} AND tags.`kind` = 'method'"
    return _view(query, (*_figures(LAST), "score"), sort=_accuracy(LAST))


def page(experiment: str, name: str, *, charts: bool = False) -> str:
    """Return the part of an address after the host that shows an experiment in a view."""
    mode = "&compareRunsMode=CHART" if charts else ""
    return f"#/experiments/{experiment}/runs?viewStateShareKey={quote(name)}&{TRAINING}{mode}"


def comparison(runs: Sequence[str], experiment: str) -> str:
    """Return the part of an address after the host that compares runs."""
    ids, experiments = (
        quote(json.dumps(items, separators=(",", ":"))) for items in (list(runs), [experiment])
    )
    return f"#/compare-runs?runs={ids}&experiments={experiments}&{TRAINING}"


def _figures(moment: str) -> tuple[str, ...]:
    """Return the test figures of a round, and the price."""
    return *(f"{moment}/test/{name}" for name in FIGURES), "cost/up_bytes", "cost/down_bytes"


def _accuracy(moment: str) -> str:
    return f"metrics.`{moment}/test/accuracy`"


def _of(study: str) -> str:
    return f"tags.`flbench.study` = '{study}'"


def _view(
    query: str,
    figures: Sequence[str],
    parameters: Sequence[str] = (),
    tags: Sequence[str] = (),
    sort: str = "",
) -> str:
    columns = [
        *(f"metrics.`{name}`" for name in figures),
        *(f"params.`{name}`" for name in parameters),
        *(f"tags.`{name}`" for name in tags),
    ]
    state: dict[str, Any] = {
        "searchFilter": query,
        "orderByKey": sort,
        "orderByAsc": sort.startswith("attributes"),
        "selectedColumns": columns,
        "columnOrder": columns,
        "columnWidths": dict.fromkeys(columns, WIDTH),
    }
    return json.dumps(state)
