"""The report of a run: its tables, its curves, and the page report.html."""

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

from matplotlib.ticker import MaxNLocator

from flbench.config.schema import BestConfig
from flbench.config.sources import leaves
from flbench.metrics import names as metric_names
from flbench.reports.picture import Picture, literal, plain
from flbench.reports.shown import (
    Chapter,
    Column,
    Drawn,
    Page,
    Shown,
    Write,
    score,
    significant,
    size,
)
from flbench.results.metrics_file import Row
from flbench.results.reading import VALIDATION, StoredRun, client_scores
from flbench.results.summary import BY_ACCURACY, SPLITS

if TYPE_CHECKING:
    import pandas as pd

MOST_CLIENTS: Final = 100  # rows of the table of clients
MOST_CLASSES: Final = 100  # rows of the table of classes
PROBABILITY_TITLES: Final = dict(
    zip(metric_names.PROBABILITY, ("macro AUROC", "ECE", "NLL", "Brier score"), strict=True)
)
"""Titles of metrics of predicted probabilities, by name."""
RANKING_TITLES: Final = dict(zip(metric_names.RANKING, ("AUROC", "average precision"), strict=True))
"""Titles of the metrics for two classes, by name."""
ABOUT_METRICS: Final = (
    "The best round is chosen on validation parts; test parts are only reported. Metrics are over"
    " the samples of all clients; _mean is over the values of the clients, worst10 over the worst"
    " 10 % of them. personal@local is right after local training, personal@before before it. On the"
    " common test set, gm is the global model and common are the personalized ones."
)


def render(run: StoredRun) -> str:
    """Return report.html of a finished run."""
    summary = run.summary
    settings = {key: json.dumps(value) for key, value in leaves(run.config.tree()).items()}
    return Page(
        f"{summary['algorithm']} on {summary['dataset']}",
        [
            *([Chapter("Notes", [summary["notes"]])] if summary["notes"] else []),
            Chapter("Results", [drawn_curves(run), *tables(run)]),
            Chapter("Configuration", [settings]),
        ],
        facts=facts_of(summary),
    ).html()


def drawn_curves(run: StoredRun) -> Drawn:
    """Return the curves of a run for its page."""
    by = run.config.evaluation.best
    figure = curves(run.rows, by)
    return Drawn("curves", "Curves", f"{by.title} and training loss over the rounds.", figure)


def facts_of(summary: Mapping[str, Any]) -> dict[str, str]:
    """Return what the page says first, by name."""
    stop, seconds = summary.get("stopped"), summary["seconds"]
    never = summary.get("clients_never_trained", 0)
    facts = {
        "model": summary["model"],
        "clients": f"{summary.get('clients', '-')}; {never} never trained",
        "rounds": f"{summary['rounds']}" + (f", stopped after {stop['round']}" if stop else ""),
        "best round": f"{summary['best']['round']}, by {summary.get('best_by', '-')}",
        "seed": str(summary["seed"]),
        "partition": summary.get("partition_hash", ""),
        "weights": summary.get("weights_digest", ""),
        **{kind: size(count) for kind, count in summary["communication"].items()},
        "trainings": f"{summary['client_trainings']}, {summary['diverged']} diverged",
        **{f"seconds, {part}": str(seconds[part]) for part in ("total", "train", "evaluate")},
        "target": target_text(summary["target"]) if "target" in summary else "",
        "engine": str(summary.get("engine", {}).get("choice", "")),
    }
    return {key: value for key, value in facts.items() if value}


@literal
def curves(rows: Sequence[Row], by: BestConfig = BY_ACCURACY) -> Picture:
    """Draw validation accuracy (test accuracy, if a run has none) and training loss over rounds.

    Args:
        rows: Lines of metrics.csv.
        by: Section `evaluation.best`: the metric where there are no classes.
    """
    figure = Picture(figsize=(9.0, 3.4), layout="constrained")
    left, right = figure.subplots(1, 2)
    is_validated = bool(_line(rows, "validation", "personal", by.column)[0])
    split = "validation" if is_validated else "test"
    left.plot(*_line(rows, split, "personal", by.column), marker=".")
    right.plot(*_line(rows, "train", "", "loss"))
    left.set(xlabel="round", ylabel=f"{split} {by.title}")
    right.set(xlabel="round", ylabel="training loss")
    if by == BY_ACCURACY:
        left.set(ylim=(0, 1))
        right.set(ylim=(0, None))
    for axes in (left, right):
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))
        plain(axes)
    return figure


