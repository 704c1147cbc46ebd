"""`flbench run`: train and evaluate one method, or several one after the other."""

from collections.abc import Mapping, Sequence
from pathlib import Path

from flbench.api import progress
from flbench.cli import console
from flbench.cli.show import show
from flbench.cli.tables import estimates, partitions
from flbench.config.resolve import resolve
from flbench.config.sources import Layer, from_overrides
from flbench.config.yaml_text import to_yaml
from flbench.core.errors import RunError, UserError
from flbench.tracking import mirror


def refuse_with_resume(options: Mapping[str, object]) -> None:
    """Raise a UserError if one of these options, by its name, was given beside `--resume`."""
    if given := [name for name, value in options.items() if value]:
        raise UserError(
            f"{', '.join(given)} cannot be used with --resume: a resumed run keeps its"
            " configuration and its folder. Leave this out, or start a new run."
        )


def run(runs: Sequence[list[Layer]]) -> None:
    """Train one run after the other, and print their tables.

    Args:
        runs: Configuration layers of each run, see `flbench.cli.layers`.
    """
    # All configurations are checked before the first run starts.
    resolved = [resolve(layers) for layers in runs]
    for config, _ in resolved:
        mirror.check(config.tracking)
    from flbench.experiment import lifecycle

    methods = [config.algorithm.name for config, _ in resolved]
    folders: list[Path] = []
    known: set[str] = set()
    with mirror.Mirrors() as mirrors:
        for config, origins in resolved:
            title = f"{config.algorithm.name} on {config.data.title}"
            try:
                with progress.display(title, known) as display:
                    callbacks = [mirror.StartMirror(mirrors, display.on_note), display]
                    folders.append(lifecycle.run(config, origins, callbacks))
            except KeyboardInterrupt:
                if not_started := methods[len(folders) + 1 :]:
                    console.notes([f"not started: {', '.join(not_started)}."])
                raise
    _finish(folders, mirrors)


def resume(path: Path, overrides: Sequence[str]) -> None:
    """Resume an interrupted run, and print its tables."""
    from flbench.experiment import lifecycle

    with mirror.Mirrors() as mirrors, progress.display(f"resuming {path}") as display:
        callbacks = [mirror.StartMirror(mirrors, display.on_note), display]
        lifecycle.resume(path, from_overrides(overrides), callbacks)
    _finish([path], mirrors)


def print_config(runs: Sequence[list[Layer]]) -> None:
    """Print the resolved configurations, with the origin of each value as a comment."""
    for layers in runs:
        config, origins = resolve(layers)
        console.text(to_yaml(config.tree(), origins))


def dry_run(runs: Sequence[list[Layer]]) -> None:
    """Print configuration, partition, and estimates of size, time and memory."""
    resolved = [resolve(layers) for layers in runs]
    from flbench.experiment import assembly, estimate

    for config, origins in resolved:
        built = assembly.build(config)
        console.text(to_yaml(built.config.tree(), origins))
        console.notes(built.messages())
        partitions.print_partition(built.federation)
        try:
            estimates.print_estimate(estimate.measure(built))
        finally:
            built.engine.close()


def _finish(folders: Sequence[Path], mirrors: mirror.Mirrors) -> None:
    """Print the tables of finished runs, and wait until MLflow has them.

    Raises:
        RunError: In one of the runs no client finished a training.
    """
    show(folders)
    console.notes(mirrors.finish())
    from flbench.api import running

    if failures := [reason for folder in folders if (reason := running.failure(folder))]:
        raise RunError("\n".join(failures))
