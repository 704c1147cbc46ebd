"""Running an experiment from its beginning, or resuming it from its last checkpoint."""

import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Final, NamedTuple

from flbench.callbacks import Callback, CallbackList
from flbench.callbacks.run_view import Memory
from flbench.config import trust
from flbench.config.resolve import resolve_written
from flbench.config.schema import Config
from flbench.config.sources import Layer, leaves
from flbench.core import files
from flbench.core.errors import CallbackError, ConfigError, RunError, UserError
from flbench.core.plain_yaml import to_yaml
from flbench.core.storage import GIB
from flbench.core.system_errors import as_flbench_errors
from flbench.core.tree import nbytes
from flbench.core.types import State
from flbench.data import partition_files
from flbench.data.federation import Federation
from flbench.engine.base import find_device
from flbench.experiment import checkpoint, finalize, own_methods, provenance
from flbench.experiment.assembly import Experiment, build
from flbench.experiment.loop import FederatedLoop, Seconds
from flbench.experiment.predictions import PARTS
from flbench.experiment.row_files import ClientRows
from flbench.experiment.run_folder import RunFolder
from flbench.models import freezing
from flbench.results.reading import is_finished
from flbench.workers.pool import LostError

# Keys that may change on resume because they do not change results: locations of files, and what
# the computation runs on. An entry that ends with a dot stands for a whole section.
CHANGEABLE_ON_RESUME: Final = (
    *("data.root", "engine.device", "engine.name", "engine.block", "engine.workers"),
    *("engine.address", "engine.state_memory", "engine.wait_seconds", "tracking."),
    *("output.checkpoint_every", "output.checkpoint_seconds", "output.predictions"),
)

HowToResume = Callable[[Path], str]


class Supplied(NamedTuple):
    """What a job of many gets that would otherwise load its data, and choose its folder, itself.

    Attributes:
        path: The run folder; None for a new one below `output.dir`.
        federation: The samples that `data` and `partition` of the configuration describe.
        partition: Content of partition.npz and of partition.json; see `partition_files.encode`.
    """

    path: Path | None
    federation: Federation
    partition: tuple[bytes, bytes]


class Restored(NamedTuple):
    """What is read from a checkpoint.

    Attributes:
        state: The state.
        seconds: Time spent until then.
        memory: What it stores for callbacks.
    """

    state: State
    seconds: Seconds
    memory: Memory


def run(
    config: Config,
    origins: dict[str, str],
    callbacks: Sequence[Callback] = (),
    how_to_resume: HowToResume = RunFolder.command_to_resume,
    supplied: Supplied | None = None,
    parts: tuple[str, ...] = PARTS,
) -> Path:
    """Run an experiment from its beginning.

    Args:
        config: Configuration of the run.
        origins: Origin of each value by its dotted path, for the comments in config.yaml.
        callbacks: Callbacks. Their hook `on_run_start` is called before the first round, as soon
            as the run can be resumed.
        how_to_resume: Function from a run folder to what the user calls to resume it.
        supplied: Data and folder of a job of many; None to load the data, and to make a new folder
            below `output.dir`.
        parts: Parts of the clients' samples that models are evaluated on. Without `test`, as for a
            trial of a search, the run writes no tables and no summary, and its last evaluation has
            the metrics of probabilities.

    Returns:
        The run folder.

    Raises:
        UserError: Data, configuration and callbacks do not fit together, or the folder cannot be
            written.
        RunError: The run failed. The folder keeps what was written, and `resume` continues the run.
        KeyboardInterrupt: The user interrupted the run. It is saved, and `resume` continues it.
    """
    begin = time.perf_counter()
    path, federation, partition = supplied or (None, None, None)
    with ExitStack() as stack:
        told = CallbackList(callbacks)
        experiment = _built(stack, config, federation, told)
        for sentence in experiment.notes:
            told.on_note(sentence)
        config, federation = experiment.config, experiment.federation
        if path is None:
            names = map(files.short_name, (federation.dataset.name, config.partition.title))
            above, name = config.output.dir / "-".join(names), config.algorithm.name
            folder = RunFolder.make(above, f"{name}-seed{config.seed}", "checkpoints")
        else:
            folder = RunFolder.at(path)
        stack.callback(folder.close)
        folder.resume_command = how_to_resume(folder.path)
        partition = partition or partition_files.encode(
            federation.partition, federation.dataset, config.partition
        )
        _describe(experiment, origins, folder, partition)
        seconds = Seconds(total=time.perf_counter() - begin)
        start = Restored(experiment.start(), seconds, Memory())
        _run_to_end(experiment, start, folder, told, parts)
    return folder.path


