"""Tables of runs."""

from collections.abc import Mapping, Sequence

from rich.table import Table

from flbench.cli.console import block, line, titled_table
from flbench.reports.tables import clients_block, cohort_block, share, size, target_text
from flbench.reports.terminal import open_console
from flbench.results.reading import Run

# Test metrics of the comparison, with their column headers.
METRICS = {
    "accuracy": "accuracy",
    "balanced_accuracy": "balanced\naccuracy",
    "macro_f1": "macro F1",
    "rare_recall": "rare class\nrecall",
    "worst10_accuracy": "worst 10 %\nof clients",
}

# Shown only if a run has them: they are defined for two classes.
RANKING_METRICS = {"auroc": "AUROC", "average_precision": "AP"}


def print_runs(runs: Sequence[Run]) -> None:
    """Print a comparison of runs; a single run is printed in full before it."""
    console = open_console()
    if len(runs) == 1:
        _print_details(runs[0])
    console.print(_comparison(runs))
    for run in runs:
        report = "/report.html" if run.finished else ""
        line(f"{run.summary['algorithm']}: {run.path}{report}")
        if target := run.summary.get("target"):
            console.print(f"  {target_text(target)}")
        if failed := run.summary["diverged"] + run.summary["trainings_without_step"]:
            total = run.summary["client_trainings"]
            console.print(f"  {failed} of {total} client trainings diverged or took no step")


def _comparison(runs: Sequence[Run]) -> Table:
    """Return a table of the test metrics at each run's best round by validation accuracy."""
    table = titled_table(
        "Test metrics at the best round by validation; bytes and seconds of all rounds"
    )
    metrics = METRICS | {
        name: title
        for name, title in RANKING_METRICS.items()
        if any(name in run.summary["best"]["test"] for run in runs)
    }
    table.add_column("method")
    table.add_column("round", justify="right")
    for title in (*metrics.values(), "up", "down", "seconds"):
        table.add_column(title, justify="right")
    for run in runs:
        summary = run.summary
        test, sent = summary["best"]["test"], summary["communication"]
        table.add_row(
            summary["algorithm"],
            f"{summary['best']['round']}/{summary['rounds']}",
            *(share(test.get(name)) for name in metrics),
            size(sent["up_bytes"] + sent["peer_bytes"]),
            size(sent["down_bytes"] + sent["setup_bytes"]),
            f"{summary['seconds']['total']:.1f}" if run.finished else "unfinished",
        )
    return table


def _print_details(run: Run) -> None:
    """Print all metrics of a run at its best and at its last round, and metrics of each class."""
    console, summary = open_console(), run.summary
    if not summary["last"]["test"] and not summary["last"]["validation"]:
        console.print("not evaluated yet")
        return
    table = titled_table(f"{summary['algorithm']} on {summary['dataset']}")
    table.add_column("metric")
    best_is_last = summary["best"]["round"] == summary["last"]["round"]
    moments = ("last",) if best_is_last else ("best", "last")
    columns = [(moment, split) for moment in moments for split in ("validation", "test")]
    for moment, split in columns:
        table.add_column(f"{split}, {moment} round ({summary[moment]['round']})", justify="right")
    names = dict.fromkeys(name for moment, split in columns for name in summary[moment][split])
    for name in names:
        cells = [summary[moment][split].get(name) for moment, split in columns]
        # A dict holds the metrics of another model than the evaluated one.
        if not any(isinstance(cell, dict) for cell in cells):
            table.add_row(name, *(share(cell) for cell in cells))
    console.print(table)
    if cohort := summary.get("cohort"):
        block(cohort_block(cohort))
    if clients := clients_block(run.clients):
        block(clients)
    classes = [entry for entry in run.classes if entry["moment"] == "last"]
    if classes:
        console.print(_per_class(classes))


def _per_class(classes: Sequence[Mapping[str, str]]) -> Table:
    """Return a table of lines of per_class.csv."""
    table = titled_table("Classes, last round, test")
    for title in ("class", "train", "test", "precision", "recall", "F1", "rare", "confusable"):
        table.add_column(title, justify="left" if title == "class" else "right")
    for entry in classes:
        table.add_row(
            entry["name"],
            entry["train_support"],
            entry["test_support"],
            *(share(float(entry[key])) for key in ("precision", "recall", "f1")),
            *("yes" if entry[key] == "1" else "" for key in ("rare", "confusable")),
        )
    return table
