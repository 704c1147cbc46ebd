"""What the commands do."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from flbench import console, progress
from flbench.config import Config
from flbench.errors import UserError
from flbench.layers import Layer, from_file, from_overrides
from flbench.resolve import resolve
from flbench.yaml_text import to_yaml

if TYPE_CHECKING:
    from flbench.data.federation import Federation


def layers(
    config: Path | None, overrides: Sequence[str], algo: str | None, out: Path | None
) -> list[Layer]:
    """Return the layers of one run: the file, the overrides, the options."""
    found = [] if config is None else [from_file(config)]
    found.append(from_overrides(overrides))
    if algo is not None:
        found.append(Layer({"algorithm": {"name": algo}}, {"algorithm.name": "--algo"}))
    if out is not None:
        found.append(Layer({"output": {"dir": str(out)}}, {"output.dir": "--out"}))
    return found


def run(runs: Sequence[list[Layer]]) -> None:
    """Run one experiment after the other and print their tables."""
    # All configurations are checked before the first run starts.
    resolved = [resolve(found) for found in runs]
    from flbench import experiment

    folders = []
    for config, origins in resolved:
        with progress.reporter(f"{config.algorithm.name} on {config.data.name}") as reporter:
            folders.append(experiment.run(config, origins, reporter))
    show(folders)


def resume(path: Path, overrides: Sequence[str]) -> None:
    """Go on with a run."""
    from flbench import experiment

    with progress.reporter(f"resuming {path}") as reporter:
        experiment.resume(path, from_overrides(overrides), reporter)
    show([path])


def show(paths: Sequence[Path], picture: Path | None = None) -> None:
    """Print the tables of runs, and draw their curves if asked."""
    from flbench import results

    runs = [results.read(path) for path in paths]
    console.show(runs)
    if picture is not None:
        from flbench.reports import pictures

        lines = [(run.summary["algorithm"], run.rows) for run in runs]
        pictures.save(pictures.curves(lines), picture)


def print_config(runs: Sequence[list[Layer]]) -> None:
    """Print the resolved configurations with the origin of each value."""
    for found in runs:
        config, origins = resolve(found)
        console.text(to_yaml(config.tree(), origins))


def dry_run(runs: Sequence[list[Layer]]) -> None:
    """Print what runs would be, and estimates from a few measured steps."""
    resolved = [resolve(found) for found in runs]
    from flbench import estimate, experiment

    for config, origins in resolved:
        built = experiment.build(config)
        console.text(to_yaml(built.config.tree(), origins))
        console.notes(built.notes)
        console.partition(built.federation)
        console.estimate(estimate.measure(built))


def algos(name: str | None, *, as_json: bool) -> None:
    """List methods, or show one."""
    from flbench import catalogue

    if name is None:
        methods = catalogue.methods()
        console.json(methods) if as_json else console.methods(methods)
        return
    method = catalogue.method(name)
    console.json(method) if as_json else console.method(method)


def data(
    name: str | None,
    overrides: Sequence[str],
    *,
    config: Path | None,
    save: Path | None,
    picture: Path | None,
    as_json: bool,
) -> None:
    """List data sets, or show one and its partition."""
    from flbench import catalogue

    asked = bool(overrides or config or save or picture)
    found = layers(config, overrides, None, None)
    if name is not None:
        found.append(Layer({"data": {"name": name}}, {"data.name": "command line"}))
    resolved, _ = resolve(found)
    if name is None and not asked:
        sets = catalogue.data_sets(resolved.data)
        console.json(sets) if as_json else console.data_sets(sets, resolved.data)
        return
    if not asked and not catalogue.is_there(resolved.data):
        entry = catalogue.data_set(resolved.data)
        console.json(entry) if as_json else console.data_set(entry)
        return
    federation = _federation(resolved)
    if save is not None:
        _save_partition(save, federation, resolved)
    if picture is not None:
        from flbench.reports import pictures

        pictures.save(pictures.partition(federation), picture)
    console.json(catalogue.partition(federation)) if as_json else console.partition(federation)


def _federation(config: Config) -> "Federation":
    from flbench.data import federation, sources
    from flbench.experiment import settle

    config = settle(config)
    return federation.build(sources.load(config.data), config.data, config.partition, config.seed)


def _save_partition(path: Path, federation: "Federation", config: Config) -> None:
    from flbench.data import partition_files

    if path.suffix != ".npz":
        raise UserError(f"--save needs a file that ends with .npz, got {path}.")
    partition_files.save(federation.partition, federation.dataset, config.partition, path)
    console.text(f"partition saved to {path} and {path.with_suffix('.json').name}\n")
