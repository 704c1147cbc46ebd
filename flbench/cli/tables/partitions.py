"""Tables of partitions and of communication graphs."""

from collections.abc import Mapping
from typing import Any

from flbench.cli.console import line, notes, text, titled_table
from flbench.core.errors import shortened
from flbench.core.text import one_line
from flbench.data.federation import Federation
from flbench.reports.terminal import open_console

SHADES = " ░▒▓█"
MOST_CLASS_COLUMNS = 24  # a table with more classes has one column for all of them
MOST_SHADES = 200  # with more classes, that column has the number of classes of a client
NAME_WIDTH = 60  # characters of a client's name
MOST_ROWS = 500  # clients in a table; laying out thousands of rows would take minutes


def print_partition(federation: Federation) -> None:
    """Print a table of clients: training samples by class, and the sizes of all parts.

    With more than `MOST_CLASS_COLUMNS` classes, a shade per class replaces the number, and with
    more than `MOST_SHADES` the number of the client's classes. Natural clients are shown with their
    names. The table has the first `MOST_ROWS` clients. Above it are the notes about the data and
    the hash of the partition, below it is the size of the common test set.

    Args:
        federation: The partitioned data set.
    """
    notes(federation.notes)
    has_classes = federation.dataset.targets is None
    what = f"{federation.classes} classes" if has_classes else "targets that are not classes"
    line(
        f"{federation.dataset.name}: {federation.clients} clients, {what},"
        f" partition {federation.partition.hash()[:12]}"
    )
    counts = federation.counts  # [N, C]
    largest = max(1, int(counts.max()))
    has_class_columns = federation.classes <= MOST_CLASS_COLUMNS
    has_shades = not has_class_columns and federation.classes <= MOST_SHADES
    title = "Training samples by client and class (darker: more)"
    table = titled_table(title if has_class_columns or has_shades else "Training samples by client")
    table.add_column("client", justify="right")
    names = federation.partition.names
    shifts = federation.partition.shifts
    if names:
        table.add_column("name")
    if shifts:  # its words are not cut: lines break between them
        words = [word for shift in shifts for word in shortened(shift, NAME_WIDTH).split()]
        table.add_column("shift", min_width=max(map(len, words)))
    if has_class_columns:
        for name in federation.dataset.classes:
            table.add_column(name, justify="right")
    elif has_shades:
        table.add_column(f"classes 0 to {federation.classes - 1}")
    else:
        table.add_column(f"classes of {federation.classes:,}", justify="right")
    for title in ("train", "validation", "test"):
        table.add_column(title, justify="right")
    parts = federation.partition.parts
    for client in range(min(federation.clients, MOST_ROWS)):
        row = counts[client].tolist()
        if has_class_columns:
            cells = [f"{_shade(count, largest)} {count or ''}" for count in row]
        elif has_shades:
            cells = ["".join(_shade(count, largest) for count in row)]
        else:
            cells = [str(len(row) - row.count(0))]
        own = [one_line(shortened(names[client], NAME_WIDTH))] if names else []
        own += [shortened(shifts[client], NAME_WIDTH)] if shifts else []
        table.add_row(str(client), *own, *cells, *(str(len(parts[part][client])) for part in parts))
    open_console().print(table)
    if federation.clients > MOST_ROWS:
        line(
            f"and {federation.clients - MOST_ROWS:,} more clients; `flbench data --json` prints all"
        )
    line(f"common test set: {len(federation.common)} samples")


def print_topology(entry: Mapping[str, Any]) -> None:
    """Print the numbers of a communication graph.

    Args:
        entry: The numbers, as `flbench.algorithms.catalogue.Network.entry` returns them.
    """
    least, most = entry["neighbours"]
    is_random = entry["topology"] == "random"
    drawn = " (drawn again in each round; this is the first round)" if is_random else ""
    directed = "" if entry["both_ways"] else "; links are directed"
    connected = (
        "connected"
        if entry["parts"] == 1
        else f"not connected: {entry['parts']} parts that exchange no models with each other"
    )
    lines = (
        f"{entry['topology']}: {entry['clients']} clients{drawn}",
        f"a client mixes the models of {least if least == most else f'{least} to {most}'} others;"
        f" {entry['payloads']} payloads per round{directed}",
        connected,
        f"spectral gap of the {entry['mixing']} mixing weights: {entry['spectral_gap']:.4f}"
        " (1: all clients agree after one round, 0: they never agree)",
    )
    text("\n".join(lines) + "\n")


def _shade(count: int, largest: int) -> str:
    """Return a character that is darker for a larger count, by the square root of its share."""
    return SHADES[0] if count == 0 else SHADES[1 + min(3, int(4 * (count / largest) ** 0.5))]
