"""Tables of data sets, from the entries of `flbench.data.catalogue`."""

from collections.abc import Mapping, Sequence
from typing import Any

from flbench.cli.console import line, titled_table
from flbench.config.schema import DataConfig
from flbench.reports.terminal import open_console


def print_data_sets(entries: Sequence[Mapping[str, Any]], config: DataConfig) -> None:
    """Print the list of data sets, and where each one was found."""
    table = titled_table(f"Data sets (data.root={config.root})")
    for title in ("name", "what", "classes", "shape", "found"):
        table.add_column(title)
    for entry in entries:
        shape = "" if entry["shape"] is None else "x".join(map(str, entry["shape"]))
        classes, found = str(entry["classes"] or ""), entry["found"] or "-"
        table.add_row(entry["name"], entry["title"], classes, shape, found)
    open_console().print(table)
    line(
        f"A data set NAME is searched as {config.root}/NAME.npz, NAME.zip and NAME/, then in"
        " torchvision's folders. data.path names a file or folder directly."
    )


def print_missing_data_set(entry: Mapping[str, Any]) -> None:
    """Print the paths where a data set was searched, and its origin.

    Args:
        entry: Description of the data set, as `flbench.data.catalogue.data_set` returns it. Its
            keys `name`, `title`, `looked_up` and `from` are printed.
    """
    line(f"{entry['name']}: {entry['title']}; not found.")
    line(f"Searched: {', '.join(entry['looked_up'])}")
    line(f"Source: {entry['from']}")
