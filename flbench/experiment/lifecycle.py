"""Run an experiment from its beginning, or resume it from its last checkpoint."""

import json
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Final

from flbench.config.resolve import resolve
from flbench.config.schema import Config
from flbench.config.sources import Layer, from_file, leaves
from flbench.config.yaml_text import to_yaml
from flbench.core.errors import ConfigError, DataError
from flbench.core.tree import nbytes
from flbench.core.types import State
from flbench.data import partition_files
from flbench.experiment import finalize, memory, provenance
from flbench.experiment.assembly import Experiment, build
from flbench.experiment.loop import Reporter, Seconds
from flbench.experiment.run_folder import RunFolder

# What a resumed run may change: where files lie and what computes, not what comes out.
CHANGEABLE_ON_RESUME: Final = (
    *("data.root", "engine.device", "engine.name", "engine.block", "engine.workers"),
    *("engine.address", "engine.state_memory", "tracking."),
    *("output.checkpoint_every", "output.predictions"),
)

OnStart = Callable[[Path, Config], object]


def run(
    config: Config,
    origins: dict[str, str],
    reporter: Reporter,
    on_start: OnStart | None = None,
) -> Path:
    """Run an experiment from its beginning; return its folder.

    Args:
        config: what to run.
        origins: where each value came from, for config.yaml.
        reporter: is told how it goes.
        on_start: is told the folder as soon as it can be resumed, before the first round.
    Raises: UserError, RunError, KeyboardInterrupt; what was written stays, and `resume` goes on.
    """
    begin = time.perf_counter()
    with ExitStack() as stack:
        experiment = build(config)
        stack.callback(experiment.engine.close)
        for note in experiment.notes:
            reporter.warn(note)
        config, samples = experiment.config, experiment.federation
        folder = RunFolder.create(
            config.output.dir,
            f"{samples.dataset.name}-{config.partition.scheme}",
            f"{config.algorithm.name}-seed{config.seed}",
        )
        stack.callback(folder.close)
        write_description(experiment, origins, folder)
        if on_start is not None:
            on_start(folder.path, config)
        seconds = Seconds(total=time.perf_counter() - begin)
        _run_to_end(experiment, experiment.start(), folder, reporter, seconds)
    return folder.path


def write_description(experiment: Experiment, origins: dict[str, str], folder: RunFolder) -> None:
    """Write who holds what, where and when it began, and the configuration."""
    samples = experiment.federation
    packed, description = partition_files.encode(
        samples.partition, samples.dataset, experiment.config.partition
    )
    folder.write("partition.npz", packed)
    folder.write("partition.json", description)
    folder.write_json("provenance.json", provenance.now())
    # The configuration comes last: a folder that has it can be resumed.
    folder.write("config.yaml", to_yaml(experiment.config.tree(), origins))


def resume(
    path: Path, overrides: Layer, reporter: Reporter, on_start: OnStart | None = None
) -> Path:
    """Go on with a run from its last checkpoint, or from its beginning if there is none yet.

    Args:
        path: the run folder.
        overrides: of keys that do not change results (CHANGEABLE_ON_RESUME).
        reporter: is told how it goes.
        on_start: is told the folder and the configuration before the first round.
    Raises: UserError if the folder is no run, or belongs to another configuration.
    """
    begin = time.perf_counter()
    with ExitStack() as stack:
        folder = RunFolder.reopen(path)
        stack.callback(folder.close)
        written, _ = resolve([from_file(path / "config.yaml")])
        config, _ = resolve([from_file(path / "config.yaml"), overrides])
        _check_unchanged(written, config, path)
        if (path / "summary.json").exists():
            reporter.warn(f"{path} is finished: there is nothing to go on with.")
            return path
        experiment = build(config)
        stack.callback(experiment.engine.close)
        _check_data(experiment, path)
        if not folder.checkpoint("last").exists():
            reporter.warn("there is no checkpoint yet: the run starts anew.")
        state, seconds = experiment.restore(folder)
        if state.round:
            reporter.warn(f"goes on after round {state.round}.")
        if on_start is not None:
            on_start(path, experiment.config)
        seconds.total += time.perf_counter() - begin
        _run_to_end(experiment, state, folder, reporter, seconds)
    return folder.path


def _run_to_end(
    experiment: Experiment, state: State, folder: RunFolder, reporter: Reporter, seconds: Seconds
) -> None:
    """Run the rounds that are left, evaluate the best round's models, write tables and summary."""
    limit, size = experiment.config.engine.state_memory, nbytes(state.clients) / memory.GIB
    if memory.exceeds_limit(state.clients, limit):
        reporter.warn(
            f"what the clients keep, {size:.1f} GiB, lies in a mapped file beside the runs"
            f" (engine.state_memory={limit:g} GiB)."
        )
    loop = experiment.loop(folder, reporter, seconds)
    try:
        state = loop.run(state)
    except KeyboardInterrupt:
        reporter.warn(f"interrupted and saved. Go on with: flbench run --resume {folder.path}")
        raise
    finalize.write(experiment, loop, state)


def _check_unchanged(written: Config, wanted: Config, path: Path) -> None:
    """Raise a ConfigError for every key that a resumed run may not change."""
    before, after = leaves(written.tree()), leaves(wanted.tree())
    changed = [
        key
        for key in after
        if before.get(key) != after[key] and not key.startswith(CHANGEABLE_ON_RESUME)
    ]
    if changed:
        raise ConfigError(
            "\n".join(
                f"`{key}` was {before.get(key)!r} when {path} began and cannot become"
                f" {after[key]!r} on resume. Start a new run for it."
                for key in changed
            )
        )


def _check_data(experiment: Experiment, path: Path) -> None:
    """Raise a DataError if the data are not those that the run began with."""
    try:
        began = json.loads((path / "partition.json").read_text(encoding="utf-8"))["hash"]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise DataError(f"{path / 'partition.json'} cannot be read ({error}).") from error
    now = experiment.federation.partition.hash()
    if now != began:
        raise DataError(
            f"the data are not those that {path} began with (partition {now[:12]}, not"
            f" {began[:12]})."
            " Bring back the old files, or start a new run."
        )