def _describe(
    experiment: Experiment,
    origins: dict[str, str],
    folder: RunFolder,
    partition: tuple[bytes, bytes],
) -> None:
    """Write partition, provenance and configuration of a run into its folder; see `run`."""
    about = provenance.now(own_methods.modules(experiment.config), experiment.module)
    folder.rewind(0)
    for name, content in zip(("partition.npz", "partition.json"), partition, strict=True):
        folder.write(name, content)
    folder.write_json("provenance.json", about)
    folder.save_frozen(freezing.values(experiment.net))
    # The configuration is written last, because a folder that contains it can be resumed.
    tree = experiment.config.tree()
    folder.write("config.yaml", to_yaml(tree, origins))
    trust.record(folder.path, tree)


def resume(
    path: Path,
    overrides: Layer,
    callbacks: Sequence[Callback] = (),
    how_to_resume: HowToResume = RunFolder.command_to_resume,
    federation: Federation | None = None,
    parts: tuple[str, ...] = PARTS,
) -> Path:
    """Resume a run from its last checkpoint, or restart it if there is none yet.

    Args:
        path: The run folder.
        overrides: New values of keys that may change on resume (CHANGEABLE_ON_RESUME).
        callbacks: Callbacks: those that the run began with, in the same order, so that each gets
            what it remembered at the checkpoint.
        how_to_resume: Function from a run folder to what the user calls to resume it.
        federation: The samples that a job of many began with; None to load them.
        parts: Parts of the clients' samples that models are evaluated on; see `run`.

    Returns:
        The run folder.

    Raises:
        UserError: The folder is not a run folder, another process writes to it, an override changes
            a key that must stay, the folder names a foreign Ray cluster, or data, checkpoint or
            callbacks do not belong to the run.
        RunError: The run failed. The folder keeps what was written.
        KeyboardInterrupt: The user interrupted the run. It is saved, and can be resumed again.
    """
    begin = time.perf_counter()
    with ExitStack() as stack:
        folder = RunFolder.reopen(path)
        stack.callback(folder.close)
        folder.resume_command = how_to_resume(path)
        written, _ = resolve_written(path / "config.yaml")
        config, _ = resolve_written(path / "config.yaml", overrides)
        _check_unchanged(written, config, path)
        told = CallbackList(callbacks)
        if is_finished(path):
            told.on_note(f"{path} is finished: there is nothing to resume.")
            return path
        experiment = _built(stack, config, federation, told, path)
        samples = experiment.federation
        partition_files.check_unchanged(
            path,
            samples.partition,
            samples.dataset,
            "Restore the old files, or start a new run.",
            has_samples=federation is None,
        )
        if not folder.checkpoint("last").exists():
            told.on_note("there is no checkpoint yet: the run starts from the beginning.")
        restored = _restored(experiment, folder)
        if restored.state.round:
            told.on_note(f"resuming from round {restored.state.round}.")
        restored.seconds.total += time.perf_counter() - begin
        _run_to_end(experiment, restored, folder, told, parts)
    return folder.path


