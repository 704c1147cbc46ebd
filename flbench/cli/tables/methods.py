"""Tables of methods, from the entries of `flbench.algorithms.catalogue`."""

from collections.abc import Mapping, Sequence
from typing import Any

from flbench.algorithms.catalogue import as_yaml
from flbench.cli.console import titled_table
from flbench.reports.terminal import open_console


def print_methods(entries: Sequence[Mapping[str, Any]]) -> None:
    """Print the list of methods."""
    table = titled_table("Methods (w: weights, C: classes, D: features)")
    for title in ("name", "paper", "down", "up", "client keeps"):
        table.add_column(title)
    for entry in entries:
        table.add_row(
            entry["name"],
            f"{entry['paper']['title']}, {entry['paper']['venue']}",
            *(entry[key] for key in ("down", "up", "keeps")),
        )
    open_console().print(table)


def print_method(entry: Mapping[str, Any]) -> None:
    """Print the description of one method, and its hyper-parameters."""
    console, paper = open_console(), entry["paper"]
    doi = f", doi {paper['doi']}" if paper["doi"] else ""
    console.print(f"{entry['name']}: {paper['title']}\n{paper['authors']}, {paper['venue']}{doi}\n")
    console.print(entry["about"])
    console.print(f"\ndown: {entry['down']}\nup: {entry['up']}\nclient keeps: {entry['keeps']}\n")
    if entry["needs"]:
        console.print(f"needs {'; '.join(entry['needs'])}\n")
    table = titled_table("Hyper-parameters (algorithm.*)")
    for title in ("name", "default", "range", "unit", "meaning"):
        table.add_column(title)
    for item in entry["parameters"]:
        default = as_yaml(item["default"])
        table.add_row(item["name"], default, item["range"], item["unit"] or "", item["meaning"])
    console.print(table)
