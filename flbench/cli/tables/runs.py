"""Tables of runs."""

from collections.abc import Mapping, Sequence

from rich.table import Table

from flbench.cli.console import block, line, notes, titled_table, whole_table
from flbench.core.text import one_line
from flbench.metrics.names import RARE as RARE_METRICS
from flbench.reports.tables import (
    PROBABILITY_TITLES,
    RANKING_TITLES,
    class_score,
    clients_block,
    cohort_block,
    score,
    share,
    shown_classes,
    size,
    target_text,
)
from flbench.reports.terminal import open_console
from flbench.results.differences import Differences, differences
from flbench.results.reading import StoredRun, client_scores
from flbench.results.summary import ended_after

# Test metrics of the comparison, with their column headers.
METRICS = {
    "accuracy": "accuracy",
    "balanced_accuracy": "balanced\naccuracy",
    "macro_f1": "macro F1",
    "rare_recall": "rare class\nrecall",
    "worst10_accuracy": "worst 10 %\nof clients",
}
MOST_COLUMNS = 6  # columns for what differs between runs; a note names the others


def print_runs(runs: Sequence[StoredRun]) -> None:
    """Print a comparison of runs; a single run is printed in full before it.

    What differs between the runs besides their methods has columns of its own, and notes say what
    it means for the comparison.
    """
    console, apart = open_console(), differences(runs)
    if len(runs) == 1:
        _print_details(runs[0])
    whole_table(_comparison(runs, apart))
    notes(apart.warnings)
    if without_column := list(apart.values)[MOST_COLUMNS:]:
        notes([f"the runs also differ in {', '.join(without_column)}, which have no column."])
    for run in runs:
        report = "/report.html" if run.finished else ""
        line(f"{run.summary['algorithm']}: {run.path}{report}")
        if target := run.summary.get("target"):
            console.print(f"  {target_text(target)}")
        if failed := run.summary["diverged"] + run.summary["trainings_without_step"]:
            total = run.summary["client_trainings"]
            console.print(f"  {failed} of {total} client trainings diverged or took no step")


def _comparison(runs: Sequence[StoredRun], apart: Differences) -> Table:
    """Return a table of the test metrics at each run's best round by validation accuracy.

    There is a column of the rare-class recall if a run has it.
    """
    tests = [run.summary["best"]["test"] for run in runs]
    shown = {
        name: title
        for name, title in METRICS.items()
        if name not in RARE_METRICS or any(name in test for test in tests)
    }
    others = [run.config for run in runs if not run.config.has_classes]
    if len(others) == len(runs):
        shown = {}
    for config in others:
        names = [(name, f"{name}_worst10") for name in client_scores(config)]
        shown |= {name: name.replace("_", "\n") for pair in names for name in pair}
    positive = {str(run.summary.get("positive_class", "")) for run in runs}
    of = f"\n({one_line(*positive)})" if len(positive) == 1 and any(positive) else ""
    shown |= {
        name: title.replace(" ", "\n") + of
        for name, title in RANKING_TITLES.items()  # defined for two classes
        if any(name in test for test in tests)
    }
    shown |= {
        name: title.replace(" ", "\n")
        for name, title in PROBABILITY_TITLES.items()
        if any(name in test for test in tests)
    }
    settings = dict(list(apart.values.items())[:MOST_COLUMNS])
    table = titled_table(
        "Test metrics at the best round by validation; bytes and seconds of all rounds"
    )
    table.add_column("method")
    for key in settings:
        table.add_column(key.replace(".", ".\n"))
    table.add_column("round", justify="right")
    has_peers = any(run.summary["communication"]["peer_bytes"] for run in runs)
    peer = ("peer",) if has_peers else ()  # between clients
    for title in (*shown.values(), "up", "down", *peer, "seconds", "start-up"):
        table.add_column(title, justify="right")
    for index, (run, test) in enumerate(zip(runs, tests, strict=True)):
        summary, sent = run.summary, run.summary["communication"]
        table.add_row(
            apart.methods[index],
            *(values[index] for values in settings.values()),
            f"{summary['best']['round']}/{ended_after(summary)}",
            *(score(test.get(name), has_classes=run.config.has_classes) for name in shown),
            size(sent["up_bytes"]),
            size(sent["down_bytes"] + sent["setup_bytes"]),
            *([size(sent["peer_bytes"])] if has_peers else []),
            *(_seconds(summary["seconds"]) if run.finished else ("unfinished", "-")),
        )
    return table


def _seconds(spent: Mapping[str, float]) -> tuple[str, str]:
    """Return the seconds of training and evaluation, and those before the first round.

    What checkpoints and tables took is in neither of them.

    The start-up of a comparison's first run contains the import of libraries, which later runs do
    not repeat, so it must not count for a method.
    """
    rounds = spent["train"] + spent["evaluate"]
    startup = spent["total"] - rounds - spent.get("write", 0.0)  # version 0.1 did not measure it
    return f"{rounds:.1f}", f"{max(0.0, startup):.1f}"


def _print_details(run: StoredRun) -> None:
    """Print all metrics of a run at its best and at its last round, and metrics of each class."""
    console, summary = open_console(), run.summary
    if not summary["last"]["test"] and not summary["last"]["validation"]:
        console.print("not evaluated yet")
        return
    table = titled_table(f"{summary['algorithm']} on {summary['dataset']}")
    best_is_last = summary["best"]["round"] == summary["last"]["round"]
    moments = ("last",) if best_is_last else ("best", "last")
    columns = [(moment, split) for moment in moments for split in ("validation", "test")]
    names = dict.fromkeys(name for moment, split in columns for name in summary[moment][split])
    table.add_column("metric", min_width=max(map(len, names)))  # otherwise long names are cut
    for moment, split in columns:
        table.add_column(f"{split}, {moment} round ({summary[moment]['round']})", justify="right")
    for name in names:
        cells = [summary[moment][split].get(name) for moment, split in columns]
        # A dict holds the metrics of another model than the evaluated one.
        if not any(isinstance(cell, dict) for cell in cells):
            has_classes = run.config.has_classes
            table.add_row(name, *(score(cell, has_classes=has_classes) for cell in cells))
    console.print(table)
    if cohort := summary.get("cohort"):
        block(cohort_block(cohort))
    if clients := clients_block(run.clients, client_scores(run.config)):
        block(clients)
    classes = [entry for entry in run.classes if entry["moment"] == "last"]
    if classes:
        shown, about = shown_classes(classes)
        console.print(_per_class(shown))
        if about:
            console.print(about)


def _per_class(classes: Sequence[Mapping[str, str]]) -> Table:
    """Return a table of lines of per_class.csv; groups without any class have no column."""
    table = titled_table("Classes, last round, test")
    groups = [key for key in ("rare", "confusable") if any(line[key] == "1" for line in classes)]
    for title in ("class", "train", "test", "precision", "recall", "F1", *groups):
        table.add_column(title, justify="left" if title == "class" else "right")
    for entry in classes:
        table.add_row(
            entry["name"],
            entry["train_support"],
            entry["test_support"],
            *(share(class_score(entry, key)) for key in ("precision", "recall", "f1")),
            *("yes" if entry[key] == "1" else "" for key in groups),
        )
    return table
