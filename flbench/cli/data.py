"""`flbench data`: data sets, partitions, and communication graphs of decentralized methods."""

from collections.abc import Sequence
from pathlib import Path

from flbench.algorithms import catalogue as algorithm_catalogue
from flbench.cli import console
from flbench.cli.layers import one_run, split_names
from flbench.cli.tables import data_sets as data_set_tables
from flbench.cli.tables import partitions as partition_tables
from flbench.config.resolve import resolve
from flbench.config.schema import Config
from flbench.config.sources import Layer
from flbench.core.errors import UserError
from flbench.data import catalogue, partition_files
from flbench.data.federation import Federation
from flbench.experiment.assembly import load_federation


def data(
    name_and_overrides: Sequence[str],
    *,
    config: str | None,
    save: Path | None,
    picture: Path | None,
    topology: str | None,
    as_json: bool,
) -> None:
    """List the data sets, or show the partition of one, or a communication graph.

    Args:
        name_and_overrides: At most one name of a data set, and overrides `key=value`.
        config: Configuration file.
        save: File for the partition.
        picture: File for a picture of the partition or of the graph.
        topology: Name of the graph to show instead of the partition.
        as_json: Whether to print JSON instead of tables.
    """
    name, overrides = split_names(name_and_overrides, "data set")
    wants_partition = bool(overrides or config or save or picture or topology is not None)
    resolved = _resolve(name, overrides, config=config, topology=topology)
    if name is None and not wants_partition:
        entries = catalogue.data_sets(resolved.data)
        if as_json:
            console.json(entries)
        else:
            data_set_tables.print_data_sets(entries, resolved.data)
    elif not wants_partition and not catalogue.is_available(resolved.data):
        entry = catalogue.data_set(resolved.data)
        console.json(entry) if as_json else data_set_tables.print_missing_data_set(entry)
    else:
        federation = load_federation(resolved)
        if save is not None:
            _save_partition(save, federation, resolved)
        if topology is None:
            _show_partition(federation, picture, as_json=as_json)
        else:
            _show_topology(resolved, federation.clients, picture, as_json=as_json)


def _resolve(
    name: str | None, overrides: Sequence[str], *, config: str | None, topology: str | None
) -> Config:
    layers = one_run(config, overrides)
    if topology is not None:
        # A decentralized method, whichever the configuration does not replace.
        method = Layer({"algorithm": {"name": "dfedavg"}}, {"algorithm.name": "--topology"})
        graph = Layer({"algorithm": {"topology": topology}}, {"algorithm.topology": "--topology"})
        layers = [method, *layers, graph]
    if name is not None:
        layers.append(Layer({"data": {"name": name}}, {"data.name": "command line"}))
    return resolve(layers)[0]


def _save_partition(path: Path, federation: Federation, config: Config) -> None:
    if path.suffix != ".npz":
        raise UserError(f"--save needs a file that ends with .npz, got {path}.")
    partition_files.save(federation.partition, federation.dataset, config.partition, path)
    console.text(f"partition saved to {path} and {path.with_suffix('.json').name}\n")


def _show_partition(federation: Federation, picture: Path | None, *, as_json: bool) -> None:
    if picture is not None:
        from flbench.reports import figures

        figures.save(figures.partition(federation), picture)
    if as_json:
        console.json(catalogue.partition(federation))
    else:
        partition_tables.print_partition(federation)


def _show_topology(config: Config, clients: int, picture: Path | None, *, as_json: bool) -> None:
    network = algorithm_catalogue.network(config.algorithm, config.seed, clients)
    if picture is not None:
        from flbench.reports import figures

        drawing = figures.topology(network.graph, network.weights, network.positions, network.title)
        figures.save(drawing, picture)
    entry = network.entry()
    console.json(entry) if as_json else partition_tables.print_topology(entry)
