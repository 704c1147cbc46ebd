"""`flbench data`: data sets, partitions, and communication graphs of decentralized methods."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from flbench.algorithms import catalogue as methods
from flbench.api import partitions
from flbench.cli import console, tables
from flbench.cli.words import layers, one_name
from flbench.config.resolve import resolve
from flbench.config.sources import from_values
from flbench.core.errors import UserError
from flbench.data import catalogue


def data(
    words: Sequence[str] | None,
    *,
    config: Path | None,
    out: Path | None,
    picture: Path | None,
    topology: str | None,
    as_json: bool,
    aliases: Mapping[str, str],
) -> None:
    """List the data sets, or show the partition of one, or a communication graph."""
    name, overrides = one_name(words or [], "data set")
    short_forms = dict(aliases)
    option = short_forms.pop("dataset", None)
    if None not in (name, option) and name != option:
        raise UserError(f"`{name}` and --dataset {option} name different data sets. Name one.")
    name = name or option
    wants_partition = bool(overrides or short_forms or config or out or picture or topology)
    short_forms |= {} if name is None else {"dataset": name}
    given = layers(overrides, short_forms, config)
    if topology is not None:
        # A decentralized method, whichever the configuration does not replace.
        method = from_values({"algorithm": "dfedavg"}, "--topology")
        graph = from_values({"algorithm.topology": topology}, "--topology")
        given = [method, *given, graph]
    resolved = resolve(given)[0]
    if name is None and not wants_partition:
        entries = catalogue.data_sets(resolved.data)
        if as_json:
            console.json(entries)
        else:
            tables.print_data_sets(entries, resolved.data)
    elif not wants_partition and not catalogue.is_available(resolved.data):
        entry = catalogue.data_set(resolved.data)
        console.json(entry) if as_json else tables.print_missing_data_set(entry)
    else:
        federation, path = partitions.make(resolved, out)
        if path is not None:
            told = f"partition saved to {path} and {path.with_suffix('.json').name}"
            console.notes([told]) if as_json else console.line(told)
        if topology is None:
            _save(picture, lambda figures: figures.partition(federation))
            entry = catalogue.partition(federation)
            console.json(entry) if as_json else tables.print_partition(federation)
            return
        network = methods.network(resolved.algorithm, resolved.seed, federation.clients)
        names = federation.partition.names
        drawn = network.graph, network.weights, network.positions, network.title, names
        _save(picture, lambda figures: figures.topology(*drawn))
        entry = {**network.entry(), "client_names": list(names)}
        console.json(entry) if as_json else tables.print_topology(entry)


def _save(picture: Path | None, draw: Callable[[Any], Any]) -> None:
    """Write a picture, which is drawn only if there is a file for it."""
    if picture is not None:
        from flbench.reports import data_figures
        from flbench.reports.picture import save

        save(draw(data_figures), picture)