def _restored(experiment: Experiment, folder: RunFolder) -> Restored:
    """Restore the last checkpoint of a run folder.

    Metrics in the folder that are newer than the checkpoint are removed.

    Returns:
        The state of the checkpoint, and what else it stores. If there is no checkpoint: the state
        before the first round, and nothing else.

    Raises:
        DataError: The checkpoint is damaged or belongs to another configuration.
    """
    path = folder.checkpoint("last")
    if not path.exists():
        folder.rewind(0)
        folder.client_rows = ClientRows()
        return Restored(experiment.start(), Seconds(), Memory())
    config_hash = experiment.config.hash()
    state, extra, folder.client_rows = checkpoint.read(path, config_hash, experiment.storage)
    with checkpoint.reading(path):
        if state.stage >= len(experiment.algorithm.stages()):
            raise ValueError(f"there is no stage {state.stage}")
        lines, seconds = int(extra.pop("rows")), Seconds(**extra.pop("seconds"))
        restored = Restored(state, seconds, Memory(**extra))
    folder.rewind(lines)
    return restored


def _built(
    stack: ExitStack,
    config: Config,
    federation: Federation | None,
    told: CallbackList,
    folder: Path | None = None,
) -> Experiment:
    """Return an experiment whose engine ends with the stack, and prepare the callbacks for it.

    With samples it is a job of many: `engine.workers=auto` trains in this process alone, and what
    frozen layers give for the samples is kept for the next job.
    """
    is_alone, asked = federation is not None, config.engine
    if not is_alone and asked.workers != 1 and find_device(asked.device).type == "cpu":
        from flbench.workers import fork_server

        fork_server.prepare()  # it imports PyTorch while this process reads data
    experiment = build(config, federation, folder=folder, tell=told.on_note)
    used = experiment.config.engine
    if not is_alone or used.workers != "auto" or used.name == "ray":
        experiment = experiment.with_workers(told.on_note)
    stack.callback(experiment.engine.close)
    if experiment.cached is not None and not is_alone:
        from flbench.experiment import frozen_outputs

        stack.callback(frozen_outputs.forget)
    told.prepare(experiment.config, experiment.judge.metrics)
    return experiment


def _run_to_end(
    experiment: Experiment,
    start: Restored,
    folder: RunFolder,
    callbacks: CallbackList,
    parts: tuple[str, ...],
) -> None:
    """Run the remaining rounds, evaluate the models of the best round, write tables and summary."""
    state, storage = start.state, experiment.storage
    for who, tree in (("clients keep", state.clients), ("server keeps", state.server)):
        if not storage.holds(size := nbytes(tree)):
            callbacks.on_note(
                f"the tensors that the {who} take {size / GIB:.1f} GiB and are stored in a mapped"
                f" file in output.dir, since they exceed engine.state_memory={storage.limit:g} GiB."
            )
    evaluator = experiment.evaluator(callbacks.on_note, parts)
    loop = FederatedLoop(experiment, evaluator, folder, callbacks, start.seconds)
    try:
        with as_flbench_errors(folder.resume_command):
            loop.begin(state, start.memory)
            try:
                state = loop.run(state)
            except (CallbackError, LostError) as error:
                where = "" if loop.saved is None else f" The run is saved after round {loop.saved}."
                text = f"{error}{where} Resume with: {folder.resume_command}"
                raise type(error)(text) from (error.__cause__ or error)
            if "test" in parts:
                with own_methods.named(experiment.algorithm.config):
                    loop.summary = finalize.write(loop, state)
            callbacks.call("on_run_end", loop.view())
    except BaseException as error:
        if isinstance(error, KeyboardInterrupt):
            where = " and saved" if loop.saved == loop.state.round else ""
            error.args = (f"interrupted{where}. Resume with: {folder.resume_command}",)
            callbacks.on_note(str(error))
        try:
            callbacks.call("on_exception", loop.view(), error)
        except (UserError, RunError) as failure:
            error.add_note(str(failure))
        raise


def _check_unchanged(written: Config, wanted: Config, path: Path) -> None:
    """Raise a ConfigError that names every changed key that must stay on resume."""
    before, after = (
        leaves(config.tree(), without=CHANGEABLE_ON_RESUME) for config in (written, wanted)
    )
    changed = [key for key in after if before.get(key) != after[key]]
    if changed:
        raise ConfigError(
            "\n".join(
                f"`{key}` was {before.get(key)!r} when {path} began and cannot become"
                f" {after[key]!r} on resume. Start a new run with the new value."
                for key in changed
            )
        )
