"""What the user sees: tables and text."""

import json as json_module
import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

from flbench.config.schema import DataConfig
from flbench.reports.tables import Block, share, size
from flbench.reports.terminal import duration, open_console

if TYPE_CHECKING:
    from flbench.bench.measure import Case
    from flbench.data.federation import Federation
    from flbench.experiment.estimate import Estimate
    from flbench.reproduce.report import Absent, Report
    from flbench.reproduce.schema import Paper
    from flbench.results.reading import Run
    from flbench.results.study_folder import Study
    from flbench.tracking.mlflow_entry import Sent

SHADES = " ░▒▓█"


def text(lines: str) -> None:
    """Print text as it is."""
    sys.stdout.write(lines)


def json(value: object) -> None:
    """Print JSON."""
    sys.stdout.write(json_module.dumps(value, indent=1, default=str) + "\n")


def notes(lines: Sequence[str]) -> None:
    """Print what the user must know, one line each, on the error stream."""
    for line in lines:
        open_console(errors=True).print(f"note: {line}", soft_wrap=True)


FIGURES = {
    "accuracy": "accuracy",
    "balanced_accuracy": "balanced\naccuracy",
    "macro_f1": "macro F1",
    "rare_recall": "rare-class\nrecall",
    "worst10_accuracy": "worst 10 %\nof clients",
}


def show(runs: "Sequence[Run]") -> None:
    """Print one run in full, or several side by side."""
    console = open_console()
    if len(runs) == 1:
        _show_one(console, runs[0])
    console.print(_comparison(runs))
    for run in runs:
        report = "/report.html" if run.finished else ""
        console.print(f"{run.summary['algorithm']}: {run.path}{report}", soft_wrap=True)
        if vain := run.summary["diverged"] + run.summary["trainings_without_step"]:
            total = run.summary["client_trainings"]
            console.print(f"  {vain} of {total} client trainings diverged or took no step")


def _table(title: str) -> Table:
    return Table(title=title, title_justify="left", box=SIMPLE_HEAD)


def _comparison(runs: "Sequence[Run]") -> Table:
    """Return the table of test figures at the round that validation chose."""
    table = _table("Test figures at the best round by validation; bytes and seconds of all rounds")
    table.add_column("method")
    table.add_column("round", justify="right")
    for title in (*FIGURES.values(), "up", "down", "seconds"):
        table.add_column(title, justify="right")
    for run in runs:
        summary, test = run.summary, run.summary["best"]["test"]
        traffic = summary["communication"]
        seconds = f"{summary['seconds']['total']:.1f}" if run.finished else "unfinished"
        up, down = (
            traffic["up_bytes"] + traffic["peer_bytes"],
            traffic["down_bytes"] + traffic["setup_bytes"],
        )
        table.add_row(
            summary["algorithm"],
            f"{summary['best']['round']}/{summary['rounds']}",
            *(share(test.get(name)) for name in FIGURES),
            size(up),
            size(down),
            seconds,
        )
    return table


def _show_one(console: Console, run: "Run") -> None:
    summary = run.summary
    table = _table(f"{summary['algorithm']} on {summary['dataset']}")
    table.add_column("figure")
    if not summary["last"]["test"] and not summary["last"]["validation"]:
        console.print("not evaluated yet")
        return
    same = summary["best"]["round"] == summary["last"]["round"]
    moments = ("last",) if same else ("best", "last")
    columns = [(moment, split) for moment in moments for split in ("validation", "test")]
    for moment, split in columns:
        table.add_column(f"{split}, {moment} round ({summary[moment]['round']})", justify="right")
    names = list(
        dict.fromkeys(name for moment, split in columns for name in summary[moment][split])
    )
    for name in names:
        cells = [summary[moment][split].get(name) for moment, split in columns]
        if not any(isinstance(cell, dict) for cell in cells):
            table.add_row(name, *(share(cell) for cell in cells))
    console.print(table)
    classes = [line for line in run.classes if line["moment"] == "last"]
    if classes:
        console.print(_per_class(classes))


def _per_class(lines: Sequence[Mapping[str, str]]) -> Table:
    table = _table("Classes, last round, test")
    for title in ("class", "train", "test", "precision", "recall", "F1", "rare", "confusable"):
        table.add_column(title, justify="left" if title == "class" else "right")
    for line in lines:
        table.add_row(
            line["name"],
            line["train_support"],
            line["test_support"],
            *(share(float(line[key])) for key in ("precision", "recall", "f1")),
            *("yes" if line[key] == "1" else "" for key in ("rare", "confusable")),
        )
    return table


def methods(entries: Sequence[Mapping[str, Any]]) -> None:
    """Print the list of methods."""
    table = _table("Methods (w: weights, C: classes, D: features)")
    for title in ("name", "paper", "down", "up", "client keeps"):
        table.add_column(title)
    for entry in entries:
        table.add_row(
            entry["name"],
            f"{entry['paper']['title']}, {entry['paper']['venue']}",
            *(entry[key] for key in ("down", "up", "keeps")),
        )
    open_console().print(table)


