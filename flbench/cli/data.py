"""`flbench data`: data sets, partitions, and communication graphs of decentralized methods."""

from collections.abc import Mapping, Sequence
from pathlib import Path

from flbench.algorithms import catalogue as algorithm_catalogue
from flbench.api import partitions
from flbench.cli import console, tables, words
from flbench.cli.layers import CommandLine
from flbench.config.resolve import resolve
from flbench.config.schema import Config
from flbench.config.sources import from_values
from flbench.core.errors import UserError
from flbench.data import catalogue
from flbench.data.federation import Federation


def data(
    items: Sequence[str],
    *,
    config: Path | None,
    aliases: Mapping[str, str],
    out: Path | None,
    picture: Path | None,
    topology: str | None,
    as_json: bool,
) -> None:
    """List the data sets, or show the partition of one, or a communication graph.

    Args:
        items: At most one name of a data set, and overrides `key=value`.
        config: Configuration file.
        aliases: Texts of the short forms that the user gave, by the name of the option.
        out: File for the partition.
        picture: File for a picture of the partition or of the graph.
        topology: Name of the graph to show instead of the partition.
        as_json: Whether to print JSON instead of tables.
    """
    name, overrides = words.one_name(items, "data set")
    short_forms = dict(aliases)
    option = short_forms.pop("dataset", None)
    if None not in (name, option) and name != option:
        raise UserError(f"`{name}` and --dataset {option} name different data sets. Name one.")
    name = name or option
    wants_partition = bool(overrides or short_forms or config or out or picture or topology)
    short_forms |= {} if name is None else {"dataset": name}
    layers = CommandLine(overrides, short_forms, config).layers()
    if topology is not None:
        # A decentralized method, whichever the configuration does not replace.
        method = from_values({"algorithm": "dfedavg"}, "--topology")
        graph = from_values({"algorithm.topology": topology}, "--topology")
        layers = [method, *layers, graph]
    resolved = resolve(layers)[0]
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
            _show_partition(federation, picture, as_json=as_json)
        else:
            _show_topology(resolved, federation, picture, as_json=as_json)


def _show_partition(federation: Federation, picture: Path | None, *, as_json: bool) -> None:
    if picture is not None:
        from flbench.reports import data_figures
        from flbench.reports.picture import save

        save(data_figures.partition(federation), picture)
    if as_json:
        console.json(catalogue.partition(federation))
    else:
        tables.print_partition(federation)


def _show_topology(
    config: Config, federation: Federation, picture: Path | None, *, as_json: bool
) -> None:
    network = algorithm_catalogue.network(config.algorithm, config.seed, federation.clients)
    names = federation.partition.names
    if picture is not None:
        from flbench.reports import data_figures
        from flbench.reports.picture import save

        drawing = data_figures.topology(
            network.graph, network.weights, network.positions, network.title, names
        )
        save(drawing, picture)
    entry = {**network.entry(), "client_names": list(names)}
    console.json(entry) if as_json else tables.print_topology(entry)
