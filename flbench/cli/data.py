"""`flbench data`: data sets and partitions."""

from collections.abc import Mapping, Sequence
from pathlib import Path

from flbench.api import partitions
from flbench.cli import console, tables
from flbench.cli.words import layers, one_name
from flbench.config.resolve import resolve
from flbench.data import catalogue


def data(
    words: Sequence[str] | None,
    *,
    config: Path | None,
    out: Path | None,
    picture: Path | None,
    as_json: bool,
    aliases: Mapping[str, str],
) -> None:
    """List the data sets, or show the partition of one."""
    name, overrides = one_name(words or [], "data set")
    wants_partition = bool(overrides or aliases or config or out or picture)
    named = {} if name is None else {"dataset": name}
    resolved = resolve(layers(overrides, {**aliases, **named}, config))[0]
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
        federation = partitions.make(resolved, out)
        if out is not None:
            told = f"partition saved to {out} and {out.with_suffix('.json').name}"
            console.notes([told]) if as_json else console.line(told)
        if picture is not None:
            from flbench.reports import data_figures
            from flbench.reports.picture import save

            save(data_figures.partition(federation), picture)
        entry = catalogue.partition(federation)
        console.json(entry) if as_json else tables.print_partition(federation)
