"""What the commands print of runs, data, methods, models and papers."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from flbench.cli.console import line, notes
from flbench.core.errors import shortened
from flbench.core.text import one_line
from flbench.reports import render
from flbench.reports.shown import Column, Shown, score, significant, size, tenth
from flbench.reports.terminal import duration

if TYPE_CHECKING:
    from flbench.config.schema import DataConfig
    from flbench.data.federation import Federation
    from flbench.experiment.estimate import Estimate
    from flbench.results.reading import StoredRun
    from flbench.tuning.report import StudyReport

METRICS: Final = {
    "accuracy": "accuracy",
    "balanced_accuracy": "balanced accuracy",
    "macro_f1": "macro F1",
    "rare_recall": "rare class recall",
    "worst10_accuracy": "worst 10 % of clients",
}
"""Test metrics of the table of runs, with their headings."""
MOST_PREDICTIONS: Final = 100  # that are printed; --out and --json give all
SHADES: Final = " ░▒▓█"
MOST_CLASS_COLUMNS: Final = 24  # with more classes, the table has the number of those of a client
NAME_WIDTH: Final = 60  # characters of a client's name
MOST_ROWS: Final = 500  # clients in a table; laying out thousands of rows would take minutes


def print_runs(runs: "Sequence[StoredRun]") -> None:
    """Print a table of runs; a single run is printed in full before it."""
    from flbench.reports import run as reports

    if len(runs) == 1:
        line(f"{runs[0].summary['algorithm']} on {runs[0].summary['dataset']}\n")
        moments = [runs[0].summary["last"][split] for split in ("validation", "test")]
        for table in reports.tables(runs[0]) if any(moments) else ():
            render.console(replace(table, about=""), is_whole=True)
        if not any(moments):
            line("not evaluated yet")
    render.console(_table(runs), is_whole=True)
    for run in runs:
        report = "/report.html" if run.finished else ""
        line(f"{run.summary['algorithm']}: {run.path}{report}")
        if failed := run.summary["diverged"] + run.summary["trainings_without_step"]:
            total = run.summary["client_trainings"]
            line(f"  {failed} of {total} client trainings diverged or took no step")


def _table(runs: "Sequence[StoredRun]") -> Shown:
    """Return a table of runs: the keys in which they differ, and metrics at their best rounds."""
    from flbench.api.loading import settings_of
    from flbench.reports.run import PROBABILITY_TITLES, RANKING_TITLES
    from flbench.results.differences import short_hashes, text_of
    from flbench.results.summary import ended_after

    settings = settings_of(runs)
    for key in [*settings]:
        is_of_one = key.startswith(("algorithm.", "model.")) and settings[key].isna().any()
        if is_of_one or key.startswith("engine."):  # `fl.runs` has these too
            del settings[key]
        else:
            settings[key] = short_hashes(map(text_of, settings[key]))
    write = score if all(run.config.has_classes for run in runs) else significant
    titles = METRICS | RANKING_TITLES | PROBABILITY_TITLES
    named = [name for name in ("dataset", "model") if len({run.summary[name] for run in runs}) > 1]
    rows = []
    for run, keys in zip(runs, settings.to_dict("records"), strict=True):
        summary, sent = run.summary, run.summary["communication"]
        spent = summary["seconds"] if run.finished else {}
        test = {k: one for k, one in summary["best"]["test"].items() if isinstance(one, float)}
        if not run.config.has_classes:
            titles |= {name: name.replace("_", " ") for name in test}
        rows.append(
            {f"key {key}": value for key, value in keys.items()}
            | {"round": f"{summary['best']['round']}/{ended_after(summary)}"}
            | {"method": summary["algorithm"], **test, **{name: summary[name] for name in named}}
            | {"up": sent["up_bytes"], "down": sent["down_bytes"] + sent["setup_bytes"]}
            | {"peer": sent["peer_bytes"] or None}
            | {"seconds": spent["train"] + spent["evaluate"] if spent else None}
            | {"state": "" if run.finished else "unfinished"}
        )
    return Shown(
        "Test metrics at the best round by validation; bytes and seconds of all rounds",
        {
            "method": Column("method"),
            **{name: Column(name) for name in named},
            **{f"key {key}": Column(key.replace(".", ".\n"), str) for key in map(str, settings)},
            "round": Column("round", str),
            **{name: Column(title, write) for name, title in titles.items()},
            **{kind: Column(kind, size) for kind in ("up", "down", "peer")},
            "seconds": Column("seconds", tenth),
            "state": Column("state"),
        },
        rows,
    )


def print_study(report: "StudyReport", path: Path) -> None:
    """Print the results of a study: default beside tuned parameters, winners, failures."""
    line(f"{report.heading} ({report.facts['budget']})\n")
    for sentence in report.answer:
        line(f"{sentence}\n")
    own = [table for name in report.study.methods for table in report.own_tables(name)]
    for table in (*own, *report.tables, report.table):
        render.console(table)
    notes(report.said)
    page = path / "report.html"
    line(str(page if page.is_file() else path))


def print_estimate(estimate: "Estimate") -> None:
    """Print the estimated communication, time and memory of a run."""
    lines = {
        "parameters": f"{estimate.parameters:,}",
        "down": f"{size(estimate.down)} to each client and round",
        "up": f"{size(estimate.up)} from each client and round",
        "cohort": f"{estimate.cohort} clients, {estimate.steps} steps in a round",
        "time": f"{estimate.round:.3g} s a round,"
        f" {duration(estimate.evaluate)} an evaluation, {duration(estimate.common)} on the common"
        f" test set; about {duration(estimate.total)} in all",
        "memory": f"samples {size(estimate.data)}, state {size(estimate.state)}, results of a round"
        f" {size(estimate.results)}; about {size(estimate.memory)} for the process",
    }
    for name, content in lines.items():
        line(f"{name:>10}: {content}")


def print_methods(entries: Sequence[Mapping[str, Any]]) -> None:
    """Print the list of methods, entries of `flbench.algorithms.catalogue`."""
    rows = [
        (
            entry["name"],
            f"{entry['paper']['title']}, {entry['paper']['venue']}",
            *(entry[key] for key in ("down", "up", "keeps")),
        )
        for entry in entries
    ]
    headings = ("name", "paper", "down", "up", "client keeps")
    render.console(render.plain("Methods (w: weights, C: classes, D: features)", headings, rows))


def print_method(entry: Mapping[str, Any]) -> None:
    """Print the description of one method, and its hyper-parameters."""
    from flbench.algorithms.catalogue import as_yaml

    paper = entry["paper"]
    doi = f", doi {paper['doi']}" if paper["doi"] else ""
    line(f"{entry['name']}: {paper['title']}\n{paper['authors']}, {paper['venue']}{doi}\n")
    line(entry["about"])
    line(f"\ndown: {entry['down']}\nup: {entry['up']}\nclient keeps: {entry['keeps']}\n")
    if entry["needs"]:
        line(f"needs {'; '.join(entry['needs'])}\n")
    rows = [
        (one["name"], as_yaml(one["default"]), one["range"], one["unit"], one["meaning"])
        for one in entry["parameters"]
    ]
    headings = ("name", "default", "range", "unit", "meaning")
    render.console(render.plain("Hyper-parameters (algorithm.*)", headings, rows))


def print_data_sets(entries: Sequence[Mapping[str, Any]], config: "DataConfig") -> None:
    """Print the list of data sets, entries of `flbench.data.catalogue`, and where each one is."""
    rows = [
        (
            *(entry[key] for key in ("name", "title", "classes")),
            "x".join(map(str, entry["shape"] or ())),
            entry["found"],
        )
        for entry in entries
    ]
    headings = ("name", "what", "classes", "shape", "found")
    render.console(render.plain(f"Data sets (data.root={config.root})", headings, rows))
    line(
        f"A data set NAME is searched as {config.root}/NAME.npz, NAME.zip and NAME/, then in"
        " torchvision's folders. data.path names a file or folder directly."
    )


def print_missing_data_set(entry: Mapping[str, Any]) -> None:
    """Print the paths where a data set was searched, and its origin."""
    line(f"{entry['name']}: {entry['title']}; not found.")
    line(f"Searched: {', '.join(entry['looked_up'])}")
    line(f"Source: {entry['from']}")


def print_partition(federation: "Federation") -> None:
    """Print a table of clients: training samples by class, and the sizes of all parts.

    With more than `MOST_CLASS_COLUMNS` classes it has the number of each client's classes instead.
    It has the first `MOST_ROWS` clients. Above it are the notes about the data and the hash of the
    partition, below it is the size of the common test set, if there is one.
    """
    notes(federation.notes)
    data, partition, classes = federation.dataset, federation.partition, federation.classes
    what = f"{classes} classes" if data.targets is None else "targets that are not classes"
    line(f"{data.name}: {federation.clients} clients, {what}, partition {partition.hash()[:12]}")
    counts, largest = federation.counts, max(1, int(federation.counts.max()))  # [N, C]
    is_by_class = classes <= MOST_CLASS_COLUMNS
    columns = {"held": Column(f"classes of {classes:,}", str)}
    if is_by_class:
        columns = {f"class {k}": Column(name, str) for k, name in enumerate(data.classes)}
    rows = []
    for client in range(min(federation.clients, MOST_ROWS)):
        row = counts[client].tolist()
        rows.append(
            {f"class {k}": f"{_shade(n, largest)} {n or ''}" for k, n in enumerate(row)}
            | {"client": client, "held": len(row) - row.count(0)}
            | {part: len(own[client]) for part, own in partition.parts.items()}
            | {"name": shortened(partition.names[client], NAME_WIDTH) if partition.names else ""}
            | {"shift": shortened(partition.shifts[client], NAME_WIDTH) if partition.shifts else ""}
        )
    render.console(
        Shown(
            f"Training samples by client{' and class (darker: more)' if is_by_class else ''}",
            {
                "client": Column("client", str),
                "name": Column("name"),
                "shift": Column("shift"),
                **columns,
                **{part: Column(part, str) for part in partition.parts},
            },
            rows,
        )
    )
    if federation.clients > MOST_ROWS:
        more = federation.clients - MOST_ROWS
        line(f"and {more:,} more clients; `flbench data --json` prints all")
    if common := len(federation.common):
        line(f"common test set: {common} samples")


def _shade(count: int, largest: int) -> str:
    """Return a character that is darker for a larger count, by the square root of its share."""
    return SHADES[0] if count == 0 else SHADES[1 + min(3, int(4 * (count / largest) ** 0.5))]


def print_predictions(rows: Sequence[Mapping[str, Any]], card: Mapping[str, Any]) -> None:
    """Print the predicted class of each sample: file, row in it, and probability or score."""
    name = card.get("client_name", card["client"])
    who = "the global model" if card["client"] is None else f"client {one_line(str(name))}"
    last = "score" if rows and "score" in rows[0] else "probability"
    table = Shown(
        f"{card['method']} on {card['dataset']}, {who}, round {card['round']}",
        {
            "file": Column("file"),
            "row": Column("row", str),
            "class": Column("class"),
            last: Column(last, score),
        },
        rows[:MOST_PREDICTIONS],
    )
    render.console(table, is_whole=True)
    if len(rows) > MOST_PREDICTIONS:
        more = len(rows) - MOST_PREDICTIONS
        line(f"and {more:,} more; --out FILE.csv writes all of them.")
    if last == "score":
        line(f"The scores are {card['output']['scores']}, not probabilities.")