def method(entry: Mapping[str, Any]) -> None:
    """Print one method."""
    console, paper = open_console(), entry["paper"]
    doi = f", doi {paper['doi']}" if paper["doi"] else ""
    console.print(f"{entry['name']}: {paper['title']}\n{paper['authors']}, {paper['venue']}{doi}\n")
    console.print(entry["about"])
    console.print(f"\ndown: {entry['down']}\nup: {entry['up']}\nclient keeps: {entry['keeps']}\n")
    table = _table("Hyper-parameters (algorithm.*)")
    for title in ("name", "default", "range", "unit", "meaning"):
        table.add_column(title)
    for item in entry["parameters"]:
        default = "null" if item["default"] is None else str(item["default"]).lower()
        table.add_row(item["name"], default, item["range"], item["unit"] or "", item["meaning"])
    console.print(table)


def data_sets(entries: Sequence[Mapping[str, Any]], config: DataConfig) -> None:
    """Print the list of data sets."""
    table = _table(f"Data sets (data.root={config.root})")
    for title in ("name", "what", "classes", "shape", "found"):
        table.add_column(title)
    for entry in entries:
        shape = "" if entry["shape"] is None else "x".join(map(str, entry["shape"]))
        table.add_row(
            entry["name"], entry["title"], str(entry["classes"] or ""), shape, entry["found"] or "-"
        )
    console = open_console()
    console.print(table)
    console.print(
        f"A name is looked up as {config.root}/NAME.npz, NAME.zip, NAME/, then asked of"
        " torchvision."
        " data.path names a file or folder directly.",
        soft_wrap=True,
    )


def data_set(entry: Mapping[str, Any]) -> None:
    """Print one data set that is not there."""
    open_console().print(
        f"{entry['name']}: {entry['title']}; not found.\nLooked up: {', '.join(entry['looked_up'])}"
        f"\nComes from: {entry['from']}",
        soft_wrap=True,
    )


def network(entry: dict[str, Any]) -> None:
    """Print who mixes whose model, in numbers."""
    least, most = entry["neighbours"]
    drawn = " (drawn in each round; this is the first)" if entry["topology"] == "random" else ""
    lines = [
        f"{entry['topology']}: {entry['clients']} clients{drawn}",
        f"a client mixes {least if least == most else f'{least} to {most}'} others;"
        f" {entry['payloads']} payloads a round"
        f"{'' if entry['both_ways'] else '; links go one way'}",
        "connected"
        if entry["parts"] == 1
        else f"falls into {entry['parts']} parts that never hear of each other",
        f"spectral gap of the {entry['mixing']} weights: {entry['spectral_gap']:.4f}"
        " (1: all agree at once, 0: never)",
    ]
    text("\n".join(lines) + "\n")


def partition(federation: "Federation") -> None:
    """Print who holds what: a picture of clients x classes, and a table."""
    console = open_console()
    notes(federation.notes)
    counts = federation.counts
    console.print(
        f"{federation.dataset.name}: {federation.clients} clients, {federation.classes} classes,"
        f" partition {federation.partition.hash()[:12]}",
        soft_wrap=True,
    )
    parts = federation.partition.parts
    table = _table("Training samples by client and class (darker: more)")
    wide = federation.classes > 24
    table.add_column("client", justify="right")
    if wide:
        table.add_column("classes 0 to " + str(federation.classes - 1))
    else:
        for name in federation.dataset.classes:
            table.add_column(name, justify="right")
    for title in ("train", "validation", "test"):
        table.add_column(title, justify="right")
    top = max(1, int(counts.max()))
    for client in range(federation.clients):
        row = counts[client].tolist()
        cells = (
            ["".join(_shade(n, top) for n in row)]
            if wide
            else [f"{_shade(n, top)} {n or ''}" for n in row]
        )
        table.add_row(str(client), *cells, *(str(len(parts[part][client])) for part in parts))
    console.print(table)
    console.print(f"common test set: {len(federation.common)} samples", soft_wrap=True)


def estimate(found: "Estimate") -> None:
    """Print what a run would cost."""
    lines = {
        "parameters": f"{found.parameters:,}",
        "down": f"{size(found.down)} to each client and round",
        "up": f"{size(found.up)} from each client and round",
        "cohort": f"{found.cohort} clients, {found.steps} steps in a round",
        "time": f"{found.step * 1e3:.2f} ms a step, {found.client * 1e3:.2f} ms a client besides,"
        f" {duration(found.evaluate)} an evaluation, {duration(found.common)} on the common test set;"
        f" about {duration(found.total)} in all",
        "memory": f"samples {size(found.data)}, state {size(found.state)}, results of a round"
        f" {size(found.results)}; about {size(found.memory)} for the process",
    }
    for name, line in lines.items():
        open_console().print(f"{name:>10}: {line}", soft_wrap=True)