def _line(rows: Sequence[Row], *which: str) -> tuple[list[int], list[float]]:
    """Return rounds and values of the rows of a split, a protocol and a metric."""
    mine = [row for row in rows if row[1:4] == which]
    return [row.round for row in mine], [row.value for row in mine]


def tables(run: StoredRun) -> Iterator[Shown]:
    """Yield the tables of a run: metrics, clients, classes."""
    yield metrics(run)
    of_clients = run.client_table("last")
    if "name" in of_clients and (of_clients["name"] != "").any():
        yield _clients(run, of_clients.to_dict("records"))
    if len(of_classes := run.class_table("last")):
        yield classes(of_classes)


def score_of(run: StoredRun) -> Write:
    """Return what writes metrics: shares with four decimals, values in units with four digits."""
    return score if run.config.has_classes else significant


def metrics(run: StoredRun) -> Shown:
    """Return the table of all metrics of a run at its best and at its last round."""
    summary, positive = run.summary, run.summary.get("positive_class")
    best_is_last = summary["best"]["round"] == summary["last"]["round"]
    columns, rows = {"metric": Column("metric")}, dict[str, dict[str, Any]]()
    for moment in ("last",) if best_is_last else ("best", "last"):
        for split in SPLITS:
            key = f"{split}, {moment} round ({summary[moment]['round']})"
            columns[key] = Column(key, score_of(run))
            for name, value in summary[moment][split].items():
                # The metrics of another model than the evaluated one are in a dict of its name.
                nested = value if isinstance(value, Mapping) else {"": value}
                for inner, number in nested.items():
                    metric = f"{name}: {inner}" if inner else name
                    if positive is not None and (inner or name) in metric_names.RANKING_WITH_MEANS:
                        metric += f" (positive class {positive})"
                    rows.setdefault(metric, {"metric": metric})[key] = number
    return Shown("Metrics", columns, list(rows.values()), ABOUT_METRICS)


def _clients(run: StoredRun, rows: Sequence[Mapping[Any, Any]]) -> Shown:
    """Return the table of test metrics of clients with names, and the first one on validation."""
    scores, write = client_scores(run.config), score_of(run)

    titles = {name: name.replace("_", " ") for name in scores} | RANKING_TITLES | PROBABILITY_TITLES
    titles = {scores[0]: "", f"{VALIDATION}{scores[0]}": f"validation {titles[scores[0]]}"} | titles
    more = len(rows) - MOST_CLIENTS
    return Shown(
        "Clients, last round, test",
        {
            "client": Column("client", str),
            "name": Column("name"),
            "train_size": Column("train", str),
            "test_size": Column("test", str),
            **{key: Column(heading, write) for key, heading in titles.items()},
        },
        rows[:MOST_CLIENTS],
        f"{more:,} more clients are in clients.csv." if more > 0 else "",
    )


def classes(table: "pd.DataFrame") -> Shown:
    """Return the table of precision, recall and F1, of the classes with the fewest samples.

    Args:
        table: Rows of per_class.csv at one moment.
    """
    more = len(table) - MOST_CLASSES
    known = table.nsmallest(MOST_CLASSES, "train_support").sort_index()
    marks = ("rare", "confusable")
    return Shown(
        "Classes, last round, test",
        {
            "name": Column("class"),
            "train_support": Column("train", str),
            "test_support": Column("test", str),
            "precision": Column("precision", score),
            "recall": Column("recall", score),
            "f1": Column("F1", score),
            "marks": Column("marks"),
        },
        [
            {str(name): cell for name, cell in row.items()}
            | {"marks": tuple(mark for mark in marks if row[mark])}
            for row in known.to_dict("records")
        ],
        f"The {MOST_CLASSES} classes with the fewest training samples; {more:,} more classes are in"
        " per_class.csv."
        if more > 0
        else "",
    )


def target_text(target: Mapping[str, Any]) -> str:
    """Describe when a run reached a target accuracy, and at which cost.

    Args:
        target: Entry `target` of summary.json.

    >>> target_text({"accuracy": 0.8, "split": "test", "round": None})
    'test accuracy (there is no validation part) never reached 0.8'
    """
    what = f"{target['split']} accuracy"
    what += " (there is no validation part)" if target["split"] == "test" else ""
    if target["round"] is None:
        return f"{what} never reached {target['accuracy']:g}"
    names = {"up_bytes": "up", "down_bytes": "down", "peer_bytes": "between clients"}
    sent = target["communication"]
    costs = [f"{size(sent[kind])} {where}" for kind, where in names.items() if sent[kind]]
    after = f", after {' and '.join(costs)}" if costs else ""
    return f"{what} reached {target['accuracy']:g} in round {target['round']}{after}"