def bench(cases: "Sequence[Case]") -> None:
    """Print what engines cost beside a bare loop."""
    table = _table("Engines beside a bare PyTorch loop with all cores (in turn, medians)")
    table.add_column("engine")
    for title in (
        *("client\nsteps/s", "engine /\nbare loop", "of best\narithmetic", "of best\nbandwidth"),
        *("ready\nafter", "memory"),
    ):
        table.add_column(title, justify="right")
    for case in cases:
        table.add_row(
            case.engine,
            f"{case.speed:,.0f}",
            f"{case.ratio:.3f}",
            f"{100 * case.arithmetic:.1f} %",
            f"{100 * case.bandwidth:.1f} %",
            duration(case.startup),
            size(case.memory),
        )
    open_console().print(table)
    for case in cases:
        if case.chosen != case.engine:
            open_console().print(f"{case.engine} chose {case.chosen}.")
    if all(case.run for case in cases):
        _whole_runs(cases)


def _whole_runs(cases: "Sequence[Case]") -> None:
    table = _table("A whole run (bare loop: what it would take for the local epochs)")
    table.add_column("engine")
    for title in (*RUN, "bare loop", "all /\nbare loop"):
        table.add_column(title, justify="right")
    for case in cases:
        spent = [duration(case.run[key]) for key in (*RUN, "bare")]
        table.add_row(case.engine, *spent, f"{case.whole:.3f}")
    open_console().print(table)


RUN = ("train", "evaluate", "other")


def sent(path: Path, found: "Sent", address: str) -> None:
    """Print what was sent to MLflow."""
    counts = {name: count for name, count in vars(found).items() if count}
    parts = [f"{count} {name if count > 1 else name[:-1]}" for name, count in counts.items()]
    said = ", ".join(parts) if parts else "nothing new"
    open_console().print(f"{path} to {address}: {said}", soft_wrap=True)


def papers(known: "Mapping[str, Paper]") -> None:
    """Print the papers whose tables can be measured."""
    console = open_console()
    for name, paper in known.items():
        console.print(f"{name}: {paper.title}. {paper.venue}, doi {paper.doi}", soft_wrap=True)
        for number, shown in paper.tables.items():
            console.print(f"  --table {number:<16} {shown.caption}", soft_wrap=True)
    console.print("\nFor one of them: flbench reproduce NAME --dry-run", soft_wrap=True)


def jobs(states: Mapping[str, str]) -> None:
    """Print the runs that are needed, and which of them are there."""
    table = _table(f"{len(states)} runs")
    table.add_column("run")
    table.add_column("state")
    for title, state in states.items():
        table.add_row(title, state)
    open_console().print(table)


def absent(items: "Sequence[Absent]") -> None:
    """Print what cannot be had here."""
    if items:
        rows = tuple((item.what, item.why, str(item.cells)) for item in items)
        header = ("what", "why", "cells\nwithout")
        _block(Block("What could not be had here", header, rows, texts=(0, 1)))


def report(found: "Report", paths: Sequence[Path]) -> None:
    """Print published figures against measured, claims, and what is missing."""
    console = open_console()
    for block in found.blocks:
        _block(block)
    claims, said = found.claims, list(zip(found.claims.rows, found.verdicts, strict=True))
    evaluated = [row for row, verdict in said if verdict.measured is not None]
    if evaluated:
        _block(replace(claims, rows=tuple(evaluated)))
    for row, verdict in said:
        if verdict.measured is None and verdict.asked:
            console.print(f"{row[0]}: {row[-1]}", soft_wrap=True)
    if others := sum(not verdict.asked for _, verdict in said):
        console.print(f"{others} more claims are about tables that were not asked for.")
    console.print()
    absent(found.absent)
    for note in found.footnotes:
        console.print(note, soft_wrap=True)
    notes(found.remarks)
    for path in paths:
        console.print(str(path), soft_wrap=True)


def study(found: "Study") -> None:
    """Print what a study found so far: default against tuned, winners, what is missing."""
    from flbench.tuning import tables
    from flbench.tuning.failures import troubles
    from flbench.tuning.report import Report

    report = Report(found)
    console = open_console()
    console.print(f"{report.heading} ({report.facts['budget']})\n", soft_wrap=True)
    for block in (tables.brought(report), tables.rivals(report), tables.trials(report)):
        if block is not None:
            _block(block)
    for method in found.methods:
        if line := tables.winner(report, method):
            console.print(line, soft_wrap=True)
    notes([*report.remarks, *troubles(report)])
    page = found.path / "report.html"
    console.print(str(page if page.is_file() else found.path), soft_wrap=True)


def _block(block: Block) -> None:
    table = Table(box=SIMPLE_HEAD)
    for k, name in enumerate(block.header):
        table.add_column(name, justify="left" if k in block.texts else "right")
    for row in block.rows:
        table.add_row(*row)
    console = open_console()
    console.print(block.title, soft_wrap=True)
    if block.about:
        console.print(block.about, soft_wrap=True)
    console.print(table)


def _shade(count: int, top: int) -> str:
    return SHADES[0] if count == 0 else SHADES[1 + min(3, int(4 * (count / top) ** 0.5))]
